//! A classifier with one confusion matrix common to all annotators and one for each annotator, mixed in a share that
//! depends on instance and annotator.
//!
//! ```text
//! s = softmax(classifier(x))    v = normalised auxiliary(x)    u[r] = normalised embedding of r
//! om = sigmoid(u[r] . v): the share of the common confusion in r's annotation of x
//! logit_mix       a = om s^T W_g + (1 - om) s^T W[r];                 P(y) = softmax(a)[y]
//! prob_mix        P(y) = om softmax(s^T W_g)[y] + (1 - om) softmax(s^T W[r])[y]
//! row_stochastic  P(y) = sum_k s[k] ( om G[k][y] + (1 - om) Pi[r][k][y] ),  G, Pi = row softmax of W_g, W[r]
//! loss = mean over annotations of -ln P(y)  -  lambda sum_r | W_g - W[r] |      W_g = W[r] = 2 I at first
//! ```
//! Subtracting the norm from the loss separates the matrices. The norm is unbounded, so lambda must be tiny.
//!
//! Z. Chu, J. Ma, H. Wang: Learning from Crowds by Modeling Common Confusions. AAAI 2021. arXiv:2012.13052
//!
//! `logit_mix` is the public code's form and `prob_mix` the paper's; `row_stochastic` mixes confusion matrices.
//! Posteriors follow by Bayes' rule from the prior s and P(y | class k), which is the mixture for s = e_k.
//!
//! Differs from the public code in the optimiser, which the code creates again in every epoch
//! (`train.optimiser.reset_each_epoch`); in that a step subtracts only the norms of the annotators in its batch, each
//! weighted by the annotator's share of annotations in the batch; in that annotators' parameters are frozen in the
//! first fifth of the epochs (`annotator_delay`); and in their learning rate of 0.1 (`annotator_learning_rate`), where
//! the code has one rate. `preset = "paper"` has the settings of the code. Every form starts at the code's 2 I
//! (`initial_strength`), which for `row_stochastic` is far from certain: 0.45 on the diagonal with ten classes.

mod loss;
mod mixture;

pub use mixture::Mixture;

use rand::Rng as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use mixture::{Matrices, Mixer};

use crate::error::Result;
use crate::frame::{Dims, Matrix};
use crate::model::neural::data::scaler::Scaler;
use crate::model::neural::models::paper;
use crate::model::neural::numerics::{RowStochastic, UnitVector, diagonal, row_times, sigmoid};
use crate::model::neural::{
    AnnotatorParams, AnnotatorReport, BackboneSpec, BatchContext, BatchPrediction, CrowdNet,
    Gradient, Head, HeadInput, Heads, Neural, ParamTable, Reduction, Task,
};

/// CoNAL.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Conal {
    /// The mixture of common and individual confusion.
    pub mixture: Mixture,
    /// The length of the embeddings of instances and annotators.
    #[schemars(range(min = 1))]
    pub embedding: usize,
    /// The hidden width of the two linear layers that embed an instance.
    #[schemars(range(min = 1))]
    pub auxiliary: usize,
    /// Whether an instance's embedding is normalised, as an annotator's always is.
    pub normalise_instances: bool,
    /// Whether `instance_parameters` holds the embeddings of instances: `embedding` more rows for each.
    pub instance_embeddings: bool,
    /// The diagonal of all matrices at the start, before their softmax. With C classes a row-stochastic matrix starts at
    /// `e^s / (e^s + C - 1)` on its diagonal: 0.45 for the default 2 and ten classes.
    #[schemars(range(min = 0.0))]
    pub initial_strength: f64,
    /// The weight of the distance between annotators' matrices and the common one; training maximises this distance.
    #[schemars(range(min = 0.0))]
    pub lambda: f64,
}

impl Default for Conal {
    fn default() -> Self {
        Self {
            mixture: Mixture::LogitMix,
            embedding: 20,
            auxiliary: 128,
            normalise_instances: true,
            instance_embeddings: false,
            initial_strength: 2.0,
            lambda: 1e-5,
        }
    }
}

/// The indices of the tables.
const COMMON: usize = 0;
const INDIVIDUAL: usize = 1;
/// Annotators' embeddings before they are normalised; or, with annotators' features, the projection of these.
const EMBEDDING: usize = 2;
/// Annotators' standardised features followed by a one, where there are any.
const FEATURES: usize = 3;

/// The index of the head that embeds instances.
pub(super) const AUXILIARY: usize = 0;

