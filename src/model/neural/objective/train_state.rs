//! The state of a training apart from the parameters of networks and annotators. A checkpoint holds all of it.
//!
//! It contains no state of a random generator, because every draw comes from a stream named for its phase, epoch and
//! batch.
//!
//! # Why
//! Networks and tables of annotators save themselves, with their moments, under their own names; a schedule needs none of
//! their numbers to name the next act, and reads this state alone.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::frame::Dims;
use crate::model::calibration::calibrator::Calibrator;
use crate::model::fitted::TraceRow;
use crate::model::posterior::Posterior;
use crate::model::saved::snapshot::Snapshot;

/// The name of the targets that a model's aggregator computes. They are the posteriors of a model that trains on
/// targets.
pub const MAIN_TARGETS: &str = "main";

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
    /// The targets that the model has, by name: those of the aggregator are called [`MAIN_TARGETS`].
    pub(crate) targets: BTreeMap<String, NamedTargets>,
    /// The numbers that other acts than the training have estimated.
    pub estimates: Estimates,
}

/// The targets of learners.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedTargets {
    /// P(class), `[instance, class]`.
    pub posterior: Posterior,
    /// Whether an E-step has computed them; else they come from the model's aggregator.
    pub(crate) is_own: bool,
}

/// The numbers of a model that are neither parameters nor targets: acts between the epochs estimate them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Estimates {
    /// The maps from learners' probabilities to calibrated ones, by the name of the learner.
    pub calibrators: BTreeMap<String, Calibrator>,
    /// P(class).
    pub prior: Option<Vec<f64>>,
    /// The model's own numbers, by name.
    pub numbers: BTreeMap<String, Vec<f64>>,
}

/// The epoch with the best score, and its model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Best {
    pub(crate) score: f64,
    /// The epoch of the phase, from 1.
    pub(crate) epoch: u32,
    pub(crate) model: Snapshot,
    /// The targets of the epoch, which an E-step may have replaced since.
    pub(crate) targets: BTreeMap<String, NamedTargets>,
    /// The estimates of the epoch, which an M-step or a calibration may have replaced since.
    pub(crate) estimates: Estimates,
}

impl TrainState {
    /// A training that starts with the aggregator's posteriors as its targets.
    pub(crate) fn with_targets(aggregated: Option<Posterior>) -> Self {
        let main = |posterior| (MAIN_TARGETS.to_owned(), NamedTargets { posterior, is_own: false });
        Self { targets: aggregated.map(main).into_iter().collect(), ..Self::default() }
    }

    /// The targets of this name.
    pub(crate) fn targets(&self, name: &str) -> Option<&Posterior> {
        self.targets.get(name).map(|targets| &targets.posterior)
    }

    pub(crate) fn save(&self, to: &mut Snapshot) -> Result<()> {
        to.u32s("progress".to_owned(), vec![self.acts as u32, self.epoch]);
        TraceRow::save(&self.trace, to);
        if let Some(Best { score, epoch, model, targets, estimates }) = &self.best {
            to.f64s("best".to_owned(), vec![*score, f64::from(*epoch)]);
            to.merge("best.", model);
            save_targets(targets, TARGETS_OF_BEST, to);
            let mut of_best = Snapshot::default();
            estimates.save(&mut of_best)?;
            to.merge(ESTIMATES_OF_BEST, &of_best);
        }
        if let Some(average) = &self.average {
            to.merge("average.", average);
        }
        save_targets(&self.targets, TARGETS, to);
        self.estimates.save(to)
    }

    /// Takes the state from a snapshot. Targets that no E-step had computed are not in it: they remain the
    /// aggregator's, which the state has at its start.
    ///
    /// # Errors
    /// When the snapshot belongs to another training.
    pub(crate) fn load(&mut self, from: &Snapshot, dims: Dims) -> Result<()> {
        let progress = from.take_u32s("progress", 2)?;
        (self.acts, self.epoch) = (progress[0] as usize, progress[1]);
        self.trace = TraceRow::saved(from)?;
        let of_best = self.targets_in(from, TARGETS_OF_BEST, dims)?;
        let estimates_of_best = Estimates::saved(&from.part(ESTIMATES_OF_BEST))?;
        // The epoch was an unsigned integer when it was saved.
        #[allow(clippy::cast_sign_loss)]
        let best = |best: Vec<f64>| Best {
            score: best[0],
            epoch: best[1] as u32,
            model: from.part("best."),
            targets: of_best,
            estimates: estimates_of_best,
        };
        self.best = from.take_f64s("best").ok().map(best);
        self.average = Some(from.part("average.")).filter(|average| !average.is_empty());
        self.targets = self.targets_in(from, TARGETS, dims)?;
        self.estimates = Estimates::saved(from)?;
        Ok(())
    }

    /// The state's targets, replaced by those of a snapshot whose names begin with `prefix`.
    fn targets_in(
        &self,
        from: &Snapshot,
        prefix: &str,
        dims: Dims,
    ) -> Result<BTreeMap<String, NamedTargets>> {
        let (mut targets, own) = (self.targets.clone(), from.part(prefix));
        for name in own.names() {
            let posterior = own.take_posterior(name, dims)?;
            targets.insert(name.to_owned(), NamedTargets { posterior, is_own: true });
        }
        Ok(targets)
    }
}

/// The prefixes of the names of targets in a checkpoint.
const TARGETS: &str = "targets.";
const TARGETS_OF_BEST: &str = "targets of best.";

/// The prefix of the names of the best epoch's estimates in a checkpoint.
const ESTIMATES_OF_BEST: &str = "estimates of best.";

/// Adds the targets that an E-step has computed.
fn save_targets(targets: &BTreeMap<String, NamedTargets>, prefix: &str, to: &mut Snapshot) {
    for (name, targets) in targets.iter().filter(|(_, targets)| targets.is_own) {
        to.f64s(format!("{prefix}{name}"), targets.posterior.values().to_vec());
    }
}

/// The prefixes of the names of calibrators and numbers in a checkpoint.
const CALIBRATORS: &str = "calibrators.";
const NUMBERS: &str = "numbers.";

impl Estimates {
    fn save(&self, to: &mut Snapshot) -> Result<()> {
        for (name, calibrator) in &self.calibrators {
            let failed = |e| Error::bug(format!("a calibrator cannot be written: {e}"));
            let text = serde_json::to_string(calibrator).map_err(failed)?;
            to.text(format!("{CALIBRATORS}{name}"), &text);
        }
        if let Some(prior) = &self.prior {
            to.f64s("prior".to_owned(), prior.clone());
        }
        for (name, values) in &self.numbers {
            to.f64s(format!("{NUMBERS}{name}"), values.clone());
        }
        Ok(())
    }

    fn saved(from: &Snapshot) -> Result<Self> {
        let (mut estimates, texts) = (Self::default(), from.part(CALIBRATORS));
        for name in texts.names() {
            let text = texts.take_text(name)?;
            let calibrator = serde_json::from_str(&text).map_err(|_| texts.another(name, 0))?;
            estimates.calibrators.insert(name.to_owned(), calibrator);
        }
        estimates.prior = from.take_f64s("prior").ok();
        let numbers = from.part(NUMBERS);
        for name in numbers.names() {
            estimates.numbers.insert(name.to_owned(), numbers.take_f64s(name)?);
        }
        Ok(estimates)
    }
}
