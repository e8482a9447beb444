//! Calibration: probabilities that are as often right as they say, by a map that is fitted where the answer is known.
//!
//! A [`Calibrator`] is the map; a saved model keeps that of its predictions, so that `predict` calibrates too. The section
//! `[calibration]` calibrates what any model leaves: its posteriors, and its predictions by a map of their own.
//!
//! What it is fitted to, for posteriors and predictions each:
//!
//! 1. Gold of the role `calibrate`, whose classes the model was not told. It then does not score.
//! 2. Where there is none, held-out annotations. The model is fitted once more without a share of the annotations. What
//!    held-out annotators said of instance i gives the target of its row p, through their confusion matrices in that fit:
//!
//!    ```text
//!    q[k] prop. to calibrated(p)[k] * prod over held-out annotations (r, y) of i of pi[r][k][y]^weight
//!    ```
//!
//!    and targets and map are found in turn, which is EM for the likelihood of the held-out annotations. A model without
//!    confusion matrices has one accuracy for each annotator, its skill. With a classifier half of what is held out are
//!    all annotations of some instances: these are what predictions are compared with, for the classifier has not seen
//!    them. Posteriors are compared with annotations of instances that keep others. The first annotation of each
//!    annotator is never held out.
//!
//! # Why
//! Held-out annotations are noisy answers: calibrated to them directly, a model would be as unsure of the class as it
//! should be of what an annotator says. Through the confusion matrices it is calibrated to the class; but annotators who
//! err together confirm each other there, too. So gold is better where there is some: a few hundred instances.
//!
//! An annotated instance's posterior is calibrated by the posteriors' map, whether its own annotations were held out or
//! not; an instance whose class was told stays certain, and one without evidence has no row. What else was learned
//! (skills, confusion matrices, the trace) is as the model left it.

mod annotations;
mod fit;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use fit::{Calibrated, calibrate};

use crate::error::Problem;
pub use crate::model::calibrator::{Calibrator, Isotonic, Method, Points};
use crate::spec::Problems;

/// The key of the map in the description of a saved model.
pub(crate) const SAVED_AS: &str = "calibration";

/// How posteriors and predictions are calibrated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CalibrationSpec {
    /// The map from the model's probabilities to calibrated ones.
    pub method: Method,
    /// What the map is fitted to.
    pub fit_on: FitOn,
    /// Invented answers among those that the map is fitted to: more keep it further from 0 and 1 where there are few.
    #[schemars(range(min = 0.0))]
    pub smoothing: f64,
    /// The share of annotations that are held out where they are what the map is fitted to.
    #[schemars(range(min = 0.01, max = 0.9))]
    pub held_out: f64,
}

impl Default for CalibrationSpec {
    fn default() -> Self {
        Self { method: Method::None, fit_on: FitOn::Auto, smoothing: 0.5, held_out: 0.2 }
    }
}

/// What the map is fitted to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FitOn {
    /// Gold of the role `calibrate` where there is any, else held-out annotations.
    #[default]
    Auto,
    /// Gold of the role `calibrate`; posteriors or predictions that none of it is about stay as they are.
    Gold,
    /// Held-out annotations.
    Annotations,
}

impl CalibrationSpec {
    /// Whether anything is calibrated.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.method != Method::None
    }

    /// Adds the problems that only show between fields.
    pub(crate) fn check(&self, has_gold: bool, place: &str, problems: &mut Problems) {
        if self.is_on() && self.fit_on == FitOn::Gold && !has_gold {
            problems.push(
                Problem::new("there is no gold to calibrate by")
                    .at(format!("{place}: calibration.fit_on"))
                    .found("`gold`, without source.gold")
                    .help("set source.gold with rows of the role `calibrate`, or fit_on = \"annotations\""),
            );
        }
    }
}
