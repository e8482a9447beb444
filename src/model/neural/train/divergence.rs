//! The errors of a training whose numbers are no longer finite, or cannot be.

use crate::error::{Error, Result};
use crate::model::neural::objective::train_spec::Reduction;
use crate::model::neural::objective::training_objective::TrainingObjective;
use crate::model::neural::train::{LoopPosition, Trainer, not_finite};

const WEIGHTS_HELP: &str = "networks compute in 32 bits, which do not hold the squares of such weights: scale the \
                            weights, so that all are nearer to 1";

/// The weights of the annotations.
struct WeightRange {
    least: f64,
    largest: f64,
    /// What the loss multiplies all weights by.
    factor: f64,
}

impl<N: TrainingObjective> Trainer<'_, N> {
    /// The error of a posterior that is no number.
    pub(crate) fn posterior_not_finite(&self, instance: usize, p: f64) -> Error {
        match self.data.row(instance) {
            Some(row) => not_finite(row, p, self.state.trace.len()),
            None => self.non_finite(&format!("a posterior of {p} without features")),
        }
    }

    /// The error of a training whose numbers are no longer finite.
    pub(crate) fn non_finite(&self, found: &str) -> Error {
        let LoopPosition { label: phase, epoch, .. } = &self.position;
        let trains_tables = self.annotator_params.tables.iter().any(|table| !table.is_fixed);
        let or_another = if trains_tables { " or annotator_learning_rate" } else { "" };
        let found = format!("{found} in epoch {epoch} of phase `{phase}`");
        let error = Error::fit("the training diverged");
        let optimiser = &self.spec.optimiser;
        if optimiser.weight_decay > 1.0 && optimiser.learning_rate * optimiser.weight_decay > 1.0 {
            return error
                .at("model.train.optimiser.weight_decay")
                .found(format!("{found}; learning_rate times weight_decay is more than 1"))
                .help("lower weight_decay: each step multiplies it by learning_rate");
        }
        match self.weights().filter(WeightRange::is_extreme) {
            Some(WeightRange { least, largest, .. }) => error
                .at("source.columns.weight")
                .found(format!("{found}, with weights from {least:e} to {largest:e}"))
                .help(WEIGHTS_HELP),
            None => error
                .at("model.train.optimiser.learning_rate")
                .found(found)
                .help(format!("lower learning_rate{or_another}, or set clip_norm")),
        }
    }

    /// Refuses weights of which the largest is so large, or so small, that its square overflows or vanishes: an optimiser
    /// that divides by the size of gradients would leave all parameters as they are.
    ///
    /// # Errors
    /// When there are such weights.
    pub(super) fn refuse_extreme_weights(&self) -> Result<()> {
        match self.weights() {
            Some(WeightRange { least, largest, factor }) if !square_fits(factor * largest) => {
                Err(Error::fit("the weights of the annotations cannot train a network")
                    .at("source.columns.weight")
                    .found(format!("weights from {least:e} to {largest:e}"))
                    .help(WEIGHTS_HELP))
            }
            _ => Ok(()),
        }
    }

    /// The weights of the annotations, where the loss multiplies by them. In a mean over annotations a common factor of all
    /// weights cancels.
    fn weights(&self) -> Option<WeightRange> {
        let a = self.data.annotations;
        if a.is_empty() || !self.model.weighs_annotations() {
            return None;
        }
        let all = (0..a.dims().instances).flat_map(|i| a.annotations_of_instance(i));
        let both =
            |(least, largest): (f64, f64), (_, weight)| (least.min(weight), largest.max(weight));
        let (least, largest) = all.fold((f64::INFINITY, 0.0), both);
        let is_mean = N::REDUCTION.is_some() && self.reduction() == Reduction::MeanAnnotation;
        Some(WeightRange { least, largest, factor: if is_mean { 1.0 / largest } else { 1.0 } })
    }
}

impl WeightRange {
    /// Whether the square of a weight does not fit into 32 bits: an optimiser squares gradients, which are proportional to
    /// weights.
    fn is_extreme(&self) -> bool {
        [self.least, self.largest].iter().any(|weight| !square_fits(self.factor * weight))
    }
}

fn square_fits(weight: f64) -> bool {
    (f64::from(f32::MIN_POSITIVE).sqrt()..=f64::from(f32::MAX).sqrt()).contains(&weight)
}
