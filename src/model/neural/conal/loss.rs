//! The loss of a batch and its derivatives: first annotator by annotator, then row by row.
//!
//! # Why
//! An annotator's matrix is most of what a step touches, and what one annotator said touches no other's: blocks of
//! annotators are computed side by side. Each annotation leaves what it means for its row, and rows gather that in the
//! order in which they were annotated. So the numbers do not depend on the number of threads.

use std::ops::Range;

use rayon::prelude::*;

use super::mixture::{Mixer, Mixture};
use super::{COMMON, Conal, FEATURES, Forward, INDIVIDUAL};
use crate::frame::{Dims, Places, split_by};
use crate::model::neural::batch::Turns;
use crate::model::neural::maths::{Rows, row_times_backward};
use crate::model::neural::{CrowdNet as _, Gradient, Outputs, Step};

/// Annotators that are computed together.
const BLOCK: usize = 64;

/// What is added under the root of a norm, whose slope at zero would else be infinite.
const UNDER_ROOT: f64 = 1e-12;

/// Some annotators of the batch, and room for what is found of them.
struct Block<'a> {
    who: Range<usize>,
    /// What each of their annotations means for its row: its derivatives by the row's class probabilities `[class]`, by
    /// what the common confusion makes of those `[label]` and by the product of both directions, and its loss.
    terms: &'a mut [f64],
    d_individual: &'a mut [f64],
    d_units: &'a mut [f64],
}

/// Numbers in the terms of one annotation.
fn width_of(dims: Dims) -> usize {
    dims.classes + dims.labels + 2
}

/// The loss of a batch; adds its derivatives to `gradient`.
pub(super) fn loss(model: &Conal, step: &Step<'_>, gradient: &mut Gradient) -> f64 {
    let [d_common, d_individual, d_embedding, ..] = &mut gradient.tables[..] else {
        return 0.0;
    };
    let (dims, d, width) = (step.dims, model.embedding, width_of(step.dims));
    let cells = dims.classes * dims.labels;
    let forward = model.forward(step);
    let turns = step.batch.turns();
    let mut d_units = vec![0.0; step.batch.annotators.len() * d];
    let mut terms = vec![0.0; step.batch.said.len() * width];
    let blocks = split_by(&mut terms, &turns.offsets, width, BLOCK).into_par_iter();
    let pushed: Vec<(f64, Vec<f64>)> = blocks
        .zip(d_individual.par_chunks_mut(BLOCK * cells))
        .zip(d_units.par_chunks_mut(BLOCK * d))
        .map(|(((who, terms), d_individual), d_units)| {
            let block = Block { who, terms, d_individual, d_units };
            of_annotators(model, step, &forward, &turns, block)
        })
        .collect();
    let mut loss = of_rows(model, step, &forward, (turns, &terms), &mut gradient.out, d_common);
    if model.mixture == Mixture::RowStochastic {
        let of_rows = std::mem::replace(d_common, vec![0.0; cells]);
        let common = &step.gathered[COMMON];
        Rows::Softmax.backward(common, &forward.common, &of_rows, dims.labels, d_common);
    }
    for (of_block, d_block) in pushed {
        loss += of_block;
        d_common.iter_mut().zip(d_block).for_each(|(d, block)| *d += block);
    }
    embeddings_backward(model, step, &forward, &d_units, d_embedding);
    loss
}

