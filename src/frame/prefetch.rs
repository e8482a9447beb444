//! Prefetching of memory into the cache.

/// Asks the processor to bring the cache line of a value near, while other work goes on: into the second cache.
///
/// # Why
/// A line on its way to the first cache takes one of some twenty places there until it has come, and memory takes 250 ns
/// and more: 10 ns a line at best. The second cache has more places, and is near enough: random lines of a table of 38 MB
/// came in 3.5 ns each, of one of 400 MB in 4.3 rather than 9.9 (one thread of an AMD EPYC, pages of 2 MB).
#[inline(always)]
pub fn prefetch<T>(values: &[T], at: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        let start = values.as_ptr().wrapping_add(at);
        // SAFETY: a prefetch is a hint, which reads nothing and is valid for any address.
        #[allow(unsafe_code)]
        unsafe {
            _mm_prefetch::<_MM_HINT_T1>(start.cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (values, at);
}
