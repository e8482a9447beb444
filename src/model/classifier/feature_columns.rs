//! The features of examples by column, for trees, and their order.

use std::sync::OnceLock;

use crate::frame::Matrix;

/// The features of examples, `[feature, example]`.
pub(super) struct FeatureColumns {
    values: Vec<f32>,
    n_examples: usize,
    /// The examples in the order of each feature, once a tree has asked for it: all trees of all fits share it.
    orders: Vec<OnceLock<Vec<u32>>>,
}

impl FeatureColumns {
    /// The bytes of a value, with its position in the order.
    pub(super) const BYTES_OF_VALUE: usize = size_of::<f32>() + size_of::<u32>();

    /// Copies these rows of the matrix to memory.
    pub(super) fn from_rows(matrix: &Matrix, rows: &[u32]) -> Self {
        let (n, width) = (rows.len(), matrix.width());
        let (mut values, mut features) = (vec![0.0; n * width], vec![0.0; width]);
        for (i, row) in rows.iter().enumerate() {
            matrix.read(*row as usize, &mut features);
            features.iter().enumerate().for_each(|(j, x)| values[j * n + i] = *x);
        }
        Self { values, n_examples: n, orders: (0..width).map(|_| OnceLock::new()).collect() }
    }

    /// The number of examples.
    pub(super) fn n_examples(&self) -> usize {
        self.n_examples
    }

    /// The value of a feature of each example.
    pub(super) fn feature(&self, j: usize) -> &[f32] {
        &self.values[j * self.n_examples..(j + 1) * self.n_examples]
    }

    /// All examples, by their values of a feature, and equal ones by their number.
    pub(super) fn order(&self, j: usize) -> &[u32] {
        let all = || (0..self.n_examples as u32).collect::<Vec<_>>();
        self.orders[j].get_or_init(|| self.sorted(j, &all()))
    }

    /// These examples, by their values of a feature, and equal ones by their number.
    ///
    /// # Why
    /// A number whose high half orders as the value does is sorted in half the time of a pair.
    pub(super) fn sorted(&self, j: usize, examples: &[u32]) -> Vec<u32> {
        let values = self.feature(j);
        let mut keys: Vec<u64> = examples
            .iter()
            .map(|i| u64::from(key(values[*i as usize])) << 32 | u64::from(*i))
            .collect();
        keys.sort_unstable();
        keys.into_iter().map(|key| key as u32).collect()
    }
}

/// A number that orders as the value does; both zeros are equal.
fn key(value: f32) -> u32 {
    let bits = (value + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_sorted_by_value_and_equal_ones_by_number() {
        let values = [0.0, -1.5, 2.0, -0.0, f32::MAX, -1.5, f32::MIN, 1e-40, 0.0, -1e-40];
        let columns =
            FeatureColumns::from_rows(&Matrix::from_rows(1, &values), &(0..10).collect::<Vec<_>>());
        assert_eq!(columns.order(0), [6, 1, 5, 9, 0, 3, 8, 7, 2, 4]);
        assert_eq!(columns.sorted(0, &[0, 2, 3, 5, 9]), [5, 9, 0, 3, 2]);
    }
}
