//! The view of annotations by confusion column.

use super::weights::Weights;

/// The view by column.
#[derive(Debug, Clone)]
pub(super) struct ByColumn {
    pub(super) offsets: Vec<usize>,
    pub(super) instances: Vec<u32>,
    pub(super) weights: Weights,
}
