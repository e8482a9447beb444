//! What a learner reads of a batch.

use crate::frame::Matrix;
use crate::model::neural::data::scaler::Scaler;
use crate::model::neural::data::{batch::Batch, read};
use crate::run::Run;

/// Reads and scales the features of a learner.
pub struct Reader {
    /// How they are scaled.
    pub scaler: Scaler,
    /// The run with the learner's random streams.
    pub run: Run,
}

impl Reader {
    /// The features of a batch in training, augmented by the stream of this name.
    #[must_use]
    pub fn read(&self, matrix: &Matrix, batch: &Batch, stream: &str) -> Vec<f32> {
        let mut features = read(matrix, &self.scaler, &batch.rows);
        if self.scaler.augments() {
            let mut rng = self.run.rng(stream);
            let images = features.chunks_exact_mut(matrix.width());
            images.for_each(|image| self.scaler.augment(image, &mut rng));
        }
        features
    }
}
