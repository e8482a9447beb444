//! Singleton annotators with [`Smoothing`] that treats the diagonal as other cells. Their columns depend only on the
//! posterior of their instance and on the weight of their annotation.

use super::logarithms::{larger, ln_ratio};
use super::pseudo_counts::log_prior_term;
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
    /// annotators' log-prior. `posterior` and `sums` are equally long, at least [`VECTOR`] numbers. A share is at least 1 /
    /// `n_labels`, so that none needs to be raised to the least likelihood.
    ///
    /// # Why
    /// A count that smoothing does not change, or changes to that of an unused label, needs no logarithm for each
    /// annotator, see [`WeightSums`]. Without pseudo-counts, most counts are of these two kinds. An iteration over 1 M
    /// annotations by 5 M annotators, each annotation with a weight, took 26.5 ns per annotation with all logarithms and
    /// takes 19.1 (50 classes, two cores of an AMD EPYC; 14.2 and 11.2 with 20 classes, 5.6 and 5.0 with 5).
    #[inline(always)]
    pub(super) fn add_logs(self, posterior: &[f64], weights: &[f64], sums: &mut [f64]) -> f64 {
        debug_assert!(posterior.len() == sums.len() && sums.len() >= VECTOR, "rows are padded");
        let mut log_prior = 0.0;
        if self.smoothing.has_pseudo_counts() {
            for weight in weights {
                log_prior += self.log_prior(posterior, *weight);
            }
        }
        let of_weights = WeightSums::new(self, weights);
        let (vectors, rest) = posterior.as_chunks::<VECTOR>();
        let last = match (posterior.last_chunk(), sums.last_chunk()) {
            // The last vector begins before the end of the one before it. It is computed from sums without that one.
            (Some(posterior), Some(sums)) if !rest.is_empty() => {
                Some(of_weights.added(*posterior, *sums))
            }
            _ => None,
        };
        for (posterior, sums) in vectors.iter().zip(sums.as_chunks_mut().0) {
            *sums = of_weights.added(*posterior, *sums);
        }
        if let (Some(last), Some(sums)) = (last, sums.last_chunk_mut()) {
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
            |_, count| {
                let count = weight * count;
                log_prior_term(count, added) - log_prior_term(count, added_to_row)
            },
        )
    }
}

