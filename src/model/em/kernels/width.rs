//! Row lengths known at compile time, for the class counts with a specialised kernel.

/// Runs `$body` with `K` = the number of classes if it has a specialised kernel, else with `K` = 0.
macro_rules! for_classes {
    ($n:expr, $k:ident => $body:expr) => {
        for_classes!(@ $n, $k => $body, 2 3 4 5 6 7 8 9 10)
    };
    (@ $n:expr, $k:ident => $body:expr, $($literal:literal)*) => {
        match $n {
            $($literal => { const $k: usize = $literal; $body })*
            _ => { const $k: usize = 0; $body }
        }
    };
}

pub(super) use for_classes;

/// Whether this number of classes has a specialised kernel.
pub(super) fn has_kernel(n_classes: usize) -> bool {
    for_classes!(n_classes, K => K) > 0
}

/// The length of a row: `K`, known at compile time, or `n_classes` if `K` is 0.
#[inline(always)]
pub(super) const fn width<const K: usize>(n_classes: usize) -> usize {
    if K == 0 { n_classes } else { K }
}
