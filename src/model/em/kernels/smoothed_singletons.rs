//! Singleton annotators with [`Smoothing`] that treats the diagonal as other cells. Their columns depend only on the posterior
//! of their instance and on the weight of their annotation.

use super::logarithms::{larger, ln_ratio, log_share};
use super::row_arithmetic::{VECTOR, sum_of_terms};
use crate::model::confusion::Smoothing;

/// The smoothing of the columns of singleton annotators, the same for all of them.
#[derive(Clone, Copy)]
pub(super) struct SmoothedSingletons {
    smoothing: Smoothing,
    /// The smoothed count of a label that an annotator has not given.
    zero: f64,
    /// The sum of the smoothed counts of all labels but one that an annotator has not given.
    others: f64,
}

impl SmoothedSingletons {
    #[inline(always)]
    pub(super) fn new(smoothing: Smoothing) -> Self {
        debug_assert!(smoothing.diagonal == 0.0, "a column depends on its label");
        let zero = smoothing.smoothed(0.0);
        Self { smoothing, zero, others: smoothing.n_labels.saturating_sub(1) as f64 * zero }
    }

    /// Replaces the counts of columns, `[row, class]`, by shares. Returns the log-prior of all annotators, of whom
    /// `repeats` share each row.
    #[inline(always)]
    pub(super) fn estimate(self, repeats: &[u32], n_classes: usize, cells: &mut [f64]) -> f64 {
        let cells = &mut cells[..repeats.len() * n_classes];
        let mut log_prior = 0.0;
        if self.smoothing.has_pseudo_counts() {
            for (counts, repeats) in cells.chunks_exact(n_classes.max(1)).zip(repeats) {
                log_prior += f64::from(*repeats) * self.log_prior(counts, 1.0);
            }
        }
        for cell in cells {
            let count = self.smoothing.smoothed(*cell);
            *cell = count * (1.0 / (self.others + count));
        }
        log_prior
    }

    /// Adds the logarithms of the shares of an instance's annotators, each times its weight, to `sums`. Returns the
    /// annotators' log-prior. `posterior` and `sums` are equally long, at least [`VECTOR`] numbers. No share needs to be
    /// raised to the least likelihood, because none is below that of an unused label.
    ///
    /// # Why
    /// A count that smoothing does not change, or changes to that of an unused label, needs no logarithm for each
    /// annotator, see [`WeightSums`]. Most counts are such without pseudo-counts. An iteration over 1 M annotations by 5 M
    /// annotators, each annotation with a weight, took 25.4 ns per annotation with all logarithms and takes 18.2 (50
    /// classes, two cores of an AMD EPYC; 13.8 and 11.0 with 20 classes, 5.4 and 5.2 with 5).
    #[inline(always)]
    pub(super) fn add_logs(self, posterior: &[f64], weights: &[f64], sums: &mut [f64]) -> f64 {
        let mut log_prior = 0.0;
        if self.smoothing.has_pseudo_counts() {
            for weight in weights {
                log_prior += self.log_prior(posterior, *weight);
            }
        }
        let of_weights = WeightSums::new(self, weights);
        let (Some(posterior_end), Some(sums_end)) =
            (posterior.last_chunk::<VECTOR>(), sums.last_chunk::<VECTOR>())
        else {
            return log_prior;
        };
        // The last vector may begin before the end of the one before it. It is computed from sums without that one.
        let last = of_weights.added(*posterior_end, *sums_end);
        let vectors = posterior.as_chunks::<VECTOR>().0;
        for (posterior, sums) in vectors.iter().zip(sums.as_chunks_mut::<VECTOR>().0) {
            *sums = of_weights.added(*posterior, *sums);
        }
        if let Some(sums) = sums.last_chunk_mut::<VECTOR>() {
            *sums = last;
        }
        log_prior
    }

    /// The log-prior of a column with these counts, each times `weight`. Only off-diagonal smoothing changes it.
    #[inline(always)]
    fn log_prior(self, counts: &[f64], weight: f64) -> f64 {
        let (added, added_to_row) = (self.smoothing.everywhere, self.smoothing.added_to_row());
        sum_of_terms(
            counts,
            #[inline(always)]
            |count| log_share(weight * count, added) - log_share(weight * count, added_to_row),
        )
    }
}

/// Sums over the weights w of an instance's singleton annotators, from which the sum of their weighted logarithms follows
/// for most posteriors q. With the sum B of the smoothed counts of the other labels:
///
/// ```text
/// sum_w w ln(w q / (w q + B)) = -v W0 + v^2 W1 / 2 - v^3 W2 / 3 + v^4 W3 / 4 - ...      v = B / q, Wn = sum_w 1 / w^n
/// ```
/// if the count w q is not smoothed. If all counts are smoothed to that of an unused label, their logarithms are equal.
#[derive(Clone, Copy)]
struct WeightSums<'a> {
    singletons: SmoothedSingletons,
    weights: &'a [f64],
    most: f64,
    /// The coefficients of the series, from the first power of v up.
    series: [f64; 4],
    /// Above this posterior, v / w is below 2^-13 for every weight, and the series has an error below 2^-54 of its first term.
    series_limit: f64,
    /// The weighted logarithms of counts of zero.
    of_zero: f64,
}

