//! TCL for complete data: a second network, which reads the answers of all annotators, aggregates in place of naive Bayes.
//!
//! ```text
//! start      T = shares of the votes, or naive Bayes with the matrices of the trusted instances
//! round      epochs of the aggregator on T:  loss = -(1/B) sum_i sum_k T[i][k] ln g_i[k];  then d is fitted
//!            E   T[i][k] ~ c_k(p_i) d_k(g_i) / q[k]
//!            epochs of the classifier on T;  then c is fitted again, and E repeated
//! retraining the classifier is reinitialised and trained on the last T and on the trusted instances
//! ```
//! g_i is the output of the aggregator, a network with 64 and 32 hidden units, for the one-hot answers of all annotators to
//! i. c and d are isotonic regressions as in `tcl`, fitted to the trusted instances; q is the share of each class among
//! them. Unlike naive Bayes, g needs no independence: a network learns who copies whom.
//!
//! S. Li, T. Liu, J. Tan, D. Zeng, S. Ge: Trustable Co-label Learning from Multiple Noisy Annotators. IEEE Transactions on
//! Multimedia 2022, section on TCLS. Equation 7 and algorithm 1.
//!
//! It is meant for a few annotators who have answered everything, trusted instances too. Where answers are missing, the run
//! ends with their share before it trains; `max_missing` lets some be missing, which are zeros of the input. With few
//! instances or many annotators the aggregator memorises T: `tcl` is for such data. An instance without annotations takes
//! its class from the classifier, one without features from the aggregator.
//!
//! The published posteriors are the last T, and the published matrices are counted from it: the model itself has none.
//!
//! Differs from the paper as `tcl` does; in the start, which is the votes unless `initialise = "trusted"`; and in network and
//! training, which are labelmill's defaults. `preset = "paper"` has the paper's settings for SocialEvent, whose start is the
//! trusted instances.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::aggregator::{AGGREGATOR, aggregation, aggregator, check_complete};
use super::retraining::{Retrain, Retraining, check_select, co_training, epochs_of_rounds};
use super::start::{Initialise, warn_of_no_calibration};
use crate::error::Result;
use crate::frame::Evidence;
use crate::job_context::JobContext;
use crate::model::calibration::calibrator::Method;
use crate::model::fitted::Fitted;
use crate::model::neural::data::sizes::Sizes;
use crate::model::neural::objective::batch_context::{BatchContext, BatchPrediction, Gradient};
use crate::model::neural::objective::crowd_net::{CrowdNet, Task};
use crate::model::neural::objective::network_spec::NetworkSpec;
use crate::model::neural::objective::schedule::{Act, LearnerSubset};
use crate::model::neural::objective::train_spec::{Reduction, TrainSpec};
use crate::model::neural::objective::train_state::{MAIN_TARGETS, TrainState};
use crate::model::neural::objective::training_objective::TrainingObjective;
use crate::model::neural::objective::{counted, paper};
use crate::model::neural::params::param_table::ParamTable;
use crate::model::neural::train::learners::learner::{CLASSIFIER, LearnerSpec};
use crate::model::numerics::{MIN_LIKELIHOOD, at_least, normalise};
use crate::model::posterior::tied;
use crate::spec::Problems;

/// TCLS.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tcls {
    /// Rounds of co-training before the retraining.
    #[schemars(range(min = 1))]
    pub rounds: u32,
    /// Epochs of the classifier in the first round.
    #[schemars(range(min = 1))]
    pub first_epochs: u32,
    /// Epochs of the classifier in each other round.
    #[schemars(range(min = 1))]
    pub round_epochs: u32,
    /// Epochs of the aggregator in each round.
    #[schemars(range(min = 1))]
    pub aggregator_epochs: u32,
    /// The first targets.
    pub initialise: Initialise,
    /// The instances of the retraining, and their order.
    pub retrain: Retrain,
    /// Epochs on the trusted instances alone, at the end of a sequential retraining.
    pub trusted_epochs: u32,
    /// The largest share of answers that may be missing: of all annotators to each instance that is annotated or trusted.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub max_missing: f64,
}

impl Default for Tcls {
    fn default() -> Self {
        Self {
            rounds: 11,
            first_epochs: 10,
            round_epochs: 5,
            aggregator_epochs: 3,
            initialise: Initialise::Votes,
            retrain: Retrain::Union,
            trusted_epochs: 10,
            max_missing: 0.0,
        }
    }
}

const CLASSIFIER_ALONE: LearnerSubset = LearnerSubset::Only(&[CLASSIFIER]);

/// The index of the table of the class prior; the counted matrices come first.
const PRIOR: usize = 1;

impl Tcls {
    fn retraining(&self, train: &TrainSpec) -> Retraining {
        let Self { retrain: order, trusted_epochs, .. } = *self;
        Retraining { order, epochs: train.epochs, trusted_epochs }
    }

    /// All acts, one after the other.
    fn acts(&self, train: &TrainSpec) -> impl Iterator<Item = Act> {
        let sizes = [self.rounds, self.first_epochs, self.round_epochs];
        let (rounds, epochs, retrain) = (self.rounds, self.aggregator_epochs, self.retrain);
        let all = (0..rounds).flat_map(move |round| {
            let e_step = || Act::EStep(MAIN_TARGETS);
            [aggregation(round, rounds, epochs), Act::Calibrate(AGGREGATOR, Method::Isotonic)]
                .into_iter()
                // The classifier has learned nothing in the first round.
                .chain((round > 0).then(e_step))
                .chain([co_training(CLASSIFIER_ALONE, round, sizes, retrain)])
                .chain([Act::Calibrate(CLASSIFIER, Method::Isotonic), e_step()])
        });
        let retraining = self.retraining(train).acts(CLASSIFIER_ALONE);
        all.chain(retraining).chain([Act::MStep(MAIN_TARGETS)])
    }
}

