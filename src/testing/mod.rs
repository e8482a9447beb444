//! Test support: crowds with a known truth, the conformance suites of models and of sinks, a naive dense oracle.

pub mod conformance;
pub mod dense;
#[cfg(test)]
pub(crate) mod memory_sink;
#[cfg(test)]
pub(crate) mod publishing;
pub mod synth;

use std::sync::Arc;

use arrow::array::UInt32Array;

use crate::frame::{
    AnnotationRows, Annotations, Dims, Duplicates, Features, Frame, Ids, Matrix, QuestionFeatures,
    Rejects, UnknownGold,
};
use crate::job_context::JobContext;
use crate::model::confusion::Confusion;
use crate::model::em::StopRule;
use crate::model::fitted::Fitted;
use crate::model::posterior::Posterior;
use crate::model::{Spec, model_kind};

/// Compares numbers one by one; a difference above the tolerance, or another number of numbers, is a failure.
///
/// # Panics
/// At the first number that is beyond the tolerance, with the message `what`.
#[track_caller]
pub fn assert_close(got: &[f64], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: {got:?} against {want:?}");
    for (n, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(
            (g - w).abs() <= tolerance,
            "{what}[{n}]: {g} is not {w} within {tolerance}\n{got:?}"
        );
    }
}

/// Annotations from (instance, annotator, label) triples. The numbers of instances, annotators and labels are the
/// largest index plus one; there are at least as many labels as classes.
///
/// # Panics
/// Never: `Duplicates::Share` accepts repeated annotations.
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

/// (instance, annotator, label) of six instances, four annotators and three classes, on which models are compared with the
/// figures that other programs gave.
pub const TOY: [(u32, u32, u32); 18] = [
    (0, 0, 0),
    (0, 1, 0),
    (0, 2, 1),
    (1, 0, 1),
    (1, 1, 1),
    (1, 3, 1),
    (2, 0, 2),
    (2, 2, 2),
    (2, 3, 0),
    (3, 1, 0),
    (3, 2, 0),
    (3, 3, 2),
    (4, 0, 1),
    (4, 1, 2),
    (4, 2, 1),
    (4, 3, 1),
    (5, 0, 2),
    (5, 3, 1),
];

/// The annotations of [`TOY`].
#[must_use]
pub fn toy() -> Annotations {
    tiny(3, &TOY)
}

/// Three classes, 40 instances and six annotators: the first three are always right, the others err in two of five.
#[must_use]
pub fn erring_half() -> Annotations {
    let label = |n: u32| (n / 6 + n * n % 5 / 3 * (n % 6 / 3)) % 3;
    tiny(3, &(0..240).map(|n| (n / 6, n % 6, label(n))).collect::<Vec<_>>())
}

/// Annotations of the given sizes from (instance, annotator, label) triples; repeated ones share one weight.
///
/// # Panics
/// When a number is out of range.
#[must_use]
pub fn annotations(dims: Dims, rows: &[(u32, u32, u32)]) -> Annotations {
    build(dims, rows, Vec::new(), Duplicates::Share)
}

/// The same with a weight for each triple; repeated ones count each.
///
/// # Panics
/// When a number is out of range, or there is not one weight for each triple.
#[must_use]
pub fn weighted(dims: Dims, rows: &[(u32, u32, u32)], weights: Vec<f64>) -> Annotations {
    build(dims, rows, weights, Duplicates::Keep)
}

/// A frame of annotations without gold and features, by the ids of instances, annotators and labels.
#[must_use]
pub fn frame_of([instances, annotators, labels]: [Ids; 3], annotations: Annotations) -> Frame {
    Frame {
        question: None,
        annotations,
        instances,
        annotators,
        labels,
        gold: Vec::new(),
        unknown_gold: UnknownGold::default(),
        gold_overlaps: Vec::new(),
        unread_gold: Vec::new(),
        listed: None,
        with_features: None,
        rejects: Rejects::default(),
        left_out: Vec::new(),
        warnings: Vec::new(),
        rows_read: 0,
    }
}

/// The frame of a crowd whose instances and labels are numbers, and whose annotators have these ids, ascending.
#[must_use]
pub fn numbered_frame(a: &Annotations, annotators: impl Iterator<Item = u32>) -> Frame {
    let ids = |of: Vec<u32>| Ids::in_order(Arc::new(UInt32Array::from(of)));
    let Dims { instances, labels, .. } = a.dims();
    let up_to = |n: usize| ids((0..n as u32).collect());
    frame_of([up_to(instances), ids(annotators.collect()), up_to(labels)], a.clone())
}

fn build(
    dims: Dims,
    rows: &[(u32, u32, u32)],
    weight: Vec<f64>,
    duplicates: Duplicates,
) -> Annotations {
    let rows = AnnotationRows {
        instance: rows.iter().map(|r| r.0).collect(),
        annotator: rows.iter().map(|r| r.1).collect(),
        label: rows.iter().map(|r| r.2).collect(),
        weight,
    };
    match Annotations::build(dims, rows, duplicates) {
        Ok(annotations) => annotations,
        Err(repeated) => unreachable!("this policy refuses no annotation: {repeated:?}"),
    }
}

/// Fits a model of a registered kind to annotations alone, with the seed 0.
///
/// # Panics
/// When the fit fails.
#[must_use]
// By value, as specs are written in place.
#[allow(clippy::needless_pass_by_value)]
pub fn fit<S: Spec>(spec: S, a: &Annotations) -> Fitted {
    let parameters = serde_json::json!(spec);
    let loaded = model_kind(S::KIND).and_then(|kind| kind.load(parameters));
    let fitted = loaded.and_then(|loaded| loaded.model.fit(a.into(), &mut JobContext::new(0)));
    fitted.unwrap_or_else(|e| panic!("{e}"))
}

/// A stop rule of exactly this many iterations, whatever the objective does.
#[must_use]
pub fn iterations(max_iter: u32) -> StopRule {
    StopRule { max_iter, tol: 0.0, ..StopRule::default() }
}

impl Confusion {
    /// P(`label` given class) of annotator `r` for every class.
    #[must_use]
    pub fn column(&self, a: &Annotations, r: usize, label: usize) -> Vec<f64> {
        let (mut sums, column) = (Vec::new(), a.pair_of(r, label));
        let matrix = self.matrix(a, r, &mut sums);
        (0..a.dims().classes).map(|k| matrix.cell(k, label, column).0).collect()
    }
}

/// The objective of each step of a fit.
#[must_use]
pub fn objectives(fitted: &Fitted) -> Vec<f64> {
    fitted.trace.iter().map(|row| row.objective).collect()
}

/// Features for every instance: the vote shares of each class, and the instance's number modulo 7.
#[must_use]
pub fn with_features(a: &Annotations) -> QuestionFeatures {
    let n = a.dims().instances;
    let votes = Posterior::from_votes(a);
    let row = |i: usize| votes.row(i).iter().map(|p| *p as f32).chain([i as f32 % 7.0]);
    let values: Vec<f32> = (0..n).flat_map(row).collect();
    let numbers: UInt32Array = (0..n as u32).collect();
    QuestionFeatures {
        features: Features {
            ids: Ids::in_order(Arc::new(numbers)),
            columns: Vec::new(),
            matrix: Arc::new(Matrix::from_rows(a.dims().classes + 1, &values)),
        },
        row_of_instance: (0..n as u32).map(Some).collect(),
        gold: Vec::new(),
        annotators: None,
    }
}