impl<'a> WeightSums<'a> {
    #[inline(always)]
    fn new(singletons: SmoothedSingletons, weights: &'a [f64]) -> Self {
        let (mut least, mut most, mut total) = (f64::INFINITY, 0.0, 0.0);
        let mut inverses = [0.0; 3];
        for weight in weights {
            least = if *weight < least { *weight } else { least };
            most = larger(most, *weight);
            total += weight;
            let inverse = 1.0 / weight;
            let square = inverse * inverse;
            inverses[0] += inverse;
            inverses[1] += square;
            inverses[2] += inverse * square;
        }
        let SmoothedSingletons { smoothing, zero, others } = singletons;
        let series_limit =
            if smoothing.everywhere > 0.0 { f64::INFINITY } else { 8192.0 * others / least };
        let n = weights.len() as f64;
        let series = [-n, inverses[0] / 2.0, -inverses[1] / 3.0, inverses[2] / 4.0];
        let of_zero = total * ln_ratio(zero, others + zero);
        Self { singletons, weights, most, series, series_limit, of_zero }
    }

    /// `sums` plus the weighted logarithms for as many classes.
    #[inline(always)]
    fn added(self, posterior: [f64; VECTOR], mut sums: [f64; VECTOR]) -> [f64; VECTOR] {
        let SmoothedSingletons { smoothing, zero, others } = self.singletons;
        let [first, second, third, fourth] = self.series;
        let (mut added, mut needs_logs) = (sums, false);
        for at in 0..VECTOR {
            let q = posterior[at];
            let v = others / q;
            let series = v * v.mul_add(v.mul_add(v.mul_add(fourth, third), second), first);
            let is_counted = smoothing.smoothed(q * self.most) > zero;
            let is_below = q <= self.series_limit;
            // Not `&&`, which would be a branch for each class.
            needs_logs |= is_counted & is_below;
            added[at] += if is_counted { series } else { self.of_zero };
        }
        if !needs_logs {
            return added;
        }
        for weight in self.weights {
            for at in 0..VECTOR {
                let count = smoothing.smoothed(weight * posterior[at]);
                sums[at] += weight * ln_ratio(count, others + count);
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEIGHTS: [f64; 4] = [0.25, 1.0, 3.7, 1e-3];

    /// The sum of the logarithms of the shares of a class with this posterior.
    fn naive(singletons: SmoothedSingletons, weights: &[f64], posterior: f64) -> f64 {
        let of_weight = |weight: &f64| {
            let count = singletons.smoothing.smoothed(weight * posterior);
            weight * (singletons.others / count).ln_1p()
        };
        -weights.iter().map(of_weight).sum::<f64>()
    }

    /// Posteriors far below the least count, around it, around the limit of the series for each weight, and above it, at
    /// each place of rows of all lengths up to three vectors. A logarithm of a ratio close to 1 has an error of 1e-16.
    #[test]
    fn sums_of_logarithms_are_those_of_single_shares() {
        for (everywhere, n_labels) in
            [(0.0, 1), (0.0, 2), (0.0, 50), (1e-12, 50), (1e-3, 3), (2.0, 50)]
        {
            let smoothing = Smoothing { everywhere, diagonal: 0.0, n_labels };
            let singletons = SmoothedSingletons::new(smoothing);
            let limits = WEIGHTS.map(|weight| 8192.0 * singletons.others / weight);
            let around = limits.iter().flat_map(|limit| [0.999 * limit, 1.001 * limit]);
            let decades = (0..20).map(|power| 0.1_f64.powi(power) / 3.0);
            let choices: Vec<f64> = around.chain(decades).chain([0.0, 1e-300]).collect();
            for (n, shift) in (VECTOR..=3 * VECTOR).flat_map(|n| (0..40).map(move |s| (n, s))) {
                let posterior: Vec<f64> =
                    (0..n).map(|k| choices[(shift + k) % choices.len()]).collect();
                for weights in [&WEIGHTS[..], &WEIGHTS[1..3], &WEIGHTS[..1]] {
                    let mut sums = vec![0.25; n];
                    singletons.add_logs(&posterior, weights, &mut sums);
                    for (q, sum) in posterior.iter().zip(&sums) {
                        let (got, want) = (sum - 0.25, naive(singletons, weights, *q));
                        let error = 1e-15 * (1.0 + want.abs() + weights.iter().sum::<f64>());
                        assert!(
                            (got - want).abs() <= error,
                            "{smoothing:?} {n} {q}: {got}, {want}"
                        );
                    }
                }
            }
        }
    }

    /// At the limit, the first term that is left out is 2^-54 of the first one.
    #[test]
    fn the_series_is_exact_above_its_limit() {
        for n_labels in [2, 3, 50] {
            let smoothing = Smoothing { everywhere: 0.0, diagonal: 0.0, n_labels };
            let singletons = SmoothedSingletons::new(smoothing);
            for (weights, least) in [(&WEIGHTS[..], 1e-3), (&WEIGHTS[1..3], 1.0), (&[7.0], 7.0)] {
                let limit = 8192.0 * singletons.others / least;
                let posterior = [1.001, 1.1, 1.5, 2.0, 4.0, 10.0, 100.0, 1e4].map(|n| n * limit);
                let mut sums = [0.0; VECTOR];
                singletons.add_logs(&posterior, weights, &mut sums);
                for (q, got) in posterior.iter().zip(sums) {
                    let want = naive(singletons, weights, *q);
                    assert!(
                        (got - want).abs() <= 1e-15 * want.abs(),
                        "{n_labels} {q}: {got}, {want}"
                    );
                }
            }
        }
    }
}
