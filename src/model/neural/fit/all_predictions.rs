//! The predictions of a trained model for all rows of features and all instances.

use std::borrow::Cow;

use crate::error::Result;
use crate::frame::{Dims, JointQuestion};
use crate::job_context::JobContext;
use crate::model::neural::data::TrainingData;
use crate::model::neural::data::batch::Batch;
use crate::model::neural::objective::batch_context::{BatchContext, BatchPrediction};
use crate::model::neural::objective::crowd_net::CrowdNet;
use crate::model::neural::objective::training_objective::TrainingObjective;
use crate::model::neural::params::pair_means::PairMeans;
use crate::model::neural::train::{Trainer, not_finite};
use crate::model::posterior::Posterior;

/// The predictions of the trained model.
pub(super) struct AllPredictions {
    /// P(class given features and annotations), `[instance, class]`.
    pub(super) posterior: Posterior,
    /// The classifier's P(class given features), `[row of features, class]`.
    pub(super) predictions: Posterior,
    /// The model's numbers of each instance, by name; NaN without features.
    pub(super) instance_parameters: Vec<(String, Vec<f64>)>,
    /// The means of the matrices of pairs, where the model has such matrices.
    pub(super) pairs: Option<PairMeans>,
    /// The instance of the first row.
    first: usize,
}

/// The annotations and the targets that posteriors follow from.
#[derive(Clone, Copy)]
pub(super) struct PosteriorInputs<'a> {
    pub(super) data: &'a TrainingData<'a>,
    pub(super) targets: Option<&'a Posterior>,
}

impl AllPredictions {
    /// Predicts for all rows of features and all instances, of one question where there are several.
    ///
    /// # Errors
    /// When the run is cancelled, the device fails, or a probability is not finite.
    pub(super) fn predict<N: CrowdNet>(
        trainer: &Trainer<'_, N>,
        inputs: PosteriorInputs<'_>,
        question: Option<JointQuestion>,
        job: &JobContext,
    ) -> Result<Self> {
        let a = inputs.data.annotations;
        let instances = match (question, &a.joint) {
            (Some(question), Some(joint)) => joint.instances_of(question),
            _ => 0..a.dims().instances,
        };
        let classes = question.map_or(trainer.dims.classes, |question| question.classes);
        let names = trainer.model.instance_parameters().into_iter();
        let n = instances.len();
        let mut posterior = Posterior::zeros(n, classes);
        let start =
            inputs.targets.map_or_else(|| Cow::Owned(Posterior::from_votes(a)), Cow::Borrowed);
        instances.clone().enumerate().for_each(|(row, i)| {
            posterior.row_mut(row).copy_from_slice(&start.row(i)[..classes]);
        });
        let mut all = Self {
            predictions: predictions(trainer, question, job)?,
            posterior,
            instance_parameters: names.map(|name| (name, vec![f64::NAN; n])).collect(),
            pairs: None,
            first: instances.start,
        };
        let is_own = |i: &u32| instances.contains(&(*i as usize));
        let with_features: Vec<u32> = inputs.data.instances().into_iter().filter(is_own).collect();
        if N::CONDITIONS_ON_ANNOTATIONS {
            all.predict_with_features(&with_features, trainer, inputs, job)?;
            let (_, mut without_features) = inputs.data.by_features(false);
            without_features.retain(is_own);
            all.predict_without_features(&without_features, trainer, inputs, job)?;
        } else {
            all.copy_predictions(&with_features, inputs.data);
        }
        all.check_finite(trainer)?;
        Ok(all)
    }

    /// Computes the posteriors and parameters of instances with features.
    fn predict_with_features<N: CrowdNet>(
        &mut self,
        with_features: &[u32],
        trainer: &Trainer<'_, N>,
        PosteriorInputs { data, targets }: PosteriorInputs<'_>,
        job: &JobContext,
    ) -> Result<()> {
        let (classes, n_names) = (trainer.dims.classes, self.instance_parameters.len());
        trainer.each_part(with_features, job, |part| {
            let batch = data.observed(part, targets);
            let (predicted, matrices) =
                trainer.read_out(data.inputs(), &batch, |context| both(trainer, context))?;
            for (n, i) in part.iter().map(|i| *i as usize).enumerate() {
                if data.annotations.trusted_class(i).is_none() {
                    let own = &predicted.posterior[n * classes..(n + 1) * classes];
                    self.posterior.set_rows(i - self.first, own, classes);
                }
                for (name, (_, values)) in self.instance_parameters.iter_mut().enumerate() {
                    values[i - self.first] = predicted.parameters[n * n_names + name];
                }
            }
            self.add_pairs(&batch, &predicted.classes, matrices, trainer.dims);
            Ok(())
        })
    }

