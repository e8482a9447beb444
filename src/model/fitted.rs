//! The result of a fit: the posterior, estimates for annotators and instances, and the trace.

use super::confusion::{CommonConfusion, Confusion};
use super::posterior::Posterior;
use crate::frame::BLOCK;

/// The estimates of a fit other than the posteriors.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// P(class); `None` for a model without one.
    pub prior: Option<Vec<f64>>,
    /// The skill of every annotator; each model defines its own measure of skill.
    pub skill: Vec<f64>,
    /// An interval for every skill, where the model defines one.
    pub skill_interval: Option<Vec<(f64, f64)>>,
    /// The confusion matrices, where the model has them.
    pub confusion: Option<Confusion>,
    /// The confusion matrix that all annotators share, where the model has one.
    pub common: Option<CommonConfusion>,
    /// Further parameters of every annotator, by name.
    pub annotator_parameters: Vec<(String, Vec<f64>)>,
    /// Further parameters of every instance, by name; NaN where an instance has none.
    pub instance_parameters: Vec<(String, Vec<f64>)>,
}

/// One step of a fit.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceRow {
    /// The part of the fit, such as `em`, or `restart 2`.
    pub phase: String,
    /// The iteration, from 1.
    pub step: u32,
    /// The objective after the step.
    pub objective: f64,
    /// The increase of the objective since the previous step; `None` without a previous value.
    pub change: Option<f64>,
    /// The step's wall time.
    pub seconds: f64,
}

/// How the fit ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    /// Whether the stop rule was met.
    pub converged: bool,
    /// The number of iterations of the start whose result was kept.
    pub iterations: u32,
}

/// A fitted model.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitted {
    /// P(class given everything observed).
    pub posterior: Posterior,
    /// P(class given features) of every row of features, by a model that learned a classifier.
    pub predictions: Option<Posterior>,
    /// The other estimates.
    pub report: Report,
    /// One row per step of the fit.
    pub trace: Vec<TraceRow>,
    /// How the fit ended.
    pub stop: Stop,
    /// The trained classifier, where there is one.
    pub model: Option<Trained>,
    /// The device of the computation, such as `cpu` or `cuda:0`.
    pub device: String,
}

/// The device of every model that is not a network: `cpu`.
#[must_use]
pub fn on_cpu() -> String {
    "cpu".to_owned()
}

/// A trained classifier, ready to be saved.
#[derive(Debug, Clone, PartialEq)]
pub struct Trained {
    /// Its kind, parameters and sizes, and the calibration map of its predictions, if there is one.
    pub description: serde_json::Value,
    /// Its weights, in the safetensors format.
    pub parameters: Vec<u8>,
}

impl Fitted {
    /// The name and value of the first NaN or infinity, if there is any: such a fit must never be published.
    #[must_use]
    pub fn not_finite(&self) -> Option<String> {
        let report = &self.report;
        let predictions = self.predictions.as_ref();
        let mut parts: Vec<(&str, &[f64])> = vec![
            ("posterior", self.posterior.values()),
            ("prediction", predictions.map_or(&[], Posterior::values)),
            ("prior", report.prior.as_deref().unwrap_or_default()),
            ("skill", &report.skill),
            ("common confusion", report.common.as_ref().map_or(&[], |common| &common.probability)),
        ];
        let confusion = report.confusion.iter().flat_map(Confusion::parts);
        parts.extend(confusion.map(|values| ("confusion", values)));
        let named = report.annotator_parameters.iter();
        parts.extend(named.map(|(name, values)| (name.as_str(), values.as_slice())));
        parts.into_iter().find_map(|(name, values)| {
            let is_fine = |chunk: &[f64]| chunk.iter().fold(true, |fine, v| fine & v.is_finite());
            let chunk = values.chunks(BLOCK).position(|chunk| !is_fine(chunk))? * BLOCK;
            let at = chunk + values[chunk..].iter().position(|v| !v.is_finite())?;
            Some(format!("{name}[{at}] is {}", values[at]))
        })
    }
}