/// What annotators' own parameters are told; returns what pushing them away from the common matrix adds to the loss and
/// to the derivative by that matrix.
fn of_annotators(
    model: &Conal,
    step: &Step<'_>,
    forward: &Forward,
    turns: &Turns,
    block: Block<'_>,
) -> (f64, Vec<f64>) {
    let (dims, d) = (step.dims, model.embedding);
    let Dims { classes, labels, .. } = dims;
    let cells = classes * labels;
    let scale = model.scale(step);
    let mut mixer = Mixer::new(model.mixture, labels);
    let mut terms = block.terms.chunks_exact_mut(width_of(dims));
    let (mut loss, mut d_common) = (0.0, vec![0.0; cells]);
    let mut d_rows = vec![0.0; cells];
    let own = block.d_individual.chunks_exact_mut(cells).zip(block.d_units.chunks_exact_mut(d));
    for (who, (d_own, d_unit)) in block.who.zip(own) {
        let individual = model.individual(step, forward, who);
        for (turn, term) in turns.of(who).iter().zip(terms.by_ref()) {
            let (b, said) = (turn.row as usize, &step.batch.said[turn.said as usize]);
            let label = said.label as usize;
            let (s, common) = (step.out.p(b), &forward.mixed[b * labels..(b + 1) * labels]);
            let share = Conal::share(forward, b, who);
            let p = mixer.mix(common, s, individual, share, label);
            let (d_p, term) = term.split_at_mut(classes);
            let (d_mixed, d_dot_and_loss) = term.split_at_mut(labels);
            let weight = scale * said.weight;
            let (loss, d_share) = mixer.loss(common, p, share, label, weight, d_mixed);
            row_times_backward(s, individual, &mixer.d_individual, d_p, d_own);
            let d_dot = d_share * share * (1.0 - share);
            d_unit.iter_mut().zip(&forward.rows[b].unit).for_each(|(d, v)| *d += d_dot * v);
            d_dot_and_loss.copy_from_slice(&[d_dot, loss]);
        }
        let w = &step.gathered[INDIVIDUAL][who * cells..(who + 1) * cells];
        if model.mixture == Mixture::RowStochastic {
            d_rows.copy_from_slice(d_own);
            d_own.fill(0.0);
            Rows::Softmax.backward(w, individual, &d_rows, labels, d_own);
        }
        let strength = model.lambda * step.batch.share[who];
        loss += push_apart(strength, &step.gathered[COMMON], w, &mut d_common, d_own);
    }
    (loss, d_common)
}

/// Subtracts the distance of an annotator's matrix from the common one.
fn push_apart(
    strength: f64,
    common: &[f64],
    individual: &[f64],
    d_common: &mut [f64],
    d_individual: &mut [f64],
) -> f64 {
    let squares = common.iter().zip(individual).map(|(g, r)| (g - r) * (g - r));
    let norm = (squares.sum::<f64>() + UNDER_ROOT).sqrt();
    let slope = strength / norm;
    let matrices = common.iter().zip(individual);
    for ((g, r), (d_g, d_r)) in matrices.zip(d_common.iter_mut().zip(d_individual)) {
        let step = slope * (g - r);
        *d_g -= step;
        *d_r += step;
    }
    -strength * norm
}

/// What the network's outputs and the common matrix are told, from the terms of all annotations; returns their loss.
fn of_rows(
    model: &Conal,
    step: &Step<'_>,
    forward: &Forward,
    (turns, terms): (Turns, &[f64]),
    out: &mut Outputs,
    d_common: &mut [f64],
) -> f64 {
    let (dims, d, width) = (step.dims, model.embedding, width_of(step.dims));
    let (mut d_mixed, mut d_row) = (vec![0.0; dims.labels], vec![0.0; d]);
    let mut places = Places(turns.offsets);
    let mut loss = 0.0;
    let outputs = out.p.chunks_exact_mut(dims.classes).zip(out.auxiliary.chunks_exact_mut(d));
    for (b, (d_p, d_auxiliary)) in outputs.enumerate() {
        d_mixed.fill(0.0);
        d_row.fill(0.0);
        for said in step.batch.said_of(b) {
            let at = places.next(said.who) * width;
            let (of_p, term) = terms[at..at + width].split_at(dims.classes);
            let (of_mixed, d_dot_and_loss) = term.split_at(dims.labels);
            let unit = &forward.annotators[said.who as usize].unit;
            d_p.iter_mut().zip(of_p).for_each(|(d, term)| *d += term);
            d_mixed.iter_mut().zip(of_mixed).for_each(|(d, term)| *d += term);
            d_row.iter_mut().zip(unit).for_each(|(d, u)| *d += d_dot_and_loss[0] * u);
            loss += d_dot_and_loss[1];
        }
        row_times_backward(step.out.p(b), &forward.common, &d_mixed, d_p, d_common);
        forward.rows[b].backward(&d_row, d_auxiliary);
    }
    loss
}