    /// Computes the posteriors of instances without features. A model without parameters of annotators has nothing to
    /// condition on but its targets.
    fn predict_without_features<N: CrowdNet>(
        &mut self,
        without_features: &[u32],
        trainer: &Trainer<'_, N>,
        PosteriorInputs { data, targets }: PosteriorInputs<'_>,
        job: &JobContext,
    ) -> Result<()> {
        if trainer.annotator_params.tables.is_empty() {
            return Ok(());
        }
        trainer.each_part(without_features, job, |part| {
            let batch = data.observed(part, targets);
            let (predicted, matrices) =
                trainer
                    .without_features(data.inputs(), &batch, |context| both(trainer, context))?;
            let classes = trainer.dims.classes;
            for (i, row) in part.iter().zip(predicted.posterior.chunks_exact(classes)) {
                self.posterior.set_rows(*i as usize - self.first, row, classes);
            }
            self.add_pairs(&batch, &predicted.classes, matrices, trainer.dims);
            Ok(())
        })
    }

    /// Adds the matrices of a batch's pairs to their means, with the posteriors of its instances.
    fn add_pairs(&mut self, batch: &Batch, p: &[f64], matrices: Option<Vec<f64>>, dims: Dims) {
        let Some(matrices) = matrices else { return };
        let mut posterior = vec![0.0; batch.len() * dims.classes];
        for (i, to) in batch.instances.iter().zip(posterior.chunks_exact_mut(dims.classes)) {
            let row = self.posterior.row(*i as usize - self.first);
            to[..row.len()].copy_from_slice(row);
        }
        let means = self.pairs.get_or_insert_with(|| PairMeans::new(dims));
        means.add(batch, &matrices, p, &posterior);
    }

    /// Sets the posteriors of instances with features to the classifier's predictions.
    fn copy_predictions(&mut self, with_features: &[u32], data: &TrainingData<'_>) {
        for i in with_features.iter().map(|i| *i as usize) {
            if let (Some(row), None) = (data.row(i), data.annotations.trusted_class(i)) {
                self.posterior.row_mut(i - self.first).copy_from_slice(self.predictions.row(row));
            }
        }
    }

    fn check_finite<N: CrowdNet>(&self, trainer: &Trainer<'_, N>) -> Result<()> {
        let (classes, epochs) = (self.posterior.n_classes(), trainer.state.trace.len());
        let first_broken = |p: &Posterior| p.values().iter().position(|v| !v.is_finite());
        if let Some(at) = first_broken(&self.predictions) {
            return Err(not_finite(at / classes, self.predictions.values()[at], epochs));
        }
        let Some(at) = first_broken(&self.posterior) else { return Ok(()) };
        Err(trainer.posterior_not_finite(self.first + at / classes, self.posterior.values()[at]))
    }
}

/// The prediction for a batch, and the matrices of its pairs.
fn both<N: CrowdNet>(
    trainer: &Trainer<'_, N>,
    context: &BatchContext<'_>,
) -> (BatchPrediction, Option<Vec<f64>>) {
    (trainer.model.predict(context), trainer.model.pair_matrices(context))
}

/// The classifier's probabilities for every row of features.
fn predictions<N: TrainingObjective>(
    trainer: &Trainer<'_, N>,
    question: Option<JointQuestion>,
    job: &JobContext,
) -> Result<Posterior> {
    let (rows, at_once) = (trainer.data.matrix.len(), trainer.learners.rows_at_once());
    let classes = trainer.dims.classes;
    let own = question.map_or(classes, |question| question.classes);
    let mut predictions = Posterior::zeros(rows, own);
    for first in (0..rows).step_by(at_once) {
        job.cancel.check()?;
        let part = first..(first + at_once).min(rows);
        let ids = part.clone().map(|row| row as u32).collect();
        let predicted = trainer.predict(&TrainingData::unseen_of(question, ids))?;
        predictions.set_rows(part.start, &predicted.classes, classes);
    }
    Ok(predictions)
}