/// The largest v / w for which the series of [`WeightSums`] is used, 2^-13.
const MAX_RATIO: f64 = 1.0 / 8192.0;

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
    /// The largest weight.
    most: f64,
    /// The coefficients of the series, from the first power of v up.
    series: [f64; 4],
    /// Above this posterior, v / w is below [`MAX_RATIO`] for every weight, and the error of the series is below 2^-54 of
    /// its first term.
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
        // With one label, B is 0 and all logarithms are 0, whatever the inverses.
        let has_series = smoothing.everywhere == 0.0 && others > 0.0;
        let series_limit = if has_series { others / (MAX_RATIO * least) } else { f64::INFINITY };
        let n = weights.len() as f64;
        let series = [-n, inverses[0] / 2.0, -inverses[1] / 3.0, inverses[2] / 4.0];
        let of_zero = total * ln_ratio(zero, others + zero);
        Self { singletons, weights, most, series, series_limit, of_zero }
    }

    /// Whether the largest count of a class with this posterior is above that of an unused label.
    #[inline(always)]
    fn is_counted(self, posterior: f64) -> bool {
        let SmoothedSingletons { smoothing, zero, .. } = self.singletons;
        smoothing.smoothed(posterior * self.most) > zero
    }

    /// Whether a class with this posterior has counts above that of an unused label, but is below the series.
    #[inline(always)]
    fn needs_logs(self, posterior: f64) -> bool {
        let (is_counted, is_below) = (self.is_counted(posterior), posterior <= self.series_limit);
        // Not `&&`, which would be a branch for each class.
        is_counted & is_below
    }

    /// `sums` plus the weighted logarithms for as many classes. What is added for a class depends on its posterior only,
    /// not on that of its neighbours: otherwise rounding would break ties.
    #[inline(always)]
    fn added(self, posterior: [f64; VECTOR], sums: [f64; VECTOR]) -> [f64; VECTOR] {
        let SmoothedSingletons { smoothing, others, .. } = self.singletons;
        let [first, second, third, fourth] = self.series;
        let (mut added, mut any_needs_logs) = (sums, false);
        for at in 0..VECTOR {
            let q = posterior[at];
            let v = others / q;
            let series = v * v.mul_add(v.mul_add(v.mul_add(fourth, third), second), first);
            any_needs_logs |= self.needs_logs(q);
            added[at] += if self.is_counted(q) { series } else { self.of_zero };
        }
        if !any_needs_logs {
            return added;
        }
        let mut logs = sums;
        for weight in self.weights {
            for at in 0..VECTOR {
                let count = smoothing.smoothed(weight * posterior[at]);
                logs[at] += weight * ln_ratio(count, others + count);
            }
        }
        for at in 0..VECTOR {
            added[at] = if self.needs_logs(posterior[at]) { logs[at] } else { added[at] };
        }
        added
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEIGHTS: [f64; 4] = [0.25, 1.0, 3.7, 1e-3];

    fn smoothing(everywhere: f64, n_labels: usize) -> Smoothing {
        Smoothing { everywhere, diagonal: 0.0, n_labels }
    }

    /// The sum of the floors of the counts of all labels but one, without smoothing.
    fn floors(n_labels: usize) -> f64 {
        (n_labels - 1) as f64 * 1e-10
    }

    /// For a class with this posterior: the weighted sum of the logarithms of the shares, and the log-prior.
    fn naive(smoothing: Smoothing, weights: &[f64], posterior: f64) -> (f64, f64) {
        let Smoothing { everywhere, n_labels, .. } = smoothing;
        let others = (n_labels - 1) as f64 * everywhere.max(1e-10);
        let of_weight = |weight: &f64| {
            let count = weight * posterior;
            let log = -(others / (count + everywhere).max(1e-10)).ln_1p();
            let row = n_labels as f64 * everywhere;
            let prior = everywhere * (count / everywhere).ln_1p() - row * (count / row).ln_1p();
            (weight * log, if everywhere < 1e-10 { 0.0 } else { prior })
        };
        let terms = weights.iter().map(of_weight);
        terms.fold((0.0, 0.0), |sums, terms| (sums.0 + terms.0, sums.1 + terms.1))
    }

    /// Posteriors far below the least count, around it, around the limit of the series for each weight, and above it, at
    /// each place of rows of all lengths up to three vectors. A logarithm of a ratio close to 1 has an error of 1e-16.
    #[test]
    fn sums_of_logarithms_are_those_of_single_shares() {
        for (everywhere, n_labels) in
            [(0.0, 1), (0.0, 2), (0.0, 50), (1e-12, 50), (1e-3, 3), (2.0, 50)]
        {
            let smoothing = smoothing(everywhere, n_labels);
            let limits = WEIGHTS.map(|weight| floors(n_labels) / MAX_RATIO / weight);
            let around = limits.iter().flat_map(|limit| [0.999 * limit, 1.001 * limit]);
            let decades = (0..20).map(|power| 0.1_f64.powi(power) / 3.0);
            let choices: Vec<f64> = around.chain(decades).chain([0.0, 1e-300]).collect();
            for (n, shift) in (VECTOR..=3 * VECTOR).flat_map(|n| (0..40).map(move |s| (n, s))) {
                let posterior: Vec<f64> =
                    (0..n).map(|k| choices[(shift + k) % choices.len()]).collect();
                for weights in [&WEIGHTS[..], &WEIGHTS[1..3], &WEIGHTS[..1]] {
                    let mut sums = vec![0.25; n];
                    let singletons = SmoothedSingletons::new(smoothing);
                    let log_prior = singletons.add_logs(&posterior, weights, &mut sums);
                    let what = format!("{everywhere} {n_labels} {weights:?} {posterior:?}");
                    let of_class = |q: &f64| naive(smoothing, weights, *q);
                    for (q, sum) in posterior.iter().zip(&sums) {
                        let (got, want) = (sum - 0.25, of_class(q).0);
                        let error = 1e-15 * (1.0 + want.abs() + weights.iter().sum::<f64>());
                        assert!((got - want).abs() <= error, "{what} {q}: {got} is not {want}");
                    }
                    let want: f64 = posterior.iter().map(|q| of_class(q).1).sum();
                    // Both terms of a cell are about the count.
                    let counts = posterior.iter().sum::<f64>() * weights.iter().sum::<f64>();
                    let error = 2e-15 * counts;
                    assert!((log_prior - want).abs() <= error, "{what}: {log_prior} is not {want}");
                }
            }
        }
    }

    /// At the limit of the least weight, wherever it stands, the first term that is left out is 2^-54 of the first one.
    /// Below it a logarithm of a ratio has an error of 1e-16, next to which 2^-12 would show a series without its fourth
    /// term, and the series of a larger weight.
    #[test]
    fn the_series_is_exact_above_its_limit_and_not_used_below() {
        for n_labels in [2, 3, 50] {
            for (weights, least) in [
                (&WEIGHTS[..], 1e-3),
                (&WEIGHTS[1..3], 1.0),
                (&[1e-3, 3.7], 1e-3),
                (&[7.0, 1e-4, 30.0], 1e-4),
            ] {
                let limit = floors(n_labels) / MAX_RATIO / least;
                for (multiples, error) in [
                    ([1.001, 1.1, 1.5, 2.0, 4.0, 10.0, 100.0, 1e4], 0.0),
                    ([0.999, 0.5, 0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6], 3e-16),
                ] {
                    let posterior = multiples.map(|multiple| multiple * limit);
                    let mut sums = [0.0; VECTOR];
                    let singletons = SmoothedSingletons::new(smoothing(0.0, n_labels));
                    singletons.add_logs(&posterior, weights, &mut sums);
                    for (q, got) in posterior.iter().zip(sums) {
                        let want = naive(smoothing(0.0, n_labels), weights, *q).0;
                        let error = 1e-15 * want.abs() + error * weights.iter().sum::<f64>();
                        let what = format!("{n_labels} {weights:?} {q}");
                        assert!((got - want).abs() <= error, "{what}: {got} is not {want}");
                    }
                }
            }
        }
    }

    /// Next to a class that needs logarithms, and next to classes with the same posterior.
    #[test]
    fn the_sum_of_a_class_does_not_depend_on_its_neighbours() {
        let singletons = SmoothedSingletons::new(smoothing(0.0, 50));
        for q in (0..30).map(|power| 0.4_f64.powi(power)).chain([0.0, 1e-30]) {
            let mut posterior = [q; 2 * VECTOR];
            posterior[VECTOR + 3] = 1e-7;
            let mut sums = [-0.7; 2 * VECTOR];
            singletons.add_logs(&posterior, &[0.3, 1.1, 2.0], &mut sums);
            assert_eq!(sums[0], sums[VECTOR], "{q}");
        }
    }

    /// The inverse of the least weight is not finite, nor is the third power of the inverse of the second.
    #[test]
    fn the_only_label_is_certain_whatever_the_weight() {
        for weights in [[5e-324, 1.0], [1.0, 1e-110]] {
            let mut sums = [0.5; VECTOR];
            SmoothedSingletons::new(smoothing(0.0, 1)).add_logs(
                &[1.0; VECTOR],
                &weights,
                &mut sums,
            );
            assert_eq!(sums, [0.5; VECTOR]);
        }
    }
}
