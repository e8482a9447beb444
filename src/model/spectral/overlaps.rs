//! The overlaps of annotators: the loss of [`LabelModel`](super::LabelModel), whose file has the formulas, and what is read off
//! its matrices.

use std::ops::Range;

use rayon::prelude::*;

use super::co_occurrence::{CoOccurrence, MAX_OTHERS};
use super::gold_decides;
use crate::frame::Annotations;
use crate::model::numerics::assignment::best_assignment;

/// The precision that the start supposes, by the half that Snorkel draws from 0 to 1.
const START: f64 = 0.7;
const START_SCALE: f64 = 0.5;

/// Classes exchange their columns only for a larger gain: one of nobody's labels is as good as another.
const MIN_GAIN: f64 = 1e-6;

/// O and what goes with it.
pub(super) struct Overlaps<'a> {
    pub(super) co: CoOccurrence<'a>,
    /// The votes of each annotator.
    annotators: Vec<(u32, Range<usize>)>,
    /// P(class), `[class]`.
    pub(super) p: &'a [f64],
    n_instances: f64,
    /// The votes of people: those of trusted classes come after them.
    n_pairs: usize,
    gold_decides: bool,
    /// Whether an instance has so many annotations that not all of them are compared: pairs that were not would look as if
    /// they never met.
    pub(super) is_sampled: bool,
}

impl<'a> Overlaps<'a> {
    /// The overlaps of annotators whose classes have these shares.
    pub(super) fn new(a: &'a Annotations, p: &'a [f64]) -> Self {
        let co = CoOccurrence::new(a, |weight, all| if all > 0.0 { weight / all } else { 0.0 });
        let annotated = (0..a.dims().instances).filter(|i| a.has_evidence(*i)).count();
        let mut annotators = co.annotators();
        annotators.sort_by_key(|(_, votes)| votes.start);
        let is_sampled = (0..a.dims().instances).any(|i| a.pairs_of_instance(i).len() > MAX_OTHERS);
        let (n_pairs, gold_decides) = (a.n_pairs(), gold_decides(a));
        let n_instances = annotated.max(1) as f64;
        Self { co, annotators, p, n_instances, n_pairs, gold_decides, is_sampled }
    }

    /// The share of the pairs of annotators that have an instance in common.
    pub(super) fn share_that_meet(&self, n_annotators: usize) -> Option<f64> {
        let met = |(r, votes): &(u32, Range<usize>)| {
            let others = votes.clone().flat_map(|vote| self.co.common_votes(vote));
            let mut others: Vec<u32> = others.map(|(met, _)| self.co.annotator_of(met)).collect();
            others.sort_unstable();
            others.dedup();
            let is_person = |r: u32| (r as usize) < n_annotators;
            if is_person(*r) { others.into_iter().filter(|r| is_person(*r)).count() } else { 0 }
        };
        let met: usize = self.annotators.par_iter().map(met).sum();
        let pairs = n_annotators * n_annotators.saturating_sub(1);
        (pairs > 0).then(|| met as f64 / pairs as f64)
    }

    /// The share of the instances with this vote.
    fn coverage(&self, vote: usize) -> f64 {
        self.co.totals[vote] / self.n_instances
    }

    /// Step 1: mu, `[vote, class]`.
    pub(super) fn start(&self) -> Vec<f64> {
        let n = self.p.len();
        let mut mu = vec![0.0; self.co.totals.len() * n];
        for (vote, row) in mu.chunks_exact_mut(n.max(1)).enumerate() {
            let class = self.co.class_of(vote as u32) as usize;
            if let Some(own) = row.get_mut(class) {
                *own = START_SCALE * (START * self.coverage(vote) / self.p[class]).min(1.0);
            }
        }
        mu
    }

    /// The curvature of the loss, were all annotators perfect.
    pub(super) fn curvature(&self) -> f64 {
        let perfect = |vote: usize| {
            let class = self.co.class_of(vote as u32) as usize;
            self.p.get(class).map_or(0.0, |p| (self.coverage(vote) / p).min(1.0).powi(2))
        };
        let squares: f64 = (0..self.co.totals.len()).map(perfect).sum();
        let largest = self.p.iter().fold(0.0, |max: f64, p| max.max(*p));
        12.0 * largest * largest * squares
    }

