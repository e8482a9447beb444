//! Every annotation is confused in the way of all annotators or in the annotator's own way, depending on both.
//!
//! ```text
//! s = softmax(classifier(x))    v = normalised auxiliary(x)    u[r] = normalised embedding of r
//! om = sigmoid(u[r] . v): the part of the common confusion in what r says of x
//! logit_mix       a = om s^T W_g + (1 - om) s^T W[r];                 P(y) = softmax(a)[y]
//! prob_mix        P(y) = om softmax(s^T W_g)[y] + (1 - om) softmax(s^T W[r])[y]
//! row_stochastic  P(y) = sum_k s[k] ( om G[k][y] + (1 - om) Pi[r][k][y] ),  G, Pi = row softmax of W_g, W[r]
//! loss = mean over annotations of -ln P(y)  -  lambda sum_r | W_g - W[r] |      W_g = W[r] = 2 I at first
//! ```
//! The norm is subtracted: matrices are pushed apart, and since nothing holds them back lambda must be tiny.
//!
//! Z. Chu, J. Ma, H. Wang: Learning from Crowds by Modeling Common Confusions. AAAI 2021. arXiv:2012.13052
//!
//! `logit_mix` is the public code's form and `prob_mix` the paper's; `row_stochastic` mixes confusion matrices and
//! alone gives posteriors by Bayes' rule. Differs from the public code in the optimiser, which there is made anew every
//! epoch (`train.optimiser.reset_each_epoch`), and in that a step subtracts the norms of its own annotators only, each
//! by its share of what it said.

use rand::Rng as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::maths::{
    Rows, diagonal, negative_log, row_times, row_times_backward, sigmoid, softmax, softmax_backward,
};
use super::{
    BackboneSpec, Crowd, CrowdNet, CrowdReport, Gradient, Heads, Judged, Parts, Reduction, Said,
    Step, Table, Task, TrainSpec, auto, check_parts,
};
use crate::error::Result;
use crate::frame::{Dims, Matrix};
use crate::model::Spec;
use crate::spec::Problems;

/// How common and individual confusion are mixed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mixture {
    /// Their logits, as in the public code.
    #[default]
    LogitMix,
    /// Their probabilities, as in the paper.
    ProbMix,
    /// Confusion matrices.
    RowStochastic,
}

/// CoNAL.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Conal {
    /// Where the network computes: `auto`, `cpu` or `cuda:0`.
    pub device: String,
    /// The classifier before its last layer.
    pub backbone: BackboneSpec,
    /// How it is trained.
    pub train: TrainSpec,
    /// How common and individual confusion are mixed.
    pub mixture: Mixture,
    /// Numbers in an embedding of an instance or an annotator.
    #[schemars(range(min = 1))]
    pub embedding: usize,
    /// Numbers between the two linear maps that embed an instance.
    #[schemars(range(min = 1))]
    pub auxiliary: usize,
    /// Whether an instance's embedding is normalised, as an annotator's always is.
    pub normalise_instances: bool,
    /// How strongly annotators' matrices are pushed away from the common one.
    #[schemars(range(min = 0.0))]
    pub lambda: f64,
}

impl Default for Conal {
    fn default() -> Self {
        Self {
            device: auto(),
            backbone: BackboneSpec::default(),
            train: TrainSpec::default(),
            mixture: Mixture::LogitMix,
            embedding: 20,
            auxiliary: 128,
            normalise_instances: true,
            lambda: 1e-5,
        }
    }
}

impl Spec for Conal {
    const KIND: &'static str = "conal";
    const SUMMARY: &'static str =
        "a classifier with a common and an individual confusion, mixed by instance";
    const SOURCE: &'static str = "Chu, Ma and Wang 2021, arXiv:2012.13052";

    fn check(&self, place: &str, problems: &mut Problems) {
        check_parts(self.parts(), place, problems);
    }
}

/// The tables, by place.
const COMMON: usize = 0;
const INDIVIDUAL: usize = 1;
/// An annotator's embedding before it is normalised; or, with features, the map that makes it of them.
const EMBEDDING: usize = 2;
/// An annotator's standardised features and a one, where there are any.
const FEATURES: usize = 3;

/// What is added under the root of a norm, whose slope at zero would else be infinite.
const UNDER_ROOT: f64 = 1e-12;

/// A vector and its direction.
struct Direction {
    norm: f64,
    unit: Vec<f64>,
}

impl Direction {
    fn of(vector: &[f64]) -> Self {
        let norm = vector.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-12);
        Self { norm, unit: vector.iter().map(|x| x / norm).collect() }
    }

    /// Adds what the gradient by the direction means for the vector.
    fn backward(&self, d_unit: &[f64], d_vector: &mut [f64]) {
        let along: f64 = self.unit.iter().zip(d_unit).map(|(u, d)| u * d).sum();
        for ((d, d_unit), unit) in d_vector.iter_mut().zip(d_unit).zip(&self.unit) {
            *d += (d_unit - along * unit) / self.norm;
        }
    }
}

