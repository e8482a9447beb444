//! Gets memory early for the small allocations of the C library that the process does not survive without.

/// Bytes that the C library's allocator gets at the start and does not return to the system.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const RESERVE: usize = 1 << 20;

/// Gives the C library's allocator its memory now, and one heap for all threads.
///
/// # Why
/// A thread's first access to some variables, and the thread's start, take a few bytes from the C library's allocator.
/// With a heap for each thread, each begins with a mapping of megabytes. Where an address space is nearly full
/// (`ulimit -v`), it is refused, and the C library or the standard library ends the process by a signal: of 12 starts
/// with 568 895 KB, 5 did, and with a reserve and one heap none of 1 900 with 120 to 700 MB.
///
/// Rust's allocations come from another allocator. C code, such as Zstandard, shares the heap and may use the reserve up;
/// a job of 10 M rows whose tables are compressed takes 1.2 s both ways (two threads on an AMD EPYC).
pub(crate) fn reserve() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: only what was allocated here is freed; `main` calls this before it starts a thread.
    #[allow(unsafe_code)]
    unsafe {
        /// Smaller than what the allocator maps by itself.
        const BLOCK: usize = 64 << 10;
        libc::mallopt(libc::M_ARENA_MAX, 1);
        let blocks = [(); RESERVE / BLOCK + 1].map(|()| std::hint::black_box(libc::malloc(BLOCK)));
        // The allocator returns the free end of its heap to the system: the last block stays there.
        blocks[..RESERVE / BLOCK].iter().for_each(|block| libc::free(*block));
    }
}
