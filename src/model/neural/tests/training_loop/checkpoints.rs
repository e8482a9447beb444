//! When checkpoints are written, and which of them a training continues from.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::training::{Epochs, select};
use crate::frame::{Features, Matrix, QuestionFeatures};
use crate::model::neural::fit::split_annotations;
use crate::model::neural::tests::fits::{agreeing, agreeing_with_features};
use crate::model::neural::tests::inputs::{readers, with_annotators};
use crate::model::neural::tests::*;
use crate::model::saved::snapshot::Snapshot;
use crate::testing::with_features;

/// The last epoch with a checkpoint, of five.
// keys: model.train.checkpoint_epochs, model.train.checkpoint_minutes
#[test]
fn a_checkpoint_is_written_every_so_many_epochs_or_minutes() {
    let (a, with_features) = agreeing_with_features();
    for (checkpoint_epochs, checkpoint_minutes, wanted) in [
        (None, None, Some(5)),
        (Some(2), None, Some(4)),
        (Some(3), None, Some(3)),
        (None, Some(0.0), Some(5)),
        (None, Some(600.0), None),
        (Some(3), Some(600.0), Some(3)),
        (Some(3), Some(0.0), Some(5)),
    ] {
        let train = TrainSpec { checkpoint_epochs, checkpoint_minutes, ..select(Select::Last, 5) };
        let folder = tempfile::tempdir().unwrap();
        let mut job = JobContext::new(1);
        job.keep_checkpoint(Some(folder.path().join("state")));
        let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
        with(train, Dl::default()).fit(evidence, &mut job).unwrap();
        let epoch = |bytes: Vec<u8>| {
            Snapshot::from_bytes(&bytes).unwrap().take_u32s("progress", 2).unwrap()[1]
        };
        let kept = job.checkpoint().unwrap().map(epoch);
        assert_eq!(kept, wanted, "{checkpoint_epochs:?} {checkpoint_minutes:?}");
    }
}

/// Epochs of 50 seconds with an interval of 2 minutes: the third ends after 150 seconds.
#[test]
fn minutes_are_those_since_the_last_checkpoint() {
    let train = TrainSpec { checkpoint_minutes: Some(2.0), ..TrainSpec::default() };
    let (mut last, mut written) = (0.0, Vec::new());
    for epoch in 1..=7_u32 {
        let now = 50.0 * f64::from(epoch);
        if train.is_checkpoint_due(epoch as usize, now - last) {
            written.push(epoch);
            last = now;
        }
    }
    assert_eq!(written, [3, 6]);
}

/// Trains five epochs, or those that the checkpoint in `folder` leaves, and returns their number and the run.
fn epochs_trained(folder: &std::path::Path) -> (u64, JobContext) {
    let (a, with_features) = agreeing_with_features();
    let train = TrainSpec { checkpoint_epochs: Some(3), ..select(Select::Last, 5) };
    let epochs = Arc::new(AtomicU64::new(0));
    let mut job = JobContext::new(1);
    job.progress = Arc::new(Epochs(Arc::clone(&epochs)));
    job.keep_checkpoint(Some(folder.join("state")));
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    with(train, Dl::default()).fit(evidence, &mut job).unwrap();
    (epochs.load(Ordering::Relaxed), job)
}

#[test]
fn a_resumed_training_trains_the_epochs_that_are_left() {
    let folder = tempfile::tempdir().unwrap();
    // The checkpoint after the third epoch remains.
    assert_eq!([(); 3].map(|()| epochs_trained(folder.path()).0), [5, 2, 2]);
}

/// Its optional arrays may have other names, and would be lost.
#[test]
fn a_checkpoint_of_another_format_is_not_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let (_, mut job) = epochs_trained(folder.path());
    let mut snapshot = Snapshot::from_bytes(&job.checkpoint().unwrap().unwrap()).unwrap();
    snapshot.u32s("format".to_owned(), vec![1]);
    job.save_checkpoint(&snapshot.to_bytes().unwrap()).unwrap();
    let (epochs, job) = epochs_trained(folder.path());
    assert_eq!(epochs, 5);
    assert!(job.warnings()[0].contains("another version"), "{:?}", job.warnings());
}

