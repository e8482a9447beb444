//! Interrupted fits continue from their checkpoints.

use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::model::fitted::TraceRow;
use crate::run::Progress;

/// Cancels its run after a number of rounds.
struct StopAfterRound(Cancel, u64);

impl Progress for StopAfterRound {
    fn at(&self, position: u64, _message: &str) {
        if position == self.1 {
            let _ = self.0.request(15);
        }
    }
}

/// Disagreeing annotators, a few trusted instances, and one feature that nine in ten instances have.
fn crowd() -> (Annotations, QuestionFeatures) {
    let shape = CrowdShape { instances: 80, annotators: 7, redundancy: 3, ..CrowdShape::default() };
    let drawn = shape.draw(5);
    let dims = Dims { instances: 80, annotators: 7, classes: 3, labels: 3 };
    let mut a = annotations(dims, &drawn.rows);
    let trusted = |i: usize| i.is_multiple_of(20).then_some(drawn.truth[i]);
    a.trusted = Some((0..80).map(trusted).collect());
    let feature =
        |i: usize| (i % 10 > 0).then(|| drawn.truth[i] as f32 + ((i * 7) % 13) as f32 / 10.0);
    let values: Vec<Option<f32>> = (0..80).map(feature).collect();
    let described = one_feature(&a, &values);
    (a, described)
}

/// A run with a checkpoint that is cancelled after `round`, if there is one.
fn run_until(round: Option<u64>, checkpoint: &Path) -> Run {
    let mut run = Run::new(3);
    run.keep_checkpoint(Some(checkpoint.to_owned()));
    if let Some(round) = round {
        run.progress = Arc::new(StopAfterRound(run.cancel.clone(), round));
    }
    run
}

fn rows(fitted: &Fitted) -> Vec<(u32, f64, Option<f64>)> {
    let row = |TraceRow { step, objective, change, .. }: &TraceRow| (*step, *objective, *change);
    fitted.trace.iter().map(row).collect()
}

/// Interrupted twice: while a network is trained, and after its last epoch. The rounds end at `max_iter`, before they
/// converge.
#[test]
fn an_interrupted_fit_ends_with_the_same_bits_whatever_its_classifier() {
    let (a, described) = crowd();
    let evidence = Evidence { annotations: &a, described: Some(&described) };
    let folder = tempfile::tempdir().unwrap();
    for kind in CLASSIFIERS {
        let stop = StopRule { max_iter: 25, tol: 0.0, ..StopRule::default() };
        let gem = Gem { classifier: small(*kind), smoothing: 0.1, stop, ..Gem::default() };
        let whole = gem.fit(evidence, &mut Run::new(3)).unwrap();
        let file = folder.path().join(format!("{kind:?}"));
        for round in [2, 22] {
            let error = gem.fit(evidence, &mut run_until(Some(round), &file)).unwrap_err();
            assert_eq!(error.exit_code(), 143, "{kind:?}");
        }
        let mut run = run_until(None, &file);
        let resumed = gem.fit(evidence, &mut run).unwrap();
        assert_eq!(resumed.posterior, whole.posterior, "{kind:?}");
        assert_eq!(resumed.predictions, whole.predictions, "{kind:?}");
        assert_eq!((&resumed.report, resumed.stop), (&whole.report, whole.stop), "{kind:?}");
        assert!(resumed.model == whole.model, "{kind:?}");
        assert_eq!(rows(&resumed), rows(&whole), "{kind:?}");
        assert!(!run.warnings().iter().any(|w| w.contains("checkpoint")), "{:?}", run.warnings());
    }
}

/// A resumed fit makes the rounds that are left, and no other.
#[test]
fn a_fit_resumes_with_the_next_round() {
    let (a, described) = crowd();
    let evidence = Evidence { annotations: &a, described: Some(&described) };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state");
    let stop = StopRule { max_iter: 6, tol: 0.0, ..StopRule::default() };
    let gem = Gem { classifier: small(ClassifierKind::DecisionTree), stop, ..Gem::default() };
    assert!(gem.fit(evidence, &mut run_until(Some(4), &file)).is_err());
    // Had it started anew, it would pass round 4 and be cancelled.
    let mut run = run_until(Some(4), &file);
    assert_eq!(gem.fit(evidence, &mut run).unwrap().stop.iterations, 6);
}

/// Another setting, seed or annotation, another value of a feature, or the same features of other instances.
#[test]
fn a_fit_does_not_continue_from_the_checkpoint_of_another_fit() {
    let (a, described) = crowd();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state");
    let stop = StopRule { max_iter: 3, tol: 0.0, ..StopRule::default() };
    let gem = Gem { classifier: small(ClassifierKind::DecisionTree), stop, ..Gem::default() };
    // Whether a fit starts anew, with a warning, where there is a checkpoint of the fit above.
    let starts_anew = |other: &Gem, a_other: &Annotations, features: &QuestionFeatures, seed| {
        let evidence = Evidence { annotations: &a, described: Some(&described) };
        let mut first = Run::new(3);
        first.keep_checkpoint(Some(file.clone()));
        gem.fit(evidence, &mut first).unwrap();
        let mut run = Run::new(seed);
        run.keep_checkpoint(Some(file.clone()));
        let evidence = Evidence { annotations: a_other, described: Some(features) };
        other.fit(evidence, &mut run).unwrap();
        std::fs::remove_file(&file).unwrap();
        run.warnings().iter().any(|w| w.contains("is of other data, settings or seed"))
    };
    assert!(!starts_anew(&gem, &a, &described, 3));
    assert!(starts_anew(&gem, &a, &described, 4));
    assert!(starts_anew(&Gem { smoothing: 0.2, ..gem.clone() }, &a, &described, 3));
    let mut other = a.clone();
    other.trusted.as_mut().unwrap()[0] = None;
    assert!(starts_anew(&gem, &other, &described, 3));
    let other: Vec<Option<f32>> = (0..80).map(|i| Some(i as f32)).collect();
    assert!(starts_anew(&gem, &a, &one_feature(&a, &other), 3));
    let mut swapped = described.clone();
    swapped.row_of_instance.swap(1, 2);
    assert!(starts_anew(&gem, &a, &swapped, 3));
}
