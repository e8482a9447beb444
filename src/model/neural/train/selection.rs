//! The selection of the epoch whose model is kept.

use crate::error::Result;
use crate::model::fitted::best;
use crate::model::neural::data::TrainingData;
use crate::model::neural::numerics::at_least;
use crate::model::neural::train::spec::Select;
use crate::model::neural::train::{PREDICTION_ROWS, Trainer};
use crate::model::neural::{CrowdNet, Phase};

/// An epoch is better only if its score is greater by more than this.
const SAME_SCORE: f64 = 1e-12;

/// Probabilities are clamped to at least this in the log-loss of a score.
const MIN_SCORED: f64 = 1e-15;

impl<N: CrowdNet> Trainer<'_, N> {
    /// Keeps this epoch's model, or the average of the models so far, if its score is the best.
    pub(super) fn select(&mut self, phase: &Phase) -> Result<()> {
        let kept = self.model.common().train.average;
        if kept == 0.0 {
            return self.keep_if_best(phase);
        }
        let last = self.snapshot()?;
        let mut average = self.state.average.take().unwrap_or_else(|| last.clone());
        // The plain mean of all epochs until the exponential average has had enough of them.
        average.approach(&last, (1.0 / f64::from(self.state.epoch)).max(1.0 - kept));
        self.load(&average)?;
        self.state.average = Some(average);
        self.keep_if_best(phase)?;
        self.load(&last)
    }

    fn keep_if_best(&mut self, phase: &Phase) -> Result<()> {
        let Some(score) = self.score(phase)? else { return Ok(()) };
        if !score.is_finite() {
            return Err(self.diverged(&format!("a score of {score}")));
        }
        let best = self.state.best.as_ref();
        if best.is_none_or(|(best, ..)| score > best + SAME_SCORE) {
            self.state.best = Some((score, self.state.epoch, self.snapshot()?));
        }
        Ok(())
    }

    /// Ends a phase with the best model; where nothing selects, with the average if there is one.
    pub(super) fn keep_best(&mut self) -> Result<()> {
        let average = self.state.average.take();
        let best = self.state.best.take().map(|(.., best)| best);
        best.or(average).map_or(Ok(()), |kept| self.load(&kept))
    }

    /// Whether the last improvement is more than `patience` epochs ago; frozen epochs do not count.
    pub(super) fn is_out_of_patience(&self, phase: &Phase) -> bool {
        let (patience, best) = (self.model.common().train.patience, &self.state.best);
        let all_move = self.annotator_delay(phase);
        patience
            .zip(best.as_ref())
            .is_some_and(|(p, (_, at, _))| self.state.epoch >= all_move.max(*at) + p)
    }

    /// The score of this epoch, greater is better; `None` where the last epoch is kept.
    fn score(&self, phase: &Phase) -> Result<Option<f64>> {
        match self.model.common().train.select {
            Select::Last => Ok(None),
            Select::AnnotationLikelihood if !phase.moves_likelihood => Ok(None),
            Select::Valid => {
                let (mut right, mut log) = (0.0, 0.0);
                for part in self.valid.chunks(PREDICTION_ROWS) {
                    let mut batch = TrainingData::unseen(0..part.len());
                    batch.rows = part.iter().map(|(row, _)| *row).collect();
                    let predicted = self.predict(&batch)?;
                    for ((_, class), p) in
                        part.iter().zip(predicted.classes.chunks(self.dims.classes))
                    {
                        let found = best(p).map(|(k, _)| k as u32);
                        right += f64::from(u8::from(found == Some(*class)));
                        log += at_least(p[*class as usize], MIN_SCORED).ln();
                    }
                }
                // Ties in accuracy break to the smaller log-loss, which adds less than one more right answer would.
                let n = self.valid.len().max(1) as f64;
                Ok(Some((right + 0.5 / (1.0 - log / n)) / n))
            }
            Select::AnnotationLikelihood => {
                let instances = self.data.held_out_instances();
                let (mut log, mut n) = (0.0, 0.0);
                for part in instances.chunks(PREDICTION_ROWS) {
                    let batch = self.data.held_out(part);
                    let likelihood =
                        self.with_outputs(&batch, |context| self.model.likelihood(context))?;
                    for (annotation, p) in batch.annotations.iter().zip(likelihood) {
                        log += annotation.weight * at_least(p, MIN_SCORED).ln();
                        n += annotation.weight;
                    }
                }
                Ok((n > 0.0).then_some(log / n))
            }
        }
    }
}
