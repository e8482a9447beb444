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

mod loss;
mod mixture;

pub use mixture::Mixture;

use rand::Rng as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use mixture::Mixer;

use super::maths::{Direction, Rows, diagonal, row_times, sigmoid};
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
    /// Whether instances' embeddings are put out beside those of annotators: as many rows an instance.
    pub instance_embeddings: bool,
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
            instance_embeddings: false,
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
        check_parts(self, place, problems);
    }
}

/// The tables, by place.
const COMMON: usize = 0;
const INDIVIDUAL: usize = 1;
/// An annotator's embedding before it is normalised; or, with features, the map that makes it of them.
const EMBEDDING: usize = 2;
/// An annotator's standardised features and a one, where there are any.
const FEATURES: usize = 3;

/// What a step needs of its annotators and rows before it looks at annotations.
struct Forward {
    annotators: Vec<Direction>,
    rows: Vec<Direction>,
    /// The common matrix, as the mixture takes it.
    common: Vec<f64>,
    /// Annotators' row-stochastic matrices, where the mixture is of those.
    individual: Vec<f64>,
    /// What the common confusion makes of each row, `[row, label]`.
    mixed: Vec<f64>,
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
            let mut rows = vec![0.0; w.len()];
            Rows::Softmax.forward(w, step.dims.labels, &mut rows);
            rows
        };
        let (common, individual) = (&step.gathered[COMMON], &step.gathered[INDIVIDUAL]);
        let (common, individual) = match self.mixture {
            Mixture::RowStochastic => (stochastic(common), stochastic(individual)),
            Mixture::LogitMix | Mixture::ProbMix => (common.clone(), Vec::new()),
        };
        let mut mixed = vec![0.0; step.batch.len() * step.dims.labels];
        for (b, mixed) in mixed.chunks_exact_mut(step.dims.labels).enumerate() {
            self.mixture.common(step.out.p(b), &common, mixed);
        }
        let rows = (0..step.batch.len()).map(row).collect();
        Forward { annotators, rows, common, individual, mixed }
    }

    /// The part of the common confusion in what was said of row `b`.
    fn share(forward: &Forward, b: usize, who: usize) -> f64 {
        let (u, v) = (&forward.annotators[who].unit, &forward.rows[b].unit);
        sigmoid(u.iter().zip(v).map(|(u, v)| u * v).sum())
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
}

impl CrowdNet for Conal {
    const REDUCTION: Option<Reduction> = Some(Reduction::MeanAnnotation);

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
        loss::loss(self, step, gradient)
    }

    fn judge(&self, step: &Step<'_>) -> Judged {
        let labels = step.dims.labels;
        let forward = self.forward(step);
        let mut mixer = Mixer::new(self.mixture, labels);
        let mut likelihood = Vec::with_capacity(step.batch.said.len());
        let mut parameters = Vec::with_capacity(step.batch.len());
        for b in 0..step.batch.len() {
            let common = &forward.mixed[b * labels..(b + 1) * labels];
            let mut shares = 0.0;
            for said in step.batch.said_of(b) {
                let who = said.who as usize;
                let share = Self::share(&forward, b, who);
                let individual = self.individual(step, &forward, who);
                let label = said.label as usize;
                likelihood.push(mixer.mix(common, step.out.p(b), individual, share, label));
                shares += share;
            }
            let said = step.batch.said_of(b).len();
            parameters.push(if said > 0 { shares / said as f64 } else { 0.5 });
            if self.instance_embeddings {
                parameters.extend_from_slice(&forward.rows[b].unit);
            }
        }
        if self.mixture != Mixture::RowStochastic {
            let classes = step.out.p.clone();
            return Judged { posterior: classes.clone(), classes, likelihood, parameters };
        }
        let judged = step.judged_by(|b, said, k| {
            let cell = k * labels + said.label as usize;
            let share = Self::share(&forward, b, said.who as usize);
            let individual = self.individual(step, &forward, said.who as usize)[cell];
            share * forward.common[cell] + (1.0 - share) * individual
        });
        Judged { parameters, ..judged }
    }

    fn instance_parameters(&self) -> Vec<String> {
        let embedding = (0..self.embedding).map(embedding).filter(|_| self.instance_embeddings);
        std::iter::once("common_share".to_owned()).chain(embedding).collect()
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
            parameters: (0..self.embedding).map(|j| (embedding(j), column(j))).collect(),
            ..CrowdReport::default()
        }
    }
}

/// What number `j` of an embedding is called in the tables.
fn embedding(j: usize) -> String {
    format!("embedding_{j}")
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
