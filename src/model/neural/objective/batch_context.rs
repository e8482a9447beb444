//! The input of a loss or a prediction (a batch with the networks' outputs and the parameters of its annotators), and
//! their results.

use super::train_spec::Reduction;
use super::train_state::Estimates;
use crate::frame::Dims;
use crate::model::neural::data::batch::{Batch, BatchAnnotation};
use crate::model::neural::net::heads::Outputs;
use crate::model::neural::numerics::{MIN_PROBABILITY, at_least, softmax};
use crate::model::neural::params::annotator_params::{AnnotatorParams, Gathered};

/// A batch, the networks' outputs for it, and the parameters of its annotators.
#[derive(Clone, Copy)]
pub struct BatchContext<'a> {
    /// The name of the running phase; empty when the model predicts.
    pub phase: &'static str,
    /// Rows and annotations.
    pub batch: &'a Batch,
    /// The outputs of the classifier.
    pub out: &'a Outputs,
    /// The outputs of the other learners, in the order in which the model names them.
    pub others: &'a [Outputs],
    /// The parameters of the batch's annotators.
    pub gathered: &'a Gathered,
    /// The parameters of all annotators.
    pub annotator_params: &'a AnnotatorParams,
    /// The numbers that acts between the epochs have estimated: calibrators, a prior and the model's own numbers.
    pub estimates: &'a Estimates,
    /// The divisor of the losses of annotations and trusted classes; it applies to nothing else.
    pub reduction: Reduction,
    /// The numbers of instances, annotators, classes and labels.
    pub dims: Dims,
}

/// The derivatives of a loss with respect to the networks' outputs and the gathered parameters, in their shapes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gradient {
    /// The gradient with respect to the classifier's logits, probabilities, hidden layer and named heads. The derivative
    /// with respect to `p` is propagated to the logits afterwards.
    pub out: Outputs,
    /// The gradient with respect to the outputs of the other learners.
    pub others: Vec<Outputs>,
    /// The gradient with respect to the gathered parameters.
    pub tables: Gathered,
}

/// The prediction of a trained model for a batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BatchPrediction {
    /// The classifier's P(class given features), `[row, class]`.
    pub classes: Vec<f64>,
    /// P(class given features and annotations), `[row, class]`.
    pub posterior: Vec<f64>,
    /// P(label given features and annotator) of each annotation.
    pub likelihood: Vec<f64>,
    /// The numbers named by [`CrowdNet::instance_parameters`](crate::model::neural::CrowdNet::instance_parameters), `[row, name]`.
    pub parameters: Vec<f64>,
}

