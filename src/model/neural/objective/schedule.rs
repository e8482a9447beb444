//! The schedule of a training: a sequence of acts.

use std::ops::Range;

use super::train_state::MAIN_TARGETS;
use crate::model::calibration::calibrator::Method;
use crate::model::neural::data::batching::InstanceSubset;

/// One act of a training: some epochs, or another update of targets or parameters.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// Trains parameters by their gradients.
    Train(Phase),
    /// Replaces the targets of this name by the model's posteriors given features and annotations.
    EStep(&'static str),
    /// Estimates parameters of annotators, and other numbers, from the targets of this name, in closed form.
    MStep(&'static str),
    /// Fits the calibrator of the learner of this name to its probabilities of trusted instances, by this method.
    Calibrate(&'static str, Method),
    /// Restores the best model since the last selection; if no epoch was scored, the average model, if there is one.
    Select,
    /// Reinitialises the parameters of these learners, and drops their calibrators, the best model and the average
    /// model, which belong to the old parameters.
    Reset(LearnerSubset),
}

/// A subset of a model's learners.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LearnerSubset {
    /// All learners of the model.
    #[default]
    All,
    /// The learners of these names; the classifier's name is `classifier`.
    Only(&'static [&'static str]),
}

impl LearnerSubset {
    /// No learner.
    pub const NONE: Self = Self::Only(&[]);

    /// Whether the learner of this name belongs to the subset.
    #[must_use]
    pub fn has(self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.contains(&name),
        }
    }
}

/// Epochs that train the same parameters. Several acts may share a phase: its epoch count, which the learning rate
/// schedule follows, and the moments of its parameters continue from one act to the next, whatever other phases train
/// in between.
#[derive(Debug, Clone, PartialEq)]
pub struct Phase {
    /// The name of the phase in the trace.
    pub name: &'static str,
    /// The round, from 0, of a phase that is trained anew in several rounds: each has its own batches, random numbers
    /// and rows in the trace.
    pub round: u32,
    /// The number of epochs of the phase, over all its acts.
    pub epochs: u32,
    /// The epochs of this act.
    pub act: Range<u32>,
    /// The learners that are trained.
    pub learners: LearnerSubset,
    /// The name of the targets that the batches have.
    pub targets: &'static str,
    /// The names of the tables that are trained; `None` for all.
    pub tables: Option<&'static [&'static str]>,
    /// The learning rate of learners, where it differs from their optimisers'.
    pub learner_rate: Option<f64>,
    /// The learning rate of annotators' parameters, where it differs from the optimiser's.
    pub annotator_rate: Option<f64>,
    /// The number of epochs at the start of the phase in which annotators' parameters are frozen while the classifier
    /// is trained, where it differs from the model's.
    pub annotator_delay: Option<u32>,
    /// Whether the trained parameters change the likelihood of annotations, so that it can select an epoch.
    pub changes_likelihood: bool,
    /// Whether the phase starts with the moments of earlier phases; else its first epoch sets them to zero.
    pub keeps_moments: bool,
    /// The instances that are trained on.
    pub instances: InstanceSubset,
    /// Whether its epochs are scored for a selection of the best.
    pub is_scored: bool,
}

impl Phase {
    /// Trains all parameters together, in one act.
    #[must_use]
    pub fn joint(name: &'static str, epochs: u32) -> Self {
        Self {
            name,
            round: 0,
            epochs,
            act: 0..epochs,
            learners: LearnerSubset::All,
            targets: MAIN_TARGETS,
            tables: None,
            learner_rate: None,
            annotator_rate: None,
            annotator_delay: None,
            changes_likelihood: true,
            keeps_moments: false,
            instances: InstanceSubset::All,
            is_scored: true,
        }
    }

    /// The name and, after the first round, the round: for the trace and for the names of random streams.
    pub(in crate::model::neural) fn label(&self) -> String {
        match self.round {
            0 => self.name.to_owned(),
            round => format!("{} (round {round})", self.name),
        }
    }

    /// Whether it trains the table of annotators' parameters of this name.
    pub(in crate::model::neural) fn trains(&self, table: &str) -> bool {
        self.tables.is_none_or(|only| only.contains(&table))
    }
}

/// The act after `done` acts of a schedule that runs these phases in order, with a selection after each.
#[must_use]
pub fn sequential(phases: Vec<Phase>, done: usize) -> Option<Act> {
    let phase = phases.into_iter().nth(done / 2)?;
    Some(if done.is_multiple_of(2) { Act::Train(phase) } else { Act::Select })
}
