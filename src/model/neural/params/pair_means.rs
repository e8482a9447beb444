//! The means over instances of matrices that depend on the pair of an instance and an annotator.

use crate::frame::{Dims, JointQuestion};
use crate::model::neural::data::batch::Batch;

/// Sums over the annotations that it has seen.
#[derive(Debug, Clone)]
pub(in crate::model::neural) struct PairMeans {
    dims: Dims,
    /// The matrices weighted by P(class), `[annotator, class, label]`.
    matrices: Vec<f64>,
    /// The probabilities of a right answer, and the weights of the annotations, by annotator.
    right: Vec<f64>,
    weights: Vec<f64>,
}

impl PairMeans {
    pub(in crate::model::neural) fn new(dims: Dims) -> Self {
        let Dims { annotators, classes, labels, .. } = dims;
        Self {
            dims,
            matrices: vec![0.0; annotators * classes * labels],
            right: vec![0.0; annotators],
            weights: vec![0.0; annotators],
        }
    }

    /// Adds the matrices of a batch's annotations, `[annotation, class, label]`, given the classifier's probabilities and
    /// the posteriors of its rows, `[row, class]`.
    pub(in crate::model::neural) fn add(
        &mut self,
        batch: &Batch,
        matrices: &[f64],
        p: &[f64],
        posterior: &[f64],
    ) {
        let Dims { classes, labels, .. } = self.dims;
        let mut matrices = matrices.chunks_exact((classes * labels).max(1));
        for b in 0..batch.len() {
            let row = b * classes..(b + 1) * classes;
            let (p, t) = (&p[row.clone()], &posterior[row]);
            for (annotation, matrix) in batch.annotations_of_instance(b).iter().zip(&mut matrices) {
                let (r, weight) =
                    (batch.annotators[annotation.annotator as usize] as usize, annotation.weight);
                for (k, t) in t.iter().enumerate() {
                    let own = &matrix[k * labels..(k + 1) * labels];
                    let at = r * classes + k;
                    let sums = self.matrices[at * labels..(at + 1) * labels].iter_mut();
                    sums.zip(own).for_each(|(sum, q)| *sum += weight * t * q);
                    self.right[r] += weight * p[k] * own[k];
                }
                self.weights[r] += weight;
            }
        }
    }

    /// The mean matrix of each annotator, `[annotator, class, label]`, and the mean probability of a right answer. Where
    /// an annotator has none, it is the mean of all annotations.
    pub(in crate::model::neural) fn of_annotators(&self) -> (Vec<f64>, Vec<f64>) {
        let Dims { classes, labels, .. } = self.dims;
        let width = (classes * labels).max(1);
        let mut crowd = vec![0.0; width];
        for matrix in self.matrices.chunks_exact(width) {
            crowd.iter_mut().zip(matrix).for_each(|(sum, q)| *sum += q);
        }
        let labels = labels.max(1);
        for row in crowd.chunks_exact_mut(labels) {
            let sum: f64 = row.iter().sum();
            row.iter_mut().for_each(|q| *q = share(*q, sum, 1.0 / labels as f64));
        }
        let mut means = self.matrices.clone();
        for (at, row) in means.chunks_exact_mut(labels).enumerate() {
            // The rows of a matrix sum to 1, so that this is the weight of the row to the last bits.
            let sum: f64 = row.iter().sum();
            let of_crowd = crowd[at % classes * labels..].iter();
            row.iter_mut().zip(of_crowd).for_each(|(q, crowd)| *q = share(*q, sum, *crowd));
        }
        let (right, weight): (f64, f64) = (self.right.iter().sum(), self.weights.iter().sum());
        let of_crowd = share(right, weight, 1.0 / classes.max(1) as f64);
        let pairs = self.right.iter().zip(&self.weights);
        (means, pairs.map(|(right, weight)| share(*right, *weight, of_crowd)).collect())
    }
}

impl PairMeans {
    /// The same of these annotators of a joint crowd, of which it has seen the annotations of one question: by the numbers
    /// of the question.
    pub(in crate::model::neural) fn of_question(
        &self,
        question: JointQuestion,
        annotators: &[u32],
    ) -> (Vec<f64>, Vec<f64>) {
        let ((all, right), Dims { classes, labels, .. }) = (self.of_annotators(), self.dims);
        let mut means = Vec::with_capacity(annotators.len() * question.classes * question.labels);
        for r in annotators {
            for k in 0..question.classes {
                let row = &all[(*r as usize * classes + k) * labels..][..labels];
                let own = (0..question.labels).map(|l| row[question.joint_label(l, classes)]);
                // Where nothing is known, labels of other questions share the row.
                let sum: f64 = own.clone().sum();
                means.extend(own.map(|q| share(q, sum, 1.0 / question.labels as f64)));
            }
        }
        (means, annotators.iter().map(|r| right[*r as usize]).collect())
    }
}

/// The least weight of a mean.
const MIN_WEIGHT: f64 = 1e-200;

fn share(sum: f64, weight: f64, without: f64) -> f64 {
    if weight > MIN_WEIGHT { sum / weight } else { without }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::neural::data::batch::BatchAnnotation;

    /// Annotator 0 labels rows 0 and 1, the second with the weight 3; annotator 2 labels row 1; annotator 1 none.
    #[test]
    fn means_are_weighted_by_posteriors_and_annotations() {
        let dims = Dims { instances: 2, annotators: 3, classes: 2, labels: 2 };
        let one = |annotator, weight| BatchAnnotation { annotator, label: 0, weight };
        let batch = Batch {
            rows: vec![0, 1],
            offsets: vec![0, 1, 3],
            annotations: vec![one(0, 1.0), one(0, 3.0), one(1, 1.0)],
            annotators: vec![0, 2],
            ..Batch::default()
        };
        let matrices = [[0.9, 0.1, 0.2, 0.8], [0.6, 0.4, 0.3, 0.7], [0.5, 0.5, 0.1, 0.9]].concat();
        let mut means = PairMeans::new(dims);
        means.add(&batch, &matrices, &[0.5, 0.5, 0.2, 0.8], &[1.0, 0.0, 0.4, 0.6]);
        let (got, competence) = means.of_annotators();
        // Annotator 0: class 0 has the weights 1 and 1.2, class 1 only 1.8.
        let first = [(0.9 + 1.2 * 0.6) / 2.2, (0.1 + 1.2 * 0.4) / 2.2, 0.3, 0.7];
        // The crowd: of class 0 also 0.4 of annotator 2, of class 1 also 0.6.
        let crowd = [
            (0.9 + 1.2 * 0.6 + 0.4 * 0.5) / 2.6,
            (0.1 + 1.2 * 0.4 + 0.4 * 0.5) / 2.6,
            (1.8 * 0.3 + 0.6 * 0.1) / 2.4,
            (1.8 * 0.7 + 0.6 * 0.9) / 2.4,
        ];
        let want = [first, crowd, [0.5, 0.5, 0.1, 0.9]].concat();
        crate::testing::assert_close(&got, &want, 1e-12, "matrices");
        let (own, other) = (0.85, [0.68, 0.82]);
        let first = (own + 3.0 * other[0]) / 4.0;
        let all = (own + 3.0 * other[0] + other[1]) / 5.0;
        crate::testing::assert_close(&competence, &[first, all, other[1]], 1e-12, "competence");
    }
}
