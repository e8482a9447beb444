//! Watches the memory of the whole process, and ends the process before it exceeds its limit.
//!
//! # Why
//! [`super::allocator`] counts large allocations only, not a million small ones, nor freed memory that the allocator
//! keeps. A container kills a process that reaches its limit without any message. The system knows how much memory the
//! process holds; asking it a hundred times a second costs less than a thousandth of a core.

#[cfg(target_os = "linux")]
use std::{fs::File, os::unix::fs::FileExt, thread, time::Duration};

use super::allocator::{bound_machine, job_limit};
use super::refuse::{JOB_HELP, MACHINE_HELP, refuse};

/// The pause between two checks.
#[cfg(target_os = "linux")]
const PAUSE: Duration = Duration::from_millis(10);

/// Bytes that the process may allocate between two checks.
const MARGIN: usize = 32 << 20;

/// After this many checks the available memory is read again: other processes may have ended.
#[cfg(target_os = "linux")]
const LOOKS: usize = 100;

/// From now on, ends the process before it holds more memory than the machine has, and once it holds more than
/// [`super::allocator::bound_job`] allows: `available` returns the limit of a process
/// that holds so many bytes. Where the system does not report the memory held, only large allocations are bounded.
pub(crate) fn watch(available: fn(usize) -> usize) {
    let mut limit = available(0);
    bound(limit);
    #[cfg(target_os = "linux")]
    {
        let Ok(file) = File::open("/proc/self/statm") else { return };
        let look = move || {
            for n in 1_usize.. {
                let Some(held) = resident(&file) else { return };
                let of_job = job_limit();
                if held > of_job {
                    refuse(
                        format_args!(
                            "the process holds {held} bytes; the memory limit allows {of_job}"
                        ),
                        JOB_HELP,
                    );
                }
                if held > below(limit) || n.is_multiple_of(LOOKS) {
                    limit = available(held).max(limit);
                    bound(limit);
                }
                if held > below(limit) {
                    refuse(
                        format_args!("the process holds {held} bytes, and may hold {limit}"),
                        MACHINE_HELP,
                    );
                }
                thread::sleep(PAUSE);
            }
        };
        // If the thread cannot start, the allocator's bound remains.
        drop(thread::Builder::new().name("resident".to_owned()).stack_size(128 << 10).spawn(look));
    }
}

/// Bounds large allocations; a part of the limit is left for allocations too small to be counted.
fn bound(limit: usize) {
    bound_machine(limit / 16 * 15);
}

/// The bytes that the process may hold below a limit.
fn below(limit: usize) -> usize {
    limit - (limit / 16).max(MARGIN).min(limit / 4)
}

