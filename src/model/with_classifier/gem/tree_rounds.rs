//! The state of the rounds that grow trees.

use crate::model::classifier::Classifier;
use crate::model::em::Objective;
use crate::model::posterior::Posterior;

/// The rounds that grow trees.
#[derive(Default)]
pub(super) struct TreeRounds {
    pub(super) best: Option<BestRound>,
    pub(super) n: u32,
    pub(super) without_gain: u32,
    /// Whether the trees stay.
    pub(super) are_over: bool,
}

pub(super) struct BestRound {
    pub(super) objective: Objective,
    pub(super) prior: Vec<f64>,
    pub(super) posterior: Posterior,
    /// The state of the estimator.
    pub(super) state: Vec<f64>,
    pub(super) classifier: Box<dyn Classifier>,
}

impl TreeRounds {
    pub(super) fn are_over(&self) -> bool {
        self.are_over
    }
}
