//! The sizes of a crowd that this machine can hold.

use crate::engine::EngineSpec;
use crate::error::{Error, Result};
use crate::frame::MAX_LABELS;

/// The number of confusion matrices of each annotator, and of the whole crowd: without and with common noise.
const MATRICES: usize = 2;

/// Refuses more classes than a frame takes labels.
pub(super) fn check_classes(classes: usize) -> Result<()> {
    if classes <= MAX_LABELS {
        return Ok(());
    }
    Err(Error::data(format!("{classes} distinct classes: is this a column of classes?"))
        .at("--truth")
        .found(format!("more than {MAX_LABELS}, labels of the given annotations included"))
        .help("name the column that holds the classes with --class-column"))
}

/// Refuses confusion matrices that do not fit into the memory of this machine.
pub(super) fn check_matrices(annotators: usize, classes: usize) -> Result<()> {
    let of_all = annotators.checked_add(1).and_then(|n| n.checked_mul(MATRICES));
    let cells = of_all.and_then(|n| n.checked_mul(classes)?.checked_mul(classes));
    let bytes = cells.and_then(|cells| cells.checked_mul(size_of::<f64>()));
    if bytes.is_some_and(|bytes| bytes <= EngineSpec::default().memory_bytes()) {
        return Ok(());
    }
    Err(Error::spec("the confusion matrices of the crowd do not fit into memory")
        .at("--recipe")
        .found(format!(
            "{annotators} annotators with a matrix of {classes} classes and as many labels each"
        ))
        .help("draw fewer annotators, or merge classes"))
}
