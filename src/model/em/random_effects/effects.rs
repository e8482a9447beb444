//! The effects of instances and the priors, and sums over labels.

/// The magnitudes of an effect, their weights, and the weight of none.
pub(super) const MAGNITUDES: [f64; 2] = [1.2, 2.4];
pub(super) const WEIGHTS: [f64; 2] = [0.4, 0.1];
pub(super) const NO_EFFECT: f64 = 0.5;

/// The precisions of the priors of a and b.
pub(super) const A_PRECISION: f64 = 2.0;
pub(super) const B_PRECISION: f64 = 100.0;

/// The sums of `[label, class]` over labels.
pub(super) fn sums_over_labels(cells: &[f64], n: usize) -> Vec<f64> {
    let mut sums = vec![0.0; n];
    for row in cells.chunks_exact(n.max(1)) {
        sums.iter_mut().zip(row).for_each(|(sum, cell)| *sum += cell);
    }
    sums
}

/// The softmax over labels, `[label, class]`.
pub(super) fn write_softmax(logits: &[f64], n: usize, out: &mut [f64]) {
    let mut max = vec![f64::NEG_INFINITY; n];
    for row in logits.chunks_exact(n) {
        max.iter_mut().zip(row).for_each(|(max, cell)| *max = max.max(*cell));
    }
    out.iter_mut()
        .zip(logits)
        .enumerate()
        .for_each(|(at, (p, cell))| *p = (cell - max[at % n]).exp());
    let sums = sums_over_labels(out, n);
    out.iter_mut().enumerate().for_each(|(at, p)| *p /= sums[at % n]);
}
