//! The two sweeps of every model whose likelihood is a product of confusion columns.
//!
//! ```text
//! E   T[i][k]      ~ prior[k] * product over the columns c said of i of likelihood[c][k]
//! M   counts[c][k] = sum over the instances i of which c was said of T[i][k]
//! ```
//! Blocks of instances and whole annotators are the units of work: each output cell has one owner, each sum one order,
//! so that the result does not depend on the number of threads. Class counts up to 10 have kernels of their own, in
//! which a row is an array in registers.

/// The least expected count in a confusion matrix, and the least probability in a prior.
pub const FLOOR: f64 = 1e-10;

/// The least probability in a confusion column: [`FLOOR`] over the annotations of ten billion.
pub const LEAST: f64 = 1e-20;

/// Runs `$body` with `K` = the number of classes where a kernel of its own exists, else with `K` = 0.
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

/// A row's length, known to the compiler where the kernel has its own.
#[inline(always)]
pub(super) const fn width<const K: usize>(n_classes: usize) -> usize {
    if K == 0 { n_classes } else { K }
}

/// Divides by the sum, applies `change`, and divides by the sum again; uniform where the sum is zero.
pub fn normalise(values: &mut [f64], change: impl Fn(f64) -> f64) {
    let sum: f64 = values.iter().sum();
    let uniform = 1.0 / values.len() as f64;
    values.iter_mut().for_each(|v| *v = change(if sum > 0.0 { *v / sum } else { uniform }));
    let sum: f64 = values.iter().sum();
    values.iter_mut().for_each(|v| *v /= sum);
}
