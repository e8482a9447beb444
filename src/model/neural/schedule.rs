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
    /// Draws the parameters of the network anew. The calibrator belonged to the old ones.
    Reset,
}

/// Epochs that train the same parameters. Several acts may share a phase: its clock, which the schedule of the learning
/// rate follows, and the optimiser's moments go on from one to the next.
#[derive(Debug, Clone, PartialEq)]
pub struct Phase {
    /// Its name in the trace.
    pub name: &'static str,
    /// All epochs of the phase.
    pub epochs: u32,
    /// Those of this act.
    pub act: Range<u32>,
    /// Whether the classifier is trained.
    pub classifier: bool,
    /// The names of the tables that are trained; `None` for all.
    pub tables: Option<&'static [&'static str]>,
    /// The learning rate of annotators' parameters, where it differs from the optimiser's.
    pub annotator_rate: Option<f64>,
    /// Whether the trained parameters change the likelihood of annotations, so that it can select an epoch.
    pub moves_likelihood: bool,
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
            classifier: true,
            tables: None,
            annotator_rate: None,
            moves_likelihood: true,
            instances: InstanceSubset::All,
            is_scored: true,
        }
    }
}

/// The act after `done` acts of phases that follow each other, each of which ends with a selection.
#[must_use]
pub fn one_after_the_other(phases: Vec<Phase>, done: usize) -> Option<Act> {
    let phase = phases.into_iter().nth(done / 2)?;
    Some(if done.is_multiple_of(2) { Act::Train(phase) } else { Act::Select })
}
