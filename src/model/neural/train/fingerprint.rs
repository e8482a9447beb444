//! The fingerprint of a training: a digest of everything that it depends on beside its state.
//!
//! # Why
//! The name of a checkpoint file comes from the digest of the job, which knows input files by their size and time. A file
//! that was changed in place may keep both, and a checkpoint may be copied. So a checkpoint states what it was trained
//! on, and another training does not continue from it.

use rand::RngCore as _;
use sha2::{Digest as _, Sha256};

use super::Trainer;
use crate::error::{Error, Result};
use crate::model::neural::Objective;
use crate::run::Run;

impl<N: Objective> Trainer<'_, N> {
    /// The digest of the model's identity, the training's settings, the seed, the annotations, the features and the gold
    /// that selects the epoch. It reads all data once.
    ///
    /// # Errors
    /// When the run is cancelled.
    pub(super) fn fingerprint_of(&self, run: &Run) -> Result<String> {
        let unreadable = |e: serde_json::Error| Error::bug(format!("settings without JSON: {e}"));
        let mut hash = Sha256::new();
        hash.update(&self.identity);
        hash.update(serde_json::to_vec(self.spec).map_err(unreadable)?);
        // A stream of its own identifies the seed.
        hash.update(run.rng("fingerprint").next_u64().to_le_bytes());
        let a = self.data.annotations;
        for i in 0..a.dims().instances {
            run.cancel.check()?;
            hash.update(a.trusted_class(i).unwrap_or(u32::MAX).to_le_bytes());
            for (annotator, label, weight) in a.triples_of(i) {
                hash.update(annotator.to_le_bytes());
                hash.update(label.to_le_bytes());
                hash.update(weight.to_le_bytes());
            }
        }
        for (row, class) in self.valid {
            hash.update(row.to_le_bytes());
            hash.update(class.to_le_bytes());
        }
        let matrix = self.data.matrix;
        let mut features = vec![0.0_f32; matrix.width()];
        for row in 0..matrix.len() {
            run.cancel.check()?;
            matrix.read(row, &mut features);
            features.iter().for_each(|x| hash.update(x.to_le_bytes()));
        }
        Ok(format!("{:x}", hash.finalize()))
    }
}