impl BatchContext<'_> {
    /// The factor of the losses of annotations and trusted classes: one over their divisor. Without a classifier,
    /// trusted classes have no loss.
    #[must_use]
    pub fn scale(&self) -> f64 {
        let rows = self.batch.trusted.iter().zip(&self.batch.trusted_share);
        let shares = rows.filter_map(|(class, share)| class.map(|_| share));
        let trusted = if self.out.p.is_empty() { 0.0 } else { shares.sum() };
        self.reduction.factor(self.batch, trusted, self.dims)
    }

    /// Every annotation of the batch with its row.
    pub fn annotations(&self) -> impl Iterator<Item = (usize, &BatchAnnotation)> {
        (0..self.batch.len())
            .flat_map(|b| self.batch.annotations_of_instance(b).iter().map(move |a| (b, a)))
    }

    /// The classifier's probability of each annotation's label, for models without confusion matrices; 0 for a label
    /// that is no class.
    #[must_use]
    pub fn class_likelihood(&self) -> Vec<f64> {
        let p = |(b, annotation): (usize, &BatchAnnotation)| {
            self.out.p(b).get(annotation.label as usize).copied().unwrap_or_default()
        };
        self.annotations().map(p).collect()
    }

    /// The classifier's cross-entropy with `target(row, class)`, as a mean over the rows; adds its derivatives to
    /// `gradient`.
    pub fn cross_entropy(
        &self,
        gradient: &mut Gradient,
        target: impl Fn(usize, usize) -> f64,
    ) -> f64 {
        let n = self.dims.classes;
        let scale = 1.0 / self.batch.len().max(1) as f64;
        let mut loss = 0.0;
        for b in 0..self.batch.len() {
            let p = self.out.p(b);
            for (k, d) in gradient.out.logits[b * n..(b + 1) * n].iter_mut().enumerate() {
                let target = target(b, k);
                loss -= scale * target * at_least(p[k], f64::MIN_POSITIVE).ln();
                *d += scale * (p[k] - target);
            }
        }
        loss
    }

    /// [`BatchContext::cross_entropy`] with the targets of the batch.
    pub fn cross_entropy_of_targets(&self, gradient: &mut Gradient) -> f64 {
        let n = self.dims.classes;
        self.cross_entropy(gradient, |b, k| self.batch.targets[b * n + k])
    }

    /// [`BatchContext::predict_by_bayes`] with the confusion matrices `[annotator of the batch, class, label]`.
    #[must_use]
    pub fn predict_with_matrices(&self, matrices: &[f64]) -> BatchPrediction {
        self.predict_by_bayes(self.cells_of(matrices))
    }

    /// P(label of an annotation given class), given the row, the annotation and the class, by the confusion matrices
    /// `[annotator of the batch, class, label]`.
    pub fn cells_of(&self, matrices: &[f64]) -> impl Fn(usize, &BatchAnnotation, usize) -> f64 {
        let Dims { classes, labels, .. } = self.dims;
        move |_: usize, annotation: &BatchAnnotation, k: usize| {
            matrices
                [(annotation.annotator as usize * classes + k) * labels + annotation.label as usize]
        }
    }

    /// The prediction where `cell(row, annotation, class)` is P(label given class): posteriors by Bayes' rule with the
    /// classifier as the prior, and the likelihood of every annotation.
    #[must_use]
    pub fn predict_by_bayes(
        &self,
        cell: impl Fn(usize, &BatchAnnotation, usize) -> f64,
    ) -> BatchPrediction {
        BatchPrediction {
            classes: self.out.p.clone(),
            posterior: self.posterior_by_bayes(&cell),
            likelihood: self.likelihood_by(&cell),
            parameters: Vec::new(),
        }
    }

    /// P(label given features and annotator) of each annotation, where `cell(row, annotation, class)` is P(label given
    /// class).
    #[must_use]
    pub fn likelihood_by(&self, cell: impl Fn(usize, &BatchAnnotation, usize) -> f64) -> Vec<f64> {
        let likelihood = |(b, annotation): (usize, &BatchAnnotation)| -> f64 {
            self.out.p(b).iter().enumerate().map(|(k, p)| p * cell(b, annotation, k)).sum()
        };
        self.annotations().map(likelihood).collect()
    }

    /// P(class given features and annotations), `[row, class]`, where `cell(row, annotation, class)` is P(label given
    /// class) and the classifier is the prior.
    #[must_use]
    pub fn posterior_by_bayes(
        &self,
        cell: impl Fn(usize, &BatchAnnotation, usize) -> f64,
    ) -> Vec<f64> {
        self.posterior_from(&self.out.p, cell)
    }

    /// [`BatchContext::posterior_by_bayes`] with a prior for each row, `[row, class]`, in place of the classifier.
    ///
    /// # Why
    /// The EM kernels multiply confusion columns that all instances share, over the annotations of a question. Here an
    /// annotator's matrix may depend on the instance (CoNAL), and a batch may hold annotations that no column stands for:
    /// the loop predicts held-out annotations too, and a saved model those of other data.
    #[must_use]
    pub fn posterior_from(
        &self,
        prior: &[f64],
        cell: impl Fn(usize, &BatchAnnotation, usize) -> f64,
    ) -> Vec<f64> {
        let classes = self.dims.classes;
        let mut posterior = vec![0.0; prior.len()];
        let rows = posterior.chunks_exact_mut(classes).zip(prior.chunks_exact(classes));
        for (b, (out, prior)) in rows.enumerate() {
            let mut logs: Vec<f64> =
                prior.iter().map(|p| at_least(*p, f64::MIN_POSITIVE).ln()).collect();
            for annotation in self.batch.annotations_of_instance(b) {
                let terms =
                    (0..classes).map(|k| at_least(cell(b, annotation, k), MIN_PROBABILITY).ln());
                logs.iter_mut().zip(terms).for_each(|(l, term)| *l += annotation.weight * term);
            }
            softmax(&logs, out);
        }
        posterior
    }
}
