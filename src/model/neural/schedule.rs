//! What a training consists of: acts, one after the other, named by a model's schedule.

use std::ops::Range;

use super::data::batching::InstanceSubset;

/// One act of a training.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// Trains parameters by their gradients.
    Train(Phase),
    /// The targets become the model's posteriors, given features and annotations.
    EStep,
    /// The model estimates parameters of annotators from the targets, in closed form.
    MStep,
    /// Fits the calibrator to the classifier's predictions of trusted instances.
    Calibrate,
    /// Goes back to the best epoch since the last selection, where epochs are scored.
    Select,
    /// Draws the parameters of these learners anew. The calibrator belonged to the old ones.
    Reset(LearnerSubset),
}

/// The learners that an act is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LearnerSubset {
    /// All of the model.
    #[default]
    All,
    /// Those of these names; the classifier's is `classifier`.
    Only(&'static [&'static str]),
}

impl LearnerSubset {
    /// None of them.
    pub const NONE: Self = Self::Only(&[]);

    /// Whether the learner of this name is among them.
    #[must_use]
    pub fn has(self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.contains(&name),
        }
    }
}

/// Epochs that train the same parameters. Several acts may share a phase: its clock, which the schedule of the learning
/// rate follows, and the moments of what it trains go on from one to the next, whatever other phases train in between.
#[derive(Debug, Clone, PartialEq)]
pub struct Phase {
    /// Its name in the trace.
    pub name: &'static str,
    /// All epochs of the phase.
    pub epochs: u32,
    /// Those of this act.
    pub act: Range<u32>,
    /// The learners that are trained.
    pub learners: LearnerSubset,
    /// The names of the tables that are trained; `None` for all.
    pub tables: Option<&'static [&'static str]>,
    /// The learning rate of annotators' parameters, where it differs from the optimiser's.
    pub annotator_rate: Option<f64>,
    /// Whether the trained parameters change the likelihood of annotations, so that it can select an epoch.
    pub moves_likelihood: bool,
    /// Whether what it trains begins with the moments of earlier phases; else they are new in its first epoch.
    pub keeps_moments: bool,
    /// The instances that are trained on.
    pub instances: InstanceSubset,
    /// Whether its epochs are scored for a selection.
    pub is_scored: bool,
}

impl Phase {
    /// Trains all parameters together, in one act.
    #[must_use]
    pub fn joint(name: &'static str, epochs: u32) -> Self {
        Self {
            name,
            epochs,
            act: 0..epochs,
            learners: LearnerSubset::All,
            tables: None,
            annotator_rate: None,
            moves_likelihood: true,
            keeps_moments: false,
            instances: InstanceSubset::All,
            is_scored: true,
        }
    }

    /// Whether it trains the table of annotators' parameters of this name.
    pub(super) fn trains(&self, table: &str) -> bool {
        self.tables.is_none_or(|only| only.contains(&table))
    }
}

/// The act after `done` acts of phases that follow each other, each of which ends with a selection.
#[must_use]
pub fn one_after_the_other(phases: Vec<Phase>, done: usize) -> Option<Act> {
    let phase = phases.into_iter().nth(done / 2)?;
    Some(if done.is_multiple_of(2) { Act::Train(phase) } else { Act::Select })
}