/// Resident bytes of the process, without pages of files, which the system can reclaim.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn resident(file: &File) -> Option<usize> {
    let mut text = [0; 128];
    let n = file.read_at(&mut text, 0).ok()?;
    let mut pages = std::str::from_utf8(&text[..n]).ok()?.split_ascii_whitespace().skip(1);
    let mut next = || pages.next()?.parse::<usize>().ok();
    let (all, of_files) = (next()?, next()?);
    // SAFETY: asks for a constant of the system.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    Some(all.saturating_sub(of_files) * page)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::io::{Read, Write};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::process::allocator::{BoundedAllocator, bound_job};

    const CHILD: &str = "LABELMILL_TEST_OF_THE_WATCH";

    /// Simulates a machine where another process ends once this one holds 100 MB.
    fn available(held: usize) -> usize {
        if held < 100 << 20 { 200 << 20 } else { 400 << 20 }
    }

    /// Reads a file of 300 MB, which is not the process's own, then takes boxes of a kilobyte.
    fn holds_more_and_more() {
        watch(available);
        let mut file = tempfile::tempfile().unwrap();
        std::io::copy(&mut std::io::repeat(1).take(300 << 20), &mut file).unwrap();
        // SAFETY: nobody else has the file.
        #[allow(unsafe_code)]
        let mapped = unsafe { memmap2::Mmap::map(&file) }.unwrap();
        let sum: usize = mapped.iter().step_by(1024).map(|byte| *byte as usize).sum();
        let mut boxes = Vec::with_capacity(1 << 20);
        for n in 0_usize.. {
            boxes.push(Box::new([n as u8; 1024]));
            if n.is_multiple_of(100 << 10) {
                writeln!(std::io::stderr(), "{} MB after {sum}", n >> 10).unwrap();
                thread::sleep(10 * PAUSE);
            }
        }
    }

    #[test]
    fn a_process_ends_before_it_holds_more_than_is_available() {
        if std::env::var_os(CHILD).is_some() {
            return holds_more_and_more();
        }
        let message = refused("a_process_ends_before");
        assert!(
            message.contains("the process holds") && message.contains("may hold 419430400"),
            "{message}"
        );
        assert!(
            message.contains("300 MB after 307200") && !message.contains("400 MB"),
            "{message}"
        );
    }

    /// No allocation is large enough to be counted.
    #[test]
    fn a_process_ends_before_small_values_take_more_than_the_memory_limit() {
        if std::env::var_os(CHILD).is_some() {
            watch(|_| 1 << 40);
            bound_job(100 << 20);
            let mut boxes = Vec::with_capacity(1 << 10);
            for n in 0_usize..1 << 10 {
                boxes.push(vec![n as u8; 512 << 10]);
                thread::sleep(PAUSE / 5);
            }
            writeln!(std::io::stderr(), "beyond the limit with {}", boxes.len()).unwrap();
            return;
        }
        let message = refused("a_process_ends_before_small_values");
        assert!(message.contains("the process holds"), "{message}");
        assert!(message.contains("the memory limit allows 104857600"), "{message}");
        assert!(!message.contains("beyond the limit"), "{message}");
    }

    /// Runs a test in a process of its own, which must be refused memory; returns its stderr.
    fn refused(test: &str) -> String {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args([test, "--nocapture", "--test-threads", "1"]);
        let output = child.env(CHILD, "1").output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{message}");
        message
    }

    /// Whether the watch has read the available memory of a process that runs.
    static IS_READ: AtomicBool = AtomicBool::new(false);

    /// Simulates a machine that has 3 MiB at first, and a TiB from the first check on.
    fn available_later(held: usize) -> usize {
        IS_READ.store(held > 0, Ordering::Relaxed);
        if held > 0 { 1 << 40 } else { 3 << 20 }
    }

    /// Takes 2 MiB where the job may take 1 MiB, after the watch has changed the machine's bound.
    #[allow(unsafe_code)]
    fn takes_more_than_the_job_may() {
        // More than the machine has at first, so that the first check reads again what it has.
        let held = std::hint::black_box(vec![1_u8; 8 << 20]);
        watch(available_later);
        bound_job(1 << 20);
        while !IS_READ.load(Ordering::Relaxed) {
            thread::sleep(PAUSE);
        }
        thread::sleep(10 * PAUSE);
        // SAFETY: the layout is not empty.
        unsafe { BoundedAllocator(System).alloc(Layout::array::<u8>(2 << 20).unwrap()) };
        writeln!(std::io::stderr(), "beyond the bound, beside {}", held.len()).unwrap();
    }

    #[test]
    fn a_jobs_bound_stays_when_that_of_the_machine_changes() {
        if std::env::var_os(CHILD).is_some() {
            return takes_more_than_the_job_may();
        }
        let message = refused("a_jobs_bound_stays");
        assert!(message.contains("the memory limit allows 1048576"), "{message}");
        assert!(!message.contains("beyond the bound"), "{message}");
    }

    #[test]
    fn a_part_of_the_limit_is_left() {
        let of = |mib: usize| below(mib << 20) >> 20;
        assert_eq!([of(64), of(200), of(1024)], [48, 168, 960]);
    }
}
