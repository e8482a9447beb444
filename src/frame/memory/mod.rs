//! The memory of a frame: what it reserves in the pool of the session, and what lies in scratch files instead.

pub(super) mod batch_bytes;
pub(super) mod estimate;
pub(super) mod numbers;
pub(in crate::frame) mod read_all;
pub(super) mod reservation;
