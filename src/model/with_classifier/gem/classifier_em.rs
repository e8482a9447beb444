//! EM around a classifier, whatever the annotators' part of the model: what the part gives, and the predictions of a classifier.

use super::sizes::GemSizes;
use crate::error::{Problem, Result};
use crate::frame::{Annotations, Matrix, MemoryEstimate, QuestionSizes, dense_memory_estimate};
use crate::job_context::{Cancel, JobContext};
use crate::model::classifier::{Classifier, ClassifierSpec, from_features};
use crate::model::em::StopRule;
use crate::model::em::kernels::{self, Estimator, PairKernel};
use crate::model::fitted::Report;
use crate::model::posterior::Posterior;
use crate::model::saved::snapshot::Snapshot;
use crate::model::{Predicted, SavedModel, Spec};
use crate::spec::Problems;

/// A model of pairs whose classes have a classifier's probabilities as their prior.
pub trait ClassifierEm: Spec {
    /// Turns the expected counts of an annotator into the likelihood of his pairs.
    type Rows: Estimator;
    /// The memory of the annotators' part of a fit.
    #[must_use]
    fn pair_bytes(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        kernels::memory_estimate(sizes)
    }
    /// The estimator for these annotations.
    fn estimator(&self, a: &Annotations) -> Self::Rows;
    /// The classifier.
    fn classifier(&self) -> &ClassifierSpec;
    /// The classifier, to change its device.
    fn classifier_mut(&mut self) -> &mut ClassifierSpec;
    /// A warning where annotators have few annotations.
    fn few_annotations(&self, a: &Annotations, job: &JobContext) -> Option<String>;
    /// Reports the annotators' parameters, after an M-step with these expected counts, `[pair, class]`.
    fn report(
        &self,
        a: &Annotations,
        estimator: Self::Rows,
        kernel: &PairKernel,
        expected_count: Vec<f64>,
    ) -> Report;
    /// When to stop.
    fn stop(&self) -> &StopRule;
}

/// The keys of the classifier that change nothing: its network has no parameters of annotators.
pub(super) const FIXED_KEYS: [&str; 2] = [
    "classifier.network.optimiser.annotator_learning_rate",
    "classifier.network.optimiser.annotator_delay",
];

/// Checks the classifier, and that its training ends before the rounds do.
pub(super) fn check_rounds(spec: &impl ClassifierEm, location: &str, problems: &mut Problems) {
    spec.classifier().check(&format!("{location}.classifier"), problems);
    let (n_fits, rounds) = (spec.classifier().n_fits(), spec.stop().max_iter);
    if n_fits > rounds {
        problems.push(
            Problem::new("the rounds end before the classifier is trained")
                .at(format!("{location}.stop.max_iter"))
                .found(format!("{rounds}, where the training takes {n_fits} rounds"))
                .help("raise it, or raise classifier.network.epochs_per_fit"),
        );
    }
}

/// The memory of a fit: beside that of matrices with expected counts, the prior of each instance, the target that the
/// classifier learns, and the prior and the posterior of the best round of trees.
#[must_use]
pub fn memory_estimate<M: ClassifierEm>(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
    let own = M::pair_bytes(sizes)?;
    let posteriors = dense_memory_estimate(sizes)?.posteriors;
    let working = own.working.checked_add(posteriors.checked_mul(4)?)?;
    Some(MemoryEstimate { posteriors, working, ..own })
}

/// P(class) of every row of a matrix.
pub(super) fn predictions_of(
    classifier: &dyn Classifier,
    matrix: &Matrix,
    n_classes: usize,
    cancel: &Cancel,
) -> Result<Posterior> {
    let rows: Vec<u32> = (0..matrix.len() as u32).collect();
    let mut predictions = Posterior::zeros(matrix.len(), n_classes);
    classifier.predict(matrix, &rows, predictions.values_mut(), cancel)?;
    Ok(predictions)
}

/// P(class given features) of every row, by a saved model.
///
/// # Errors
/// When the features have another width, the numbers belong to another model, or the device cannot be used: classifiers
/// other than networks compute on the CPU only.
pub fn predict<M: ClassifierEm>(
    model: SavedModel<'_>,
    matrix: &Matrix,
    job: &JobContext,
) -> Result<Predicted> {
    let mut refused = Ok(());
    let spec = from_features::spec_of(model.parameters, |spec: &mut M| {
        match (spec.classifier_mut().device_mut(), model.device) {
            // The device of the training may not exist here.
            (Some(own), Some(on)) => on.clone_into(own),
            (Some(_), None) => {}
            (None, on) => refused = from_features::check_cpu(on, M::KIND),
        }
    })?;
    refused?;
    let sizes: GemSizes = from_features::sizes_of(model.sizes)?;
    let learned = Snapshot::from_bytes(model.bytes)?;
    let axes = sizes.checked_axes();
    let axes = axes.ok_or_else(|| from_features::impossible_sizes(&sizes))?;
    from_features::check_width(matrix, sizes.features)?;
    let mut classifier = spec.classifier().build(&axes, sizes.classes);
    classifier.load(&learned, matrix.len(), job)?;
    let classes = predictions_of(classifier.as_ref(), matrix, sizes.classes, &job.cancel)?;
    Ok(Predicted { classes, device: classifier.device() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Dims;
    use crate::model::with_classifier::gem::Gem;

    /// Of one million instances and five classes; with 60 pairs there are 16 tables of counts beside the likelihood, in rows of 8 numbers.
    #[test]
    fn the_memory_of_a_fit_has_two_priors_a_target_and_a_posterior_for_each_instance() {
        let dims = Dims { instances: 1_000_000, annotators: 12, classes: 5, labels: 5 };
        let gold_roles = Vec::new();
        let sizes = QuestionSizes { dims, annotations: 5_000_000, pairs: 60, gold_roles };
        let got = memory_estimate::<Gem>(&sizes).unwrap();
        let (posteriors, counts) = (40_000_000, 60 * 8 * 8);
        let (matrices, working) = (2 * counts + 25 * 8, 17 * counts + 4 * posteriors);
        assert_eq!(got, MemoryEstimate { posteriors, matrices, working });
    }
}