/// Intermediate values of annotators and rows, which the loss and the prediction compute before they visit annotations.
struct Forward {
    annotators: Vec<UnitVector>,
    rows: Vec<UnitVector>,
    /// The common matrix in the form that the mixture uses.
    common: Vec<f64>,
    /// Annotators' row-stochastic matrices, for `row_stochastic`.
    individual: Vec<f64>,
    /// The common part of each row, `[row, label]`.
    mixed: Vec<f64>,
}

impl Conal {
    fn forward(&self, context: &BatchContext<'_>) -> Forward {
        let d = self.embedding;
        let embedding = &context.gathered[EMBEDDING];
        let annotators = match context.gathered.get(FEATURES) {
            None => embedding.chunks_exact(d).map(UnitVector::of).collect(),
            Some(features) => {
                let mut u = vec![0.0; d];
                let width = context.annotator_params.tables[FEATURES].width;
                let one = |features: &[f64]| {
                    row_times(features, embedding, &mut u);
                    UnitVector::of(&u)
                };
                features.chunks_exact(width).map(one).collect()
            }
        };
        let row = |b: usize| {
            let v = context.out.named(AUXILIARY, b);
            if self.normalise_instances { UnitVector::of(v) } else { UnitVector::as_it_is(v) }
        };
        let (common, individual) = (&context.gathered[COMMON], &context.gathered[INDIVIDUAL]);
        let (common, individual) = match self.mixture {
            Mixture::RowStochastic => {
                let labels = context.dims.labels;
                (stochastic(common, labels), stochastic(individual, labels))
            }
            Mixture::LogitMix | Mixture::ProbMix => (common.clone(), Vec::new()),
        };
        let mut mixed = vec![0.0; context.batch.len() * context.dims.labels];
        for (b, mixed) in mixed.chunks_exact_mut(context.dims.labels).enumerate() {
            self.mixture.common(context.out.p(b), &common, mixed);
        }
        let rows = (0..context.batch.len()).map(row).collect();
        Forward { annotators, rows, common, individual, mixed }
    }

    /// The matrices of the batch for P(label given class).
    fn conditional_matrices(&self, context: &BatchContext<'_>, forward: &Forward) -> Matrices {
        let (common, individual) = (&context.gathered[COMMON], &context.gathered[INDIVIDUAL]);
        let labels = context.dims.labels;
        let (common, individual) = match self.mixture {
            Mixture::LogitMix => (common.clone(), individual.clone()),
            Mixture::ProbMix => (stochastic(common, labels), stochastic(individual, labels)),
            Mixture::RowStochastic => (forward.common.clone(), forward.individual.clone()),
        };
        Matrices { mixture: self.mixture, labels, common, individual }
    }

    /// The share of the common confusion in an annotator's annotation of row `b`.
    fn share(forward: &Forward, b: usize, annotator: usize) -> f64 {
        let (u, v) = (&forward.annotators[annotator].unit, &forward.rows[b].unit);
        sigmoid(u.iter().zip(v).map(|(u, v)| u * v).sum())
    }

    /// The matrix of an annotator of the batch in the form that the mixture uses.
    fn individual<'a>(
        &self,
        context: &'a BatchContext<'_>,
        forward: &'a Forward,
        annotator: usize,
    ) -> &'a [f64] {
        let cells = context.dims.classes * context.dims.labels;
        let all = match self.mixture {
            Mixture::RowStochastic => &forward.individual,
            Mixture::LogitMix | Mixture::ProbMix => &context.gathered[INDIVIDUAL],
        };
        &all[annotator * cells..(annotator + 1) * cells]
    }
}

impl CrowdNet for Conal {
    const KIND: &'static str = "conal";
    const SUMMARY: &'static str =
        "a classifier with a common and an individual confusion, mixed by instance";
    const SOURCE: &'static str = "Chu, Ma and Wang 2021, arXiv:2012.13052";
    const REDUCTION: Option<Reduction> = Some(Reduction::MeanAnnotation);

    /// The settings of the authors' code for LabelMe.
    fn paper() -> Neural<Self> {
        let mut network = paper::network(100, Some(1024), 1e-2);
        network.train.optimiser.reset_each_epoch = true;
        Neural { network, model: Self::default() }
    }

    fn heads(&self) -> Heads {
        let widths = vec![self.auxiliary, self.embedding];
        let auxiliary = Head { name: "auxiliary", from: HeadInput::Features, widths };
        Heads { named: vec![auxiliary], ..Heads::CLASSIFIER }
    }