/// What a step needs of its annotators and rows before it looks at annotations.
struct Forward {
    annotators: Vec<Direction>,
    rows: Vec<Direction>,
    /// Row-stochastic matrices of `common` and `individual`, where the mixture is of those.
    common: Vec<f64>,
    individual: Vec<f64>,
}

/// P(what was said) of one annotation, and how it came about.
struct Mixed {
    share: f64,
    p: f64,
    common: Vec<f64>,
    individual: Vec<f64>,
}

impl Conal {
    fn forward(&self, step: &Step<'_>) -> Forward {
        let d = self.embedding;
        let embedding = &step.gathered[EMBEDDING];
        let annotators = match step.gathered.get(FEATURES) {
            None => embedding.chunks_exact(d).map(Direction::of).collect(),
            Some(features) => {
                let mut u = vec![0.0; d];
                let width = step.crowd.tables[FEATURES].width;
                let one = |features: &[f64]| {
                    row_times(features, embedding, &mut u);
                    Direction::of(&u)
                };
                features.chunks_exact(width).map(one).collect()
            }
        };
        let row = |b: usize| {
            let v = step.out.auxiliary(b);
            if self.normalise_instances {
                Direction::of(v)
            } else {
                Direction { norm: 1.0, unit: v.to_vec() }
            }
        };
        let stochastic = |w: &[f64]| {
            let mut rows = vec![0.0; w.len()];
            if self.mixture == Mixture::RowStochastic {
                Rows::Softmax.forward(w, step.dims.labels, &mut rows);
            }
            rows
        };
        Forward {
            annotators,
            rows: (0..step.batch.len()).map(row).collect(),
            common: stochastic(&step.gathered[COMMON]),
            individual: stochastic(&step.gathered[INDIVIDUAL]),
        }
    }

    fn mix(&self, step: &Step<'_>, forward: &Forward, b: usize, said: &Said) -> Mixed {
        let Dims { classes, labels, .. } = step.dims;
        let (who, y) = (said.who as usize, said.label as usize);
        let (u, v) = (&forward.annotators[who].unit, &forward.rows[b].unit);
        let share = sigmoid(u.iter().zip(v).map(|(u, v)| u * v).sum());
        let own = who * classes * labels..(who + 1) * classes * labels;
        let (mut common, mut individual) = (vec![0.0; labels], vec![0.0; labels]);
        let s = step.out.p(b);
        if self.mixture == Mixture::RowStochastic {
            row_times(s, &forward.common, &mut common);
            row_times(s, &forward.individual[own], &mut individual);
            let p = share * common[y] + (1.0 - share) * individual[y];
            return Mixed { share, p, common, individual };
        }
        row_times(s, &step.gathered[COMMON], &mut common);
        row_times(s, &step.gathered[INDIVIDUAL][own], &mut individual);
        let mut says = vec![0.0; labels];
        if self.mixture == Mixture::LogitMix {
            let mixed: Vec<f64> = common
                .iter()
                .zip(&individual)
                .map(|(g, r)| share * g + (1.0 - share) * r)
                .collect();
            softmax(&mixed, &mut says);
            return Mixed { share, p: says[y], common, individual };
        }
        softmax(&common.clone(), &mut common);
        softmax(&individual.clone(), &mut individual);
        Mixed { share, p: share * common[y] + (1.0 - share) * individual[y], common, individual }
    }
}

impl CrowdNet for Conal {
    const REDUCTION: Reduction = Reduction::MeanAnnotation;

