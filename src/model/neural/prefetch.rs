//! Memory that is asked for before its numbers are wanted: rows of few annotators among many lie far from each other,
//! and waiting for one after the other is most of what moving them costs.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

/// Numbers in a line of the cache.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 16;

/// Asks for numbers and waits for none, so that what is done until they are wanted is not lost.
#[inline(always)]
#[allow(unsafe_code)]
pub(super) fn ask_for(values: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    for line in values.chunks(LINE) {
        // SAFETY: a hint, which reads nothing and which every x86-64 has; its address lies in the slice.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = values;
}