/// What the gradients by the directions of annotators mean for their embeddings, or for the map that makes them.
fn embeddings_backward(
    model: &Conal,
    step: &Step<'_>,
    forward: &Forward,
    d_units: &[f64],
    d_embedding: &mut [f64],
) {
    let d = model.embedding;
    for (who, direction) in forward.annotators.iter().enumerate() {
        let d_unit = &d_units[who * d..(who + 1) * d];
        let Some(features) = step.gathered.get(FEATURES) else {
            direction.backward(d_unit, &mut d_embedding[who * d..(who + 1) * d]);
            continue;
        };
        let width = step.crowd.tables[FEATURES].width;
        let mut d_u = vec![0.0; d];
        direction.backward(d_unit, &mut d_u);
        let features = &features[who * width..(who + 1) * width];
        for (x, d_map) in features.iter().zip(d_embedding.chunks_exact_mut(d)) {
            d_map.iter_mut().zip(&d_u).for_each(|(m, d)| *m += x * d);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::EMBEDDING;
    use super::*;
    use crate::model::neural::maths::softmax;
    use crate::model::neural::step::loss_and_gradient;
    use crate::model::neural::{Batch, Crowd, Reduction, Said, Task, TrainSpec};
    use crate::run::Run;
    use crate::testing::tiny;

    const ANNOTATORS: u32 = 150;
    const ROWS: usize = 2;

    /// With summed losses a batch of three blocks is the sum of one batch for each annotator, to 1e-12.
    #[test]
    fn a_batch_is_the_sum_of_its_annotators() {
        let rows = |n: u32| (n / ANNOTATORS, n % ANNOTATORS, n * 7 % 3);
        let said: Vec<_> = (0..ROWS as u32 * ANNOTATORS).map(rows).collect();
        let a = tiny(3, &said);
        for mixture in [Mixture::LogitMix, Mixture::ProbMix, Mixture::RowStochastic] {
            let train = TrainSpec { reduction: Some(Reduction::Sum), ..TrainSpec::default() };
            let model = Conal { mixture, train, lambda: 0.1, embedding: 2, ..Conal::default() };
            let run = Run::new(1);
            let task = Task { evidence: (&a).into(), dims: a.dims(), hidden: 0, run: &run };
            let mut crowd = Crowd { tables: model.tables(&task).unwrap() };
            let individual = crowd.tables[INDIVIDUAL].values.iter_mut().enumerate();
            individual.for_each(|(n, w)| *w += (n as f32).sin());
            let on = |annotators: Range<u32>| {
                let batch = batch(&said, annotators);
                let gathered = crowd.gather(&batch.annotators);
                let (out, dims) = (outputs(), a.dims());
                let (batch, gathered, crowd) = (&batch, &gathered, &crowd);
                let step = Step { phase: 0, batch, out: &out, gathered, crowd, dims };
                loss_and_gradient(&model, &step)
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
            sum(&|g| g.out.auxiliary.clone());
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
        let auxiliary = vec![0.4, 0.1, -0.2, 0.7];
        Outputs { rows: ROWS, logits, p, hidden: Vec::new(), auxiliary }
    }

    /// What these annotators said of both rows.
    fn batch(said: &[(u32, u32, u32)], annotators: Range<u32>) -> Batch {
        let mut batch = Batch { offsets: vec![0], ..Batch::default() };
        for row in 0..ROWS as u32 {
            for (_, r, label) in said.iter().filter(|(i, r, _)| *i == row && annotators.contains(r))
            {
                batch.said.push(Said { who: r - annotators.start, label: *label, weight: 1.0 });
            }
            batch.offsets.push(batch.said.len());
        }
        (batch.rows, batch.instances) = (vec![0, 1], vec![0, 1]);
        batch.trusted = vec![None; ROWS];
        batch.share = vec![1.0; annotators.len()];
        batch.annotators = annotators.collect();
        batch
    }
}
