//! What a fit writes to disk: the arrays of a model, and the checkpoint of an interrupted fit; and how a saved model predicts.

pub(super) mod checkpoint;
pub(crate) mod snapshot;

use serde_json::Value;

use super::posterior::Posterior;
use crate::error::Result;
use crate::frame::Matrix;
use crate::job_context::JobContext;

/// A saved model, ready to predict.
pub struct SavedModel<'a> {
    /// Its parameters, as they were written in `[model]`.
    pub parameters: Value,
    /// Its sizes, as the model described them.
    pub sizes: Value,
    /// Its weights, in the safetensors format.
    pub bytes: &'a [u8],
    /// The device to compute on; `None` for the one that the parameters name.
    pub device: Option<&'a str>,
}

impl<'a> SavedModel<'a> {
    /// The model that was saved with this description, an object with `parameters` and `sizes`, and these weights.
    #[must_use]
    pub fn new(description: &Value, bytes: &'a [u8], device: Option<&'a str>) -> Self {
        let (parameters, sizes) = (description["parameters"].clone(), description["sizes"].clone());
        Self { parameters, sizes, bytes, device }
    }
}

/// The predictions of a saved model.
#[derive(Debug, Clone, PartialEq)]
pub struct Predicted {
    /// P(class given features) of every row.
    pub classes: Posterior,
    /// The device of the computation.
    pub device: String,
}

/// Predicts every row of a matrix with a saved model.
pub type Predict = fn(SavedModel<'_>, &Matrix, &JobContext) -> Result<Predicted>;
