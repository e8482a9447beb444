//! What tests are made of: crowds with a known truth, the conformance suite, a naive dense oracle.

pub mod conformance;
pub mod dense;
pub mod synth;

use crate::frame::{Annotations, Dims, Duplicates, Rows};

/// Annotations from (instance, annotator, label) triples; the sizes are one more than the largest number of each.
///
/// # Panics
/// Never: shared answers are no error.
#[must_use]
pub fn tiny(n_classes: usize, rows: &[(u32, u32, u32)]) -> Annotations {
    let most = |number: fn(&(u32, u32, u32)) -> u32| {
        rows.iter().map(number).max().map_or(0, |m| m as usize + 1)
    };
    let dims = Dims {
        instances: most(|r| r.0),
        annotators: most(|r| r.1),
        classes: n_classes,
        labels: n_classes.max(most(|r| r.2)),
    };
    annotations(dims, rows)
}

/// Annotations of the given sizes from (instance, annotator, label) triples.
///
/// # Panics
/// When a number is out of range.
#[must_use]
pub fn annotations(dims: Dims, rows: &[(u32, u32, u32)]) -> Annotations {
    let rows = Rows {
        instance: rows.iter().map(|r| r.0).collect(),
        annotator: rows.iter().map(|r| r.1).collect(),
        label: rows.iter().map(|r| r.2).collect(),
        weight: Vec::new(),
    };
    match Annotations::build(dims, rows, Duplicates::Share) {
        Ok(annotations) => annotations,
        Err(repeated) => unreachable!("shared answers are no error: {repeated:?}"),
    }
}
