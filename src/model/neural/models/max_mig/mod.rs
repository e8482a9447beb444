//! A classifier and an aggregator of annotations, trained to maximise the f-mutual information of their outputs.
//!
//! ```text
//! h[i] = classifier(x_i)       g[i] = softmax( sum over annotations (r, y) of i of V[r][.][y] + ln prior )
//! K[i][j] = sum_k h[i][k] g[j][k] / prior[k]
//! loss = -( mean_i f'(K[i][i] + u) - mean_{i != j} f*(f'(K[i][j])) )
//! ```
//! V[r] starts at ln(CM[r] + c), where CM[r] is counted on the soft votes, or given by gold or a table; the reported matrix is the softmax of each
//! row. An instance's posterior is h g / prior, normalised. An annotator none of whose instances has features trains
//! nothing: V[r] becomes the mean over the annotators who do, as in every model, whatever CM[r] was.
//!
//! P. Cao, Y. Xu, Y. Kong, Y. Wang: Max-MIG: an Information Theoretic Approach for Joint Learning from Crowds. ICLR 2019.
//! arXiv:1905.13436
//!
//! Differs from the public code in u, which is the mean of the random number that the code draws; in the total
//! variation, where a hyperbolic tangent replaces the sign, whose slope is zero almost everywhere; in that V is frozen
//! in the first fifth of the epochs (`train.optimiser.annotator_delay`); in V's learning rate
//! (`annotator_learning_rate`), which is 0.1 for up to 4 annotations of an instance and 0.1 (4/m)^4 for m; and in network and training, which are labelmill's defaults. `preset = "paper"` has the
//! settings of the code for LabelMe.

mod divergence;

pub use divergence::FDivergence;

use candle_core::{Result as CandleResult, Tensor};
use candle_nn::ops::softmax as tensor_softmax;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Problem, Result};
use crate::frame::Dims;
use crate::model::em::kernels::expected_counts_of;
use crate::model::neural::numerics::{RowStochastic, at_least, log_softmax, softmax};
use crate::model::neural::objective::batch_context::{BatchContext, BatchPrediction, Gradient};
use crate::model::neural::objective::crowd_net::{AnnotatorReport, CrowdNet, Task};
use crate::model::neural::objective::given_matrices::parameters;
use crate::model::neural::objective::network_spec::NetworkSpec;
use crate::model::neural::objective::tensor_objective::{
    BatchVariables, TensorObjective, loss_by_tensors,
};
use crate::model::neural::objective::train_spec::{Reduction, TrainSpec};
use crate::model::neural::objective::training_objective::TrainingObjective;
use crate::model::neural::objective::{counted, paper};
use crate::model::neural::params::annotator_params::AnnotatorParams;
use crate::model::neural::params::param_table::ParamTable;
use crate::model::posterior::Posterior;
use crate::spec::Problems;

/// The class prior.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PriorChoice {
    /// The same probability for each class.
    #[default]
    Uniform,
    /// The shares of the classes among the votes.
    Votes,
    /// A parameter, which starts at the shares of the classes among the votes.
    Learned,
}

/// Max-MIG.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MaxMig {
    /// The function f of the f-mutual information.
    pub divergence: FDivergence,
    /// The class prior.
    pub prior: PriorChoice,
    /// Added to the diagonal of K, so that the loss is finite where classifier and annotators disagree completely.
    #[schemars(range(min = 0.0))]
    pub u: f64,
    /// Added to the counted confusion matrices before their logarithm is taken.
    #[schemars(range(min = 1e-12))]
    pub start_floor: f64,
}

impl Default for MaxMig {
    fn default() -> Self {
        Self {
            divergence: FDivergence::Kl,
            prior: PriorChoice::Uniform,
            u: 5e-5,
            start_floor: 0.01,
        }
    }
}

/// The indices of the tables.
const LOG_CONFUSION: usize = 0;
/// The class prior; its logits where it is learned.
const PRIOR: usize = 1;

