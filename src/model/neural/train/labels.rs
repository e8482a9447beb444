//! The acts on labels: E-step, M-step, and the calibration of the classifier by trusted instances.

use super::Trainer;
use crate::error::Result;
use crate::model::calibrator::{Calibrator, Method, Points};
use crate::model::em::kernels::expected_counts_of;
use crate::model::neural::data::TrainingData;
use crate::model::neural::train::step::Predictor;
use crate::model::neural::{BatchContext, CrowdNet};
use crate::run::Run;

/// The number of instances without features whose posteriors are computed at once.
const WITHOUT_FEATURES_AT_ONCE: usize = 4096;

impl<N: CrowdNet> Trainer<'_, N> {
    /// Replaces the targets by the model's posteriors. Trusted rows stay one-hot. For an instance without features,
    /// learners that read features give all classes the same probability, which is not calibrated: it is no prediction.
    ///
    /// # Why
    /// The posterior of a model is defined once, by its `predict`: the posteriors that train the classifier and those
    /// that are published cannot differ. Its arithmetic is small compared with the forward pass over the same
    /// instances.
    ///
    /// # Errors
    /// When the run is cancelled or the device fails.
    pub(super) fn e_step(&mut self, run: &Run) -> Result<()> {
        let Some(mut targets) = self.state.targets.take() else { return Ok(()) };
        let classes = self.dims.classes;
        let mut keep = |part: &[u32], posterior: &[f64]| {
            for (i, row) in part.iter().zip(posterior.chunks_exact(classes)) {
                targets.row_mut(*i as usize).copy_from_slice(row);
            }
        };
        let (described, without) = self.data.untrusted();
        for part in described.chunks(self.learners.rows_at_once()) {
            run.cancel.check()?;
            keep(part, &self.predict(&self.data.observed(part, None))?.posterior);
        }
        for part in without.chunks(WITHOUT_FEATURES_AT_ONCE) {
            let batch = self.data.observed(part, None);
            let inputs = self.data.inputs();
            let (out, others) = self.learners.predict_without_features(inputs, &batch, classes)?;
            let read_out = |context: &BatchContext<'_>| self.model.predict(context);
            let predictor = Predictor { calibrator: None, ..self.predictor() };
            let predicted = predictor.with(&out, &others, &batch, read_out);
            keep(part, &predicted.posterior);
        }
        (self.state.targets, self.state.are_targets_own) = (Some(targets), true);
        Ok(())
    }

    /// Runs the model's M-step, which estimates annotators' parameters from the targets.
    pub(super) fn m_step(&mut self) {
        let Some(targets) = &self.state.targets else { return };
        let counts = expected_counts_of(self.data.annotations, targets);
        self.model.m_step(self.data.annotations, &counts, &mut self.annotator_params);
    }

    /// Fits the calibrator to the classifier's predictions of trusted instances; without trusted instances there is no
    /// calibrator.
    ///
    /// # Errors
    /// When the run is cancelled or the device fails.
    pub(super) fn calibrate(&mut self, run: &Run) -> Result<()> {
        let classes = self.dims.classes;
        let mut points = Points::new(classes);
        for part in self.data.trusted().chunks(self.learners.rows_at_once()) {
            run.cancel.check()?;
            let rows = part.iter().map(|(row, _)| *row).collect();
            let predicted = self.predict(&TrainingData::unseen(rows))?;
            for ((_, class), p) in part.iter().zip(predicted.classes.chunks_exact(classes)) {
                points.push_class(p, *class as usize, 1.0);
            }
        }
        self.state.calibrator = Calibrator::fit(Method::Isotonic, 0.0, &points);
        Ok(())
    }
}