    /// The sum of mu[v] mu[v]^T over some votes, `[class, class]`.
    pub(super) fn gram(&self, mu: &[f64], votes: Range<usize>) -> Vec<f64> {
        let n = self.p.len();
        let mut gram = vec![0.0; n * n];
        for row in mu[votes.start * n..votes.end * n].chunks_exact(n.max(1)) {
            for (sums, x) in gram.chunks_exact_mut(n).zip(row) {
                sums.iter_mut().zip(row).for_each(|(sum, y)| *sum += x * y);
            }
        }
        gram
    }

    /// The loss without the distance from the start, and its gradient, `[vote, class]`.
    pub(super) fn loss(&self, mu: &[f64], gram: &[f64]) -> (f64, Vec<f64>) {
        let n = self.p.len();
        let of_annotator = |(_, votes): &(u32, Range<usize>)| {
            let own = self.gram(mu, votes.clone());
            let (mut loss, mut gradient) = (0.0, Vec::with_capacity(votes.len() * n));
            let mut met = vec![0.0; n];
            for vote in votes.clone() {
                let row = &mu[vote * n..(vote + 1) * n];
                let (mut squares, coverage) = (0.0, self.coverage(vote));
                met.fill(0.0);
                for (other, sum) in self.co.common_votes(vote) {
                    let o = sum / self.n_instances;
                    squares += o * o;
                    let of_other = &mu[other as usize * n..(other as usize + 1) * n];
                    met.iter_mut().zip(of_other).for_each(|(met, m)| *met += o * m);
                }
                let off: f64 = row.iter().zip(self.p).map(|(m, p)| m * p).sum::<f64>() - coverage;
                loss += squares + off * off;
                for k in 0..n {
                    let all =
                        (0..n).map(|l| row[l] * self.p[l] * (gram[k * n + l] - own[k * n + l]));
                    let all: f64 = all.sum();
                    loss += self.p[k] * row[k] * (all - 2.0 * met[k]);
                    gradient.push(self.p[k] * (4.0 * (all - met[k]) + 2.0 * off));
                }
            }
            (loss, gradient)
        };
        let parts: Vec<(f64, Vec<f64>)> = self.annotators.par_iter().map(of_annotator).collect();
        let loss = parts.iter().map(|(loss, _)| loss).sum();
        (loss, parts.into_iter().flat_map(|(_, gradient)| gradient).collect())
    }

    /// Steps 3 and 4.
    pub(super) fn finish(&self, mu: &mut [f64]) {
        let n = self.p.len();
        let least = 10_f64.powf(-self.n_instances.log10().ceil()).min(0.01);
        mu.iter_mut().for_each(|m| *m = m.clamp(least, 1.0 - least));
        let mut sums = vec![0.0; n * n];
        let first = if self.gold_decides { self.n_pairs } else { 0 };
        for (vote, row) in mu.chunks_exact(n.max(1)).enumerate().skip(first) {
            let class = self.co.class_of(vote as u32) as usize;
            if class < n {
                sums[class * n..(class + 1) * n].iter_mut().zip(row).for_each(|(sum, m)| *sum += m);
            }
        }
        let mean = 1.0 / self.annotators.len().max(1) as f64;
        let alike = |k: usize, l: usize| (self.p[k] - self.p[l]).abs() < 1e-9;
        // A column may take the place of one of the same share alone.
        let score = |y: usize, k: usize| {
            if alike(y, k) { sums[y * n + k] * self.p[y] * mean } else { -1e3 }
        };
        let identity: f64 = (0..n).map(|k| score(k, k)).sum();
        let best = best_assignment(n, n, score).filter(|best| best.sum > identity + MIN_GAIN);
        let Some(best) = best else { return };
        for row in mu.chunks_exact_mut(n.max(1)) {
            let old = row.to_vec();
            row.iter_mut().zip(&best.columns).for_each(|(m, column)| *m = old[*column]);
        }
    }

