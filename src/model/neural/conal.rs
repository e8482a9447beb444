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

use super::maths::{Direction, Rows, diagonal, row_times, row_times_backward, sigmoid};
use super::mixture::{Mixer, Mixture};
use super::scaler::Scaler;
use super::{
    BackboneSpec, Crowd, CrowdNet, CrowdReport, Gradient, Heads, Judged, Parts, Reduction, Step,
    Table, Task, TrainSpec, auto, check_parts,
};
use crate::error::Result;
use crate::frame::{Dims, Matrix};
use crate::model::Spec;
use crate::spec::Problems;

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

/// What a step needs of its annotators and rows before it looks at annotations.
struct Forward {
    annotators: Vec<Direction>,
    rows: Vec<Direction>,
    /// Row-stochastic matrices of `common` and `individual`, where the mixture is of those.
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
            if self.normalise_instances { Direction::of(v) } else { Direction::as_it_is(v) }
        };
        let stochastic = |w: &[f64]| {
            if self.mixture != Mixture::RowStochastic {
                return Vec::new();
            }
            let mut rows = vec![0.0; w.len()];
            Rows::Softmax.forward(w, step.dims.labels, &mut rows);
            rows
        };
        Forward {
            annotators,
            rows: (0..step.batch.len()).map(row).collect(),
            common: stochastic(&step.gathered[COMMON]),
            individual: stochastic(&step.gathered[INDIVIDUAL]),
        }
    }

    /// The part of the common confusion in what was said of row `b`.
    fn share(forward: &Forward, b: usize, who: usize) -> f64 {
        let (u, v) = (&forward.annotators[who].unit, &forward.rows[b].unit);
        sigmoid(u.iter().zip(v).map(|(u, v)| u * v).sum())
    }

    /// The common matrix, as the mixture takes it.
    fn common<'a>(&self, step: &'a Step<'_>, forward: &'a Forward) -> &'a [f64] {
        match self.mixture {
            Mixture::RowStochastic => &forward.common,
            Mixture::LogitMix | Mixture::ProbMix => &step.gathered[COMMON],
        }
    }

    /// The matrix of annotator `who`, as the mixture takes it.
    fn individual<'a>(&self, step: &'a Step<'_>, forward: &'a Forward, who: usize) -> &'a [f64] {
        let cells = step.dims.classes * step.dims.labels;
        let all = match self.mixture {
            Mixture::RowStochastic => &forward.individual,
            Mixture::LogitMix | Mixture::ProbMix => &step.gathered[INDIVIDUAL],
        };
        &all[who * cells..(who + 1) * cells]
    }

    /// Subtracts the distances of the batch's annotators from the common matrix.
    fn push_apart(&self, step: &Step<'_>, d_common: &mut [f64], d_individual: &mut [f64]) -> f64 {
        let cells = step.dims.classes * step.dims.labels;
        let common = &step.gathered[COMMON];
        let individual = step.gathered[INDIVIDUAL].chunks_exact(cells);
        let rows = individual.zip(d_individual.chunks_exact_mut(cells)).zip(&step.batch.share);
        let mut loss = 0.0;
        for ((individual, d_individual), share) in rows {
            let squares = common.iter().zip(individual).map(|(g, r)| (g - r) * (g - r));
            let norm = (squares.sum::<f64>() + UNDER_ROOT).sqrt();
            loss -= self.lambda * share * norm;
            let slope = self.lambda * share / norm;
            for cell in 0..cells {
                let difference = common[cell] - individual[cell];
                d_common[cell] -= slope * difference;
                d_individual[cell] += slope * difference;
            }
        }
        loss
    }

    /// What the gradients by the directions of annotators mean for their embeddings, or for the map that makes them.
    fn embeddings_backward(
        &self,
        step: &Step<'_>,
        forward: &Forward,
        d_units: &[f64],
        d_embedding: &mut [f64],
    ) {
        let d = self.embedding;
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
        let mut mixer = Mixer::new(self.mixture, labels);
        let mut loss = 0.0;
        for b in 0..step.batch.len() {
            let (s, d_s) = (step.out.p(b), &mut gradient.out.p[b * classes..(b + 1) * classes]);
            let d_row = &mut d_rows[b * d..(b + 1) * d];
            let common = self.common(step, &forward);
            mixer.begin(s, common);
            for said in step.batch.said_of(b) {
                let (who, label) = (said.who as usize, said.label as usize);
                let individual = self.individual(step, &forward, who);
                let share = Self::share(&forward, b, who);
                let p = mixer.mix(s, individual, share, label);
                let (term, d_share) = mixer.loss(p, share, label, scale * said.weight);
                loss += term;
                let d_own = &mut d_individual[who * cells..(who + 1) * cells];
                row_times_backward(s, individual, &mixer.d_individual, d_s, d_own);
                let d_dot = d_share * share * (1.0 - share);
                for j in 0..d {
                    d_units[who * d + j] += d_dot * forward.rows[b].unit[j];
                    d_row[j] += d_dot * forward.annotators[who].unit[j];
                }
            }
            row_times_backward(s, common, &mixer.d_common, d_s, d_common);
        }
        if self.mixture == Mixture::RowStochastic {
            let through = |w: &[f64], rows: &[f64], d_rows: &mut Vec<f64>| {
                let of_rows = std::mem::replace(d_rows, vec![0.0; w.len()]);
                Rows::Softmax.backward(w, rows, &of_rows, labels, d_rows);
            };
            through(&step.gathered[COMMON], &forward.common, d_common);
            through(&step.gathered[INDIVIDUAL], &forward.individual, d_individual);
        }
        loss += self.push_apart(step, d_common, d_individual);
        self.embeddings_backward(step, &forward, &d_units, d_embedding);
        let rows = d_rows.chunks_exact(d).zip(gradient.out.auxiliary.chunks_exact_mut(d));
        for (direction, (d_unit, d_v)) in forward.rows.iter().zip(rows) {
            direction.backward(d_unit, d_v);
        }
        loss
    }

    fn judge(&self, step: &Step<'_>) -> Judged {
        let labels = step.dims.labels;
        let forward = self.forward(step);
        let mut mixer = Mixer::new(self.mixture, labels);
        let mut likelihood = Vec::with_capacity(step.batch.said.len());
        let mut parameters = Vec::with_capacity(step.batch.len());
        for b in 0..step.batch.len() {
            mixer.begin(step.out.p(b), self.common(step, &forward));
            let mut shares = 0.0;
            for said in step.batch.said_of(b) {
                let who = said.who as usize;
                let share = Self::share(&forward, b, who);
                let individual = self.individual(step, &forward, who);
                let p = mixer.mix(step.out.p(b), individual, share, said.label as usize);
                likelihood.push(p);
                shares += share;
            }
            let said = step.batch.said_of(b).len();
            parameters.push(if said > 0 { shares / said as f64 } else { 0.5 });
        }
        if self.mixture != Mixture::RowStochastic {
            let classes = step.out.p.clone();
            return Judged { posterior: classes.clone(), classes, likelihood, parameters };
        }
        let judged = step.judged_by(|b, said, k| {
            let cell = k * labels + said.label as usize;
            let share = Self::share(&forward, b, said.who as usize);
            let individual = self.individual(step, &forward, said.who as usize)[cell];
            share * self.common(step, &forward)[cell] + (1.0 - share) * individual
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
    let mut scaler = Scaler::identity(&[matrix.width()], &BackboneSpec::default());
    scaler.fit(matrix, rows.iter().flatten().copied());
    let mut values = vec![0.0; rows.len() * (matrix.width() + 1)];
    for (row, out) in rows.iter().zip(values.chunks_exact_mut(matrix.width() + 1)) {
        let (features, one) = out.split_at_mut(matrix.width());
        row.iter().for_each(|row| scaler.read(matrix, *row as usize, features));
        one[0] = 1.0;
    }
    values
}
