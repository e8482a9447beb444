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
//! annotators. Without trusted instances, c is the identity.
//!
//! Differs from the paper in the start, which is the shares of the votes, not the vote of the majority, and in the
//! first round, which has no E-step before the classifier is trained (both as in the public code); in the matrices and
//! the prior of TCL+I, which add one to each count, where the paper replaces zero cells by 1e-10; in c, which keeps a
//! slope of 1e-6 where the regression is flat, so that no class is impossible, and is the identity for a class of
//! which no trusted instance has features, where the paper's regression is 0; in classes that no annotation and no
//! trusted instance names, whose rows are 0, where they are uniform in the paper; in its outputs, which have no accuracies
//! of each round; and in network and training, which are labelmill's defaults. `preset = "paper"` has the paper's
//! settings for LabelMe.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Problem, Result};
use crate::frame::{Annotations, Dims, Evidence};
use crate::model::Model;
use crate::model::calibration::calibrator::Method;
use crate::model::confusion::Smoothing;
use crate::model::em::kernels::{Likelihood, Prior, expected_counts_of};
use crate::model::fitted::{Fitted, Report};
use crate::model::from_features::single_annotations;
use crate::model::neural::models::paper;
use crate::model::neural::params::counted;
use crate::model::neural::train::learners::learner::CLASSIFIER;
use crate::model::neural::train::spec::Select;
use crate::model::neural::{
    Act, AnnotatorMatrices, AnnotatorParams, AnnotatorReport, BatchContext, BatchPrediction,
    CrowdNet, Gradient, InstanceSubset, LearnerSubset, MAIN_TARGETS, NetworkSpec, ParamTable,
    Phase, Reduction, Task, TrainSpec, TrainState, TrainingObjective,
};
use crate::model::numerics::MIN_PROBABILITY;
use crate::model::posterior::{Posterior, best};
use crate::model::vote::{MajorityVote, agreement};
use crate::run::Run;
use crate::spec::Problems;

/// The first targets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Initialise {
    /// The shares of the votes.
    #[default]
    Votes,
    /// Naive Bayes with confusion matrices counted on the annotations of trusted instances (TCL+I).
    Trusted,
}

/// The instances of the retraining, and their order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Retrain {
    /// All instances together, as in the paper.
    #[default]
    Union,
    /// First the instances without a trusted class, then those with one, as in the public code.
    Sequential,
}

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
            retrain: Retrain::Union,
            trusted_epochs: 10,
        }
    }
}

impl Tcl {
    /// The epochs of all rounds.
    fn co_training_epochs(&self) -> u32 {
        let others = self.rounds.saturating_sub(1).saturating_mul(self.round_epochs);
        self.first_epochs.saturating_add(others)
    }

    /// All acts, one after the other.
    fn acts(&self, train: &TrainSpec) -> impl Iterator<Item = Act> {
        let (epochs, first, each) =
            (self.co_training_epochs(), self.first_epochs, self.round_epochs);
        let instances = InstanceSubset::Untrusted;
        let joint = Phase { instances, is_scored: false, ..Phase::joint("co-training", epochs) };
        let rounds = (0..self.rounds).flat_map(move |round| {
            let end_of = |round: u32| first.saturating_add(round.saturating_mul(each));
            let start = round.checked_sub(1).map_or(0, end_of);
            let e_step = (round > 0).then_some(Act::EStep(MAIN_TARGETS));
            let train = Act::Train(Phase { act: start..end_of(round), ..joint.clone() });
            let then =
                [train, Act::Calibrate(CLASSIFIER, Method::Isotonic), Act::EStep(MAIN_TARGETS)];
            [Act::MStep(MAIN_TARGETS)].into_iter().chain(e_step).chain(then)
        });
        let retraining = Phase::joint("retraining", train.epochs);
        let retraining = match self.retrain {
            Retrain::Union => vec![Act::Train(retraining), Act::Select],
            Retrain::Sequential => {
                let trusted = Phase {
                    instances: InstanceSubset::Trusted,
                    ..Phase::joint("trusted", self.trusted_epochs)
                };
                let untrusted = Phase { instances, ..retraining };
                vec![Act::Train(untrusted), Act::Select, Act::Train(trusted), Act::Select]
            }
        };
        rounds.chain([Act::Reset(LearnerSubset::All)]).chain(retraining)
    }
}

