//! The state of a training apart from the parameters of networks and annotators. A checkpoint holds all of it.
//!
//! It contains no state of a random generator, because every draw comes from a stream named for its phase, epoch and
//! batch.

use crate::error::{Error, Result};
use crate::model::calibrator::Calibrator;
use crate::model::fitted::TraceRow;
use crate::model::neural::train::checkpoint::Snapshot;
use crate::model::posterior::Posterior;

/// The state of a training apart from the parameters.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TrainState {
    /// The number of completed acts.
    pub acts: usize,
    /// The number of completed epochs of the running act.
    pub(crate) epoch: u32,
    pub(crate) trace: Vec<TraceRow>,
    /// The best epoch since the last selection.
    pub(crate) best: Option<Best>,
    /// The average of the models since the last selection.
    pub(crate) average: Option<Snapshot>,
    /// The targets of the classifier, `[instance, class]`, where the model has them.
    pub(crate) targets: Option<Posterior>,
    /// Whether an E-step has computed the targets; else they come from the model's aggregator.
    pub(crate) are_targets_own: bool,
    /// The map from the classifier's probabilities to calibrated ones, once it has been fitted.
    pub(crate) calibrator: Option<Calibrator>,
}

/// The epoch with the best score, and its model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Best {
    pub(crate) score: f64,
    /// The epoch of the phase, from 1.
    pub(crate) epoch: u32,
    pub(crate) model: Snapshot,
    /// The targets of the epoch, which an E-step may have replaced since.
    pub(crate) targets: Option<Posterior>,
    /// Whether an E-step had computed these targets.
    pub(crate) are_targets_own: bool,
}

impl TrainState {
    pub(crate) fn save(&self, to: &mut Snapshot) -> Result<()> {
        to.u32s("progress".to_owned(), vec![self.acts as u32, self.epoch]);
        let phases: Vec<&str> = self.trace.iter().map(|row| row.phase.as_str()).collect();
        to.text("trace.phases".to_owned(), &phases.join("\n"));
        let rows = self.trace.iter().flat_map(|row| {
            [f64::from(row.step), row.objective, row.change.unwrap_or(f64::NAN), row.seconds]
        });
        to.f64s("trace".to_owned(), rows.collect());
        if let Some(Best { score, epoch, model, targets, are_targets_own }) = &self.best {
            to.f64s("best".to_owned(), vec![*score, f64::from(*epoch)]);
            to.merge("best.", model);
            if let (Some(targets), true) = (targets, *are_targets_own) {
                to.f64s("targets of best".to_owned(), targets.values().to_vec());
            }
        }
        if let Some(average) = &self.average {
            to.merge("average.", average);
        }
        if let (Some(targets), true) = (&self.targets, self.are_targets_own) {
            to.f64s("targets".to_owned(), targets.values().to_vec());
        }
        if let Some(calibrator) = &self.calibrator {
            let failed = |e| Error::bug(format!("a calibrator cannot be written: {e}"));
            let text = serde_json::to_string(calibrator).map_err(failed)?;
            to.text("calibrator".to_owned(), &text);
        }
        Ok(())
    }

    /// Takes the state from a snapshot. Targets are replaced only if an E-step had computed the saved ones.
    ///
    /// # Errors
    /// When the snapshot belongs to another training.
    pub(crate) fn load(&mut self, from: &Snapshot) -> Result<()> {
        // These numbers were unsigned integers when they were saved.
        #[allow(clippy::cast_sign_loss)]
        let whole = |x: f64| x as u32;
        let progress = from.take_u32s("progress", 2)?;
        (self.acts, self.epoch) = (progress[0] as usize, progress[1]);
        let (phases, rows) = (from.take_text("trace.phases")?, from.take_f64s("trace")?);
        let row = |(phase, x): (&str, &[f64; 4])| TraceRow {
            phase: phase.to_owned(),
            step: whole(x[0]),
            objective: x[1],
            change: Some(x[2]).filter(|c| !c.is_nan()),
            seconds: x[3],
        };
        self.trace = phases.lines().zip(rows.as_chunks::<4>().0).map(row).collect();
        // Until an E-step has computed targets, they are the aggregator's, which this state starts with.
        let (targets_of_best, is_own) = self.targets_in(from, "targets of best")?;
        self.best = from.take_f64s("best").ok().map(|best| Best {
            score: best[0],
            epoch: whole(best[1]),
            model: from.part("best."),
            targets: targets_of_best,
            are_targets_own: is_own,
        });
        self.average = Some(from.part("average.")).filter(|average| !average.is_empty());
        (self.targets, self.are_targets_own) = self.targets_in(from, "targets")?;
        let another = |_| from.another("calibrator", 0);
        self.calibrator = match from.take_text("calibrator") {
            Ok(text) => Some(serde_json::from_str(&text).map_err(another)?),
            Err(_) => None,
        };
        Ok(())
    }

    /// The targets of this name in a snapshot, or those that the state has, and whether they come from the snapshot.
    fn targets_in(&self, from: &Snapshot, name: &str) -> Result<(Option<Posterior>, bool)> {
        let mut targets = self.targets.clone();
        let (Some(own), Ok(values)) = (&mut targets, from.take_f64s(name)) else {
            return Ok((targets, false));
        };
        if values.len() != own.values().len() {
            return Err(from.another(name, own.values().len()));
        }
        own.values_mut().copy_from_slice(&values);
        Ok((targets, true))
    }
}
