//! The predictions of a trained model for all rows of features and all instances.

use crate::error::Result;
use crate::frame::Dims;
use crate::model::from_features;
use crate::model::neural::data::TrainingData;
use crate::model::neural::params::pair_means::PairMeans;
use crate::model::neural::train::{Trainer, not_finite};
use crate::model::neural::{Batch, BatchContext, BatchPrediction, CrowdNet, TrainingObjective};
use crate::model::posterior::Posterior;
use crate::run::Run;

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
}

/// The annotations and the targets that posteriors follow from.
#[derive(Clone, Copy)]
pub(super) struct PosteriorInputs<'a> {
    pub(super) data: &'a TrainingData<'a>,
    pub(super) targets: Option<&'a Posterior>,
}

impl AllPredictions {
    /// Predicts for all rows of features and all instances.
    ///
    /// # Errors
    /// When the run is cancelled, the device fails, or a probability is not finite.
    pub(super) fn of<N: CrowdNet>(
        trainer: &Trainer<'_, N>,
        inputs: PosteriorInputs<'_>,
        run: &mut Run,
    ) -> Result<Self> {
        let a = inputs.data.annotations;
        let instances = a.dims().instances;
        let names = trainer.model.instance_parameters().into_iter();
        let mut all = Self {
            predictions: predictions(trainer, run)?,
            posterior: inputs.targets.cloned().unwrap_or_else(|| Posterior::from_votes(a)),
            instance_parameters: names.map(|name| (name, vec![f64::NAN; instances])).collect(),
            pairs: None,
        };
        let described = inputs.data.instances();
        if N::CONDITIONS_ON_ANNOTATIONS {
            all.predict_described(&described, trainer, inputs, run)?;
            all.predict_undescribed(trainer, inputs, run)?;
        } else {
            all.copy_predictions(&described, inputs.data);
        }
        all.check_finite(trainer)?;
        let has_features = |i: usize| described.binary_search(&(i as u32)).is_ok();
        if let Some(warning) = from_features::without_features(a, has_features) {
            run.warn(warning);
        }
        Ok(all)
    }

    /// Computes the posteriors and parameters of instances with features.
    fn predict_described<N: CrowdNet>(
        &mut self,
        described: &[u32],
        trainer: &Trainer<'_, N>,
        PosteriorInputs { data, targets }: PosteriorInputs<'_>,
        run: &Run,
    ) -> Result<()> {
        let (classes, n_names) = (trainer.dims.classes, self.instance_parameters.len());
        trainer.each_part(described, run, |part| {
            let batch = data.observed(part, targets);
            let (predicted, matrices) =
                trainer.read_out(data.inputs(), &batch, |context| both(trainer, context))?;
            for (n, i) in part.iter().map(|i| *i as usize).enumerate() {
                if data.annotations.trusted_class(i).is_none() {
                    let own = &predicted.posterior[n * classes..(n + 1) * classes];
                    self.posterior.row_mut(i).copy_from_slice(own);
                }
                for (name, (_, values)) in self.instance_parameters.iter_mut().enumerate() {
                    values[i] = predicted.parameters[n * n_names + name];
                }
            }
            self.add_pairs(&batch, &predicted.classes, matrices, trainer.dims);
            Ok(())
        })
    }

    /// Computes the posteriors of instances without features. A model without parameters of annotators has nothing to
    /// condition on but its targets.
    fn predict_undescribed<N: CrowdNet>(
        &mut self,
        trainer: &Trainer<'_, N>,
        PosteriorInputs { data, targets }: PosteriorInputs<'_>,
        run: &Run,
    ) -> Result<()> {
        if trainer.annotator_params.tables.is_empty() {
            return Ok(());
        }
        let (_, undescribed) = data.untrusted();
        trainer.each_part(&undescribed, run, |part| {
            let batch = data.observed(part, targets);
            let (predicted, matrices) =
                trainer
                    .without_features(data.inputs(), &batch, |context| both(trainer, context))?;
            let rows = predicted.posterior.chunks_exact(trainer.dims.classes);
            for (i, row) in part.iter().zip(rows) {
                self.posterior.row_mut(*i as usize).copy_from_slice(row);
            }
            self.add_pairs(&batch, &predicted.classes, matrices, trainer.dims);
            Ok(())
        })
    }

    /// Adds the matrices of a batch's pairs to their means, with the posteriors of its instances.
    fn add_pairs(&mut self, batch: &Batch, p: &[f64], matrices: Option<Vec<f64>>, dims: Dims) {
        let Some(matrices) = matrices else { return };
        let rows = batch.instances.iter().flat_map(|i| self.posterior.row(*i as usize));
        let posterior: Vec<f64> = rows.copied().collect();
        let means = self.pairs.get_or_insert_with(|| PairMeans::new(dims));
        means.add(batch, &matrices, p, &posterior);
    }

    /// Sets the posteriors of instances with features to the classifier's predictions.
    fn copy_predictions(&mut self, described: &[u32], data: &TrainingData<'_>) {
        for i in described.iter().map(|i| *i as usize) {
            if let (Some(row), None) = (data.row(i), data.annotations.trusted_class(i)) {
                self.posterior.row_mut(i).copy_from_slice(self.predictions.row(row));
            }
        }
    }

    fn check_finite<N: CrowdNet>(&self, trainer: &Trainer<'_, N>) -> Result<()> {
        let (classes, epochs) = (trainer.dims.classes, trainer.state.trace.len());
        let first_broken = |p: &Posterior| p.values().iter().position(|v| !v.is_finite());
        if let Some(at) = first_broken(&self.predictions) {
            return Err(not_finite(at / classes, self.predictions.values()[at], epochs));
        }
        let Some(at) = first_broken(&self.posterior) else { return Ok(()) };
        Err(trainer.posterior_not_finite(at / classes, self.posterior.values()[at]))
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
fn predictions<N: TrainingObjective>(trainer: &Trainer<'_, N>, run: &Run) -> Result<Posterior> {
    let (rows, at_once) = (trainer.data.matrix.len(), trainer.learners.rows_at_once());
    let classes = trainer.dims.classes;
    let mut predictions = Posterior::zeros(rows, classes);
    for first in (0..rows).step_by(at_once) {
        run.cancel.check()?;
        let part = first..(first + at_once).min(rows);
        let predicted =
            trainer.predict(&TrainingData::unseen(part.clone().map(|row| row as u32).collect()))?;
        predictions.values_mut()[part.start * classes..part.end * classes]
            .copy_from_slice(&predicted.classes);
    }
    Ok(predictions)
}
