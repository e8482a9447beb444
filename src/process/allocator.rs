//! The last bound on memory: an allocation beyond it ends the process with an error message and an exit code.
//!
//! # Why
//! Rows, ids and queries are counted where they are held, and functions known to make large values of small ones are
//! bounded. Others, such as the replacement of a pattern, or a text that is doubled in every step, would fill the
//! machine until the system kills a process, not always this one, or until an abort. An allocator cannot return an
//! error and must not unwind. It can print the cause and exit with a code: the commit protocol allows a process to end
//! at any moment.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::refuse::{JOB_HELP, MACHINE_HELP, refuse};

/// The smallest allocation that is counted. Smaller ones come by the million, and take a small part of a job's memory.
const COUNTED: usize = 1 << 20;

/// The size of a large page.
#[cfg(target_os = "linux")]
const LARGE_PAGE: usize = 2 << 20;

/// The unit in which memory is returned to the system: its page size or a multiple.
#[cfg(target_os = "linux")]
const PAGE: usize = 64 << 10;

/// Allocations from this size on return to the system as soon as they are freed.
const GIVEN_BACK: usize = 32 << 20;

/// Allocations from this size on are put on large pages.
const ON_LARGE_PAGES: usize = 8 << 20;

static HELD: AtomicUsize = AtomicUsize::new(0);

/// The most bytes that the counted allocations of the job may hold together.
static JOB_LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// The most bytes that the machine has for them, which changes while the job runs.
static MACHINE_LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Sets the bytes that the process may hold: the counted allocations together, before each of them, and everything
/// together, as [`super::resident`] sees it a hundred times a second.
pub(crate) fn bound_job(bytes: usize) {
    JOB_LIMIT.store(bytes, Ordering::Relaxed);
}

/// The bytes that the process may hold for a job.
#[cfg(target_os = "linux")]
pub(crate) fn job_limit() -> usize {
    JOB_LIMIT.load(Ordering::Relaxed)
}

/// Sets the bytes that the machine has for counted allocations.
pub(super) fn bound_machine(bytes: usize) {
    MACHINE_LIMIT.store(bytes, Ordering::Relaxed);
}

/// An allocator that counts and bounds large allocations.
pub struct BoundedAllocator<A>(pub A);

fn counted(bytes: usize) -> usize {
    if bytes < COUNTED { 0 } else { bytes }
}

