//! EM around a classifier: each round trains the classifier on the posteriors, then recomputes them from the classifier
//! and the annotations.
//!
//! ```text
//! start    T = shares of the votes;  pi from T
//! round    one epoch on T:  loss = -(1/B) sum_i sum_k T[i][k] ln p_i[k]
//! E        T[i][k] ~ (p_i[k] + 0.001) prod over annotations (r, y) of i of (pi[r][k][y] + 0.0001)
//! M        pi[r][k][l] = sum over annotations (i, r, l) of T[i][k], divided by the sum of the row; an empty row is 0
//! ```
//! The network is initialised once: each round continues with the parameters of the last. `train.epochs` is the number
//! of rounds.
//!
//! S. Albarqouni, C. Baur, F. Achilles, V. Belagiannis, S. Demirci, N. Navab: AggNet: Deep Learning from Crowds for
//! Mitosis Detection in Breast Cancer Histology Images. IEEE TMI 35(5), 2016, which has two classes. The formulas
//! above, for any number of classes, are those of Max-MIG's public code (arXiv:1905.13436).
//!
//! With matrices to start at, of gold or a table, the first T is the posteriors of naive Bayes with them.
//!
//! The published matrices are counted from the T of the last E-step, and the published posteriors follow from these
//! matrices and the last classifier: they are one E-step ahead of T.
//!
//! A row of zeros, of a class of which the annotator has no annotation or which nobody names, is published as uniform.
//! If each instance has a single annotation, nothing tells the annotators' mistakes from the classifier's, and the
//! posteriors follow the one or the other: a warning says so.
//!
//! Differs from that code in the epoch that is kept (the code keeps the best on the test set); in the posteriors, where
//! the code returns T; in classes that no annotation and no trusted instance names, whose rows stay 0; and in network and
//! training, which are labelmill's defaults. `preset = "paper"` has the code's settings for LabelMe.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::frame::{Annotations, Dims, Evidence, MemoryEstimate, QuestionSizes};
use crate::job_context::JobContext;
use crate::model::classifier::from_features::single_annotations;
use crate::model::fitted::Fitted;
use crate::model::neural::objective::batch_context::{BatchContext, BatchPrediction, Gradient};
use crate::model::neural::objective::crowd_net::{AnnotatorReport, CrowdNet, Task};
use crate::model::neural::objective::given_matrices::first_targets;
use crate::model::neural::objective::network_spec::NetworkSpec;
use crate::model::neural::objective::schedule::{Act, Phase};
use crate::model::neural::objective::train_spec::{Reduction, TrainSpec};
use crate::model::neural::objective::train_state::{MAIN_TARGETS, TrainState};
use crate::model::neural::objective::training_objective::TrainingObjective;
use crate::model::neural::objective::{counted, paper};
use crate::model::neural::params::annotator_matrices;
use crate::model::neural::params::annotator_matrices::AnnotatorMatrices;
use crate::model::neural::params::annotator_params::AnnotatorParams;
use crate::model::neural::params::param_table::ParamTable;

/// `AggNet`: EM around a classifier, which learns the posteriors.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AggNet {}

/// The least probabilities of the E-step, which adds them to those of the classifier and of the annotators.
pub(crate) const MIN_CLASSIFIER_PROBABILITY: f64 = 1e-3;
pub(crate) const MIN_ANNOTATOR_PROBABILITY: f64 = 1e-4;

impl CrowdNet for AggNet {
    const KIND: &'static str = "agg_net";
    const SUMMARY: &'static str = "EM around a classifier: it learns the posteriors, which follow from it and the annotations";
    const SOURCE: &'static str = "Albarqouni et al. 2016, IEEE TMI 35(5)";
    const STARTS_AT_MATRICES: bool = true;
    const TRAINING: &'static str = "How it is trained; an epoch is a round of EM.";

    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        annotator_matrices::memory_estimate(sizes)
    }

    /// The settings of the code of Max-MIG for LabelMe.
    fn paper() -> (NetworkSpec, Self) {
        (paper::classifier(20, Some(64), 1e-4), Self::default())
    }

    fn aggregate(&self, evidence: Evidence<'_>, job: &mut JobContext) -> Result<Option<Fitted>> {
        first_targets(evidence, job).map(Some)
    }

    fn tables(&self, task: &Task<'_>) -> Result<Vec<ParamTable>> {
        Ok(vec![counted::table(task.dims)])
    }

    fn report(&self, task: &Task<'_>, annotator_params: &AnnotatorParams) -> AnnotatorReport {
        AnnotatorReport {
            confusion: Some(counted::reported(annotator_params, task.dims)),
            warnings: single_annotations(task.evidence.annotations).into_iter().collect(),
            ..AnnotatorReport::default()
        }
    }
}

impl TrainingObjective for AggNet {
    const REDUCTION: Option<Reduction> = None;
    const TRAINS_ON_TARGETS: bool = true;

    fn next_act(&self, train: &TrainSpec, state: &TrainState) -> Option<Act> {
        let Some(after_start) = state.acts.checked_sub(1) else {
            return Some(Act::MStep(MAIN_TARGETS));
        };
        let (round, part) = ((after_start / 3) as u32, after_start % 3);
        let epoch = Phase { act: round..round + 1, ..Phase::joint("train", train.epochs) };
        match part {
            0 if round < train.epochs => Some(Act::Train(epoch)),
            0 if round == train.epochs => Some(Act::Select),
            1 if round < train.epochs => Some(Act::EStep(MAIN_TARGETS)),
            2 if round < train.epochs => Some(Act::MStep(MAIN_TARGETS)),
            _ => None,
        }
    }

    fn m_step(
        &self,
        a: &Annotations,
        counts: &[f64],
        _state: &mut TrainState,
        params: &mut AnnotatorParams,
    ) {
        counted::count(a, counts, 0.0, params);
    }

    /// A row is zero until the annotator has an annotation that may be of the class: its mean with later rows does not
    /// sum to 1.
    fn restore_averaged(&self, params: &mut AnnotatorParams, dims: Dims) {
        counted::normalise(params, dims);
    }

    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> Result<f64> {
        Ok(context.cross_entropy_of_targets(gradient))
    }

    fn annotator_matrices<'p>(
        &self,
        params: &'p AnnotatorParams,
        dims: Dims,
    ) -> Option<AnnotatorMatrices<'p>> {
        Some(counted::matrices(params, MIN_ANNOTATOR_PROBABILITY, dims))
    }

    fn prior(&self, context: &BatchContext<'_>) -> Vec<f64> {
        context.out.p.iter().map(|p| p + MIN_CLASSIFIER_PROBABILITY).collect()
    }

    /// The posteriors are those of an E-step.
    fn predict(&self, context: &BatchContext<'_>) -> BatchPrediction {
        let confusion =
            counted::matrices(context.annotator_params, MIN_ANNOTATOR_PROBABILITY, context.dims);
        BatchPrediction {
            classes: context.out.p.clone(),
            posterior: context.posterior_from(&self.prior(context), |_, a, k| {
                confusion.likelihood(counted::cell(context, a, k))
            }),
            likelihood: self.likelihood(context),
            parameters: Vec::new(),
        }
    }

    fn likelihood(&self, context: &BatchContext<'_>) -> Vec<f64> {
        context.likelihood_by(|_, a, k| counted::cell(context, a, k))
    }
}
