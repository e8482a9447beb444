//! The second stage: Arrow batches with ids of any type become numbers and sparse [`Annotations`].
//!
//! Ids are interned on arrival and numbered once in sorted order ([`Ids`]); rows that cannot be used are counted in
//! [`Rejects`]; several questions become several frames. A model sees numbers only.

mod annotations;
mod classes;
mod collect;
mod evidence;
mod features;
mod given;
mod gold;
mod ids;
mod memory;
mod question_set;
mod rejects;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use annotations::blocks::{ITEMS_PER_BLOCK, MAX_RANGES, ranges_of_instances};
pub use annotations::joint::{Joint, JointQuestion};
pub use annotations::offsets::split_by;
#[cfg(feature = "neural")]
pub(crate) use annotations::offsets::{Cursors, count, prefix_sum};
pub use annotations::{
    AnnotationRows, Annotations, Dims, Duplicates, InstanceRange, Repeated, WeightIter, WeightSlice,
};
pub(crate) use classes::MAX_LABELS;
pub use collect::questions::{check_columns, check_listed_labels};
pub use collect::read_all::read_all;
pub use collect::relations::{Relations, collect, read_features, rows_in};
pub use evidence::{Evidence, QuestionFeatures};
pub use features::{Features, Matrix, MatrixWriter, NumberType, Scratch, number_columns};
pub use given::{GivenConfusion, GivenPredictions, GivenTables};
pub use gold::role::Role;
pub use gold::truth::{TrueCrowd, Truth};
pub use gold::{Gold, UnknownGold};
pub(crate) use ids::IdIndex;
pub use ids::Ids;
pub(crate) use ids::exact_text::cast_exact_text;
pub use ids::id_columns::{check_type_of_features, check_types_of};
pub use memory::budget::BYTES_PER_ANNOTATION;
pub use memory::estimate::{
    EstimateMemory, EstimateOfJob, MemoryEstimate, QuestionSizes, dense_memory_estimate,
};
pub use question_set::QuestionSet;
pub use rejects::{KEPT_CHARACTERS, Reason, Rejects};

use crate::error::Overlap;
use crate::job_context::WarningCode;
use crate::source::{Cleaning, Scalar};

/// How rows become annotations.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FrameSpec {
    /// The classes, in their order; classes that nobody chose stay. By default the labels that occur and the classes of
    /// gold, except gold of the role `holdout`, sorted.
    #[schemars(length(min = 1))]
    pub classes: Option<Vec<Scalar>>,
    /// Labels that annotators may give but that are not classes, such as "unsure".
    pub extra_labels: Vec<Scalar>,
    /// What to do with repeated annotations of one instance by one annotator.
    pub duplicates: Duplicates,
}

impl FrameSpec {
    /// The spec with its labels spelled as those of the annotations are.
    #[must_use]
    pub fn normalised(&self, cleaning: &Cleaning) -> Self {
        let normal = |label: &Scalar| match label {
            Scalar::Text(text) => Scalar::Text(cleaning.normalised(text)),
            other => other.clone(),
        };
        let all = |labels: &Vec<Scalar>| labels.iter().map(normal).collect();
        Self {
            classes: self.classes.as_ref().map(all),
            extra_labels: all(&self.extra_labels),
            duplicates: self.duplicates,
        }
    }
}

/// Everything that was read about one question, ready for a model.
#[derive(Clone)]
pub struct Frame {
    /// The question, as ids of length 1, where questions are declared.
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
    /// Gold that only scores, of classes that the run does not have.
    pub unknown_gold: UnknownGold,
    /// The instances and the classes of gold, and those among them that no annotation has; none without gold.
    pub gold_overlaps: Vec<Overlap>,
    /// The rows of gold whose instances no annotation has, until the features are read, which may have them.
    pub(crate) unread_gold: Vec<u32>,
    /// The labels and those among them that are not listed; `None` where classes are not listed.
    pub listed: Option<Overlap>,
    /// The features of instances and annotators, where the model needs them.
    pub with_features: Option<QuestionFeatures>,
    /// Rows that could not be used.
    pub rejects: Rejects,
    /// Questions without a frame, because none of their rows can be used. Only the first frame lists them.
    pub left_out: Vec<QuestionLeftOut>,
    /// Doubts about the spelling of values and about the shape of the table.
    pub warnings: Vec<(WarningCode, String)>,
    /// The number of rows that were read, including those of `left_out`.
    pub rows_read: u64,
}

/// A question without a row that can be used.
#[derive(Clone)]
pub struct QuestionLeftOut {
    /// The question, as ids of length 1.
    pub question: Ids,
    /// Its rows.
    pub rejects: Rejects,
    /// The number of its instances, none of which has a label.
    pub instances: u64,
    /// The number of its instances with gold of the role `holdout`.
    pub held_out: u64,
}

impl Frame {
    /// The part that a model may see.
    #[must_use]
    pub fn evidence(&self) -> Evidence<'_> {
        Evidence { annotations: &self.annotations, with_features: self.with_features.as_ref() }
    }

    /// The classes as text, in their order.
    #[must_use]
    pub fn classes(&self) -> Vec<String> {
        (0..self.annotations.dims().classes).map(|class| self.labels.text(class)).collect()
    }

    /// The question in messages, where questions are declared.
    pub(crate) fn subject(&self) -> Option<String> {
        self.question.as_ref().map(subject_of)
    }

    /// The rejects of this question and of the questions left out.
    pub fn all_rejects(&self) -> impl Iterator<Item = &Rejects> {
        std::iter::once(&self.rejects).chain(self.left_out.iter().map(|question| &question.rejects))
    }

    /// The number of rows that could not be used.
    #[must_use]
    pub fn rows_rejected(&self) -> u64 {
        self.all_rejects().map(Rejects::total).sum()
    }

    /// The number of rows that were used.
    #[must_use]
    pub fn rows_used(&self) -> u64 {
        self.rows_read - self.rows_rejected()
    }
}

/// A question in messages.
fn subject_of(question: &Ids) -> String {
    format!("question `{}`", question.text(0))
}
