//! Predicts with the classifier of a fit, and with a saved one.

use super::Gem;
use super::sizes::GemSizes;
use crate::error::Result;
use crate::frame::Matrix;
use crate::model::classifier::Classifier;
use crate::model::posterior::Posterior;
use crate::model::snapshot::Snapshot;
use crate::model::{Predicted, SavedModel, Spec as _, from_features};
use crate::run::{Cancel, Run};

/// P(class) of every row of a matrix.
pub(super) fn predictions_of(
    classifier: &dyn Classifier,
    matrix: &Matrix,
    n_classes: usize,
    cancel: &Cancel,
) -> Result<Posterior> {
    let rows: Vec<u32> = (0..matrix.len() as u32).collect();
    let mut predictions = Posterior::zeros(matrix.len(), n_classes);
    classifier.predict(matrix, &rows, predictions.values_mut(), cancel)?;
    Ok(predictions)
}

/// P(class given features) of every row, by a saved model.
///
/// # Errors
/// When the features have another width, the numbers belong to another model, or the device cannot be used: classifiers
/// other than networks compute on the CPU only.
pub(super) fn predict(model: SavedModel<'_>, matrix: &Matrix, run: &Run) -> Result<Predicted> {
    let mut refused = Ok(());
    let spec = from_features::spec_of(model.parameters, |spec: &mut Gem| {
        match (spec.classifier.device_mut(), model.device) {
            // The device of the training may not exist here.
            (Some(own), Some(on)) => on.clone_into(own),
            (Some(_), None) => {}
            (None, on) => refused = from_features::check_cpu(on, Gem::KIND),
        }
    })?;
    refused?;
    let sizes: GemSizes = from_features::sizes_of(model.sizes)?;
    let learned = Snapshot::from_bytes(model.bytes)?;
    let axes = sizes.checked_axes();
    let axes = axes.ok_or_else(|| from_features::impossible_sizes(&sizes))?;
    from_features::check_width(matrix, sizes.features)?;
    let mut classifier = spec.classifier.build(&axes, sizes.classes);
    classifier.load(&learned, matrix.len(), run)?;
    let classes = predictions_of(classifier.as_ref(), matrix, sizes.classes, &run.cancel)?;
    Ok(Predicted { classes, device: classifier.device() })
}
