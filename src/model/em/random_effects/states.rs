//! The states of instances, and their E-step.

use rayon::prelude::*;

use super::annotators::Annotators;
use super::effects::{MAGNITUDES, NO_EFFECT, WEIGHTS};
use crate::frame::{Annotations, Dims, ITEMS_PER_BLOCK, split_by};
use crate::model::numerics::softmax;
use crate::model::posterior::Posterior;

/// The most labels of which every instance has effects.
const MAX_LABELS: usize = 20;

/// P(class, state | annotations) of every instance. Its states are none, then two magnitudes of each label with effects.
pub(super) struct States {
    dims: Dims,
    /// The labels with effects: of each instance, or the same ones for all.
    labels: Vec<u32>,
    /// The number of states of the instances before this one, `[instance + 1]`.
    offsets: Vec<usize>,
    /// For each instance `[state, class]`.
    joint: Vec<f64>,
}

impl States {
    pub(super) fn new(a: &Annotations) -> Self {
        let dims = a.dims();
        let (mut labels, mut offsets) = (Vec::new(), vec![0]);
        if dims.labels <= MAX_LABELS {
            labels.extend(0..dims.labels as u32);
            offsets.extend((1..=dims.instances).map(|i| i * (1 + 2 * dims.labels)));
        } else {
            for i in 0..dims.instances {
                let pairs = a.pairs_of_instance(i).iter();
                let mut own: Vec<u32> = pairs.map(|pair| a.label_of_pair(*pair)).collect();
                own.sort_unstable();
                own.dedup();
                labels.append(&mut own);
                offsets.push(i + 1 + 2 * labels.len());
            }
        }
        let joint = vec![0.0; offsets[dims.instances] * dims.classes];
        Self { dims, labels, offsets, joint }
    }

    /// The largest number of states of all instances.
    pub(super) fn most(dims: Dims, annotations: usize) -> Option<usize> {
        let all = dims.instances.checked_mul(2)?.checked_mul(dims.labels)?;
        let given = annotations.checked_mul(2)?;
        let effects = if dims.labels <= MAX_LABELS { all } else { all.min(given) };
        effects.checked_add(dims.instances)
    }

    /// The labels with effects of an instance, ascending.
    pub(super) fn labels_of(&self, i: usize) -> &[u32] {
        if self.dims.labels <= MAX_LABELS {
            return &self.labels;
        }
        &self.labels[(self.offsets[i] - i) / 2..(self.offsets[i + 1] - i - 1) / 2]
    }

    /// `[state, class]` of an instance.
    pub(super) fn joint_row(&self, i: usize) -> &[f64] {
        let n = self.dims.classes;
        &self.joint[self.offsets[i] * n..self.offsets[i + 1] * n]
    }

    /// The E-step of all instances; returns the log-likelihood.
    pub(super) fn fill(&mut self, a: &Annotations, annotators: &Annotators, prior: &[f64]) -> f64 {
        let (mut joint, n) = (std::mem::take(&mut self.joint), self.dims.classes);
        let this = &*self;
        let of_block = |(instances, mut rest): (std::ops::Range<usize>, &mut [f64])| {
            let (mut logs, mut sum) = (Vec::new(), 0.0);
            for i in instances {
                let own = (this.offsets[i + 1] - this.offsets[i]) * n;
                let (row, others) = rest.split_at_mut(own);
                this.write_logs(a, annotators, prior, i, &mut logs);
                let term = softmax(&logs, row);
                sum += if a.pairs_of_instance(i).is_empty() { 0.0 } else { term };
                rest = others;
            }
            sum
        };
        let blocks = split_by(&mut joint, &self.offsets, n, ITEMS_PER_BLOCK);
        let sums: Vec<f64> = blocks.into_par_iter().map(of_block).collect();
        self.joint = joint;
        sums.iter().sum()
    }

