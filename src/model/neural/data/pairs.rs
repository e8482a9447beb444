//! Batches of pairs of an instance and an annotator, who need not have labelled it.

use super::TrainingData;
use super::annotations_by_instance::WeightedLabel;
use super::batch::Batch;

impl TrainingData<'_> {
    /// A batch of the instances of these pairs, ascending; each pair is an annotation, whose label means nothing.
    #[must_use]
    pub fn of_pairs(&self, pairs: &[(u32, u32)]) -> Batch {
        let labels: Vec<WeightedLabel> = pairs.iter().map(|(_, r)| (*r, 0, 1.0)).collect();
        let mut first = 0;
        let parts = pairs.chunk_by(|one, next| one.0 == next.0).map(|own| {
            let own_labels = &labels[first..first + own.len()];
            first += own.len();
            (own[0].0, own_labels, 1)
        });
        self.gather(parts, None, 1)
    }
}
