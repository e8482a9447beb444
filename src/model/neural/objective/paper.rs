//! The settings that the papers share, for `preset = "paper"`.
//!
//! Papers and code train annotators' parameters from the first step on, at the classifier's learning rate, without
//! weight decay and with a constant rate. Selection by validation gold is left to the user, since it needs that gold.
//! Features are scaled as without the preset: papers and code leave scaling to the person who prepares the data.

use crate::model::neural::net::backbone::BackboneSpec;
use crate::model::neural::net::optimiser::optimiser_spec::{LrSchedule, OptimiserSpec};
use crate::model::neural::objective::network_spec::NetworkSpec;
use crate::model::neural::objective::train_spec::TrainSpec;

/// The network of a model that trains parameters of annotators, at the classifier's rate.
pub(crate) fn network(epochs: u32, batch_size: Option<usize>, learning_rate: f64) -> NetworkSpec {
    let mut network = classifier(epochs, batch_size, learning_rate);
    network.train.optimiser.annotator_learning_rate = Some(learning_rate);
    network.train.optimiser.annotator_delay = Some(0);
    network
}

/// The classifier on vectors of features, as for LabelMe: 128 hidden units, half of them dropped; with Adam at one
/// constant rate.
pub(crate) fn classifier(
    epochs: u32,
    batch_size: Option<usize>,
    learning_rate: f64,
) -> NetworkSpec {
    let backbone = BackboneSpec {
        hidden: vec![128],
        dropout: 0.5,
        batch_norm: false,
        ..BackboneSpec::default()
    };
    let optimiser = OptimiserSpec {
        learning_rate,
        schedule: LrSchedule::Constant,
        weight_decay: 0.0,
        ..OptimiserSpec::default()
    };
    let train = TrainSpec { epochs, batch_size, optimiser, ..TrainSpec::default() };
    NetworkSpec { backbone, train, ..NetworkSpec::default() }
}
