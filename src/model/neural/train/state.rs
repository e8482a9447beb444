//! The state of a training that a checkpoint holds beside the parameters of the model.
//!
//! It holds no state of a random generator: every draw comes from a stream named for its phase, epoch and batch.

use crate::error::Result;
use crate::model::fitted::TraceRow;
use crate::model::neural::Phase;
use crate::model::neural::train::checkpoint::Snapshot;

/// The state of a training beside the parameters.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct TrainState {
    pub(crate) phase: usize,
    pub(crate) epoch: u32,
    pub(crate) trace: Vec<TraceRow>,
    /// The best score so far, the epoch that had it, and the model then.
    pub(crate) best: Option<(f64, u32, Snapshot)>,
    /// The average of the phase's models so far.
    pub(crate) average: Option<Snapshot>,
}

impl TrainState {
    pub(crate) fn save(&self, to: &mut Snapshot, phases: &[Phase]) {
        to.u32s("progress".to_owned(), vec![self.phase as u32, self.epoch]);
        let number = |row: &TraceRow| phases.iter().position(|p| p.name == row.phase).unwrap_or(0);
        let rows = self.trace.iter().flat_map(|row| {
            [
                number(row) as f64,
                f64::from(row.step),
                row.objective,
                row.change.unwrap_or(f64::NAN),
                row.seconds,
            ]
        });
        to.f64s("trace".to_owned(), rows.collect());
        if let Some((score, epoch, snapshot)) = &self.best {
            to.f64s("best".to_owned(), vec![*score, f64::from(*epoch)]);
            to.merge("best.", snapshot);
        }
        if let Some(average) = &self.average {
            to.merge("average.", average);
        }
    }

    pub(crate) fn load(from: &Snapshot, phases: &[Phase]) -> Result<Self> {
        let progress = from.take_u32s("progress", 2)?;
        // The number was an unsigned integer when it was saved.
        #[allow(clippy::cast_sign_loss)]
        let whole = |x: f64| x as u32;
        let row = |x: &[f64; 5]| TraceRow {
            phase: phases.get(whole(x[0]) as usize).map_or("", |p| p.name).to_owned(),
            step: whole(x[1]),
            objective: x[2],
            change: Some(x[3]).filter(|c| !c.is_nan()),
            seconds: x[4],
        };
        let trace = from.take_f64s("trace")?.as_chunks::<5>().0.iter().map(row).collect();
        let snapshot = from.part("best.");
        let best = match from.take_f64s("best") {
            Ok(best) => Some((best[0], whole(best[1]), snapshot)),
            Err(_) => None,
        };
        let average = Some(from.part("average.")).filter(|average| !average.is_empty());
        Ok(Self { phase: progress[0] as usize, epoch: progress[1], trace, best, average })
    }
}