/// The labels of the crowd have changed, but the checkpoint file has the same name.
#[test]
fn a_checkpoint_of_other_annotations_is_not_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let trained = |a: &Annotations, seed: u64, files: bool| {
        let with_features = with_features(a);
        let train = TrainSpec { checkpoint_epochs: Some(3), ..select(Select::Last, 5) };
        let mut job = JobContext::new(seed);
        job.keep_checkpoint(files.then(|| folder.path().join("state")));
        let evidence = Evidence { annotations: a, with_features: Some(&with_features) };
        let fitted = with(train, Dl::default()).fit(evidence, &mut job).unwrap();
        (fitted.model, job.warnings().iter().filter(|w| w.contains("checkpoint")).count())
    };
    let (one, other) = (agreeing(), {
        let rows: Vec<(u32, u32, u32)> = (0..80).map(|n| (n / 2, n % 2, (n / 2 + 1) % 3)).collect();
        tiny(3, &rows)
    });
    trained(&one, 1, true);
    // The checkpoint after the third epoch of `one` is there each time, then one of `other`.
    let (got, warnings) = trained(&other, 1, true);
    assert!(got == trained(&other, 1, false).0 && warnings == 1);
    let (got, warnings) = trained(&other, 2, true);
    assert!(got == trained(&other, 2, false).0 && warnings == 1);
    assert_eq!(trained(&other, 2, true).1, 0);
}

#[test]
fn a_damaged_checkpoint_starts_the_training_anew_with_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    epochs_trained(folder.path());
    std::fs::write(folder.path().join("state"), "cut sh").unwrap();
    let (epochs, job) = epochs_trained(folder.path());
    assert_eq!(epochs, 5);
    let warning = &job.warnings()[0];
    assert!(warning.contains("damaged") && warning.contains("state"), "{warning}");
}

/// The features of the only described annotator change, or the annotator that has them.
#[test]
fn a_checkpoint_of_other_features_of_annotators_is_not_resumed() {
    let a = agreeing();
    for (values, rows) in [([0.5, -2.5], [None, Some(0)]), ([0.5, -2.0], [Some(0), None])] {
        let folder = tempfile::tempdir().unwrap();
        let warnings = |with_features: &QuestionFeatures| {
            let mut job = JobContext::new(1);
            job.keep_checkpoint(Some(folder.path().join("state")));
            let evidence = Evidence { annotations: &a, with_features: Some(with_features) };
            readers(0.1, 40).fit(evidence, &mut job).unwrap();
            job.warnings().iter().filter(|warning| warning.contains("checkpoint")).count()
        };
        let first = with_annotators(&a);
        assert_eq!([warnings(&first), warnings(&first)], [0, 0]);
        let matrix = Arc::new(Matrix::from_rows(2, &values));
        let features = Features { matrix, ..first.features.clone() };
        let other = QuestionFeatures { annotators: Some((features, rows.to_vec())), ..first };
        assert_eq!(warnings(&other), 1, "{values:?} {rows:?}");
    }
}

/// A label that is held out changes, or a setting of the backbone that leaves all shapes equal.
#[test]
fn a_checkpoint_of_other_held_out_labels_or_of_another_backbone_is_not_resumed() {
    let a = agreeing();
    let select_by = select(Select::AnnotationLikelihood, 5);
    let [_, held_out] = split_annotations(&select_by, &a, &JobContext::new(1)).unwrap().unwrap();
    let mut rows: Vec<(u32, u32, u32)> = Vec::new();
    let mut changed = 0;
    for i in 0..40 {
        let is_held = |r: u32| held_out.triples_of_instance(i).any(|(held, ..)| held == r);
        for (r, label, _) in a.triples_of_instance(i) {
            let is_other = changed == 0 && is_held(r);
            changed += u32::from(is_other);
            rows.push((i as u32, r, if is_other { (label + 1) % 3 } else { label }));
        }
    }
    assert_eq!(changed, 1);
    let relabelled = tiny(3, &rows);
    for (other, dropout) in [(&relabelled, 0.5), (&a, 0.25)] {
        let folder = tempfile::tempdir().unwrap();
        let warnings = |a: &Annotations, dropout: f64| {
            let mut job = JobContext::new(1);
            job.keep_checkpoint(Some(folder.path().join("state")));
            let with_features = with_features(a);
            let evidence = Evidence { annotations: a, with_features: Some(&with_features) };
            let mut model = with(select_by.clone(), Dl::default());
            model.network.backbone.dropout = dropout;
            model.fit(evidence, &mut job).unwrap();
            job.warnings().iter().filter(|warning| warning.contains("checkpoint")).count()
        };
        assert_eq!([warnings(&a, 0.5), warnings(&a, 0.5)], [0, 0]);
        assert_eq!(warnings(other, dropout), 1, "{dropout}");
    }
}