    /// ln P(class, state, annotations) of an instance; -inf for classes other than a trusted one.
    fn write_logs(
        &self,
        a: &Annotations,
        annotators: &Annotators,
        prior: &[f64],
        i: usize,
        logs: &mut Vec<f64>,
    ) {
        let (n, own, all) = (self.dims.classes, self.labels_of(i), self.dims.labels.max(1) as f64);
        logs.clear();
        logs.resize((1 + 2 * own.len()) * n, 0.0);
        let (none, effects) = logs.split_at_mut(n);
        for (pair, weight) in a.annotations_of_instance(i) {
            let (r, given) = (a.annotator_of_pair(pair) as usize, a.label_of_pair(pair));
            let row = annotators.ln_row(r, given as usize);
            none.iter_mut().zip(row).for_each(|(log, ln_p)| *log += weight * ln_p);
            let follows = weight * annotators.follows(r);
            for (label, block) in own.iter().zip(effects.chunks_exact_mut(2 * n)) {
                let norms = annotators.ln_norms(r, *label as usize);
                block.iter_mut().zip(norms).for_each(|(log, norm)| *log -= weight * norm);
                if *label == given {
                    for (of_magnitude, m) in block.chunks_exact_mut(n).zip(MAGNITUDES) {
                        of_magnitude.iter_mut().for_each(|log| *log += follows * m);
                    }
                }
            }
        }
        for (k, (log, q)) in none.iter_mut().zip(prior).enumerate() {
            let is_possible = a.trusted_class(i).is_none_or(|class| class as usize == k);
            *log = if is_possible { *log + q.ln() } else { f64::NEG_INFINITY };
        }
        for block in effects.chunks_exact_mut(2 * n) {
            for (of_magnitude, weight) in block.chunks_exact_mut(n).zip(WEIGHTS) {
                let ln_weight = (weight / all).ln();
                of_magnitude.iter_mut().zip(&*none).for_each(|(log, l)| *log += l + ln_weight);
            }
        }
        let without_own = (1.0 - NO_EFFECT) * (all - own.len() as f64) / all;
        none.iter_mut().for_each(|log| *log += (NO_EFFECT + without_own).ln());
    }

    /// P(class | annotations) of an instance, into zeros or an older row.
    pub(super) fn write_classes(&self, i: usize, row: &mut [f64]) {
        row.fill(0.0);
        for state in self.joint_row(i).chunks_exact(row.len()) {
            row.iter_mut().zip(state).for_each(|(sum, p)| *sum += p);
        }
    }

    /// The expected magnitude of each instance's effect, and the label with the largest share in it.
    pub(super) fn effects(&self, a: &Annotations) -> Vec<(String, Vec<f64>)> {
        let n = self.dims.classes;
        let of = |i: usize| {
            if a.pairs_of_instance(i).is_empty() {
                return (f64::NAN, f64::NAN);
            }
            let (mut effect, mut top, mut of_top) = (0.0, 0.0, f64::NAN);
            for (label, block) in
                self.labels_of(i).iter().zip(self.joint_row(i)[n..].chunks_exact(2 * n))
            {
                let states = block.chunks_exact(n).zip(MAGNITUDES);
                let own: f64 = states.map(|(p, m)| m * p.iter().sum::<f64>()).sum();
                effect += own;
                if own > top {
                    (top, of_top) = (own, f64::from(*label));
                }
            }
            (effect, of_top)
        };
        let instances = (0..self.dims.instances).into_par_iter().with_min_len(ITEMS_PER_BLOCK);
        let (effect, label) = instances.map(of).unzip();
        vec![("effect".to_owned(), effect), ("effect_label".to_owned(), label)]
    }
}

/// Step 5 for all instances, in the place of T, with the share of `independent` and the discount.
pub(super) fn publish(
    (share, discount): (f64, f64),
    a: &Annotations,
    t: &mut Posterior,
    independent: &Posterior,
) {
    t.par_rows_mut(|i, row| {
        if a.trusted_class(i).is_some() {
            return;
        }
        let n: f64 = a.weights_of_instance(i).iter().take(a.pairs_of_instance(i).len()).sum();
        let power = n.max(1.0).powf(-discount);
        for (p, independent) in row.iter_mut().zip(independent.row(i)) {
            *p = (*p + share * (independent - *p)).powf(power);
        }
        let sum: f64 = row.iter().sum();
        row.iter_mut().for_each(|p| *p /= sum);
    });
}
