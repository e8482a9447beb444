//! The loss of a batch and its derivatives: first annotator by annotator, then row by row.
//!
//! # Why
//! Most of the memory of a step is in the annotators' matrices, and each annotation uses the matrix of one annotator:
//! so blocks of annotators are computed in parallel. Each annotation stores its derivatives with respect to the outputs
//! of its row, and each row sums them in a fixed order. So the results do not depend on the number of threads.

use std::ops::Range;

use rayon::prelude::*;

use super::mixture::{Mixer, Mixture};
use super::{AUXILIARY, COMMON, Conal, Forward, INDIVIDUAL};
use crate::frame::{Cursors, Dims, split_by};
use crate::model::neural::data::batch::ByAnnotator;
use crate::model::neural::net::heads::Outputs;
use crate::model::neural::numerics::{RowStochastic, row_times_backward};
use crate::model::neural::objective::batch_context::{BatchContext, Gradient};

/// The number of annotators in a block.
const BLOCK: usize = 64;

/// Added under the square root of a norm, whose derivative at zero would be infinite.
const NORM_EPSILON: f64 = 1e-12;

/// A block of the batch's annotators, and the slices for its results.
struct AnnotatorBlock<'a> {
    annotator: Range<usize>,
    /// For each annotation the derivatives of its loss with respect to the row's class probabilities `[class]`, the
    /// common part `[label]` and the inner product of both embeddings, followed by the loss.
    terms: &'a mut [f64],
    d_individual: &'a mut [f64],
    d_units: &'a mut [f64],
}

/// The length of the terms of one annotation.
fn width_of(dims: Dims) -> usize {
    dims.classes + dims.labels + 2
}

/// The loss of a batch; adds its derivatives to `gradient`.
pub(crate) fn loss(model: &Conal, context: &BatchContext<'_>, gradient: &mut Gradient) -> f64 {
    let [d_common, d_individual, d_embedding, ..] = &mut gradient.tables[..] else {
        return 0.0;
    };
    let (dims, d, width) = (context.dims, model.embedding, width_of(context.dims));
    let cells = dims.classes * dims.labels;
    let forward = model.forward(context);
    let by_annotator = context.batch.by_annotator();
    let mut d_units = vec![0.0; context.batch.annotators.len() * d];
    let mut terms = vec![0.0; context.batch.annotations.len() * width];
    let blocks = split_by(&mut terms, &by_annotator.offsets, width, BLOCK).into_par_iter();
    let penalties: Vec<(f64, Vec<f64>)> = blocks
        .zip(d_individual.par_chunks_mut(BLOCK * cells))
        .zip(d_units.par_chunks_mut(BLOCK * d))
        .map(|(((annotator, terms), d_individual), d_units)| {
            let block = AnnotatorBlock { annotator, terms, d_individual, d_units };
            annotator_gradients(model, context, &forward, &by_annotator, block)
        })
        .collect();
    let mut loss = row_gradients(
        model,
        context,
        &forward,
        (by_annotator, &terms),
        &mut gradient.out,
        d_common,
    );
    if model.mixture == Mixture::RowStochastic {
        let row_gradients = std::mem::replace(d_common, vec![0.0; cells]);
        let common = &context.gathered[COMMON];
        RowStochastic::Softmax.backward(
            common,
            &forward.common,
            &row_gradients,
            dims.labels,
            d_common,
        );
    }
    for (of_block, d_block) in penalties {
        loss += of_block;
        d_common.iter_mut().zip(d_block).for_each(|(d, block)| *d += block);
    }
    embeddings_backward(model, context, &forward, &d_units, d_embedding);
    loss
}

