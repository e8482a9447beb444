//! Fits that are interrupted and continued from their checkpoints.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::frame::QuestionFeatures;
use crate::job_context::{Cancel, Progress};
use crate::model::neural::tests::*;

/// Stops the run at the end of an epoch.
struct StopAfter(AtomicU32, Cancel);

impl Progress for StopAfter {
    fn at(&self, _position: u64, _message: &str) {
        if self.0.fetch_sub(1, Ordering::Relaxed) == 1 {
            assert!(self.1.request(15));
        }
    }
}

/// A fit that is interrupted after each of these numbers of epochs, and then continued from its checkpoint, equals one
/// that was not, to the bit.
pub(in crate::model::neural) fn assert_resumes<N: CrowdNet>(
    model: &Neural<N>,
    a: &Annotations,
    with_features: &QuestionFeatures,
    interrupted: Range<u32>,
) {
    assert_resumes_in(
        model,
        Evidence { annotations: a, with_features: Some(with_features) },
        interrupted,
    );
}

/// The same for any evidence.
pub(in crate::model::neural) fn assert_resumes_in<N: CrowdNet>(
    model: &Neural<N>,
    evidence: Evidence<'_>,
    interrupted: impl IntoIterator<Item = u32>,
) {
    assert_resumes_by(|job| Ok(vec![model.fit(evidence, job)?]), interrupted);
}

/// The same for fits of any kind.
pub(in crate::model::neural) fn assert_resumes_by(
    fit: impl Fn(&mut JobContext) -> Result<Vec<Fitted>>,
    interrupted: impl IntoIterator<Item = u32>,
) {
    let whole = fit(&mut JobContext::new(1)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for epochs in interrupted {
        let mut job = JobContext::new(1);
        job.keep_checkpoint(Some(folder.path().join(epochs.to_string())));
        let mut first = job.clone();
        first.cancel = Cancel::default();
        first.progress = Arc::new(StopAfter(AtomicU32::new(epochs), first.cancel.clone()));
        assert!(fit(&mut first).is_err(), "{epochs}");
        for (resumed, whole) in fit(&mut job).unwrap().iter().zip(&whole) {
            assert!(resumed.model == whole.model, "interrupted after {epochs} epochs");
            assert_eq!(resumed.posterior, whole.posterior, "interrupted after {epochs} epochs");
            assert_eq!(resumed.report, whole.report, "interrupted after {epochs} epochs");
        }
    }
}
