//! EM with confusion matrices counted against the classifier's own predictions: instances with a single annotation suffice.
//!
//! ```text
//! start      T = shares of the votes
//! round      the network is trained on T:  loss = -(1/B) sum_i sum_k T[i][k] ln p_i[k]
//!            t_i = the class that the network finds most probable
//! M          pi[r][k][l] = annotations (i, r, l) with t_i = k, divided by the sum of the row;  q[k] = share of t_i = k
//! E          T[i][k] ~ q[k] prod over annotations (r, y) of i of pi[r][k][y]
//! last       the network is trained on the last T
//! ```
//! The E-step takes the prior q of the classes where `agg_net` and `gem` take the classifier: with one annotation for each
//! instance, a classifier that has learned the annotation would confirm it. `train.epochs` are those of each of the
//! `rounds + 1` trainings.
//!
//! A. Khetan, Z. C. Lipton, A. Anandkumar: Learning From Noisy Singly-labeled Data. ICLR 2018. arXiv:1712.04577, algorithm 1.
//!
//! With matrices to start at, of gold or a table, the first T is the posteriors of naive Bayes with them.
//!
//! The matrices are only as good as the network's predictions: it must not have memorised the annotations, so few epochs, or
//! an epoch that `select` chooses, serve better than many. A class that it predicts for no instance has next to no prior,
//! and a warning says so. A trusted instance counts by its class. An instance without features is no part of the counts,
//! and its posterior follows from its annotations.
//!
//! Differs from the paper in nothing but cells and classes without counts, which have 1e-10 in place of 0. The authors'
//! code leaves q out, and trains the second network on the first one's predictions. Network and training are labelmill's
//! defaults; `preset = "paper"` has the settings of Li et al. 2022 for LabelMe.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::frame::{Annotations, Evidence, MemoryEstimate, QuestionSizes};
use crate::job_context::JobContext;
use crate::model::fitted::Fitted;
use crate::model::neural::objective::batch_context::{BatchContext, BatchPrediction, Gradient};
use crate::model::neural::objective::crowd_net::{AnnotatorReport, CrowdNet, Task};
use crate::model::neural::objective::given_matrices::first_targets;
use crate::model::neural::objective::network_spec::NetworkSpec;
use crate::model::neural::objective::schedule::{Act, LearnerSubset, Phase};
use crate::model::neural::objective::train_spec::{Reduction, TrainSpec};
use crate::model::neural::objective::train_state::{MAIN_TARGETS, TrainState};
use crate::model::neural::objective::training_objective::TrainingObjective;
use crate::model::neural::objective::{counted, paper};
use crate::model::neural::params::annotator_matrices;
use crate::model::neural::params::annotator_params::AnnotatorParams;
use crate::model::neural::params::param_table::ParamTable;
use crate::model::numerics::MIN_PROBABILITY;
use crate::model::posterior::{harden, tied};

/// `MBEM`: a classifier, and confusion matrices counted against its predictions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Mbem {
    /// Rounds of matrices and posteriors, each after a training of the network; one more training follows them.
    #[schemars(range(min = 1))]
    pub rounds: u32,
    /// Whether each round trains the network from its initial parameters, as in the paper; else it goes on with those of
    /// the last round, and the learning rate falls over all rounds together.
    pub restart: bool,
}

impl Default for Mbem {
    fn default() -> Self {
        Self { rounds: 1, restart: true }
    }
}

/// The name of the targets that hold the network's predictions, one-hot.
const PREDICTED: &str = "predicted";

/// The index of the table of the class prior; the confusion matrices come first.
const PRIOR: usize = 1;

/// A class with a smaller prior is called unpredicted.
const UNPREDICTED: f64 = 1e-6;

impl Mbem {
    /// All acts, one after the other.
    fn acts(&self, train: &TrainSpec) -> impl Iterator<Item = Act> {
        let (rounds, restart, epochs) = (self.rounds, self.restart, train.epochs);
        let all = Phase::joint("train", self.epochs(train));
        let trainings = (0..=rounds).flat_map(move |round| {
            let start = round.saturating_mul(epochs);
            let phase = if restart {
                Phase { round, ..Phase::joint("train", epochs) }
            } else {
                Phase { act: start..start.saturating_add(epochs), ..all.clone() }
            };
            let reset = (restart && round > 0).then_some(Act::Reset(LearnerSubset::All));
            let em = [Act::EStep(PREDICTED), Act::MStep(PREDICTED), Act::EStep(MAIN_TARGETS)];
            let em = (round < rounds).then_some(em).into_iter().flatten();
            reset.into_iter().chain([Act::Train(phase), Act::Select]).chain(em)
        });
        [Act::MStep(MAIN_TARGETS)].into_iter().chain(trainings)
    }

