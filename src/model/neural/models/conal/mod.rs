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
//! first fifth of the epochs (`annotator_delay`); in their learning rate of 0.1 (`annotator_learning_rate`), or
//! 0.1 (4/m)^1.5 for m > 4 annotations of an instance, where the code has one rate; in the embeddings of annotators, which have no bias that all of them share; and in network
//! and training, which are labelmill's defaults. Every form starts at the code's 2 I (`initial_strength`), which for
//! `row_stochastic` is far from certain: 0.45 on the diagonal with ten classes. `preset = "paper"` has the settings of
//! the code.

mod loss;
mod mixture;

pub use mixture::Mixture;

use rand::Rng as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use mixture::{Matrices, Mixer};

use crate::error::Result;
use crate::frame::{Dims, Matrix};
use crate::model::neural::data::inputs::LearnerInput;
use crate::model::neural::data::sizes::Sizes;
use crate::model::neural::net::backbone::{Architecture, BackboneSpec};
use crate::model::neural::net::heads::{Head, HeadInput, Heads};
use crate::model::neural::net::input::scaler::Scaler;
use crate::model::neural::numerics::{RowStochastic, UnitVector, diagonal, row_times, sigmoid};
use crate::model::neural::objective::batch_context::{BatchContext, BatchPrediction, Gradient};
use crate::model::neural::objective::crowd_net::{AnnotatorReport, CrowdNet, Task};
use crate::model::neural::objective::network_spec::NetworkSpec;
use crate::model::neural::objective::paper;
use crate::model::neural::objective::schedule::{Act, LearnerSubset, Phase, sequential};
use crate::model::neural::objective::train_spec::{Reduction, TrainSpec};
use crate::model::neural::objective::train_state::TrainState;
use crate::model::neural::objective::training_objective::TrainingObjective;
use crate::model::neural::params::annotator_params::AnnotatorParams;
use crate::model::neural::params::param_table::ParamTable;
use crate::model::neural::train::learners::learner::{CLASSIFIER, LearnerSpec};

/// CoNAL: a classifier with a common and an individual confusion, mixed by instance.
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
/// Annotators' embeddings before they are normalised; or, with annotators' features, the projection of these features
/// followed by a one.
const EMBEDDING: usize = 2;

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
        let annotators = match context.others.first() {
            None => embedding.chunks_exact(d).map(UnitVector::from_vector).collect(),
            Some(features) => (0..features.rows)
                .map(|r| UnitVector::from_vector(&projected(features.hidden(r), embedding, d)))
                .collect(),
        };
        let row = |b: usize| {
            let v = context.out.named(AUXILIARY, b);
            if self.normalise_instances {
                UnitVector::from_vector(v)
            } else {
                UnitVector::as_it_is(v)
            }
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
    const NEEDS_ANNOTATOR_FEATURES: bool = false;

    /// The settings of the authors' code for LabelMe.
    fn paper() -> (NetworkSpec, Self) {
        let mut network = paper::network(100, Some(1024), 1e-2);
        network.train.optimiser.reset_each_epoch = true;
        (network, Self::default())
    }

    fn heads(&self, _sizes: &Sizes) -> Heads {
        let widths = vec![self.auxiliary, self.embedding];
        let auxiliary = Head { name: "auxiliary", from: HeadInput::Features, widths };
        Heads { named: vec![auxiliary], ..Heads::CLASSIFIER }
    }

    /// The scaled features of annotators, where there are any, by a network without layers.
    fn other_learners(&self, _network: &NetworkSpec, _sizes: &Sizes) -> Vec<LearnerSpec> {
        let (backbone, input) = (features_as_they_are(), LearnerInput::Annotators);
        vec![LearnerSpec::new("annotators", &backbone, Heads::HIDDEN, input)]
    }

    fn tables(&self, task: &Task<'_>) -> Result<Vec<ParamTable>> {
        let Dims { annotators, classes, labels, .. } = task.dims;
        let start = diagonal(classes, labels, self.initial_strength as f32, 0.0);
        let mut tables = vec![
            ParamTable::of_model("common", start.clone()),
            ParamTable::each("individual", annotators, &start),
        ];
        let mut rng = task.job.rng("annotator embeddings");
        let bound = 1.0 / (self.embedding as f32).sqrt();
        let mut draw = |n: usize| -> Vec<f32> {
            (0..n).map(|_| (2.0 * rng.random::<f32>() - 1.0) * bound).collect()
        };
        tables.push(match task.evidence.with_features.and_then(|d| d.annotator_matrix()) {
            None => {
                let values = draw(annotators * self.embedding);
                ParamTable::drawn("embedding", self.embedding, values)
            }
            Some((matrix, _)) => {
                let values = draw((matrix.width() + 1) * self.embedding);
                ParamTable::of_model("projection", values)
            }
        });
        Ok(tables)
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
        let (n, d, table) =
            (task.dims.annotators, self.embedding, &annotator_params.tables[EMBEDDING]);
        let embeddings: Vec<Vec<f64>> =
            match task.evidence.with_features.and_then(|d| d.annotator_matrix()) {
                None => (0..n).map(|r| UnitVector::from_vector(&table.row(r)).unit).collect(),
                Some((matrix, rows)) => scaled(matrix, rows)
                    .map(|features| {
                        UnitVector::from_vector(&projected(&features, &table.row(0), d)).unit
                    })
                    .collect(),
            };
        let column = |j: usize| embeddings.iter().map(|u| u[j]).collect();
        AnnotatorReport {
            confusion: Some(rows(INDIVIDUAL)),
            common: Some(rows(COMMON)),
            parameters: (0..self.embedding).map(|j| (embedding(j), column(j))).collect(),
            ..AnnotatorReport::default()
        }
    }
}

