//! The training of a new classifier on the co-labels and the trusted instances, which ends a co-training.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Problem;
use crate::model::neural::data::batching::InstanceSubset;
use crate::model::neural::objective::schedule::{Act, LearnerSubset, Phase};
use crate::model::neural::objective::train_spec::{Select, TrainSpec};
use crate::spec::Problems;

/// The instances of the retraining, and their order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Retrain {
    /// All instances together, as in the paper.
    #[default]
    Union,
    /// First the instances without a trusted class, then those with one, as in the public code.
    Sequential,
    /// No retraining: the classifier of the last round is kept, and `select` chooses among the epochs of the rounds.
    None,
}

/// The retraining of one fit.
#[derive(Clone, Copy)]
pub(super) struct Retraining {
    pub(super) order: Retrain,
    pub(super) epochs: u32,
    /// Epochs on the trusted instances alone, at the end of a sequential retraining.
    pub(super) trusted_epochs: u32,
}

impl Retraining {
    /// The acts, which train `classifier` alone.
    pub(super) fn acts(self, classifier: LearnerSubset) -> Vec<Act> {
        let retraining = Phase { learners: classifier, ..Phase::joint("retraining", self.epochs) };
        let reset = Act::Reset(classifier);
        match self.order {
            Retrain::Union => vec![reset, Act::Train(retraining), Act::Select],
            Retrain::Sequential => {
                let trusted = Phase {
                    instances: InstanceSubset::Trusted,
                    learners: classifier,
                    ..Phase::joint("trusted", self.trusted_epochs)
                };
                let untrusted = Phase { instances: InstanceSubset::Untrusted, ..retraining };
                let trainings = [untrusted, trusted].map(Act::Train);
                let selected = trainings.into_iter().flat_map(|act| [act, Act::Select]);
                std::iter::once(reset).chain(selected).collect()
            }
            Retrain::None => vec![Act::Select],
        }
    }

    /// The number of its epochs.
    pub(super) fn epochs(self) -> u32 {
        match self.order {
            Retrain::Union => self.epochs,
            Retrain::Sequential => self.epochs.saturating_add(self.trusted_epochs),
            Retrain::None => 0,
        }
    }
}

/// The epochs of all rounds.
pub(super) fn epochs_of_rounds(rounds: u32, first: u32, each: u32) -> u32 {
    first.saturating_add(rounds.saturating_sub(1).saturating_mul(each))
}

/// The co-training of `classifier` in this round, from 0.
pub(super) fn co_training(
    classifier: LearnerSubset,
    round: u32,
    [rounds, first, each]: [u32; 3],
    retrain: Retrain,
) -> Act {
    let start = if round == 0 { 0 } else { epochs_of_rounds(round, first, each) };
    Act::Train(Phase {
        act: start..epochs_of_rounds(round + 1, first, each),
        learners: classifier,
        instances: InstanceSubset::Untrusted,
        is_scored: retrain == Retrain::None,
        ..Phase::joint("co-training", epochs_of_rounds(rounds, first, each))
    })
}

/// Adds a problem if held-out annotations are to select an epoch.
pub(super) fn check_select(train: &TrainSpec, location: &str, problems: &mut Problems) {
    if train.select == Select::AnnotationLikelihood {
        problems.push(
            Problem::new("held-out annotations cannot select an epoch of the retraining")
                .at(format!("{location}.train.select"))
                .found("\"annotation_likelihood\": no parameter of an annotator changes then")
                .help("choose \"valid\" or \"last\""),
        );
    }
}
