//! The last bound on memory: what would take more than the machine has ends in an error.
//!
//! # Why
//! Rows, ids and queries are counted where they are held, and the functions that are known to make much of little are
//! bounded. What neither sees, such as a replacement by a pattern, or a text that is doubled in every step, would fill
//! the machine until the system kills a process, not always this one, or end in an abort. An allocator cannot return an
//! error and must not unwind. It can say what is wrong and end the process by an exit code: the commit protocol holds
//! for a process that ends at any moment.

use std::alloc::{GlobalAlloc, Layout};
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::Stage;

/// Smaller ones are not counted: they come by the million, and make a small part of what a job holds.
const COUNTED: usize = 1 << 20;

static HELD: AtomicUsize = AtomicUsize::new(0);
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Lets allocations take so many bytes at once.
pub(super) fn bound(bytes: usize) {
    LIMIT.store(bytes, Ordering::Relaxed);
}

/// An allocator that counts large allocations.
pub struct BoundedAllocator<A>(pub A);

fn counted(bytes: usize) -> usize {
    if bytes < COUNTED { 0 } else { bytes }
}

fn take(bytes: usize) {
    let bytes = counted(bytes);
    if bytes > 0 {
        let held = HELD.fetch_add(bytes, Ordering::Relaxed);
        if held.saturating_add(bytes) > LIMIT.load(Ordering::Relaxed) {
            refuse(bytes, held);
        }
    }
}

fn give(bytes: usize) {
    let bytes = counted(bytes);
    if bytes > 0 {
        HELD.fetch_sub(bytes, Ordering::Relaxed);
    }
}

fn checked(memory: *mut u8, bytes: usize) -> *mut u8 {
    if memory.is_null() {
        refuse(bytes, HELD.load(Ordering::Relaxed));
    }
    memory
}

/// Ends the process. Nothing here allocates, and nothing waits for other threads.
#[cold]
#[allow(unsafe_code)]
fn refuse(bytes: usize, held: usize) -> ! {
    let _ = writeln!(
        std::io::stderr(),
        "error: there is not enough memory\n  found: {bytes} bytes wanted at once, while large values and tables hold \
         {held}\n  help: make smaller values, set a larger engine.memory_limit, or run on a larger machine",
    );
    // SAFETY: ends the process as it is; no destructor runs that could allocate or wait for a lock.
    unsafe { libc::_exit(i32::from(Stage::Spec.exit_code())) }
}

// SAFETY: every call is handed on to the allocator inside as it came, and only its own memory is given back to it.
#[allow(unsafe_code)]
unsafe impl<A: GlobalAlloc> GlobalAlloc for BoundedAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: the caller's promises are those that the inner allocator asks for.
        checked(unsafe { self.0.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: as in `alloc`.
        checked(unsafe { self.0.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        take(bytes);
        // SAFETY: as in `alloc`.
        let moved = checked(unsafe { self.0.realloc(memory, layout, bytes) }, bytes);
        give(layout.size());
        moved
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        give(layout.size());
        // SAFETY: as in `alloc`.
        unsafe { self.0.dealloc(memory, layout) }
    }
}

#[cfg(test)]
mod tests {
    use std::alloc::System;
    use std::process::Command;

    use super::*;

    const CHILD: &str = "LABELMILL_TEST_OF_THE_ALLOCATOR";

    /// Takes and gives back five megabytes at a time, then twelve at once where ten are allowed.
    #[allow(unsafe_code)]
    fn takes_too_much() {
        bound(10 << 20);
        let allocator = BoundedAllocator(System);
        let of = |mebibytes: usize| Layout::array::<u8>(mebibytes << 20).unwrap();
        for _ in 0..5 {
            // SAFETY: no layout is empty, and each is given back as it was taken.
            unsafe {
                let small = allocator.alloc(of(3));
                let grown = allocator.realloc(small, of(3), 5 << 20);
                allocator.dealloc(grown, of(5));
            }
        }
        writeln!(std::io::stderr(), "within the bound").unwrap();
        // SAFETY: the layout is not empty.
        unsafe { allocator.alloc_zeroed(of(12)) };
        writeln!(std::io::stderr(), "beyond the bound").unwrap();
    }

    #[test]
    fn what_is_beyond_the_bound_ends_the_process_by_an_exit_code() {
        if std::env::var_os(CHILD).is_some() {
            return takes_too_much();
        }
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["what_is_beyond_the_bound", "--nocapture", "--test-threads", "1"]);
        let output = child.env(CHILD, "1").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("within the bound\nerror: there is not enough memory"), "{said}");
        assert!(said.contains("12582912 bytes wanted at once"), "{said}");
        assert!(!said.contains("beyond the bound"), "{said}");
    }
}