impl TrainingObjective for Conal {
    const REDUCTION: Option<Reduction> = Some(Reduction::MeanAnnotation);
    const RATE_POWER: f64 = 1.5;

    /// Joint training; the network of annotators' features has no parameters.
    fn next_act(&self, train: &TrainSpec, state: &TrainState) -> Option<Act> {
        let learners = LearnerSubset::Only(&[CLASSIFIER]);
        let phase = Phase { learners, ..Phase::joint("train", train.epochs) };
        sequential(vec![phase], state.acts)
    }

    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> Result<f64> {
        Ok(loss::loss(self, context, gradient))
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
            for annotation in context.batch.annotations_of_instance(b) {
                let annotator = annotation.annotator as usize;
                let share = Self::share(&forward, b, annotator);
                let individual = self.individual(context, &forward, annotator);
                let label = annotation.label as usize;
                likelihood.push(mixer.mix(common, context.out.p(b), individual, share, label));
                shares += annotation.weight * share;
                total += annotation.weight;
            }
            parameters.push(if total > 0.0 { shares / total } else { f64::NAN });
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

/// A network without layers, whose output is its scaled input.
fn features_as_they_are() -> BackboneSpec {
    BackboneSpec { kind: Architecture::Linear, batch_norm: false, ..BackboneSpec::default() }
}

/// An annotator's embedding of length `d` before it is normalised: the product of the features followed by a one and the
/// projection.
fn projected(features: &[f64], projection: &[f64], d: usize) -> Vec<f64> {
    let mut u = vec![0.0; d];
    row_times(&[features, &[1.0]].concat(), projection, &mut u);
    u
}

/// The features of all annotators as the network of annotators scales them; an annotator without features has zeros, the
/// mean.
fn scaled<'a>(
    matrix: &'a Matrix,
    rows: &'a [Option<u32>],
) -> impl Iterator<Item = Vec<f64>> + use<'a> {
    let mut scaler = Scaler::identity(&[matrix.width()], &features_as_they_are());
    scaler.fit(matrix, rows.iter().flatten().copied());
    rows.iter().map(move |row| {
        let mut features = vec![0.0; matrix.width()];
        row.iter().for_each(|row| scaler.read(matrix, *row as usize, &mut features));
        features.into_iter().map(f64::from).collect()
    })
}

#[cfg(test)]
mod tests;
