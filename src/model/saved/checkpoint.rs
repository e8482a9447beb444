//! The checkpoint of a fit: its state, with a format and a fingerprint, so that no other fit continues from it.
//!
//! # Why
//! The name of a checkpoint file comes from the digest of the job, which knows input files by their size and time. A file
//! that was changed in place may keep both, and a checkpoint may be copied. So a checkpoint states what it was trained
//! on: its fingerprint is a digest of everything that the fit depends on beside its state.

use rand::RngCore as _;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::snapshot::Snapshot;
use crate::error::{Error, Result};
use crate::frame::{Annotations, Dims, Matrix};
use crate::job_context::{Cancel, JobContext};

/// The format of checkpoints. A change of the names or the meaning of saved arrays needs a new number: arrays that are
/// optional would silently be missing otherwise.
const FORMAT: u32 = 3;

/// A digest of what a fit depends on. The order of the parts matters.
pub(crate) struct Fingerprint(Sha256);

impl Fingerprint {
    /// The digest of a kind of model.
    pub(crate) fn new(kind: &str) -> Self {
        Self(Sha256::new_with_prefix(kind))
    }

    /// Adds settings.
    ///
    /// # Errors
    /// When they cannot be written as JSON.
    pub(crate) fn add_settings(&mut self, settings: &impl Serialize) -> Result<()> {
        let unreadable = |e: serde_json::Error| Error::bug(format!("settings without JSON: {e}"));
        self.0.update(serde_json::to_vec(settings).map_err(unreadable)?);
        Ok(())
    }

    /// Adds the seed of a run, which a random stream of its own identifies.
    pub(crate) fn add_seed(&mut self, job: &JobContext) {
        self.0.update(job.rng("fingerprint").next_u64().to_le_bytes());
    }

    /// Adds annotations, trusted classes, and the numbers of instances, annotators, classes and labels.
    pub(crate) fn add_annotations(&mut self, a: &Annotations, cancel: &Cancel) -> Result<()> {
        let Dims { instances, annotators, classes, labels } = a.dims();
        self.add_numbers([instances, annotators, classes, labels].map(|n| n as u32));
        for i in 0..instances {
            cancel.check()?;
            self.0.update(a.trusted_class(i).unwrap_or(u32::MAX).to_le_bytes());
            for (annotator, label, weight) in a.triples_of_instance(i) {
                self.0.update(annotator.to_le_bytes());
                self.0.update(label.to_le_bytes());
                self.0.update(weight.to_le_bytes());
            }
        }
        Ok(())
    }

    /// Adds whole numbers, such as rows of features.
    pub(crate) fn add_numbers(&mut self, numbers: impl IntoIterator<Item = u32>) {
        numbers.into_iter().for_each(|number| self.0.update(number.to_le_bytes()));
    }

    /// Adds features. It reads all of them.
    pub(crate) fn add_features(&mut self, matrix: &Matrix, cancel: &Cancel) -> Result<()> {
        let mut features = vec![0.0_f32; matrix.width()];
        for row in 0..matrix.len() {
            cancel.check()?;
            matrix.read(row, &mut features);
            features.iter().for_each(|x| self.0.update(x.to_le_bytes()));
        }
        Ok(())
    }

    /// The digest in hexadecimal digits.
    pub(crate) fn finish(self) -> String {
        format!("{:x}", self.0.finalize())
    }
}

/// The state in the run's checkpoint, where there is one of today's format and this fingerprint; it warns of another one.
///
/// # Errors
/// When the checkpoint cannot be read, or a new one could not be written.
pub(crate) fn read(fingerprint: &str, job: &mut JobContext) -> Result<Option<Snapshot>> {
    let Some(bytes) = job.checkpoint()? else { return Ok(None) };
    let snapshot = Snapshot::from_bytes(&bytes)?;
    let other = if !snapshot.take_u32s("format", 1).is_ok_and(|found| found == [FORMAT]) {
        "from another version of labelmill"
    } else if !snapshot.take_text("fingerprint").is_ok_and(|found| found == fingerprint) {
        "of other data, settings or seed"
    } else {
        tracing::info!("the fit continues from its checkpoint");
        return Ok(Some(snapshot));
    };
    job.warn(format!("the checkpoint is {other}: the training starts anew"));
    Ok(None)
}

/// Replaces the run's checkpoint by this state.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn write(fingerprint: &str, mut state: Snapshot, job: &JobContext) -> Result<()> {
    state.u32s("format".to_owned(), vec![FORMAT]);
    state.text("fingerprint".to_owned(), fingerprint);
    job.save_checkpoint(&state.to_bytes()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::weighted;

    /// One annotation has another annotator, label or weight, or there is one more class.
    #[test]
    fn every_part_of_the_annotations_changes_the_fingerprint() {
        let fingerprint = |classes, annotator, label, weight| {
            let dims = Dims { instances: 2, annotators: 3, classes, labels: classes };
            let a = weighted(dims, &[(0, annotator, label), (1, 2, 0)], vec![weight, 1.0]);
            let mut fingerprint = Fingerprint::new("kind");
            fingerprint.add_annotations(&a, &Cancel::default()).unwrap();
            fingerprint.finish()
        };
        let first = fingerprint(3, 0, 1, 0.5);
        assert_eq!(fingerprint(3, 0, 1, 0.5), first);
        for (classes, annotator, label, weight) in
            [(4, 0, 1, 0.5), (3, 1, 1, 0.5), (3, 0, 2, 0.5), (3, 0, 1, 0.25)]
        {
            let other = fingerprint(classes, annotator, label, weight);
            assert_ne!(other, first, "{classes} {annotator} {label} {weight}");
        }
    }

    #[test]
    fn every_row_and_column_of_the_features_changes_the_fingerprint() {
        let fingerprint = |values: &[f32]| {
            let mut fingerprint = Fingerprint::new("kind");
            let matrix = Matrix::from_rows(2, values);
            fingerprint.add_features(&matrix, &Cancel::default()).unwrap();
            fingerprint.finish()
        };
        let first = fingerprint(&[1.0; 6]);
        assert_eq!(fingerprint(&[1.0; 6]), first);
        for at in 0..6 {
            let mut values = [1.0; 6];
            values[at] = 2.0;
            assert_ne!(fingerprint(&values), first, "{at}");
        }
    }
}
