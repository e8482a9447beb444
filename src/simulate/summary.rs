//! The size and accuracy of a drawn crowd.

use super::draw::SimulatedCrowd;
use super::ground_truth::GroundTruth;
use crate::frame::Role;

/// The size and accuracy of a drawn crowd.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CrowdSummary {
    /// Instances of the truth, annotated or not.
    pub instances: usize,
    /// The number of classes.
    pub classes: usize,
    /// The number of annotators.
    pub annotators: usize,
    /// The number of annotations.
    pub annotations: usize,
    /// Instances with gold of role `train`.
    pub trusted: usize,
    /// Instances with gold of role `valid`, for choosing the epoch.
    pub valid: usize,
    /// Instances with gold of role `holdout`, for scoring.
    pub holdout: usize,
    /// The share of right annotations.
    pub accuracy: f64,
    /// The expected accuracy, averaged over annotators.
    pub expected_accuracy: f64,
}

impl CrowdSummary {
    pub(super) fn new(ground_truth: &GroundTruth, crowd: &SimulatedCrowd) -> Self {
        let expected = crowd.members.iter().map(|m| m.confusion.accuracy(&crowd.shares));
        Self {
            instances: ground_truth.class.len(),
            classes: ground_truth.classes.len(),
            annotators: crowd.members.len(),
            annotations: crowd.annotations.len(),
            trusted: crowd.instances_with_role(Role::Train).len(),
            valid: crowd.instances_with_role(Role::Valid).len(),
            holdout: crowd.instances_with_role(Role::Holdout).len(),
            accuracy: crowd.accuracy(&ground_truth.class),
            expected_accuracy: expected.sum::<f64>() / crowd.members.len() as f64,
        }
    }
}
