//! One of several questions that are fitted together.

use crate::frame::{Evidence, JointQuestion};

/// A question of a joint crowd by its own numbers.
pub(super) struct OwnQuestion<'a> {
    pub(super) question: JointQuestion,
    pub(super) evidence: Evidence<'a>,
    /// The number of each of its annotators in the crowd.
    pub(super) annotators: &'a [u32],
}
