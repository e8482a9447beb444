//! Tests of what only some kinds have.

pub(super) mod cvl;
pub(super) mod lia;
pub(super) mod lia_multi;
pub(super) mod mbem;
pub(super) mod tcls;

use crate::frame::QuestionFeatures;
use crate::model::neural::tests::*;
use crate::model::posterior::best;
use crate::testing::with_features;

/// Annotator 0 is right on four of five instances, annotators 1 and 2 give the same answer, which is right on three of five.
/// Class k is true of the instances i with i mod 3 = k; every fourth of the 120 is trusted, and the features are those of
/// the true class.
fn copying_crowd() -> (Annotations, QuestionFeatures) {
    let truth: Vec<(u32, u32, u32)> = (0..120).map(|i| (i, 0, i % 3)).collect();
    let answer = |i: u32, r: u32| match (i % 5, r) {
        (0, 0) => (i + 1) % 3,
        (1 | 2, 1 | 2) => (i + 2) % 3,
        _ => i % 3,
    };
    let rows = (0..360).map(|n| (n / 3, n % 3, answer(n / 3, n % 3)));
    let mut a = tiny(3, &rows.collect::<Vec<_>>());
    a.trusted = Some((0..120_u32).map(|i| i.is_multiple_of(4).then_some(i % 3)).collect());
    (a, with_features(&tiny(3, &truth)))
}

/// The number of instances of [`copying_crowd`] with the true class.
fn right(fitted: &Fitted) -> usize {
    let found = |i: &usize| best(&fitted.posterior.row(*i)).is_some_and(|(k, _)| k == i % 3);
    (0..120).filter(found).count()
}