    /// P(right given an annotation), which the clamp may take beyond 1.
    pub(super) fn skills(&self, mu: &[f64], n_annotators: usize) -> Vec<f64> {
        let n = self.p.len();
        let mut skills = vec![0.0; n_annotators];
        for (r, votes) in self.annotators.iter().filter(|(r, _)| (*r as usize) < n_annotators) {
            let (mut right, mut all) = (0.0, 0.0);
            for vote in votes.clone() {
                let class = self.co.class_of(vote as u32) as usize;
                if class < n {
                    right += mu[vote * n + class] * self.p[class];
                    all += self.coverage(vote);
                }
            }
            skills[*r as usize] = match n {
                // With a single class, every annotation is right.
                1 => 1.0,
                _ if all > 0.0 => (right / all).clamp(1e-6, 1.0),
                _ => 0.0,
            };
        }
        skills
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::testing::{assert_close, tiny};

    /// A crowd of three classes that is far from complete, with trusted classes.
    pub(in crate::model::spectral) fn crowd() -> Annotations {
        let label = |i: u32, r: u32| (i + u32::from((i * 7 + r * 3).is_multiple_of(5))) % 3;
        let rows = (0..30).flat_map(|i| (0..4).map(move |r| (i, r)));
        let rows: Vec<_> = rows.filter(|(i, r)| (i + r) % 4 > 0).collect();
        let mut a = tiny(3, &rows.iter().map(|(i, r)| (*i, *r, label(*i, *r))).collect::<Vec<_>>());
        a.trusted = Some((0..30).map(|i: u32| i.is_multiple_of(5).then_some(i % 3)).collect());
        a
    }

    /// The loss of the formula, with every pair of votes.
    fn dense_loss(overlaps: &Overlaps<'_>, mu: &[f64]) -> f64 {
        let (n, votes) = (overlaps.p.len(), overlaps.co.totals.len());
        let mut loss = 0.0;
        for v in 0..votes {
            let row = &mu[v * n..(v + 1) * n];
            let at: f64 = row.iter().zip(overlaps.p).map(|(m, p)| m * p).sum();
            loss += (at - overlaps.coverage(v)).powi(2);
            for w in (0..votes).filter(|w| {
                overlaps.co.annotator_of(*w as u32) != overlaps.co.annotator_of(v as u32)
            }) {
                let sum: f64 = overlaps
                    .co
                    .common_votes(v)
                    .filter(|(met, _)| *met as usize == w)
                    .map(|(_, sum)| sum)
                    .sum();
                let product: f64 = (0..n).map(|k| row[k] * overlaps.p[k] * mu[w * n + k]).sum();
                loss += (sum / overlaps.n_instances - product).powi(2);
            }
        }
        loss
    }

    #[test]
    fn the_sparse_loss_and_its_gradient_are_those_of_the_full_matrix() {
        let (a, p) = (crowd(), [0.5, 0.3, 0.2]);
        let overlaps = Overlaps::new(&a, &p);
        let mu: Vec<f64> =
            (0..overlaps.start().len()).map(|n| (n * 7 % 10) as f64 / 20.0 + 0.1).collect();
        let gram = overlaps.gram(&mu, 0..overlaps.co.totals.len());
        let (loss, gradient) = overlaps.loss(&mu, &gram);
        assert_close(&[loss], &[dense_loss(&overlaps, &mu)], 1e-10, "loss");
        for n in 0..mu.len() {
            let at = |shift: f64| {
                let mut mu = mu.clone();
                mu[n] += shift;
                dense_loss(&overlaps, &mu)
            };
            assert_close(&[gradient[n]], &[(at(1e-5) - at(-1e-5)) / 2e-5], 1e-6, "gradient");
        }
    }

    #[test]
    fn columns_that_are_exchanged_are_put_in_their_places() {
        let a = tiny(2, &(0..40).map(|n| (n / 4, n % 4, n / 4 % 2)).collect::<Vec<_>>());
        let p = [0.5; 2];
        let overlaps = Overlaps::new(&a, &p);
        let exchanged = |vote: usize| {
            if overlaps.co.class_of(vote as u32) == 0 { [0.2, 0.9] } else { [0.8, 0.1] }
        };
        let mut mu: Vec<f64> = (0..8).flat_map(exchanged).collect();
        overlaps.finish(&mut mu);
        assert_eq!(mu[..2], [0.9, 0.2]);
    }
}