/// Computes the gradients of a block's parameters; returns the separation penalty and its derivative with respect to
/// the common matrix.
fn annotator_gradients(
    model: &Conal,
    context: &BatchContext<'_>,
    forward: &Forward,
    by_annotator: &ByAnnotator,
    block: AnnotatorBlock<'_>,
) -> (f64, Vec<f64>) {
    let (dims, d) = (context.dims, model.embedding);
    let Dims { classes, labels, .. } = dims;
    let cells = classes * labels;
    let scale = context.scale();
    let mut mixer = Mixer::new(model.mixture, labels);
    let mut terms = block.terms.chunks_exact_mut(width_of(dims));
    let (mut loss, mut d_common) = (0.0, vec![0.0; cells]);
    let mut d_rows = vec![0.0; cells];
    let own = block.d_individual.chunks_exact_mut(cells).zip(block.d_units.chunks_exact_mut(d));
    for (annotator, (d_own, d_unit)) in block.annotator.zip(own) {
        let individual = model.individual(context, forward, annotator);
        for (entry, term) in by_annotator.entries(annotator).iter().zip(terms.by_ref()) {
            let (b, annotation) =
                (entry.row as usize, &context.batch.annotations[entry.annotation as usize]);
            let label = annotation.label as usize;
            let (s, common) = (context.out.p(b), &forward.mixed[b * labels..(b + 1) * labels]);
            let share = Conal::share(forward, b, annotator);
            let p = mixer.mix(common, s, individual, share, label);
            let (d_p, term) = term.split_at_mut(classes);
            let (d_mixed, d_dot_and_loss) = term.split_at_mut(labels);
            let weight = scale * annotation.weight;
            let (loss, d_share) = mixer.loss(common, p, share, label, weight, d_mixed);
            row_times_backward(s, individual, &mixer.d_individual, d_p, d_own);
            let d_dot = d_share * share * (1.0 - share);
            d_unit.iter_mut().zip(&forward.rows[b].unit).for_each(|(d, v)| *d += d_dot * v);
            d_dot_and_loss.copy_from_slice(&[d_dot, loss]);
        }
        let w = &context.gathered[INDIVIDUAL][annotator * cells..(annotator + 1) * cells];
        if model.mixture == Mixture::RowStochastic {
            d_rows.copy_from_slice(d_own);
            d_own.fill(0.0);
            RowStochastic::Softmax.backward(w, individual, &d_rows, labels, d_own);
        }
        let strength = model.lambda * context.batch.share[annotator];
        loss += separation_penalty(strength, &context.gathered[COMMON], w, &mut d_common, d_own);
    }
    (loss, d_common)
}

/// The separation penalty: minus the distance of an annotator's matrix from the common one, with its derivatives.
fn separation_penalty(
    strength: f64,
    common: &[f64],
    individual: &[f64],
    d_common: &mut [f64],
    d_individual: &mut [f64],
) -> f64 {
    let squares = common.iter().zip(individual).map(|(g, r)| (g - r) * (g - r));
    let norm = (squares.sum::<f64>() + NORM_EPSILON).sqrt();
    let slope = strength / norm;
    let matrices = common.iter().zip(individual);
    for ((g, r), (d_g, d_r)) in matrices.zip(d_common.iter_mut().zip(d_individual)) {
        let change = slope * (g - r);
        *d_g -= change;
        *d_r += change;
    }
    -strength * norm
}

/// Sums the terms of all annotations into the gradients of the outputs and the common matrix; returns the sum of the
/// losses.
fn row_gradients(
    model: &Conal,
    context: &BatchContext<'_>,
    forward: &Forward,
    (by_annotator, terms): (ByAnnotator, &[f64]),
    out: &mut Outputs,
    d_common: &mut [f64],
) -> f64 {
    let (dims, d, width) = (context.dims, model.embedding, width_of(context.dims));
    let (mut d_mixed, mut d_row) = (vec![0.0; dims.labels], vec![0.0; d]);
    let mut locations = Cursors(by_annotator.offsets);
    let mut loss = 0.0;
    let auxiliary = out.named[AUXILIARY].chunks_exact_mut(d);
    let outputs = out.p.chunks_exact_mut(dims.classes).zip(auxiliary);
    for (b, (d_p, d_auxiliary)) in outputs.enumerate() {
        d_mixed.fill(0.0);
        d_row.fill(0.0);
        for annotation in context.batch.annotations_of_instance(b) {
            let at = locations.next(annotation.annotator) * width;
            let (of_p, term) = terms[at..at + width].split_at(dims.classes);
            let (of_mixed, d_dot_and_loss) = term.split_at(dims.labels);
            let unit = &forward.annotators[annotation.annotator as usize].unit;
            d_p.iter_mut().zip(of_p).for_each(|(d, term)| *d += term);
            d_mixed.iter_mut().zip(of_mixed).for_each(|(d, term)| *d += term);
            d_row.iter_mut().zip(unit).for_each(|(d, u)| *d += d_dot_and_loss[0] * u);
            loss += d_dot_and_loss[1];
        }
        row_times_backward(context.out.p(b), &forward.common, &d_mixed, d_p, d_common);
        forward.rows[b].backward(&d_row, d_auxiliary);
    }
    loss
}

