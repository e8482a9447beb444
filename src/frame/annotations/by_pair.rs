//! The view of annotations by confusion pair.

use super::weights::Weights;

/// The view by pair.
#[derive(Debug, Clone)]
pub(super) struct ByPair {
    pub(super) offsets: Vec<usize>,
    pub(super) instances: Vec<u32>,
    pub(super) weights: Weights,
}
