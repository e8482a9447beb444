//! The sizes of a model, which a saved model states.

use serde::{Deserialize, Serialize};

use crate::frame::JointQuestion;

/// The sizes of a model's inputs and outputs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// The axes of one instance's features.
    pub features: Vec<usize>,
    /// The number of classes.
    pub classes: usize,
    /// The number of labels.
    pub labels: usize,
    /// The number of annotators that the model was trained on.
    pub annotators: usize,
    /// The number of features of one annotator, if the data have annotator features.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotator_features: Option<usize>,
    /// The numbers of classes and labels of each question of a joint fit; empty for a fit to one question.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub questions: Vec<(usize, usize)>,
    /// The question of a saved model among them.
    #[serde(default, skip_serializing_if = "is_first")]
    pub question: usize,
}

/// Whether a question is the first.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_first(question: &usize) -> bool {
    *question == 0
}

impl Sizes {
    /// The number of questions that the networks have outputs for.
    #[must_use]
    pub fn n_questions(&self) -> usize {
        self.questions.len().max(1)
    }

    /// A question of a joint fit; `None` for a fit to one question.
    #[must_use]
    pub fn joint_question(&self, index: usize) -> Option<JointQuestion> {
        let (classes, labels) = *self.questions.get(index)?;
        Some(JointQuestion { index, classes, labels })
    }

    /// The sizes of the model that is saved for a question of a joint fit.
    #[must_use]
    pub fn of_question(&self, question: JointQuestion) -> Self {
        let JointQuestion { index, classes, labels } = question;
        Self { classes, labels, question: index, ..self.clone() }
    }

    /// The sizes of the joint fit, of which a model was saved for one question.
    #[must_use]
    pub fn of_joint(&self) -> Self {
        let Some(classes) = self.questions.iter().map(|(classes, _)| *classes).max() else {
            return self.clone();
        };
        let extra = self.questions.iter().map(|(classes, labels)| labels.saturating_sub(*classes));
        Self { classes, labels: classes + extra.max().unwrap_or_default(), ..self.clone() }
    }

    /// Whether instances have features.
    #[must_use]
    pub fn has_features(&self) -> bool {
        !self.features.contains(&0)
    }
}