/// The reason why no prediction of a trusted instance can calibrate the classifier.
fn why_uncalibrated(evidence: Evidence<'_>) -> Option<&'static str> {
    let (a, described) = (evidence.annotations, evidence.described?);
    let is_trusted = |i: &usize| a.trusted_class(*i).is_some();
    let mut trusted = (0..a.dims().instances).filter(is_trusted).peekable();
    if trusted.peek().is_none() {
        return Some("no instance is trusted");
    }
    let is_described = trusted.any(|i| described.row_of_instance[i].is_some());
    (!is_described).then_some("no trusted instance has features")
}

/// The posteriors of naive Bayes whose matrices and prior are counted on the trusted instances, with one count added to
/// each cell.
fn by_trusted_instances(a: &Annotations) -> Result<Posterior> {
    let classes = a.dims().classes;
    let mut t = Posterior::zeros(a.dims().instances, classes);
    let (mut prior, mut annotated) = (vec![1.0; classes], 0);
    for i in 0..a.dims().instances {
        if let Some(class) = a.trusted_class(i) {
            t.row_mut(i)[class as usize] = 1.0;
            prior[class as usize] += 1.0;
            annotated += a.columns_of_instance(i).len();
        }
    }
    if annotated == 0 {
        return Err(Error::data("no trusted instance has annotations to start with")
            .at("model.initialise")
            .found("\"trusted\", without gold of the role `train` about annotated instances")
            .help("give some in source.gold, or set initialise = \"votes\""));
    }
    let sum: f64 = prior.iter().sum();
    prior.iter_mut().for_each(|p| *p /= sum);
    let (counts, add_one) = (expected_counts_of(a, &t), Smoothing::new(a, 1.0, 0.0));
    Ok(Likelihood::estimated(a, &counts, &add_one).posteriors(a, Prior::Class(&prior)))
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

    fn check(&self, train: &TrainSpec, place: &str, problems: &mut Problems) {
        if train.select == Select::AnnotationLikelihood {
            problems.push(
                Problem::new("held-out annotations cannot select an epoch of the retraining")
                    .at(format!("{place}.train.select"))
                    .found("\"annotation_likelihood\": no parameter of an annotator changes then")
                    .help("choose \"valid\" or \"last\""),
            );
        }
    }

    fn check_without_gold(&self, place: &str, problems: &mut Problems) {
        if self.initialise == Initialise::Trusted {
            problems.push(
                Problem::new("there is no gold to start with")
                    .at(format!("{place}.initialise"))
                    .found("\"trusted\", without source.gold")
                    .help(
                        "set source.gold with rows of the role `train`, or initialise = \"votes\"",
                    ),
            );
        }
    }

    fn aggregate(&self, evidence: Evidence<'_>, run: &mut Run) -> Result<Option<Fitted>> {
        let a = evidence.annotations;
        if let Some(why) = why_uncalibrated(evidence) {
            run.warn(format!("{why}: the classifier is not calibrated (gold of the role `train`)"));
            single_annotations(a).into_iter().for_each(|warning| run.warn(warning));
        }
        match self.initialise {
            Initialise::Votes => MajorityVote::default().fit(evidence, run).map(Some),
            Initialise::Trusted => {
                let posterior = by_trusted_instances(a)?;
                let report =
                    Report { skill: agreement(a, |i| best(posterior.row(i))), ..Report::default() };
                Ok(Some(Fitted::new(posterior, report)))
            }
        }
    }

    fn tables(&self, task: &Task<'_>) -> Result<Vec<ParamTable>> {
        Ok(vec![counted::table(task.dims)])
    }

    fn report(&self, task: &Task<'_>, annotator_params: &AnnotatorParams) -> AnnotatorReport {
        AnnotatorReport {
            confusion: Some(counted::reported(annotator_params, task.dims)),
            ..AnnotatorReport::default()
        }
    }
}

impl TrainingObjective for Tcl {
    const REDUCTION: Option<Reduction> = None;
    const TRAINS_ON_TARGETS: bool = true;

    fn next_act(&self, train: &TrainSpec, state: &TrainState) -> Option<Act> {
        self.acts(train).nth(state.acts)
    }

    fn epochs(&self, train: &TrainSpec) -> u32 {
        let alone = if self.retrain == Retrain::Sequential { self.trusted_epochs } else { 0 };
        self.co_training_epochs().saturating_add(train.epochs).saturating_add(alone)
    }

    fn m_step(
        &self,
        a: &Annotations,
        counts: &[f64],
        _state: &mut TrainState,
        params: &mut AnnotatorParams,
    ) {
        counted::count(a, counts, MIN_PROBABILITY, params);
    }

    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> f64 {
        context.cross_entropy_of_targets(gradient)
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
        BatchPrediction {
            classes: context.out.p.clone(),
            posterior: context.batch.targets.clone(),
            likelihood: context.likelihood_by(|_, a, k| counted::cell(context, a, k)),
            parameters: Vec::new(),
        }
    }
}