/// Propagates the gradients of the unit embeddings to the embeddings, or to the projection of annotators' features.
fn embeddings_backward(
    model: &Conal,
    context: &BatchContext<'_>,
    forward: &Forward,
    d_units: &[f64],
    d_embedding: &mut [f64],
) {
    let d = model.embedding;
    for (annotator, direction) in forward.annotators.iter().enumerate() {
        let d_unit = &d_units[annotator * d..(annotator + 1) * d];
        let Some(features) = context.others.first() else {
            direction.backward(d_unit, &mut d_embedding[annotator * d..(annotator + 1) * d]);
            continue;
        };
        let mut d_u = vec![0.0; d];
        direction.backward(d_unit, &mut d_u);
        let features = features.hidden(annotator).iter().chain(&[1.0]);
        for (x, d_map) in features.zip(d_embedding.chunks_exact_mut(d)) {
            d_map.iter_mut().zip(&d_u).for_each(|(m, d)| *m += x * d);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::EMBEDDING;
    use super::*;
    use crate::job_context::JobContext;
    use crate::model::neural::data::batch::{Batch, BatchAnnotation};
    use crate::model::neural::numerics::softmax;
    use crate::model::neural::objective::crowd_net::{CrowdNet as _, Task};
    use crate::model::neural::objective::train_spec::Reduction;
    use crate::model::neural::objective::train_state::Estimates;
    use crate::model::neural::params::annotator_params::AnnotatorParams;
    use crate::model::neural::train::step::loss_and_gradient;
    use crate::testing::tiny;

    const ANNOTATORS: u32 = 150;
    const ROWS: usize = 2;

    /// With summed losses, the loss and gradient of a batch of three blocks are the sums over one batch for each
    /// annotator, to 1e-12.
    #[test]
    fn a_batch_is_the_sum_of_its_annotators() {
        let rows = |n: u32| (n / ANNOTATORS, n % ANNOTATORS, n * 7 % 3);
        let annotation: Vec<_> = (0..ROWS as u32 * ANNOTATORS).map(rows).collect();
        let a = tiny(3, &annotation);
        for mixture in [Mixture::LogitMix, Mixture::ProbMix, Mixture::RowStochastic] {
            let model = Conal { mixture, lambda: 0.1, embedding: 2, ..Conal::default() };
            let job = JobContext::new(1);
            let task = Task { evidence: (&a).into(), dims: a.dims(), hidden: 0, job: &job };
            let mut annotator_params = AnnotatorParams { tables: model.tables(&task).unwrap() };
            let individual = annotator_params.tables[INDIVIDUAL].values.iter_mut().enumerate();
            individual.for_each(|(n, w)| *w += (n as f32).sin());
            let on = |annotators: Range<u32>| {
                let batch = batch(&annotation, annotators);
                let gathered = annotator_params.gather(&batch);
                let (out, dims) = (outputs(), a.dims());
                let (batch, gathered, annotator_params) = (&batch, &gathered, &annotator_params);
                let context = BatchContext {
                    phase: "",
                    batch,
                    out: &out,
                    others: &[],
                    gathered,
                    annotator_params,
                    estimates: &Estimates::default(),
                    reduction: Reduction::Sum,
                    dims,
                };
                loss_and_gradient(&model, &context).unwrap()
            };
            let (loss, together) = on(0..ANNOTATORS);
            let alone: Vec<_> = (0..ANNOTATORS).map(|r| on(r..r + 1)).collect();
            near(&[loss], &[alone.iter().map(|(loss, _)| loss).sum()]);
            let sum = |part: &dyn Fn(&Gradient) -> Vec<f64>| {
                let mut sum = vec![0.0; part(&together).len()];
                for (_, gradient) in &alone {
                    sum.iter_mut().zip(part(gradient)).for_each(|(s, g)| *s += g);
                }
                near(&part(&together), &sum);
            };
            sum(&|g| g.out.p.clone());
            sum(&|g| g.out.named[AUXILIARY].clone());
            sum(&|g| g.tables[COMMON].clone());
            for table in [INDIVIDUAL, EMBEDDING] {
                let each = alone.iter().flat_map(|(_, gradient)| gradient.tables[table].clone());
                near(&together.tables[table], &each.collect::<Vec<_>>());
            }
        }
    }

    fn near(got: &[f64], want: &[f64]) {
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() < 1e-12 * want.abs().max(1.0), "{got}, expected {want}");
        }
    }

    fn outputs() -> Outputs {
        let logits = vec![2.0, 0.0, -1.0, 0.5, 1.5, 0.0];
        let mut p = vec![0.0; logits.len()];
        for (logits, p) in logits.chunks(3).zip(p.chunks_mut(3)) {
            softmax(logits, p);
        }
        let named = vec![vec![0.4, 0.1, -0.2, 0.7]];
        Outputs { rows: ROWS, logits, p, named, ..Outputs::default() }
    }

    /// The annotations of these annotators on both rows.
    fn batch(annotation: &[(u32, u32, u32)], annotators: Range<u32>) -> Batch {
        let mut batch = Batch { offsets: vec![0], ..Batch::default() };
        for row in 0..ROWS as u32 {
            for (_, r, label) in
                annotation.iter().filter(|(i, r, _)| *i == row && annotators.contains(r))
            {
                batch.annotations.push(BatchAnnotation {
                    annotator: r - annotators.start,
                    label: *label,
                    weight: 1.0,
                });
            }
            batch.offsets.push(batch.annotations.len());
        }
        (batch.rows, batch.instances) = (vec![0, 1], vec![0, 1]);
        batch.trusted = vec![None; ROWS];
        batch.share = vec![1.0; annotators.len()];
        batch.annotators = annotators.collect();
        batch
    }
}