    fn tables(&self, task: &Task<'_>) -> Result<Vec<ParamTable>> {
        let Dims { annotators, classes, labels, .. } = task.dims;
        let start = diagonal(classes, labels, self.initial_strength as f32, 0.0);
        let mut tables = vec![
            ParamTable::shared("common", start.clone()),
            ParamTable::each("individual", annotators, &start),
        ];
        let mut rng = task.run.rng("annotator embeddings");
        let bound = 1.0 / (self.embedding as f32).sqrt();
        let mut draw = |n: usize| -> Vec<f32> {
            (0..n).map(|_| (2.0 * rng.random::<f32>() - 1.0) * bound).collect()
        };
        match task.evidence.described.and_then(|d| d.annotator_matrix()) {
            None => tables.push(ParamTable::drawn(
                "embedding",
                self.embedding,
                draw(annotators * self.embedding),
            )),
            Some((matrix, rows)) => {
                let width = matrix.width() + 1;
                tables.push(ParamTable::shared("projection", draw(width * self.embedding)));
                tables
                    .push(ParamTable::drawn("features", width, standardised(matrix, rows)).fixed());
            }
        }
        Ok(tables)
    }

    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> f64 {
        loss::loss(self, context, gradient)
    }

    fn predict(&self, context: &BatchContext<'_>) -> BatchPrediction {
        let labels = context.dims.labels;
        let forward = self.forward(context);
        let mut mixer = Mixer::new(self.mixture, labels);
        let mut likelihood = Vec::with_capacity(context.batch.annotations.len());
        let mut parameters = Vec::with_capacity(context.batch.len());
        for b in 0..context.batch.len() {
            let common = &forward.mixed[b * labels..(b + 1) * labels];
            let (mut shares, mut total) = (0.0, 0.0);
            for annotation in context.batch.annotations_of(b) {
                let annotator = annotation.annotator as usize;
                let share = Self::share(&forward, b, annotator);
                let individual = self.individual(context, &forward, annotator);
                let label = annotation.label as usize;
                likelihood.push(mixer.mix(common, context.out.p(b), individual, share, label));
                shares += annotation.weight * share;
                total += annotation.weight;
            }
            parameters.push(if total > 0.0 { shares / total } else { 0.5 });
            if self.instance_embeddings {
                parameters.extend_from_slice(&forward.rows[b].unit);
            }
        }
        let matrices = self.conditional_matrices(context, &forward);
        let posterior = context.posterior_by_bayes(|b, annotation, k| {
            let share = Self::share(&forward, b, annotation.annotator as usize);
            matrices.label_probability(share, annotation, k)
        });
        let classes = context.out.p.clone();
        BatchPrediction { classes, posterior, likelihood, parameters }
    }

    fn instance_parameters(&self) -> Vec<String> {
        let embedding = (0..self.embedding).map(embedding).filter(|_| self.instance_embeddings);
        std::iter::once("common_share".to_owned()).chain(embedding).collect()
    }

    fn report(&self, task: &Task<'_>, annotator_params: &AnnotatorParams) -> AnnotatorReport {
        let rows = |table: usize| {
            let w: Vec<f64> =
                annotator_params.tables[table].values.iter().map(|v| f64::from(*v)).collect();
            let mut rows = vec![0.0; w.len()];
            RowStochastic::Softmax.forward(&w, task.dims.labels, &mut rows);
            rows
        };
        let n = task.dims.annotators;
        let embeddings: Vec<Vec<f64>> = (0..n)
            .map(|r| match annotator_params.tables.get(FEATURES) {
                None => UnitVector::of(&annotator_params.tables[EMBEDDING].row(r)).unit,
                Some(features) => {
                    let mut u = vec![0.0; self.embedding];
                    row_times(&features.row(r), &annotator_params.tables[EMBEDDING].row(0), &mut u);
                    UnitVector::of(&u).unit
                }
            })
            .collect();
        let column = |j: usize| embeddings.iter().map(|u| u[j]).collect();
        AnnotatorReport {
            confusion: Some(rows(INDIVIDUAL)),
            common: Some(rows(COMMON)),
            parameters: (0..self.embedding).map(|j| (embedding(j), column(j))).collect(),
            ..AnnotatorReport::default()
        }
    }
}

/// Row-stochastic matrices: the softmax of each row.
fn stochastic(w: &[f64], labels: usize) -> Vec<f64> {
    let mut rows = vec![0.0; w.len()];
    RowStochastic::Softmax.forward(w, labels, &mut rows);
    rows
}

/// The name of component `j` of an embedding in the output tables.
fn embedding(j: usize) -> String {
    format!("embedding_{j}")
}

/// Annotators' features with mean 0 and standard deviation 1, each row followed by a one; an annotator without features
/// has the mean.
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