/// The most rows of a batch all of whose pairs are compared: a number for each takes 32 MiB, and a step has about ten.
const MAX_PAIRED_ROWS: usize = 2048;

/// A learned prior starts at no less than this.
const MIN_PRIOR: f64 = 1e-6;

impl MaxMig {
    /// The class prior, from its table.
    fn prior(&self, table: &[f64]) -> Vec<f64> {
        let mut prior = table.to_vec();
        if self.prior == PriorChoice::Learned {
            softmax(table, &mut prior);
        }
        prior
    }

    /// The row of each annotation of a batch, its weight, and where V[r][class][y] is in its table, `[class]`.
    fn entries(
        context: &BatchContext<'_>,
    ) -> impl Iterator<Item = (usize, f64, impl Iterator<Item = usize>)> {
        let Dims { classes, labels, .. } = context.dims;
        context.annotations().map(move |(b, annotation)| {
            let first = annotation.annotator as usize * classes * labels;
            let first = first + annotation.label as usize;
            (b, annotation.weight, (0..classes).map(move |k| first + k * labels))
        })
    }
}

impl CrowdNet for MaxMig {
    const KIND: &'static str = "max_mig";
    const SUMMARY: &'static str =
        "a classifier that shares as much information with the annotators as possible";
    const SOURCE: &'static str = "Cao et al. 2019, arXiv:1905.13436";
    const NEEDS_WHOLE_INSTANCES: bool = true;
    const STARTS_AT_MATRICES: bool = true;

    /// The settings of the authors' code for LabelMe.
    fn paper() -> (NetworkSpec, Self) {
        (paper::network(20, Some(64), 1e-4), Self::default())
    }

    fn estimates_prior(&self) -> bool {
        self.prior == PriorChoice::Learned
    }

    fn check(&self, train: &TrainSpec, location: &str, problems: &mut Problems) {
        let is_large = train.batch_size.is_some_and(|rows| rows > MAX_PAIRED_ROWS);
        if is_large && self.divergence != FDivergence::Kl {
            problems.push(
                Problem::new("this divergence compares all pairs of a batch's rows at once")
                    .at(format!("{location}.train.batch_size"))
                    .found(train.batch_size.unwrap_or_default().to_string())
                    .help(format!("at most {MAX_PAIRED_ROWS}, or divergence = \"kl\"")),
            );
        }
    }

    fn tables(&self, task: &Task<'_>) -> Result<Vec<ParamTable>> {
        let Dims { annotators, classes, labels, .. } = task.dims;
        let a = task.evidence.annotations;
        let votes = Posterior::from_votes(a);
        let counts = expected_counts_of(a, &votes);
        let of_votes = || {
            let mut values = Vec::with_capacity(annotators * classes * labels);
            for r in 0..annotators {
                for row in counted::of_annotator(a, &counts, r).chunks_exact(labels) {
                    let sum: f64 = row.iter().sum();
                    let share = |c: f64| if sum > 0.0 { c / sum } else { 1.0 / labels as f64 };
                    values.extend(row.iter().map(|c| (share(*c) + self.start_floor).ln() as f32));
                }
            }
            values
        };
        let given = a.given.confusion.as_ref();
        let values = given.map_or_else(of_votes, |given| {
            parameters(given, annotators, |p| (p + self.start_floor).ln())
        });
        let mut prior = vec![1.0 / classes as f64; classes];
        if self.prior != PriorChoice::Uniform {
            prior = votes.mean_of_annotated(a);
        }
        let prior = if self.prior == PriorChoice::Learned {
            let logits = prior.into_iter().map(|p| at_least(p, MIN_PRIOR).ln() as f32);
            ParamTable::of_model("prior_logits", logits.collect())
        } else {
            ParamTable::of_model("prior", prior.into_iter().map(|p| p as f32).collect()).fixed()
        };
        Ok(vec![ParamTable::drawn("log_confusion", classes * labels, values), prior])
    }