impl CrowdNet for Tcls {
    const KIND: &'static str = "tcls";
    const SUMMARY: &'static str = "`tcl` for complete data: a network reads the answers of all annotators, who may copy each other";
    const SOURCE: &'static str = "Li et al. 2022, IEEE Transactions on Multimedia";
    const TRAINING: &'static str = "How it is trained; `epochs` are those of the retraining.";

    /// The paper's settings for SocialEvent.
    fn paper() -> (NetworkSpec, Self) {
        let mut network = paper::classifier(30, Some(128), 1e-3);
        (network.backbone.hidden, network.backbone.dropout) = (vec![128, 32], 0.0);
        let own = Self {
            rounds: 10,
            first_epochs: 5,
            initialise: Initialise::Trusted,
            ..Self::default()
        };
        (network, own)
    }

    fn check(&self, train: &TrainSpec, location: &str, problems: &mut Problems) {
        check_select(train, location, problems);
    }

    fn check_without_gold(&self, location: &str, problems: &mut Problems) {
        self.initialise.check_without_gold(location, problems);
    }

    fn other_learners(&self, _network: &NetworkSpec, _sizes: &Sizes) -> Vec<LearnerSpec> {
        vec![aggregator()]
    }

    fn aggregate(&self, evidence: Evidence<'_>, job: &mut JobContext) -> Result<Option<Fitted>> {
        check_complete(evidence.annotations, self.max_missing)?;
        warn_of_no_calibration(evidence, job);
        self.initialise.aggregate(evidence, job).map(Some)
    }

    /// The counted matrices, and q: the share of each class among trusted instances; a class without any has the share of
    /// one instance, divided by the number of classes.
    fn tables(&self, task: &Task<'_>) -> Result<Vec<ParamTable>> {
        let mut prior = vec![0.0; task.dims.classes];
        let trusted = task.evidence.annotations.trusted.iter().flatten().flatten();
        trusted.for_each(|class| prior[*class as usize] += 1.0);
        let least = 1.0 / (prior.iter().sum::<f64>().max(1.0) * task.dims.classes as f64);
        normalise(&mut prior, |share| at_least(share, least));
        let prior = prior.into_iter().map(|q| q as f32).collect();
        Ok(vec![counted::table(task.dims), ParamTable::of_model("prior", prior).fixed()])
    }
}

impl TrainingObjective for Tcls {
    const REDUCTION: Option<Reduction> = None;
    const TRAINS_ON_TARGETS: bool = true;
    const COUNTS_CONFUSION: bool = true;

    fn next_act(&self, train: &TrainSpec, state: &TrainState) -> Option<Act> {
        self.acts(train).nth(state.acts)
    }

    fn epochs(&self, train: &TrainSpec) -> u32 {
        let rounds = epochs_of_rounds(self.rounds, self.first_epochs, self.round_epochs);
        let of_aggregator = self.rounds.saturating_mul(self.aggregator_epochs);
        rounds.saturating_add(of_aggregator).saturating_add(self.retraining(train).epochs())
    }

    /// The cross-entropy of the network that the phase trains.
    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> Result<f64> {
        if context.phase != AGGREGATOR {
            return Ok(context.cross_entropy_of_targets(gradient));
        }
        let context = BatchContext { out: &context.others[0], ..*context };
        std::mem::swap(&mut gradient.out, &mut gradient.others[0]);
        let loss = context.cross_entropy_of_targets(gradient);
        std::mem::swap(&mut gradient.out, &mut gradient.others[0]);
        Ok(loss)
    }

    /// Equation 7. A classifier without features and an aggregator without annotations say nothing: their output is q.
    fn e_step(&self, context: &BatchContext<'_>, _name: &'static str) -> Vec<f64> {
        let n = context.dims.classes;
        let calibrated = |learner: &str, p: &[f64]| {
            let mut p = p.to_vec();
            if let Some(calibrator) = context.estimates.calibrators.get(learner) {
                p.chunks_exact_mut(n).for_each(|row| calibrator.apply(row));
            }
            p
        };
        let mut posterior = calibrated(CLASSIFIER, &context.out.p);
        let aggregated = calibrated(AGGREGATOR, &context.others[0].p);
        let prior = &context.gathered[PRIOR];
        let rows = posterior.chunks_exact_mut(n).zip(aggregated.chunks_exact(n));
        for (b, (row, aggregated)) in rows.enumerate() {
            if tied(context.out.p(b)).count() == n {
                row.copy_from_slice(prior);
            }
            if !context.batch.annotations_of_instance(b).is_empty() {
                row.iter_mut().zip(aggregated).zip(prior).for_each(|((t, g), q)| *t *= g / q);
            }
            normalise(row, |t| at_least(t, MIN_LIKELIHOOD));
        }
        posterior
    }

    /// The posteriors are the targets of the retraining.
    fn predict(&self, context: &BatchContext<'_>) -> BatchPrediction {
        counted::predict(context, context.batch.targets.clone())
    }
}