    fn parts(&self) -> Parts<'_> {
        Parts { device: &self.device, backbone: &self.backbone, train: &self.train }
    }

    fn heads(&self) -> Heads {
        Heads { auxiliary: Some([self.auxiliary, self.embedding]), ..Heads::CLASSIFIER }
    }

    fn tables(&self, task: &Task<'_>) -> Result<Vec<Table>> {
        let Dims { annotators, classes, labels, .. } = task.dims;
        let start = diagonal(classes, labels, 2.0, 0.0);
        let mut tables = vec![
            Table::shared("common", start.clone()),
            Table::each("individual", annotators, &start),
        ];
        let mut rng = task.run.rng("annotator embeddings");
        let bound = 1.0 / (self.embedding as f32).sqrt();
        let mut draw = |n: usize| -> Vec<f32> {
            (0..n).map(|_| (2.0 * rng.random::<f32>() - 1.0) * bound).collect()
        };
        match task.evidence.described.and_then(|d| d.annotator_matrix()) {
            None => tables.push(Table::drawn(
                "embedding",
                self.embedding,
                draw(annotators * self.embedding),
            )),
            Some((matrix, rows)) => {
                let width = matrix.width() + 1;
                tables.push(Table::shared("projection", draw(width * self.embedding)));
                tables.push(Table::drawn("features", width, standardised(matrix, rows)).fixed());
            }
        }
        Ok(tables)
    }

    fn loss(&self, step: &Step<'_>, gradient: &mut Gradient) -> f64 {
        let Dims { classes, labels, .. } = step.dims;
        let cells = classes * labels;
        let d = self.embedding;
        let forward = self.forward(step);
        let scale = self.scale(step);
        let [d_common, d_individual, d_embedding, ..] = &mut gradient.tables[..] else {
            return 0.0;
        };
        let mut d_units = vec![0.0; step.batch.annotators.len() * d];
        let mut d_rows = vec![0.0; step.batch.len() * d];
        let (mut d_g, mut d_r) = (vec![0.0; labels], vec![0.0; labels]);
        let mut loss = 0.0;
        for (b, said) in step.said() {
            let (who, y) = (said.who as usize, said.label as usize);
            let Mixed { share, p, common, individual } = self.mix(step, &forward, b, said);
            let weight = scale * said.weight;
            let (term, slope) = negative_log(p);
            loss += weight * term;
            let slope = weight * slope;
            // By the common and the individual part, and by the share.
            let mut d_share = 0.0;
            d_g.fill(0.0);
            d_r.fill(0.0);
            match self.mixture {
                Mixture::RowStochastic => {
                    (d_g[y], d_r[y]) = (slope * share, slope * (1.0 - share));
                    d_share = slope * (common[y] - individual[y]);
                }
                Mixture::ProbMix => {
                    let (mut one, at) = (vec![0.0; labels], y);
                    one[at] = slope * share;
                    softmax_backward(&common, &one, &mut d_g);
                    one[at] = slope * (1.0 - share);
                    softmax_backward(&individual, &one, &mut d_r);
                    d_share = slope * (common[y] - individual[y]);
                }
                Mixture::LogitMix => {
                    let mixed: Vec<f64> = common
                        .iter()
                        .zip(&individual)
                        .map(|(g, r)| share * g + (1.0 - share) * r)
                        .collect();
                    let mut d_mixed = vec![0.0; labels];
                    softmax(&mixed, &mut d_mixed);
                    d_mixed[y] -= 1.0;
                    for (l, d) in d_mixed.iter().enumerate() {
                        let d = weight * d;
                        (d_g[l], d_r[l]) = (d * share, d * (1.0 - share));
                        d_share += d * (common[l] - individual[l]);
                    }
                }
            }
            let own = who * cells..(who + 1) * cells;
            let (s, d_s) = (step.out.p(b), &mut gradient.out.p[b * classes..(b + 1) * classes]);
            let (w_g, w_r) = match self.mixture {
                Mixture::RowStochastic => (&forward.common[..], &forward.individual[own.clone()]),
                _ => (&step.gathered[COMMON][..], &step.gathered[INDIVIDUAL][own.clone()]),
            };
            row_times_backward(s, w_g, &d_g, d_s, d_common);
            row_times_backward(s, w_r, &d_r, d_s, &mut d_individual[own]);
            let d_dot = d_share * share * (1.0 - share);
            for j in 0..d {
                d_units[who * d + j] += d_dot * forward.rows[b].unit[j];
                d_rows[b * d + j] += d_dot * forward.annotators[who].unit[j];
            }
        }
        if self.mixture == Mixture::RowStochastic {
            let through = |w: &[f64], rows: &[f64], d_rows: &mut Vec<f64>| {
                let of_rows = std::mem::replace(d_rows, vec![0.0; w.len()]);
                Rows::Softmax.backward(w, rows, &of_rows, labels, d_rows);
            };
            through(&step.gathered[COMMON], &forward.common, d_common);
            through(&step.gathered[INDIVIDUAL], &forward.individual, d_individual);
        }
        for (who, share) in step.batch.share.iter().enumerate() {
            let own = who * cells..(who + 1) * cells;
            let difference =
                step.gathered[COMMON].iter().zip(&step.gathered[INDIVIDUAL][own.clone()]);
            let difference: Vec<f64> = difference.map(|(g, r)| g - r).collect();
            let norm = (difference.iter().map(|x| x * x).sum::<f64>() + UNDER_ROOT).sqrt();
            loss -= self.lambda * share * norm;
            let slope = self.lambda * share / norm;
            for ((x, d_g), d_r) in
                difference.iter().zip(d_common.iter_mut()).zip(&mut d_individual[own])
            {
                *d_g -= slope * x;
                *d_r += slope * x;
            }
        }
        for (who, direction) in forward.annotators.iter().enumerate() {
            let d_unit = &d_units[who * d..(who + 1) * d];
            match step.gathered.get(FEATURES) {
                None => direction.backward(d_unit, &mut d_embedding[who * d..(who + 1) * d]),
                Some(features) => {
                    let width = step.crowd.tables[FEATURES].width;
                    let mut d_u = vec![0.0; d];
                    direction.backward(d_unit, &mut d_u);
                    let features = &features[who * width..(who + 1) * width];
                    for (x, d_map) in features.iter().zip(d_embedding.chunks_exact_mut(d)) {
                        d_map.iter_mut().zip(&d_u).for_each(|(m, d)| *m += x * d);
                    }
                }
            }
        }
        for (b, direction) in forward.rows.iter().enumerate() {
            let (d_unit, d_v) =
                (&d_rows[b * d..(b + 1) * d], &mut gradient.out.auxiliary[b * d..(b + 1) * d]);
            if self.normalise_instances {
                direction.backward(d_unit, d_v);
            } else {
                d_v.iter_mut().zip(d_unit).for_each(|(v, d)| *v += d);
            }
        }
        loss
    }

    fn judge(&self, step: &Step<'_>) -> Judged {
        let Dims { classes, labels, .. } = step.dims;
        let forward = self.forward(step);
        let mixed: Vec<(usize, Mixed)> =
            step.said().map(|(b, said)| (b, self.mix(step, &forward, b, said))).collect();
        let mut shares = vec![(0.0, 0.0); step.batch.len()];
        for (b, mixed) in &mixed {
            shares[*b].0 += mixed.share;
            shares[*b].1 += 1.0;
        }
        let parameters =
            shares.iter().map(|(sum, n)| if *n > 0.0 { sum / n } else { 0.5 }).collect();
        let likelihood = mixed.iter().map(|(_, mixed)| mixed.p).collect();
        if self.mixture != Mixture::RowStochastic {
            let classes = step.out.p.clone();
            return Judged { posterior: classes.clone(), classes, likelihood, parameters };
        }
        let judged = step.judged_by(|b, said, k| {
            let cell = k * labels + said.label as usize;
            let (u, v) = (&forward.annotators[said.who as usize].unit, &forward.rows[b].unit);
            let share = sigmoid(u.iter().zip(v).map(|(u, v)| u * v).sum());
            share * forward.common[cell]
                + (1.0 - share) * forward.individual[said.who as usize * classes * labels + cell]
        });
        Judged { parameters, ..judged }
    }

    fn instance_parameters(&self) -> &'static [&'static str] {
        &["common_share"]
    }

    fn report(&self, task: &Task<'_>, crowd: &Crowd) -> CrowdReport {
        let rows = |table: usize| {
            let w: Vec<f64> = crowd.tables[table].values.iter().map(|v| f64::from(*v)).collect();
            let mut rows = vec![0.0; w.len()];
            Rows::Softmax.forward(&w, task.dims.labels, &mut rows);
            rows
        };
        let n = task.dims.annotators;
        let embeddings: Vec<Vec<f64>> = (0..n)
            .map(|r| match crowd.tables.get(FEATURES) {
                None => Direction::of(&crowd.tables[EMBEDDING].row(r)).unit,
                Some(features) => {
                    let mut u = vec![0.0; self.embedding];
                    row_times(&features.row(r), &crowd.tables[EMBEDDING].row(0), &mut u);
                    Direction::of(&u).unit
                }
            })
            .collect();
        let column = |j: usize| embeddings.iter().map(|u| u[j]).collect();
        CrowdReport {
            confusion: Some(rows(INDIVIDUAL)),
            common: Some(rows(COMMON)),
            parameters: (0..self.embedding)
                .map(|j| (format!("embedding_{j}"), column(j)))
                .collect(),
            ..CrowdReport::default()
        }
    }
}

/// Annotators' features at mean 0 and deviation 1, each row ended by a one; an annotator without any is average.
fn standardised(matrix: &Matrix, rows: &[Option<u32>]) -> Vec<f32> {
    let width = matrix.width();
    let mut values = vec![0.0; rows.len() * width];
    for (row, out) in rows.iter().zip(values.chunks_exact_mut(width)) {
        row.iter().for_each(|row| matrix.read(*row as usize, out));
    }
    let known: Vec<usize> = (0..rows.len()).filter(|r| rows[*r].is_some()).collect();
    let mut out = vec![1.0; rows.len() * (width + 1)];
    for k in 0..width {
        let column = || known.iter().map(|r| f64::from(values[r * width + k]));
        let n = f64::max(known.len() as f64, 1.0);
        let mean = column().sum::<f64>() / n;
        let deviation = (column().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n).sqrt();
        for r in 0..rows.len() {
            let x = (f64::from(values[r * width + k]) - mean)
                / if deviation > 1e-8 { deviation } else { 1.0 };
            out[r * (width + 1) + k] = if rows[r].is_some() { x as f32 } else { 0.0 };
        }
    }
    out
}
