//! Prefetches memory into the cache.
//!
//! # Why
//! The parameter rows of a mini-batch's annotators, and the confusion columns of an instance, are scattered over a
//! large table; waiting for one memory read after the other is most of the cost of a step.
//!
//! A cache line on its way to the level-1 cache occupies one of about twenty buffers until it arrives, and a memory
//! read takes 250 ns or more: at best 10 ns per line. The level-2 cache has more buffers, and is fast enough: random
//! lines of a table of 38 MB took 3.5 ns each, and of a table of 400 MB 4.3 instead of 9.9 ns (one thread of an AMD
//! EPYC, pages of 2 MB). So [`prefetch`] loads a line into the level-2 cache.
//!
//! A row of parameters has several lines and is needed a few rows later, so [`prefetch_all`] loads it into the level-1
//! cache. A loop that does only the gather and the Adam update of a step (640 random annotators of 50 000 by 64
//! numbers, median of 11 interleaved runs on a busy virtual machine) takes 540 us without prefetching and 337 us with
//! it; for 100 numbers 792 and 424 us; for 2 000 annotators, whose table stays in the cache, 123 and 108 us.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

/// The bytes of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Starts loading the cache line of `values[at]` into the level-2 cache, without waiting for it. `at` may be out of
/// bounds.
#[inline(always)]
pub fn prefetch<T>(values: &[T], at: usize) {
    #[cfg(target_arch = "x86_64")]
    {
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

/// Starts loading all values into the level-1 cache, without waiting for them.
// Only networks have rows of parameters.
#[cfg_attr(not(feature = "neural"), allow(dead_code))]
#[inline(always)]
pub fn prefetch_all<T>(values: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for line in values.chunks(LINE / size_of::<T>()) {
        // SAFETY: a prefetch is a hint, which reads nothing; the address is in the slice.
        #[allow(unsafe_code)]
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = values;
}
