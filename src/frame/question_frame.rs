//! What is read about one question.

use super::annotations::Annotations;
use super::evidence::{Evidence, QuestionFeatures};
use super::gold::{Gold, UnknownGold};
use super::ids::Ids;
use super::rejects::Rejects;
use crate::error::Overlap;
use crate::job_context::WarningCode;

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
    /// Labels by number; the first [`Dims::classes`](super::Dims::classes) of them are the classes.
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
    pub n_holdout: u64,
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
pub(super) fn subject_of(question: &Ids) -> String {
    format!("question `{}`", question.text(0))
}
