//! The spec of the optimiser and its learning rate schedule.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Problem;
use crate::spec::Problems;

/// The kind of optimiser.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OptimiserKind {
    /// Kingma and Ba 2015.
    #[default]
    Adam,
    /// Adam with a second moment that never falls (Reddi, Kale, Kumar 2018) and with both bias corrections.
    Amsgrad,
    /// Stochastic gradient descent with momentum.
    Sgd,
}

impl OptimiserKind {
    /// The number of moments that are kept for each value.
    pub(crate) fn moments(self) -> usize {
        match self {
            Self::Sgd => 1,
            Self::Adam => 2,
            Self::Amsgrad => 3,
        }
    }
}

/// The schedule of the learning rate over the epochs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LrSchedule {
    /// The rate is constant.
    Constant,
    /// The rate is multiplied by `gamma` at each milestone.
    Step,
    /// The rate is multiplied by `gamma` after every epoch.
    Exponential,
    /// The rate falls to zero along half a cosine.
    #[default]
    Cosine,
}

/// The optimiser.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OptimiserSpec {
    /// The kind of optimiser.
    pub rule: OptimiserKind,
    /// The learning rate of the classifier.
    #[schemars(range(min = 0.0))]
    pub learning_rate: f64,
    /// The learning rate of annotators' parameters; left out, the model's default. In a model that trains no
    /// such parameters by gradient descent, such as `dl`, this key and `annotator_delay` change nothing, and a run warns.
    #[schemars(range(min = 0.0))]
    pub annotator_learning_rate: Option<f64>,
    /// Epochs at the start in which annotators' parameters are frozen, so that the classifier learns the classes before
    /// they can be exchanged; left out, the model's default.
    pub annotator_delay: Option<u32>,
    /// The schedule of both rates over the epochs.
    pub schedule: LrSchedule,
    /// Epochs at which the `step` schedule lowers the rates.
    pub milestones: Vec<u32>,
    /// The factor of the `step` and `exponential` schedules.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub gamma: f64,
    /// Epochs over which the rates rise from zero.
    pub warmup: u32,
    /// Weight decay of the classifier's weights; biases, batch norms and annotators' parameters are never decayed.
    #[schemars(range(min = 0.0))]
    pub weight_decay: f64,
    /// Whether decay shrinks the weights themselves (AdamW) instead of being added to the gradient. SGD always adds.
    pub decoupled: bool,
    /// Decay of the first moment (Adam), or the momentum (SGD).
    #[schemars(range(min = 0.0, max = 0.999_999))]
    pub beta1: f64,
    /// Decay of the second moment.
    #[schemars(range(min = 0.0, max = 0.999_999))]
    pub beta2: f64,
    /// Added to the square root of the second moment.
    #[schemars(range(min = 1e-30))]
    pub epsilon: f64,
    /// Nesterov's momentum (SGD).
    pub nesterov: bool,
    /// The largest norm that a gradient may have; larger ones are scaled down.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub clip_norm: Option<f64>,
    /// Whether every epoch begins with fresh moments, as CoNAL's public code does.
    pub reset_each_epoch: bool,
}

impl Default for OptimiserSpec {
    fn default() -> Self {
        Self {
            rule: OptimiserKind::Adam,
            learning_rate: 1e-3,
            annotator_learning_rate: None,
            annotator_delay: None,
            schedule: LrSchedule::Cosine,
            milestones: Vec::new(),
            gamma: 0.1,
            warmup: 0,
            weight_decay: 0.01,
            decoupled: true,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            nesterov: false,
            clip_norm: None,
            reset_each_epoch: false,
        }
    }
}

impl OptimiserSpec {
    /// Whether annotators' parameters have settings of their own.
    pub(crate) fn sets_annotators(&self) -> bool {
        self.annotator_learning_rate.is_some() || self.annotator_delay.is_some()
    }

