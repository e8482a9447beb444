//! The scores of epochs in the trace.

use crate::model::fitted::TraceRow;
use crate::model::neural::tests::fits::{agreeing, fit};
use crate::model::neural::tests::*;
use crate::testing::with_features;

/// Gold of the role `valid` scores the rounds of TCL too, from which nothing is selected.
#[test]
fn the_trace_has_the_score_of_each_epoch_and_the_one_that_was_kept() {
    let a = agreeing();
    let mut with_features = with_features(&a);
    let valid =
        |i| crate::frame::Gold { instance: i, class: i % 3, role: crate::frame::Role::Valid };
    with_features.gold = (0..9).map(valid).collect();
    let rows = |select| {
        let train = TrainSpec { epochs: 3, select, ..TrainSpec::default() };
        let model = Tcl { rounds: 2, ..Tcl::default() };
        let trace = fit(&on_cpu(train, model), &a, &with_features).unwrap().trace;
        let row = |row: &TraceRow| (row.phase.clone(), row.score, row.is_kept);
        trace.iter().map(row).collect::<Vec<_>>()
    };
    let scored = rows(Select::Valid);
    let phases: Vec<&str> = scored.iter().map(|(phase, ..)| phase.as_str()).collect();
    let wanted = [["co-training"; 3], ["retraining"; 3]].concat();
    assert_eq!(phases, wanted);
    let score = |n: usize| scored[n].1.unwrap();
    assert!((0..6).all(|n| (0.0..=1.0 + 0.5 / 9.0).contains(&score(n))), "{scored:?}");
    // The kept one is the first of the best, of the epochs that are compared.
    let best = (4..6).fold(3, |best, n| if score(n) > score(best) + 1e-12 { n } else { best });
    let kept: Vec<usize> = (0..6).filter(|n| scored[*n].2).collect();
    assert_eq!(kept, [best]);
    let last = rows(Select::Last);
    assert!(last.iter().all(|(_, score, _)| score.is_none()), "{last:?}");
    assert_eq!(last.iter().position(|(.., is_kept)| *is_kept), Some(5));
}
