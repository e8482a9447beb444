//! The features of examples by column, for trees.

use crate::frame::Matrix;

/// The features of examples, `[feature, example]`.
pub(super) struct FeatureColumns {
    values: Vec<f32>,
    n_examples: usize,
}

impl FeatureColumns {
    /// Copies these rows of the matrix to memory.
    pub(super) fn of(matrix: &Matrix, rows: &[u32]) -> Self {
        let (n, width) = (rows.len(), matrix.width());
        let (mut values, mut features) = (vec![0.0; n * width], vec![0.0; width]);
        for (i, row) in rows.iter().enumerate() {
            matrix.read(*row as usize, &mut features);
            features.iter().enumerate().for_each(|(j, x)| values[j * n + i] = *x);
        }
        Self { values, n_examples: n }
    }

    /// The value of a feature of each example.
    pub(super) fn feature(&self, j: usize) -> &[f32] {
        &self.values[j * self.n_examples..(j + 1) * self.n_examples]
    }
}