    /// The posteriors by the class prior and the annotations.
    fn posterior(context: &BatchContext<'_>) -> Vec<f64> {
        let prior = context.gathered[PRIOR].repeat(context.batch.len());
        context.posterior_from(&prior, |_, a, k| counted::cell(context, a, k))
    }
}

impl CrowdNet for Mbem {
    const KIND: &'static str = "mbem";
    const SUMMARY: &'static str = "a classifier, and confusion matrices counted against its predictions; single annotations suffice";
    const SOURCE: &'static str = "Khetan et al. 2018, arXiv:1712.04577";
    const STARTS_AT_MATRICES: bool = true;
    const TRAINING: &'static str =
        "How it is trained; `epochs` are those of one of the `rounds + 1` trainings.";

    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        annotator_matrices::memory_estimate(sizes)
    }

    /// The settings of Li et al. 2022 for LabelMe.
    fn paper() -> (NetworkSpec, Self) {
        (paper::classifier(30, Some(128), 1e-4), Self::default())
    }

    fn estimates_prior(&self) -> bool {
        true
    }

    fn aggregate(&self, evidence: Evidence<'_>, job: &mut JobContext) -> Result<Option<Fitted>> {
        first_targets(evidence, job).map(Some)
    }

    fn tables(&self, task: &Task<'_>) -> Result<Vec<ParamTable>> {
        let uniform = 1.0 / task.dims.classes.max(1) as f32;
        let prior = ParamTable::of_model("prior", vec![uniform; task.dims.classes]).fixed();
        Ok(vec![counted::table(task.dims), prior])
    }

    fn report(&self, task: &Task<'_>, annotator_params: &AnnotatorParams) -> AnnotatorReport {
        let prior = annotator_params.tables[PRIOR].row(0);
        let named = counted::named_classes(task.evidence.annotations);
        let unpredicted = prior.iter().zip(named).filter(|(q, named)| *named && **q < UNPREDICTED);
        let warning = |n: usize| {
            format!(
                "the network predicts {n} of {} classes for no instance, so that next to no label is of them: train it \
                 longer, or with a higher optimiser.learning_rate",
                prior.len()
            )
        };
        let n = unpredicted.count();
        AnnotatorReport {
            confusion: Some(counted::reported(annotator_params, task.dims)),
            warnings: (n > 0).then(|| warning(n)).into_iter().collect(),
            prior: Some(prior),
            ..AnnotatorReport::default()
        }
    }
}

impl TrainingObjective for Mbem {
    const REDUCTION: Option<Reduction> = None;
    const TRAINS_ON_TARGETS: bool = true;

    fn next_act(&self, train: &TrainSpec, state: &TrainState) -> Option<Act> {
        self.acts(train).nth(state.acts)
    }

    fn epochs(&self, train: &TrainSpec) -> u32 {
        self.rounds.saturating_add(1).saturating_mul(train.epochs)
    }

    /// The posteriors, or the classes that the network predicts. Tied classes share a prediction; where all are tied, as
    /// without features, there is none.
    fn e_step(&self, context: &BatchContext<'_>, name: &'static str) -> Vec<f64> {
        if name == MAIN_TARGETS {
            return Self::posterior(context);
        }
        let (mut predicted, n) = (context.out.p.clone(), context.dims.classes);
        for row in predicted.chunks_exact_mut(n) {
            if n > 1 && tied(row).count() == n { row.fill(0.0) } else { harden(row) }
        }
        predicted
    }

    /// Before the first prediction, matrices and prior are those of the votes.
    fn m_step(
        &self,
        a: &Annotations,
        counts: &[f64],
        state: &mut TrainState,
        params: &mut AnnotatorParams,
    ) {
        counted::count(a, counts, MIN_PROBABILITY, params);
        let targets = state.targets(PREDICTED).or_else(|| state.targets(MAIN_TARGETS));
        if let Some(prior) = targets.map(|targets| targets.mean_of_annotated(a)) {
            params.tables[PRIOR].values = prior.into_iter().map(|q| q as f32).collect();
        }
    }

    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> Result<f64> {
        Ok(context.cross_entropy_of_targets(gradient))
    }

    fn predict(&self, context: &BatchContext<'_>) -> BatchPrediction {
        BatchPrediction {
            classes: context.out.p.clone(),
            posterior: Self::posterior(context),
            likelihood: context.likelihood_by(|_, a, k| counted::cell(context, a, k)),
            parameters: Vec::new(),
        }
    }
}
