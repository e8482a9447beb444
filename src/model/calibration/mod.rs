//! Calibration: a map, fitted where the class is known, makes probabilities agree with the observed frequencies.
//!
//! A [`Calibrator`] is the map; a saved model includes the map of its predictions, so that `predict` calibrates too.
//! The section `[calibration]` applies to any model: its posteriors have one map, its predictions another.
//!
//! Each of the two maps is fitted to:
//!
//! 1. Gold of the role `calibrate`, which the model does not see, and on request also gold that chooses the epoch. Such
//!    gold is then not used for scores.
//! 2. Where there is none, held-out annotations. The model is fitted a second time without a share of the annotations.
//!    The held-out annotations of instance i and the confusion matrices of that fit give the target q of its row p:
//!
//!    ```text
//!    q[k] prop. to calibrated(p)[k] * prod over held-out annotations (r, y) of i of pi[r][k][y]^weight
//!    ```
//!
//!    A temperature, with biases or without, maximises the likelihood of the held-out annotations, whose gradient follows
//!    from the targets; isotonic regression needs gold. The matrices are shrunk towards that of all annotators: see
//!    `likelihoods.rs`. Where a model has no confusion matrices, an annotator's skill serves as the
//!    accuracy for all classes. With a classifier, half of the held-out annotations are all annotations of some
//!    instances: predictions are compared with these, because the classifier has not seen the instances. Posteriors are
//!    compared with annotations of instances that keep others. The first annotation of each annotator is never held out.
//!
//! Each question has maps of its own. A question without either keeps the model's probabilities.
//!
//! # Why
//! Held-out annotations are noisy: a model that is calibrated to them directly predicts the next annotation instead of
//! the class, and is too uncertain of the class. The confusion matrices correct for the noise, but not for correlated
//! errors of annotators. So gold is better where it exists: a few hundred instances.
//!
//! The posteriors' map applies to every annotated instance, whether its own annotations were held out or not; a trusted
//! instance keeps its one-hot posterior, and an instance without evidence has no posterior. Skills, confusion matrices
//! and the trace are not calibrated.

pub mod calibrator;
mod fit;
mod gold_points;
mod held_out;
mod lack_of_data;
mod likelihoods;
mod memory;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

pub(crate) use fit::{Calibrated, calibrate};
pub(crate) use lack_of_data::{NoCalibrationData, check_data, report_lacks};

use crate::error::Problem;
use crate::frame::Role;
use crate::spec::Problems;
pub use calibrator::{Calibrator, Isotonic, Method, Points};

/// The key of the map in the description of a saved model.
pub(crate) const SAVED_AS: &str = "calibration";

/// How posteriors and predictions are calibrated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CalibrationSpec {
    /// The map from the model's probabilities to calibrated ones.
    pub method: Method,
    /// The data that the map is fitted to.
    pub fit_on: FitOn,
    /// The weight of pseudo-observations in that data: raising it keeps probabilities further from 0 and 1 where there
    /// are few instances.
    #[schemars(range(min = 0.0))]
    pub smoothing: f64,
    /// The share of annotations that are held out, where the map is fitted to held-out annotations.
    #[schemars(range(min = 0.01, max = 0.9))]
    pub held_out: f64,
}

impl Default for CalibrationSpec {
    fn default() -> Self {
        Self { method: Method::None, fit_on: FitOn::Auto, smoothing: 0.5, held_out: 0.2 }
    }
}

/// The data that the map is fitted to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FitOn {
    /// Gold of the role `calibrate` where there is any, else held-out annotations.
    #[default]
    Auto,
    /// Gold of the role `calibrate`. If none of it has a posterior, posteriors stay as they are; likewise predictions.
    Gold,
    /// Gold of the roles `calibrate` and `valid`. Gold that has chosen one of many epochs is slightly too easy for the
    /// model, which matters less than a map fitted to few instances.
    Valid,
    /// Held-out annotations.
    Annotations,
}

impl FitOn {
    /// The roles of the gold that the map is fitted to.
    #[must_use]
    pub fn roles(self) -> &'static [Role] {
        match self {
            Self::Auto | Self::Gold => &[Role::Calibrate],
            Self::Valid => &[Role::Calibrate, Role::Valid],
            Self::Annotations => &[],
        }
    }
}

impl CalibrationSpec {
    /// Whether anything is calibrated.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.method != Method::None
    }

    /// Whether only gold will do.
    fn needs_gold(&self) -> bool {
        self.method == Method::Isotonic || matches!(self.fit_on, FitOn::Gold | FitOn::Valid)
    }

    /// What to set where there is no gold.
    fn without_gold(&self) -> &'static str {
        if self.method == Method::Isotonic {
            "method = \"temperature\", which held-out annotations can fit"
        } else {
            "fit_on = \"annotations\""
        }
    }

    /// Adds the problems that involve several fields.
    pub(crate) fn check(&self, has_gold: bool, location: &str, problems: &mut Problems) {
        if self.method == Method::Isotonic && self.fit_on == FitOn::Annotations {
            problems.push(
                Problem::new("isotonic regression is not fitted to held-out annotations")
                    .at(format!("{location}: calibration.fit_on"))
                    .found("\"annotations\", with method = \"isotonic\"")
                    .help("set fit_on = \"gold\", or method = \"temperature\""),
            );
        } else if self.is_on() && self.needs_gold() && !has_gold {
            problems.push(
                Problem::new("there is no gold to calibrate by")
                    .at(format!("{location}: calibration.fit_on"))
                    .found(format!("{}, without source.gold", json!(self.fit_on)))
                    .help(format!(
                        "set source.gold with rows of {}, or {}",
                        roles(self.fit_on),
                        self.without_gold()
                    )),
            );
        }
    }
}

/// The roles of gold that a map is fitted to, for messages.
fn roles(fit_on: FitOn) -> String {
    match fit_on.roles() {
        [role] => format!("the role `{}`", role.word()),
        roles => {
            let words: Vec<String> =
                roles.iter().map(|role| format!("`{}`", role.word())).collect();
            format!("the roles {}", words.join(" and "))
        }
    }
}
