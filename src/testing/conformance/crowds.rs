//! The crowds that the checks share.

use crate::frame::{Annotations, Dims};
use crate::testing::annotations;
use crate::testing::synth::CrowdShape;

/// A crowd with the default shape.
pub(super) fn crowd(seed: u64) -> Annotations {
    let crowd = CrowdShape::default();
    let rows = crowd.draw(seed).rows;
    annotations(dims(&crowd), &rows)
}

/// The crowd of [`Subject::fitted`](super::subject::Subject::fitted).
pub(super) fn usual_crowd() -> Annotations {
    crowd(1)
}

/// The sizes of crowds with this shape.
pub(super) fn dims(crowd: &CrowdShape) -> Dims {
    Dims {
        instances: crowd.instances as usize,
        annotators: crowd.annotators as usize,
        classes: crowd.classes as usize,
        labels: crowd.classes as usize,
    }
}
