//! The M-step of the annotators.

use rayon::prelude::*;

use super::annotators::{Annotators, add_counts};
use super::effects::{A_PRECISION, B_PRECISION, MAGNITUDES, sums_over_labels, write_softmax};
use super::states::States;
use crate::frame::{Annotations, Dims};

/// The steps of an M-step.
const STEPS: usize = 6;

impl Annotators {
    /// The M-step, from the posteriors of states and the expected counts of labels, `[pair, class]`.
    pub(super) fn estimate(&mut self, a: &Annotations, states: &States, counts: &[f64]) {
        let (dims, size) = (self.dims, self.size());
        let (mean_a, mean_b) = self.means();
        let units = self.logits.par_chunks_mut(size).zip(&mut self.follows).enumerate();
        units.for_each_init(
            || AnnotatorSearch::new(dims),
            |search, (r, (logits, follows))| {
                search.gather(a, states, r);
                add_counts(a, r, counts, dims.classes, search.labels());
                search.run((logits, &mean_a), (follows, mean_b));
            },
        );
        self.prepare();
    }
}

/// The M-step of one annotator, and its buffers.
struct AnnotatorSearch {
    n: usize,
    /// The expected number of annotations in each state, `[state, class]`.
    totals: Vec<f64>,
    /// The expected number of annotations with each label, `[label, class]`.
    labels: Vec<f64>,
    /// The expected number of annotations whose label has the effect, by magnitude.
    followed: [f64; 2],
    /// pi `[label, class]`
    rows: Vec<f64>,
    /// The expected number of annotations with each label, as the parameters have it, over pi: a part of all labels,
    /// `[class]`, and one of each, `[label, class]`.
    common: Vec<f64>,
    own: Vec<f64>,
}

impl AnnotatorSearch {
    fn new(Dims { classes: n, labels, .. }: Dims) -> Self {
        let cells = || vec![0.0; n * labels];
        let totals = vec![0.0; (1 + 2 * labels) * n];
        let (common, followed) = (vec![0.0; n], [0.0; 2]);
        Self { n, totals, labels: cells(), followed, rows: cells(), common, own: cells() }
    }

    /// Adds up the posteriors of the annotator's annotations.
    fn gather(&mut self, a: &Annotations, states: &States, r: usize) {
        let n = self.n;
        self.totals.fill(0.0);
        self.followed = [0.0; 2];
        for (pair, y) in a.pairs_of_annotator(r).zip(a.labels_of_annotator(r)) {
            let weights = a.weights_of_pair(pair).iter();
            for (i, weight) in a.instances_of_pair(pair).iter().zip(weights) {
                let (none, effects) = states.joint_row(*i as usize).split_at(n);
                let add = |sums: &mut [f64], p: &[f64]| {
                    sums.iter_mut().zip(p).for_each(|(sum, p)| *sum += weight * p);
                };
                add(&mut self.totals[..n], none);
                let labels = states.labels_of(*i as usize).iter();
                for (label, block) in labels.zip(effects.chunks_exact(2 * n)) {
                    add(&mut self.totals[(1 + 2 * *label as usize) * n..][..2 * n], block);
                    if label == y {
                        let states = self.followed.iter_mut().zip(block.chunks_exact(n));
                        states.for_each(|(sum, p)| *sum += weight * p.iter().sum::<f64>());
                    }
                }
            }
        }
    }

    /// The expected counts of labels, set to zero.
    fn labels(&mut self) -> &mut [f64] {
        self.labels.fill(0.0);
        &mut self.labels
    }

    /// Step 3: both parameters with the means of their priors.
    fn run(&mut self, (logits, mean_a): (&mut [f64], &[f64]), (b, mean_b): (&mut f64, f64)) {
        let n = self.n.max(1);
        let all = sums_over_labels(&self.totals, n);
        for _ in 0..STEPS {
            write_softmax(logits, n, &mut self.rows);
            self.common.copy_from_slice(&self.totals[..n]);
            let mut slope = -B_PRECISION * (*b - mean_b);
            let mut curvature = B_PRECISION;
            slope += self.followed.iter().zip(MAGNITUDES).map(|(sum, m)| sum * m).sum::<f64>();
            let blocks = self.totals[n..].chunks_exact(2 * n);
            let labels = self.rows.chunks_exact(n).zip(self.own.chunks_exact_mut(n));
            for (block, (row, own)) in blocks.zip(labels) {
                own.fill(0.0);
                for (totals, m) in block.chunks_exact(n).zip(MAGNITUDES) {
                    let gain = (*b * m).exp_m1();
                    for k in 0..n {
                        let ratio = totals[k] / (1.0 + gain * row[k]);
                        self.common[k] += ratio;
                        own[k] += gain * ratio;
                        // The probability of the label that the state has.
                        let p = (1.0 + gain) * row[k] / (1.0 + gain * row[k]);
                        slope -= m * totals[k] * p;
                        curvature += m * m * totals[k] * p * (1.0 - p);
                    }
                }
            }
            for (at, cell) in logits.iter_mut().enumerate() {
                let k = at % n;
                let expected = self.rows[at] * (self.common[k] + self.own[at]);
                let gradient = self.labels[at] - expected - A_PRECISION * (*cell - mean_a[at]);
                *cell += gradient / (0.5 * all[k] + A_PRECISION);
            }
            *b = (*b + (slope / curvature).clamp(-0.5, 0.5)).clamp(-1.0, 5.0);
        }
    }
}
