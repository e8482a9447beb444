//! The spec of a network's training.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::frame::Dims;
use crate::model::neural::data::{batch::Batch, batching::Batching};
use crate::model::neural::net::optimiser::optimiser_spec::OptimiserSpec;
use crate::model::neural::net::precision::Precision;

/// What an example of a batch is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BatchBy {
    /// An instance with all its annotations.
    #[default]
    Instance,
    /// A single annotation with its instance.
    Annotation,
}

/// The rule that chooses the epoch whose model is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Select {
    /// The last epoch.
    #[default]
    Last,
    /// The epoch with the best accuracy on gold of the role `valid`.
    Valid,
    /// The epoch with the greatest likelihood of held-out annotations; needs no gold.
    AnnotationLikelihood,
}

/// The divisor of the sum of the annotations' losses in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// One: the plain sum.
    Sum,
    /// The sum of the annotations' weights: a soft annotation of several rows counts as one, and so does a trusted
    /// class, whose loss is added to those of the annotations.
    MeanAnnotation,
    /// The number of the batch's rows: of instances, or of annotations with `batch_by = "annotation"`.
    MeanInstance,
    /// The number of the batch's rows times that of annotators, as if every annotator had labelled every row.
    MeanDense,
}

impl Reduction {
    /// One over the divisor, for a batch with the losses of `trusted` trusted classes.
    #[must_use]
    pub fn factor(self, batch: &Batch, trusted: f64, dims: Dims) -> f64 {
        let divisor = match self {
            Self::Sum => 1.0,
            Self::MeanAnnotation => {
                batch.annotations.iter().map(|a| a.weight).sum::<f64>() + trusted
            }
            Self::MeanInstance => batch.len() as f64,
            Self::MeanDense => (batch.len() * dims.annotators) as f64,
        };
        if divisor > 0.0 { 1.0 / divisor } else { 1.0 }
    }
}

/// How a network is trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrainSpec {
    /// Passes over the training data.
    #[schemars(range(min = 1))]
    pub epochs: u32,
    /// Rows in a batch; left out, 128, or an eighth of all where that is less.
    #[schemars(range(min = 1))]
    pub batch_size: Option<usize>,
    /// What an example of a batch is.
    pub batch_by: BatchBy,
    /// The divisor of the annotations' losses; left out, the model's default.
    pub reduction: Option<Reduction>,
    /// The optimiser.
    pub optimiser: OptimiserSpec,
    /// The rule that chooses the epoch whose model is kept.
    pub select: Select,
    /// The share of annotations that `annotation_likelihood` holds out.
    #[schemars(range(min = 0.0, max = 0.9))]
    pub held_out: f64,
    /// The decay of an exponential average of all parameters, counted confusion matrices among them, from 0 to below 1,
    /// updated at the end of each epoch whose parameters could be kept (in `tcl`, those of the retraining). The average is
    /// scored and kept in place of the parameters themselves; 0 for none.
    #[schemars(range(min = 0.0, max = 0.999))]
    pub average: f64,
    /// Stop after this many epochs without an improvement.
    pub patience: Option<u32>,
    /// Epochs between two checkpoints, from which an interrupted job resumes; left out, one epoch, or none if
    /// `checkpoint_minutes` is given. With both, a checkpoint is written when either interval has passed.
    #[schemars(range(min = 1))]
    pub checkpoint_epochs: Option<u32>,
    /// Minutes between two checkpoints, which are written at the end of an epoch.
    #[schemars(range(min = 0.0))]
    pub checkpoint_minutes: Option<f64>,
    /// The floating-point type of the network's matrix products and convolutions.
    pub precision: Precision,
}

impl Default for TrainSpec {
    fn default() -> Self {
        Self {
            epochs: 30,
            batch_size: None,
            batch_by: BatchBy::Instance,
            reduction: None,
            optimiser: OptimiserSpec::default(),
            select: Select::Last,
            held_out: 0.1,
            average: 0.0,
            patience: None,
            checkpoint_epochs: None,
            checkpoint_minutes: None,
            precision: Precision::F32,
        }
    }
}

impl TrainSpec {
    /// Whether a checkpoint is due at the end of the epoch of this number, from 1 over all phases, `seconds` after the
    /// last checkpoint.
    pub(crate) fn is_checkpoint_due(&self, epoch: usize, seconds: f64) -> bool {
        let default = self.checkpoint_minutes.is_none().then_some(1);
        let epochs = self.checkpoint_epochs.or(default);
        epochs.is_some_and(|every| epoch.is_multiple_of(every.max(1) as usize))
            || self.checkpoint_minutes.is_some_and(|every| seconds >= 60.0 * every)
    }

    /// The split of training data into batches; `drops_last` leaves out an incomplete last batch.
    pub(crate) fn batching(&self, drops_last: bool) -> Batching {
        Batching {
            batch_size: self.batch_size,
            by_annotation: self.batch_by == BatchBy::Annotation,
            drops_last,
        }
    }
}
