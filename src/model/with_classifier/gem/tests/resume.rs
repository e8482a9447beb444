//! Interrupted fits continue from their checkpoints.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::job_context::Progress;
use crate::model::fitted::TraceRow;

/// Cancels its run after a round, and counts the rounds.
struct RoundCounter {
    cancel: Cancel,
    last: Option<u64>,
    rounds: Arc<AtomicU64>,
}

impl Progress for RoundCounter {
    fn at(&self, position: u64, _message: &str) {
        self.rounds.fetch_add(1, Ordering::Relaxed);
        if self.last == Some(position) {
            let _ = self.cancel.request(15);
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
    let noise = |i: usize| ((i * 7) % 13) as f32 / 10.0;
    let feature = |i: usize| (!i.is_multiple_of(10)).then(|| drawn.truth[i] as f32 + noise(i));
    let values: Vec<Option<f32>> = (0..80).map(feature).collect();
    let with_features = one_feature(&a, &values);
    (a, with_features)
}

/// A run with a checkpoint that is cancelled after the round `last`, if there is one; and the number of its rounds.
fn counted_run(last: Option<u64>, checkpoint: &Path) -> (JobContext, Arc<AtomicU64>) {
    let (mut job, rounds) = (JobContext::new(3), Arc::default());
    job.keep_checkpoint(Some(checkpoint.to_owned()));
    let (cancel, counted) = (job.cancel.clone(), Arc::clone(&rounds));
    job.progress = Arc::new(RoundCounter { cancel, last, rounds: counted });
    (job, rounds)
}

fn rows(fitted: &Fitted) -> Vec<(u32, f64, Option<f64>)> {
    let row = |TraceRow { step, objective, change, .. }: &TraceRow| (*step, *objective, *change);
    fitted.trace.iter().map(row).collect()
}

fn assert_equal(resumed: &Fitted, whole: &Fitted, what: &str) {
    assert_eq!(resumed.posterior, whole.posterior, "{what}");
    assert_eq!(resumed.predictions, whole.predictions, "{what}");
    assert_eq!((&resumed.report, resumed.stop), (&whole.report, whole.stop), "{what}");
    assert!(resumed.model == whole.model, "{what}");
    assert_eq!(rows(resumed), rows(whole), "{what}");
}

/// Interrupted twice: while a network is trained for 20 rounds, and two rounds after them. The rounds end at `max_iter`,
/// before they converge. A trained network saves no checkpoints, so that its last two rounds are repeated; and so are those
/// after the last one that grew trees, at most 20.
#[test]
fn an_interrupted_fit_ends_with_the_same_bits_whatever_its_classifier() {
    let (a, with_features) = crowd();
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    let folder = tempfile::tempdir().unwrap();
    for kind in CLASSIFIERS {
        let (classifier, what) = (small(*kind), format!("{kind:?}"));
        let is_trained_early = classifier.n_fits() > 1;
        let stop = iterations(25);
        let gem = Gem { classifier, smoothing: 0.1, stop, ..Gem::default() };
        let whole = gem.fit(evidence, &mut JobContext::new(3)).unwrap();
        let file = folder.path().join(&what);
        for (last, wanted) in [(2, 2), (22, 20)] {
            let (mut job, rounds) = counted_run(Some(last), &file);
            assert_eq!(gem.fit(evidence, &mut job).unwrap_err().exit_code(), 143, "{what}");
            assert_eq!(rounds.load(Ordering::Relaxed), wanted, "{what}");
        }
        let (mut job, rounds) = counted_run(None, &file);
        let resumed = gem.fit(evidence, &mut job).unwrap();
        let wanted = match (gem.classifier.grows_trees(), is_trained_early) {
            (true, _) => 5..25,
            (_, true) => 5..6,
            _ => 3..4,
        };
        let rounds = rounds.load(Ordering::Relaxed);
        assert!(wanted.contains(&rounds), "{what}: {rounds}");
        assert_equal(&resumed, &whole, &what);
        assert!(!job.warnings().iter().any(|w| w.contains("checkpoint")), "{:?}", job.warnings());
    }
}

/// A job that is killed after the fit, while it publishes, finds the checkpoint of the last round.
#[test]
fn a_converged_fit_makes_no_further_round() {
    let (a, with_features) = crowd();
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state");
    let classifier = small(ClassifierKind::LogisticRegression);
    let gem = Gem { classifier, smoothing: 0.1, ..Gem::default() };
    let whole = gem.fit(evidence, &mut counted_run(None, &file).0).unwrap();
    let (mut job, rounds) = counted_run(None, &file);
    let again = gem.fit(evidence, &mut job).unwrap();
    assert!(whole.stop.converged);
    assert_eq!(rounds.load(Ordering::Relaxed), 0);
    assert_equal(&again, &whole, "converged");
}

/// Another setting, seed or trusted class; another value of a feature; the same features of other instances, or of the same
/// instances in another order. Instance 0 has no features.
#[test]
fn a_fit_does_not_continue_from_the_checkpoint_of_another_fit() {
    let (a, with_features) = crowd();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state");
    let stop = iterations(3);
    let gem = Gem { classifier: small(ClassifierKind::DecisionTree), stop, ..Gem::default() };
    // Whether a fit starts anew, with a warning, where there is a checkpoint of the fit above.
    let starts_anew = |other: &Gem, a_other: &Annotations, features: &QuestionFeatures, seed| {
        let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
        let mut first = JobContext::new(3);
        first.keep_checkpoint(Some(file.clone()));
        gem.fit(evidence, &mut first).unwrap();
        let mut job = JobContext::new(seed);
        job.keep_checkpoint(Some(file.clone()));
        let evidence = Evidence { annotations: a_other, with_features: Some(features) };
        other.fit(evidence, &mut job).unwrap();
        std::fs::remove_file(&file).unwrap();
        job.warnings().iter().any(|w| w.contains("is of other data, settings or seed"))
    };
    assert!(!starts_anew(&gem, &a, &with_features, 3));
    assert!(starts_anew(&gem, &a, &with_features, 4));
    assert!(starts_anew(&Gem { smoothing: 0.2, ..gem.clone() }, &a, &with_features, 3));
    let mut other = a.clone();
    other.trusted.as_mut().unwrap()[0] = None;
    assert!(starts_anew(&gem, &other, &with_features, 3));
    let other: Vec<Option<f32>> = (0..80).map(|i| Some(i as f32)).collect();
    assert!(starts_anew(&gem, &a, &one_feature(&a, &other), 3));
    for (i, j) in [(0, 1), (1, 2)] {
        let mut swapped = with_features.clone();
        swapped.row_of_instance.swap(i, j);
        assert!(starts_anew(&gem, &a, &swapped, 3), "{i} and {j}");
    }
}
