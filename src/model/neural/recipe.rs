//! How a network is trained, as a user writes it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::batch::{Batch, Cut};
use super::net::Precision;
use super::optimiser::OptimiserSpec;
use crate::frame::Dims;

/// What a batch is a batch of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BatchBy {
    /// Instances, with all their annotations.
    #[default]
    Instance,
    /// Annotations.
    Annotation,
}

/// Which epoch's model is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Select {
    /// The last.
    #[default]
    Last,
    /// The one that is most often right on gold of the role `valid`.
    Valid,
    /// The one that gives held-out annotations the greatest likelihood; needs no gold.
    AnnotationLikelihood,
}

/// What the sum of the annotations' losses in a batch is divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// Nothing.
    Sum,
    /// The annotations.
    MeanAnnotation,
    /// The instances.
    MeanInstance,
    /// Instances times annotators, as if everybody had answered.
    MeanDense,
}

impl Reduction {
    /// The factor of a batch.
    #[must_use]
    pub fn factor(self, batch: &Batch, dims: Dims) -> f64 {
        let of = match self {
            Self::Sum => 1,
            Self::MeanAnnotation => batch.said.len(),
            Self::MeanInstance => batch.len(),
            Self::MeanDense => batch.len() * dims.annotators,
        };
        1.0 / of.max(1) as f64
    }
}

/// How a network is trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrainSpec {
    /// How often every instance is seen.
    #[schemars(range(min = 1))]
    pub epochs: u32,
    /// Rows in a batch; left out, 128, or an eighth of all where that is less.
    #[schemars(range(min = 1))]
    pub batch_size: Option<usize>,
    /// What a batch is a batch of.
    pub batch_by: BatchBy,
    /// What the annotations' losses are divided by; left out, the model's own custom.
    pub reduction: Option<Reduction>,
    /// The optimiser.
    pub optimiser: OptimiserSpec,
    /// Which epoch's model is kept.
    pub select: Select,
    /// The share of annotations that `annotation_likelihood` holds out.
    #[schemars(range(min = 0.0, max = 0.9))]
    pub held_out: f64,
    /// How much each epoch's end leaves of the average of all parameters at the ends of epochs, from 0 to below 1. The
    /// average is judged and kept in place of the parameters themselves; 0 keeps none.
    #[schemars(range(min = 0.0, max = 0.999))]
    pub average: f64,
    /// Stop after so many epochs in which the selection found nothing better.
    pub patience: Option<u32>,
    /// How numbers are stored while the network computes.
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
            precision: Precision::F32,
        }
    }
}

impl TrainSpec {
    /// How the data are cut, for a model that may want whole batches only.
    pub(super) fn cut(&self, whole_only: bool) -> Cut {
        Cut {
            batch_size: self.batch_size,
            by_annotation: self.batch_by == BatchBy::Annotation,
            whole_only,
        }
    }
}
