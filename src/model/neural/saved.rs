//! A trained model that left the process: what describes it, and prediction from it.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::batch::Data;
use super::crowd::Crowd;
use super::net::{Net, Sizes};
use super::snapshot::Snapshot;
use super::step::judge;
use super::{CrowdNet, device, name_of};
use crate::error::{Error, Result};
use crate::frame::{Dims, Matrix};
use crate::model::fitted::Posterior;
use crate::model::{Predicted, SavedModel};
use crate::run::Run;

/// What a saved model says of itself, beside its kind and parameters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// The axes of one instance's features.
    pub features: Vec<usize>,
    /// Classes.
    pub classes: usize,
    /// Labels.
    pub labels: usize,
    /// Annotators it was trained on.
    pub annotators: usize,
}

/// Rows that are predicted at once.
const ROWS: usize = 1024;

/// The description of a trained model, without its classes' names.
pub(super) fn description<N: CrowdNet>(model: &N, sizes: &Sizes, dims: Dims) -> Value {
    let saved = Saved {
        features: sizes.features.clone(),
        classes: dims.classes,
        labels: dims.labels,
        annotators: dims.annotators,
    };
    json!({"kind": N::KIND, "parameters": model, "sizes": saved})
}

/// P(class given features) of every row, by a model that was saved.
///
/// # Errors
/// When the features have another width, the parameters belong to another model, or the device fails.
pub fn predict<N: CrowdNet>(
    model: SavedModel<'_>,
    matrix: &Matrix,
    run: &Run,
) -> Result<Predicted> {
    let SavedModel { parameters, sizes, bytes, device: on } = model;
    let misfit = |e| Error::data(format!("the saved model's description does not fit: {e}"));
    let model: N = serde_json::from_value(parameters).map_err(misfit)?;
    let saved: Saved = serde_json::from_value(sizes).map_err(misfit)?;
    let width: usize = saved.features.iter().product();
    if matrix.width() != width {
        return Err(Error::data("the features do not have the width that the model learned from")
            .found(format!("{} numbers a row, where the model takes {width}", matrix.width()))
            .help("give the same columns in the same order as for training"));
    }
    let snapshot = Snapshot::from_bytes(bytes)?;
    let sizes = Sizes { features: saved.features.clone(), classes: saved.classes };
    let parts = model.parts();
    let device = device(on.unwrap_or(parts.device))?;
    let mut net =
        Net::new(parts.backbone, parts.train.precision, model.heads(), &sizes, run, &device)?;
    net.load(&snapshot)?;
    let crowd = Crowd::saved(&snapshot);
    let dims = Dims {
        instances: matrix.len(),
        annotators: saved.annotators,
        classes: saved.classes,
        labels: saved.labels,
    };
    let mut predictions = Posterior::zeros(matrix.len(), saved.classes);
    for first in (0..matrix.len()).step_by(ROWS) {
        run.cancel.check()?;
        let rows = first..(first + ROWS).min(matrix.len());
        let judged = judge(&model, &net, &crowd, matrix, dims, &Data::unseen(rows.clone()))?;
        predictions.values_mut()[rows.start * saved.classes..rows.end * saved.classes]
            .copy_from_slice(&judged.classes);
    }
    Ok(Predicted { classes: predictions, device: name_of(&device) })
}
