//! P(class) of examples by classifiers that did not learn from them.

use std::sync::Arc;

use rand::seq::SliceRandom as _;

use super::{ClassifierSpec, ExampleFeatures, Examples};
use crate::error::Result;
use crate::job_context::JobContext;

/// The predictions of held-out examples.
pub struct OutOfSample {
    /// P(class), `[example, class]`.
    pub p: Vec<f64>,
    /// The device of the last fit.
    pub device: String,
}

impl ClassifierSpec {
    /// Divides the examples into folds at random, and predicts each fold by a classifier that has learned from the others.
    /// `None` where fewer than two examples have a weight: without one of them there is nothing to learn from. Examples
    /// without a weight are predicted too.
    ///
    /// # Errors
    /// When a fit fails or the run is cancelled.
    pub fn out_of_sample(
        &self,
        examples: Examples<'_>,
        n_folds: usize,
        job: &JobContext,
    ) -> Result<Option<OutOfSample>> {
        let Examples { features, targets: _, weights, n_classes } = examples;
        let (mut order, mut others): (Vec<usize>, Vec<usize>) =
            (0..examples.len()).partition(|n| weights[*n] > 0.0);
        let n_folds = n_folds.min(order.len());
        if n_folds < 2 {
            return Ok(None);
        }
        // Those that teach come first, so that every fold has as many.
        order.shuffle(&mut job.rng("folds"));
        order.append(&mut others);
        let mut fold_of = vec![0; order.len()];
        order.iter().enumerate().for_each(|(nth, example)| fold_of[*example] = nth % n_folds);
        let (mut p, mut device) = (vec![0.0; examples.len() * n_classes], String::new());
        for fold in 0..n_folds {
            let others = (0..examples.len()).filter(|n| fold_of[*n] != fold && weights[*n] > 0.0);
            let others: Vec<usize> = others.collect();
            let rows = others.iter().map(|n| features.rows[*n]).collect();
            let training = ExampleFeatures::new(Arc::clone(&features.matrix), rows);
            let targets: Vec<f64> =
                others.iter().flat_map(|n| examples.target(*n)).copied().collect();
            let own_weights: Vec<f64> = others.iter().map(|n| weights[*n]).collect();
            let mut classifier = self.build(features.matrix.shape(), n_classes);
            let examples = Examples {
                features: &training,
                targets: &targets,
                weights: &own_weights,
                n_classes,
            };
            for _ in 0..self.n_fits() {
                classifier.fit(examples, job)?;
            }
            let held_out: Vec<usize> = (0..fold_of.len()).filter(|n| fold_of[*n] == fold).collect();
            let rows: Vec<u32> = held_out.iter().map(|n| features.rows[*n]).collect();
            let mut predicted = vec![0.0; rows.len() * n_classes];
            classifier.predict(features.matrix(), &rows, &mut predicted, &job.cancel)?;
            for (n, row) in held_out.iter().zip(predicted.chunks_exact(n_classes)) {
                p[n * n_classes..(n + 1) * n_classes].copy_from_slice(row);
            }
            device = classifier.device();
            job.progress.at(fold as u64 + 1, "");
        }
        Ok(Some(OutOfSample { p, device }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Matrix;
    use crate::testing::assert_close;

    /// One feature, and the class is whether it is above 4; the target of example 7 contradicts it.
    fn out_of_sample(
        flipped: Option<usize>,
        weights: &[f64; 12],
        n_folds: usize,
    ) -> Option<Vec<f64>> {
        let values: Vec<f32> = (0..12).map(|n| n as f32).collect();
        let matrix = Arc::new(Matrix::from_rows(1, &values));
        let features = ExampleFeatures::new(matrix, (0..12).collect());
        let class = |n: usize| usize::from((n > 4) != (flipped == Some(n)));
        let targets: Vec<f64> =
            (0..12).flat_map(|n| [1.0 - class(n) as f64, class(n) as f64]).collect();
        let examples = Examples { features: &features, targets: &targets, weights, n_classes: 2 };
        let spec = ClassifierSpec::default();
        let found = spec.out_of_sample(examples, n_folds, &JobContext::new(1)).unwrap();
        found.map(|found| found.p)
    }

    #[test]
    fn no_prediction_depends_on_the_target_of_its_own_example() {
        let weights = [1.0; 12];
        let plain = out_of_sample(None, &weights, 4).unwrap();
        for n in [0, 7, 11] {
            let flipped = out_of_sample(Some(n), &weights, 4).unwrap();
            assert_eq!(plain[2 * n..2 * n + 2], flipped[2 * n..2 * n + 2], "example {n}");
            assert_ne!(plain, flipped, "the others learn from example {n}");
        }
        assert!(plain[1] < 0.5 && plain[2 * 11 + 1] > 0.5, "{plain:?}");
        let sums: Vec<f64> = plain.chunks(2).map(|row| row.iter().sum()).collect();
        assert_close(&sums, &weights, 1e-9, "sums");
    }

    #[test]
    fn an_example_without_a_weight_teaches_nothing_and_is_predicted() {
        let mut weights = [1.0; 12];
        weights[7] = 0.0;
        let [plain, flipped] = [None, Some(7)].map(|n| out_of_sample(n, &weights, 3).unwrap());
        assert_eq!(plain, flipped);
        assert!(plain[15] > 0.5, "{plain:?}");
        let mut only = [0.0; 12];
        only[3] = 1.0;
        assert!(out_of_sample(None, &only, 3).is_none());
        only[9] = 1.0;
        // More folds than examples that teach: each of the two is predicted by the other.
        let p = out_of_sample(None, &only, 10).unwrap();
        assert!(p[7] > 0.5 && p[19] < 0.5, "{p:?}");
    }
}
