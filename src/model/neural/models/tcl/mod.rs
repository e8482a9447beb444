//! Co-training of a classifier and a naive Bayes aggregator, which a few trusted instances keep calibrated.
//!
//! ```text
//! start      T = shares of the votes, or naive Bayes with the matrices of the trusted instances (TCL+I)
//! round      M   pi[r][k][l] = sum over annotations (i, r, l) of T[i][k], divided by the sum of the row
//!            E   T[i][k] ~ c_k(p_i) prod over annotations (r, y) of i of pi[r][k][y]
//!            epochs on T:  loss = -(1/B) sum_i sum_k T[i][k] ln p_i[k];  then c is fitted again, and E repeated
//! retraining the network is reinitialised and trained on the last T and on the trusted instances
//! ```
//! c is isotonic regression of each class against the others (Zadrozny and Elkan 2002), fitted to the classifier's
//! predictions of the trusted instances, on which it is not trained before the retraining. The published posteriors are
//! the last T.
//!
//! S. Li, T. Liu, J. Tan, D. Zeng, S. Ge: Trustable Co-label Learning from Multiple Noisy Annotators. IEEE Transactions on
//! Multimedia 2022. Equations 3, 5 and 7 and algorithm 1.
//!
//! Trusted instances are gold of the role `train`; those with annotations also count in the matrices of their
//! annotators. Without trusted instances, c is the identity. With `train.select = "valid"` the column `score` of the
//! table `trace` has the classifier's accuracy in each round, from which nothing is selected before the retraining.
//!
//! Differs from the paper in the start, which is the shares of the votes, not the vote of the majority, and in the
//! first round, which has no E-step before the classifier is trained (both as in the public code); in the matrices and
//! the prior of TCL+I, which add one to each count, where the paper replaces zero cells by 1e-10; in c, which keeps a
//! slope of 1e-6 where the regression is flat, so that no class is impossible, and is the identity for a class of
//! which no trusted instance has features, where the paper's regression is 0; in classes that no annotation and no
//! trusted instance names, whose rows are 0, where they are uniform in the paper;
//! and in network and training, which are labelmill's defaults. `preset = "paper"` has the paper's
//! settings for LabelMe. Its ablations (figure 9) are `calibrate = false`, `retrain = "none"`, and `retrain =
//! "sequential"` with `trusted_epochs = 0`, which leaves the trusted instances out.

mod aggregator;
mod retraining;
mod start;
pub(crate) mod tcls;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::frame::{Dims, Evidence};
use crate::job_context::JobContext;
use crate::model::calibration::calibrator::Method;
use crate::model::fitted::Fitted;
use crate::model::neural::objective::batch_context::{BatchContext, BatchPrediction, Gradient};
use crate::model::neural::objective::crowd_net::CrowdNet;
use crate::model::neural::objective::network_spec::NetworkSpec;
use crate::model::neural::objective::schedule::{Act, LearnerSubset};
use crate::model::neural::objective::train_spec::{Reduction, TrainSpec};
use crate::model::neural::objective::train_state::{MAIN_TARGETS, TrainState};
use crate::model::neural::objective::training_objective::TrainingObjective;
use crate::model::neural::objective::{counted, paper};
use crate::model::neural::params::annotator_matrices::AnnotatorMatrices;
use crate::model::neural::params::annotator_params::AnnotatorParams;
use crate::model::neural::train::learners::learner::CLASSIFIER;
use crate::spec::Problems;
pub use retraining::Retrain;
use retraining::{Retraining, check_select, co_training, epochs_of_rounds};
pub use start::Initialise;
use start::warn_of_no_calibration;

/// TCL and TCL+I.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tcl {
    /// Rounds of co-training before the retraining.
    #[schemars(range(min = 1))]
    pub rounds: u32,
    /// Epochs in the first round.
    #[schemars(range(min = 1))]
    pub first_epochs: u32,
    /// Epochs in each other round.
    #[schemars(range(min = 1))]
    pub round_epochs: u32,
    /// The first targets.
    pub initialise: Initialise,
    /// Whether the trusted instances calibrate the classifier before each E-step.
    pub calibrate: bool,
    /// The instances of the retraining, and their order.
    pub retrain: Retrain,
    /// Epochs on the trusted instances alone, at the end of a sequential retraining.
    pub trusted_epochs: u32,
}

