//! The E-step of models whose likelihood is not a product over pairs.

use rayon::prelude::*;

use super::e_step::Prior;
use crate::frame::{Annotations, ITEMS_PER_BLOCK, InstanceRange};
use crate::model::numerics::softmax;
use crate::model::posterior::Posterior;

/// A model's definition of P(label given class) for each annotation.
pub trait LogLikelihood: Sync {
    /// Adds ln P(`label` of `annotator` on instance `i` given class) to `logs`, `[class]`.
    ///
    /// # Why
    /// The model adds to the sum, and does not return logarithms for the sweep to add: a model that adds the logarithm of
    /// a wrong label to all classes, and the difference to one class, rounds in another way than one that adds a logarithm
    /// to each class. The published accuracy of GLAD on the crowd `web`, where an instance is within rounding of a tie,
    /// depends on it.
    fn add(&self, i: usize, annotator: u32, label: u32, logs: &mut [f64]);
}

/// Computes the posteriors of all instances; returns the marginal log-likelihood.
///
/// # Why
/// A range has no `Statistics` here, only posterior rows and a term of the log-likelihood: an M-step that follows the
/// gradient, such as GLAD's, reads every annotation with its posterior row at every step, and so has no sufficient
/// statistics of a fixed size that could be merged.
pub fn e_step(
    a: &Annotations,
    prior: Prior<'_>,
    likelihood: &impl LogLikelihood,
    t: &mut Posterior,
) -> f64 {
    let n = t.n_classes();
    let blocks = t.values_mut().par_chunks_mut(ITEMS_PER_BLOCK * n.max(1)).enumerate();
    let sums: Vec<f64> = blocks
        .map(|(block, rows)| {
            let first = block * ITEMS_PER_BLOCK;
            let instances = first..first + rows.len() / n.max(1);
            let prior = prior.range(&instances, n);
            let add = |i, annotator, label, logs: &mut [f64]| {
                likelihood.add(first + i, annotator, label, logs);
            };
            e_step_of_range(&a.range(instances), prior, add, rows)
        })
        .collect();
    sums.iter().sum()
}

/// Computes the posteriors of a range of instances; returns the range's term of the log-likelihood. `add(i, annotator,
/// label, logs)` adds the logarithms of an annotation of the range's `i`-th instance, without its weight.
pub fn e_step_of_range(
    range: &InstanceRange<'_>,
    prior: Prior<'_>,
    add: impl Fn(usize, u32, u32, &mut [f64]),
    rows: &mut [f64],
) -> f64 {
    let n = rows.len() / range.len().max(1);
    let (mut logs, mut of_annotation, mut sum) = (vec![0.0; n], vec![0.0; n], 0.0);
    for (i, row) in rows.chunks_exact_mut(n.max(1)).enumerate() {
        logs.iter_mut().zip(prior.row(i, n)).for_each(|(log, p)| *log = p.ln());
        for (annotator, label, weight) in range.triples(i) {
            if weight == 1.0 {
                add(i, annotator, label, &mut logs);
            } else {
                of_annotation.fill(0.0);
                add(i, annotator, label, &mut of_annotation);
                logs.iter_mut().zip(&of_annotation).for_each(|(log, l)| *log += weight * l);
            }
        }
        sum += write_row(&logs, range.trusted_class(i), !range.positions(i).is_empty(), row);
    }
    sum
}

/// Writes the posterior row of an instance, given ln P(class and annotations), `[class]`; returns its term of the
/// log-likelihood. The row of a trusted instance is one-hot, and its term that of its class. An instance without
/// annotations has no term.
pub(super) fn write_row(
    logs: &[f64],
    trusted: Option<u32>,
    is_annotated: bool,
    row: &mut [f64],
) -> f64 {
    let term = if let Some(class) = trusted {
        row.fill(0.0);
        row[class as usize] = 1.0;
        logs[class as usize]
    } else {
        softmax(logs, row)
    };
    if is_annotated { term } else { 0.0 }
}
