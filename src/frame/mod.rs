//! The second stage, and the border where Arrow and strings end: rows become numbers and sparse [`Annotations`].
//!
//! Ids are interned on arrival and numbered once in sorted order ([`Ids`]); what cannot be used goes to [`Rejects`];
//! several questions become several frames. Behind this border a model sees numbers only.

mod annotations;
mod batch_bytes;
mod budget;
mod classes;
mod collect;
mod collector;
mod evidence;
mod features;
mod gold;
mod ids;
mod offsets;
mod optional_columns;
mod prefetch;
mod questions;
mod read_all;
mod rejects;
mod truth;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use annotations::{
    AnnotationRows, Annotations, BLOCK, ColumnRange, Dims, Duplicates, InstanceRange, Repeated,
    WeightSlice,
};
pub use budget::BYTES_PER_ANNOTATION;
pub(crate) use classes::MOST_LABELS;
pub use collect::{Relations, collect, read_features, rows_in};
pub use evidence::{Described, Evidence};
pub use features::{Features, Matrix, MatrixWriter, NumberType, Scratch, number_columns};
pub use gold::{Gold, Role, UnknownGold};
pub use ids::Ids;
pub use offsets::split_by;
pub(crate) use offsets::{Places, count, prefix_sum};
pub use prefetch::prefetch;
pub use read_all::read_all;
pub use rejects::{Reason, Rejects};
pub use truth::{TrueCrowd, Truth};

use crate::source::Scalar;

/// How rows become annotations.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FrameSpec {
    /// The classes, in their order; classes that nobody chose stay. Left out, the labels that occur, sorted.
    #[schemars(length(min = 1))]
    pub classes: Option<Vec<Scalar>>,
    /// Labels that may be said but are no class, such as "unsure".
    pub extra_labels: Vec<Scalar>,
    /// What to do with repeated answers of one annotator to one instance.
    pub duplicates: Duplicates,
}

/// Everything that was read about one question, ready for a model.
#[derive(Clone)]
pub struct Frame {
    /// The question, alone, where questions were declared.
    pub question: Option<Ids>,
    /// The sparse annotations.
    pub annotations: Annotations,
    /// Instances by number.
    pub instances: Ids,
    /// Annotators by number.
    pub annotators: Ids,
    /// Labels by number; the first [`Dims::classes`] of them are the classes.
    pub labels: Ids,
    /// Trusted classes by role.
    pub gold: Vec<Gold>,
    /// Gold that only scores, of classes that the model does not know.
    pub unknown_gold: UnknownGold,
    /// What instances and annotators look like, where the model asks for it.
    pub described: Option<Described>,
    /// Rows that could not be used.
    pub rejects: Rejects,
    /// Questions that have no frame, as no row of theirs can be used: the first frame carries their account.
    pub left_out: Vec<LeftOut>,
    /// Rows that were read, those of the questions left out included.
    pub rows_read: u64,
}

/// A question without a row that can be used.
#[derive(Clone)]
pub struct LeftOut {
    /// The question, alone.
    pub question: Ids,
    /// Its rows.
    pub rejects: Rejects,
    /// Its instances, none of which has a label.
    pub instances: u64,
    /// Those of them that have gold of the role `holdout`.
    pub held_out: u64,
}

impl Frame {
    /// What a model may see.
    #[must_use]
    pub fn evidence(&self) -> Evidence<'_> {
        Evidence { annotations: &self.annotations, described: self.described.as_ref() }
    }

    /// Every account of rows that could not be used.
    pub fn all_rejects(&self) -> impl Iterator<Item = &Rejects> {
        std::iter::once(&self.rejects).chain(self.left_out.iter().map(|question| &question.rejects))
    }

    /// Rows that could not be used.
    #[must_use]
    pub fn rows_rejected(&self) -> u64 {
        self.all_rejects().map(Rejects::total).sum()
    }

    /// Rows that were used.
    #[must_use]
    pub fn rows_used(&self) -> u64 {
        self.rows_read - self.rows_rejected()
    }
}
