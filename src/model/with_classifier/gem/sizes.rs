//! The sizes of a saved classifier of `gem`.

use serde::{Deserialize, Serialize};

use crate::frame::Matrix;

/// The sizes of a saved model.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct GemSizes {
    pub(super) features: usize,
    /// The axes of one instance's features, for images; empty for columns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) axes: Vec<usize>,
    pub(super) classes: usize,
}

impl GemSizes {
    pub(super) fn new(matrix: &Matrix, classes: usize) -> Self {
        let axes = Some(matrix.shape()).filter(|axes| axes.len() > 1).unwrap_or_default().to_vec();
        Self { features: matrix.width(), axes, classes }
    }

    /// The axes of one instance's features; `None` for sizes that no model has.
    pub(super) fn checked_axes(&self) -> Option<Vec<usize>> {
        let axes = if self.axes.is_empty() { vec![self.features] } else { self.axes.clone() };
        let product = axes.iter().try_fold(1_usize, |product, n| product.checked_mul(*n));
        (self.classes > 0 && product == Some(self.features)).then_some(axes)
    }
}