    /// Adds a problem for each setting of annotators' parameters, where `why` says that there is nothing to set.
    pub(crate) fn refuse_settings_of_annotators(
        &self,
        why: &str,
        location: &str,
        problems: &mut Problems,
    ) {
        let settings = [
            ("annotator_learning_rate", self.annotator_learning_rate.map(|rate| rate.to_string())),
            ("annotator_delay", self.annotator_delay.map(|epochs| epochs.to_string())),
        ];
        for (key, found) in settings {
            let Some(found) = found else { continue };
            let at = format!("{location}.{key}");
            problems.push(Problem::new(why).at(at).found(found).help("leave it out"));
        }
    }

    /// The factor of both rates in `epoch`, from 0, of `epochs`.
    #[must_use]
    pub fn factor(&self, epoch: u32, epochs: u32) -> f64 {
        let scheduled = match self.schedule {
            LrSchedule::Constant => 1.0,
            LrSchedule::Step => {
                let passed = self.milestones.iter().filter(|m| **m <= epoch).count();
                self.gamma.powi(i32::try_from(passed).unwrap_or(i32::MAX))
            }
            LrSchedule::Exponential => self.gamma.powf(f64::from(epoch)),
            LrSchedule::Cosine => {
                let done = f64::from(epoch) / f64::from(epochs.max(1));
                0.5 * (1.0 + (std::f64::consts::PI * done).cos())
            }
        };
        let warm = (f64::from(epoch) + 1.0) / (f64::from(self.warmup) + 1.0);
        scheduled * warm.min(1.0)
    }
}

#[cfg(test)]
impl OptimiserSpec {
    /// Plain gradient descent, without momentum, decay and schedule.
    pub(crate) fn descent(learning_rate: f64) -> Self {
        let (rule, schedule) = (OptimiserKind::Sgd, LrSchedule::Constant);
        let (beta1, weight_decay) = (0.0, 0.0);
        Self { rule, learning_rate, schedule, weight_decay, beta1, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::spec::check_schema;

    // keys: model.train.optimiser.schedule, model.train.optimiser.milestones
    // keys: model.train.optimiser.gamma, model.train.optimiser.warmup
    #[test]
    fn the_rate_follows_its_course() {
        let spec =
            |schedule| OptimiserSpec { schedule, milestones: vec![2], ..OptimiserSpec::default() };
        assert_eq!(spec(LrSchedule::Step).factor(1, 4), 1.0);
        assert!((spec(LrSchedule::Step).factor(2, 4) - 0.1).abs() < 1e-12);
        assert!((spec(LrSchedule::Cosine).factor(2, 4) - 0.5).abs() < 1e-12);
        let falling = OptimiserSpec { gamma: 0.5, ..spec(LrSchedule::Exponential) };
        assert_eq!([0, 1, 3].map(|epoch| falling.factor(epoch, 4)), [1.0, 0.5, 0.125]);
        let schedule = LrSchedule::Constant;
        let warm = OptimiserSpec { warmup: 3, schedule, ..OptimiserSpec::default() };
        assert_eq!((warm.factor(0, 9), warm.factor(3, 9)), (0.25, 1.0));
        let slow = OptimiserSpec { warmup: u32::MAX, ..warm };
        assert_eq!(slow.factor(2, 9), 3.0 / 2_f64.powi(32));
    }

    /// Zero over zero is no number, and 1e-50 is zero in 32 bits.
    // keys: model.train.optimiser.epsilon
    #[test]
    fn an_epsilon_that_32_bits_do_not_hold_is_refused() {
        let schema = schemars::schema_for!(OptimiserSpec).to_value();
        let check = |epsilon: f64| {
            let mut problems = Problems::default();
            check_schema(&json!({"epsilon": epsilon}), &schema, "optimiser", &mut problems);
            problems.into_result()
        };
        for epsilon in [0.0, 1e-50] {
            let error = check(epsilon).unwrap_err().to_string();
            assert!(error.contains("the number must be at least 1e-30"), "{error}");
            assert!(error.contains("optimiser: epsilon"), "{error}");
        }
        check(1e-30).unwrap();
    }
}