fn take(bytes: usize) {
    let bytes = counted(bytes);
    if bytes > 0 {
        let held = HELD.fetch_add(bytes, Ordering::Relaxed);
        let wanted = held.saturating_add(bytes);
        if wanted > MACHINE_LIMIT.load(Ordering::Relaxed) {
            wanted_at_once(bytes, held);
        }
        let of_job = JOB_LIMIT.load(Ordering::Relaxed);
        if wanted > of_job {
            wanted_of_job(bytes, held, of_job);
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
        wanted_at_once(bytes, HELD.load(Ordering::Relaxed));
    }
    if bytes >= ON_LARGE_PAGES {
        ask_for_large_pages(memory, bytes);
    }
    memory
}

/// Asks the system to put memory on large pages, where the system leaves the choice to the program.
///
/// # Why
/// Tables of counts and ids are accessed at random. On pages of 4 KB nearly every access misses the TLB: random
/// prefetched lines of a table of 400 MB took 8.0 ns each on pages of 4 KB and 4.3 ns on pages of 2 MB, of one of 115
/// MB 5.0 and 3.2 ns (one thread of an AMD EPYC in a virtual machine).
fn ask_for_large_pages(memory: *mut u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        let skipped = memory.align_offset(LARGE_PAGE);
        let aligned = bytes.saturating_sub(skipped) / LARGE_PAGE * LARGE_PAGE;
        // SAFETY: these pages are part of what was just allocated, and the advice changes none of their contents.
        #[allow(unsafe_code)]
        unsafe {
            libc::madvise(memory.wrapping_add(skipped).cast(), aligned, libc::MADV_HUGEPAGE);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (memory, bytes);
}

/// Returns the pages of memory that is about to be freed to the system at once.
///
/// # Why
/// An allocator keeps freed memory for a tenth of a second. A text that doubles in every step frees gigabytes in that
/// time: a container of 1.5 GB killed a process whose values took 750 MB.
///
/// # Safety
/// Nobody may read the memory any more.
#[allow(unsafe_code)]
unsafe fn give_pages_back(memory: *mut u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        let skipped = memory.align_offset(PAGE);
        let aligned = bytes.saturating_sub(skipped) / PAGE * PAGE;
        // SAFETY: these pages are part of one allocation, and nobody reads what was in them.
        unsafe {
            libc::madvise(memory.wrapping_add(skipped).cast(), aligned, libc::MADV_DONTNEED);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (memory, bytes);
}

#[cold]
fn wanted_at_once(bytes: usize, held: usize) -> ! {
    refuse(
        format_args!("{bytes} bytes wanted at once, while large values and tables hold {held}"),
        MACHINE_HELP,
    )
}

#[cold]
fn wanted_of_job(bytes: usize, held: usize, limit: usize) -> ! {
    refuse(
        format_args!(
            "{bytes} bytes wanted at once, while large values and tables hold {held}; the memory limit allows {limit}"
        ),
        JOB_HELP,
    )
}

// SAFETY: every call is forwarded to the inner allocator, and only memory that came from it is returned to it.
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
        if layout.size() >= GIVEN_BACK && bytes > layout.size() {
            // SAFETY: the size is not 0 and the caller promises that it fits the alignment; the old memory is copied
            // before it is given back, and the new one is another.
            unsafe {
                let moved = self.alloc(Layout::from_size_align_unchecked(bytes, layout.align()));
                moved.copy_from_nonoverlapping(memory, layout.size());
                self.dealloc(memory, layout);
                return moved;
            }
        }
        take(bytes);
        // SAFETY: as in `alloc`.
        let moved = checked(unsafe { self.0.realloc(memory, layout, bytes) }, bytes);
        give(layout.size());
        moved
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        give(layout.size());
        // SAFETY: as in `alloc`; nobody reads freed memory any more.
        unsafe {
            if layout.size() >= GIVEN_BACK {
                give_pages_back(memory, layout.size());
            }
            self.0.dealloc(memory, layout);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::alloc::System;
    use std::io::Write;

    use super::*;
    use crate::process::refuse::tests::{CHILD, child};

    /// Takes and gives back five megabytes at a time, then twelve at once where ten are allowed.
    #[allow(unsafe_code)]
    fn takes_too_much() {
        bound_job(10 << 20);
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

    /// The system lists the flags of each mapping; `hg` stands for the advice.
    #[test]
    #[cfg(target_os = "linux")]
    #[allow(unsafe_code)]
    fn large_allocations_are_on_large_pages_and_keep_their_contents() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            writeln!(std::io::stderr(), "skipped: there are no transparent large pages").unwrap();
            return;
        }
        let (allocator, n) = (BoundedAllocator(System), 40 << 20);
        let of = |bytes: usize| Layout::array::<u8>(bytes).unwrap();
        // SAFETY: no layout is empty, each is given back as it was taken, and only what was written or zeroed is read.
        let (bytes, is_advised) = unsafe {
            let start = allocator.alloc_zeroed(of(n));
            (0..n).step_by(1000).for_each(|at| *start.add(at) = (at % 251) as u8);
            let is_advised = has_advice(start.add(n / 2) as usize);
            let grown = allocator.realloc(start, of(n), 2 * n);
            let bytes = std::slice::from_raw_parts(grown, n).to_vec();
            allocator.dealloc(grown, of(2 * n));
            (bytes, is_advised)
        };
        assert!(is_advised);
        let want = |at: usize| if at.is_multiple_of(1000) { (at % 251) as u8 } else { 0 };
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == want(at)));
    }

    #[cfg(target_os = "linux")]
    fn has_advice(address: usize) -> bool {
        let mappings = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_inside = false;
        for line in mappings.lines() {
            let hex = |text: &str| usize::from_str_radix(text, 16).ok();
            let bounds = line.split(' ').next().and_then(|range| range.split_once('-'));
            if let Some((begin, end)) = bounds.and_then(|(b, e)| Some((hex(b)?, hex(e)?))) {
                is_inside = (begin..end).contains(&address);
            } else if is_inside && let Some(flags) = line.strip_prefix("VmFlags:") {
                return flags.split_whitespace().any(|flag| flag == "hg");
            }
        }
        false
    }

    /// Frees values that grow, as a text that is made longer step by step does.
    #[allow(unsafe_code)]
    fn grows_and_frees() {
        let allocator = BoundedAllocator(mimalloc::MiMalloc);
        let of = |step: usize| Layout::array::<u8>(step * (40 << 20)).unwrap();
        for step in 1..=12 {
            // SAFETY: no layout is empty, only what was allocated is written, and each is given back as it was taken.
            unsafe {
                let value = allocator.alloc(of(step));
                value.write_bytes(1, of(step).size());
                let grown = allocator.realloc(value, of(step), of(step + 1).size());
                assert_eq!(*grown.add(of(step).size() - 1), 1);
                allocator.dealloc(grown, of(step + 1));
            }
        }
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        writeln!(std::io::stderr(), "peak {peak}").unwrap();
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_is_freed_goes_back_to_the_system_at_once() {
        if std::env::var_os(CHILD).is_some() {
            return grows_and_frees();
        }
        let output = child("what_is_freed_goes_back").1;
        let peak = output.lines().find_map(|line| line.strip_prefix("peak ")).unwrap();
        let kilobytes: usize = peak.trim().trim_end_matches("kB").trim().parse().unwrap();
        // The last value and the one that it grows into; all that were ever freed take seven times as much.
        assert!(kilobytes < 1_100 << 10, "{peak}");
    }

    #[test]
    fn what_is_beyond_the_bound_ends_the_process_by_an_exit_code() {
        if std::env::var_os(CHILD).is_some() {
            return takes_too_much();
        }
        let (code, output) = child("what_is_beyond_the_bound");
        assert_eq!(code, Some(2), "{output}");
        assert!(output.contains("within the bound\nerror: there is not enough memory"), "{output}");
        assert!(output.contains("12582912 bytes wanted at once"), "{output}");
        let (found, help) = ("limit allows 10485760\n", "or raise engine.memory_limit");
        assert!(output.contains(found) && output.contains(help), "{output}");
        assert!(!output.contains("beyond the bound"), "{output}");
    }
}
