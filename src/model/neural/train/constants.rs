//! The constants of rows: numbers of the loss that an act does not change, computed once instead of in every step.

use std::sync::Arc;

use super::Trainer;
use crate::error::Result;
use crate::job_context::JobContext;
use crate::model::neural::objective::batch_context::BatchContext;
use crate::model::neural::objective::schedule::Phase;
use crate::model::neural::objective::training_objective::TrainingObjective;
use crate::model::neural::train::frozen::FrozenOutputs;

/// The share of the run's memory that the constants of all rows may take: one in this many bytes.
const CONSTANTS_SHARE: usize = 8;

/// The number of rows whose constants are computed at once.
const ROWS_AT_ONCE: usize = 128;

impl<N: TrainingObjective> Trainer<'_, N> {
    /// Computes and keeps the constants of all training rows with the frozen outputs of the classifier, unless they are
    /// too large. It does nothing if the classifier is not frozen, or if they were computed for this act already.
    pub(super) fn keep_constants(&mut self, phase: &Phase, job: &JobContext) -> Result<()> {
        let Some(frozen) = &self.learners.classifier.frozen else { return Ok(()) };
        if self.state.epoch > 0 && frozen.has_constants_of_act {
            return Ok(());
        }
        let constants = self.constants(frozen, phase, job)?;
        if let Some(frozen) = &mut self.learners.classifier.frozen {
            frozen.outputs.constants = constants;
            frozen.has_constants_of_act = true;
        }
        Ok(())
    }

    /// The constants of the rows of `frozen`; empty if there are none, or if they are too large.
    fn constants(
        &self,
        frozen: &FrozenOutputs,
        phase: &Phase,
        job: &JobContext,
    ) -> Result<Vec<Arc<[f64]>>> {
        let max_bytes = job.share_of_memory(CONSTANTS_SHARE, usize::MAX);
        let (mut all, mut bytes) = (vec![Arc::default(); frozen.rows.len()], 0);
        for part in self.data.trained_instances().chunks(ROWS_AT_ONCE) {
            job.cancel.check()?;
            let batch = self.data.observed(part, self.state.targets(phase.targets));
            let out = frozen.gather(&batch.rows);
            let read_out = |context: &BatchContext<'_>| {
                self.model.constants(&BatchContext { phase: phase.name, ..*context })
            };
            let Some(constants) = self.predictor().with(&out, &[], &batch, read_out) else {
                return Ok(Vec::new());
            };
            for (row, of_row) in batch.rows.iter().zip(constants) {
                bytes += of_row.len() * size_of::<f64>();
                all[frozen.location(*row)] = Arc::from(of_row);
            }
            if bytes > max_bytes {
                return Ok(Vec::new());
            }
        }
        Ok(all)
    }
}
