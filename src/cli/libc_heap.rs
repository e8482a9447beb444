//! Keeps memory for the small allocations of the C library that the process does not survive without.

/// Bytes that stay with the C library's allocator.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const RESERVE: usize = 1 << 20;

/// Gives the C library's allocator its memory now, and one heap for all threads.
///
/// # Why
/// A thread's first access to some variables, and the thread's start, take a few bytes from the C library's allocator.
/// With a heap for each thread, each begins with a mapping of megabytes. Where an address space is nearly full
/// (`ulimit -v`), it is refused, and the C library or the standard library ends the process by a signal. What is
/// allocated in Rust comes from another allocator, so that only C code, such as Zstandard, shares the heap.
pub(super) fn reserve() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: only what was allocated here is freed, and no other thread runs yet.
    #[allow(unsafe_code)]
    unsafe {
        /// Smaller than what the allocator maps by itself.
        const BLOCK: usize = 64 << 10;
        libc::mallopt(libc::M_ARENA_MAX, 1);
        let blocks = [(); RESERVE / BLOCK].map(|()| libc::malloc(BLOCK));
        // The allocator gives back the free end of its heap only: this allocation stays at the end.
        std::hint::black_box(libc::malloc(1));
        blocks.into_iter().for_each(|block| libc::free(block));
    }
}
