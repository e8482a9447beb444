//! The first targets of co-training, from votes or from trusted instances, and what a user must know of the latter.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Problem, Result};
use crate::frame::{Annotations, Evidence};
use crate::job_context::JobContext;
use crate::model::Model as _;
use crate::model::classifier::from_features::single_annotations;
use crate::model::confusion::Smoothing;
use crate::model::em::kernels::{Likelihood, Prior, expected_counts_of};
use crate::model::fitted::{Fitted, Report};
use crate::model::neural::objective::given_matrices::few_of_a_class;
use crate::model::posterior::{Posterior, best};
use crate::model::vote::{MajorityVote, agreement};
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

impl Initialise {
    /// The aggregator's result whose posteriors are the first targets.
    ///
    /// # Errors
    /// When no trusted instance has annotations to count.
    pub(super) fn aggregate(self, evidence: Evidence<'_>, job: &mut JobContext) -> Result<Fitted> {
        let a = evidence.annotations;
        if self == Self::Votes {
            return MajorityVote::default().fit(evidence, job);
        }
        let posterior = by_trusted_instances(a)?;
        let report =
            Report { skill: agreement(a, |i| best(posterior.row(i))), ..Report::default() };
        Ok(Fitted::new(posterior, report))
    }

    /// Adds a problem if there is no gold to start with.
    pub(super) fn check_without_gold(self, location: &str, problems: &mut Problems) {
        if self == Self::Trusted {
            problems.push(
                Problem::new("there is no gold to start with")
                    .at(format!("{location}.initialise"))
                    .found("\"trusted\", without source.gold")
                    .help(
                        "set source.gold with rows of the role `train`, or initialise = \"votes\"",
                    ),
            );
        }
    }
}

/// Warns where no prediction of a trusted instance can calibrate the classifier, or few of some class do.
pub(super) fn warn_of_no_calibration(evidence: Evidence<'_>, job: &mut JobContext) {
    if let Some(why) = why_uncalibrated(evidence) {
        job.warn(format!("{why}: the classifier is not calibrated (gold of the role `train`)"));
        single_annotations(evidence.annotations).into_iter().for_each(|warning| job.warn(warning));
    } else if let Some(warning) = few_of_a_class(evidence.annotations, CALIBRATE) {
        job.warn(warning);
    }
}

/// To a class without trusted instances, the calibration gives a probability of 0.
const CALIBRATE: &str = "by which the classifier is calibrated, and may lose all their labels";

fn why_uncalibrated(evidence: Evidence<'_>) -> Option<&'static str> {
    let (a, with_features) = (evidence.annotations, evidence.with_features?);
    let is_trusted = |i: &usize| a.trusted_class(*i).is_some();
    let mut trusted = (0..a.dims().instances).filter(is_trusted).peekable();
    if trusted.peek().is_none() {
        return Some("no instance is trusted");
    }
    let has_features = trusted.any(|i| with_features.row_of_instance[i].is_some());
    (!has_features).then_some("no trusted instance has features")
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
            annotated += a.pairs_of_instance(i).len();
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