impl Default for Tcl {
    fn default() -> Self {
        Self {
            rounds: 29,
            first_epochs: 2,
            round_epochs: 1,
            initialise: Initialise::Votes,
            calibrate: true,
            retrain: Retrain::Union,
            trusted_epochs: 10,
        }
    }
}

impl Tcl {
    fn retraining(&self, train: &TrainSpec) -> Retraining {
        let Self { retrain: order, trusted_epochs, .. } = *self;
        Retraining { order, epochs: train.epochs, trusted_epochs }
    }

    /// All acts, one after the other.
    fn acts(&self, train: &TrainSpec) -> impl Iterator<Item = Act> {
        let sizes = [self.rounds, self.first_epochs, self.round_epochs];
        let (calibrate, retrain) = (self.calibrate, self.retrain);
        let rounds = (0..self.rounds).flat_map(move |round| {
            let e_step = || Act::EStep(MAIN_TARGETS);
            let calibrate = calibrate.then_some(Act::Calibrate(CLASSIFIER, Method::Isotonic));
            [Act::MStep(MAIN_TARGETS)]
                .into_iter()
                .chain((round > 0).then(e_step))
                .chain([co_training(LearnerSubset::All, round, sizes, retrain)])
                .chain(calibrate)
                .chain([e_step()])
        });
        rounds.chain(self.retraining(train).acts(LearnerSubset::All))
    }
}

impl CrowdNet for Tcl {
    const KIND: &'static str = "tcl";
    const SUMMARY: &'static str =
        "a classifier and naive Bayes teach each other, calibrated by trusted instances";
    const SOURCE: &'static str = "Li et al. 2022, IEEE Transactions on Multimedia";
    const TRAINING: &'static str = "How it is trained; `epochs` are those of the retraining.";

    /// The paper's settings for LabelMe.
    fn paper() -> (NetworkSpec, Self) {
        (paper::classifier(30, Some(128), 1e-4), Self::default())
    }

    fn check(&self, train: &TrainSpec, location: &str, problems: &mut Problems) {
        check_select(train, location, problems);
    }

    fn check_without_gold(&self, location: &str, problems: &mut Problems) {
        self.initialise.check_without_gold(location, problems);
    }

    fn aggregate(&self, evidence: Evidence<'_>, job: &mut JobContext) -> Result<Option<Fitted>> {
        if self.calibrate {
            warn_of_no_calibration(evidence, job);
        }
        self.initialise.aggregate(evidence, job).map(Some)
    }
}

impl TrainingObjective for Tcl {
    const REDUCTION: Option<Reduction> = None;
    const TRAINS_ON_TARGETS: bool = true;
    const COUNTS_CONFUSION: bool = true;

    fn next_act(&self, train: &TrainSpec, state: &TrainState) -> Option<Act> {
        self.acts(train).nth(state.acts)
    }

    fn epochs(&self, train: &TrainSpec) -> u32 {
        let rounds = epochs_of_rounds(self.rounds, self.first_epochs, self.round_epochs);
        rounds.saturating_add(self.retraining(train).epochs())
    }

    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> Result<f64> {
        Ok(context.cross_entropy_of_targets(gradient))
    }

    fn annotator_matrices<'p>(
        &self,
        params: &'p AnnotatorParams,
        dims: Dims,
    ) -> Option<AnnotatorMatrices<'p>> {
        Some(counted::matrices(params, 0.0, dims))
    }

    /// The prior of naive Bayes is the calibrated classifier.
    fn prior(&self, context: &BatchContext<'_>) -> Vec<f64> {
        let mut prior = context.out.p.clone();
        if let Some(calibrator) = context.estimates.calibrators.get(CLASSIFIER) {
            prior.chunks_exact_mut(context.dims.classes).for_each(|row| calibrator.apply(row));
        }
        prior
    }

    /// The posteriors are the targets of the retraining.
    fn predict(&self, context: &BatchContext<'_>) -> BatchPrediction {
        counted::predict(context, context.batch.targets.clone())
    }
}