    fn report(&self, task: &Task<'_>, annotator_params: &AnnotatorParams) -> AnnotatorReport {
        let values: Vec<f64> =
            annotator_params.tables[LOG_CONFUSION].values.iter().map(|v| f64::from(*v)).collect();
        let mut confusion = vec![0.0; values.len()];
        RowStochastic::Softmax.forward(&values, task.dims.labels, &mut confusion);
        let learned = self.prior == PriorChoice::Learned;
        let prior = learned.then(|| self.prior(&annotator_params.tables[PRIOR].row(0)));
        AnnotatorReport { confusion: Some(confusion), prior, ..AnnotatorReport::default() }
    }
}

impl TensorObjective for MaxMig {
    fn tensor_loss(
        &self,
        context: &BatchContext<'_>,
        variables: &BatchVariables,
    ) -> CandleResult<Tensor> {
        let prior = &variables.tables[PRIOR];
        let prior = match self.prior {
            PriorChoice::Learned => tensor_softmax(prior, 1)?,
            PriorChoice::Uniform | PriorChoice::Votes => prior.clone(),
        };
        let (mut cells, mut rows, mut weights) = (Vec::new(), Vec::new(), Vec::new());
        for (b, weight, entries) in Self::entries(context) {
            cells.extend(entries.map(|cell| cell as u32));
            rows.push(b as u32);
            weights.push(weight);
        }
        let (n, classes, device) = (rows.len(), context.dims.classes, prior.device());
        // [annotation, class]
        let of_annotations = variables.tables[LOG_CONFUSION]
            .flatten_all()?
            .index_select(&Tensor::new(cells, device)?, 0)?
            .reshape((n, classes))?
            .broadcast_mul(&Tensor::from_vec(weights, (n, 1), device)?)?;
        // [row, class]
        let log_prior = prior.log()?.broadcast_as((context.batch.len(), classes))?.contiguous()?;
        let sums = log_prior.index_add(&Tensor::new(rows, device)?, &of_annotations, 0)?;
        let g = tensor_softmax(&sums, 1)?;
        self.divergence.loss(self.u, &variables.out.p, &g, &prior)
    }
}

impl TrainingObjective for MaxMig {
    const REDUCTION: Option<Reduction> = None;
    const RATE_POWER: f64 = 4.0;
    const DROPS_LAST_BATCH: bool = true;

    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> Result<f64> {
        loss_by_tensors(self, context, gradient)
    }

    fn predict(&self, context: &BatchContext<'_>) -> BatchPrediction {
        // h g / prior in logarithms, in which the prior cancels: it is a factor of g.
        let (n, logits) = (context.dims.classes, &context.out.logits);
        let (mut sums, mut posterior) = (vec![0.0; logits.len()], vec![0.0; logits.len()]);
        for (logits, row) in logits.chunks_exact(n).zip(sums.chunks_exact_mut(n)) {
            log_softmax(logits, row);
        }
        for (b, weight, entries) in Self::entries(context) {
            for (sum, cell) in sums[b * n..(b + 1) * n].iter_mut().zip(entries) {
                *sum += weight * context.gathered[LOG_CONFUSION][cell];
            }
        }
        for (sums, row) in sums.chunks_exact(n).zip(posterior.chunks_exact_mut(n)) {
            softmax(sums, row);
        }
        let mut matrices = vec![0.0; context.gathered[LOG_CONFUSION].len()];
        RowStochastic::Softmax.forward(
            &context.gathered[LOG_CONFUSION],
            context.dims.labels,
            &mut matrices,
        );
        let likelihood = context.likelihood_by(context.cells_of(&matrices));
        let classes = context.out.p.clone();
        BatchPrediction { classes, posterior, likelihood, parameters: Vec::new() }
    }
}
