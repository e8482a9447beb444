//! The questions of a crowd that joins several.

use std::ops::Range;

/// A question in a joint crowd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JointQuestion {
    /// Its position among the questions.
    pub index: usize,
    /// The number of its classes.
    pub classes: usize,
    /// The number of its labels.
    pub labels: usize,
}

impl JointQuestion {
    /// The number in the crowd of a label of the question, where the crowd has so many classes.
    #[must_use]
    pub fn joint_label(self, label: usize, classes: usize) -> usize {
        if label < self.classes { label } else { label - self.classes + classes }
    }

    /// The question's number of a label of the crowd; `None` for a label of other questions alone.
    #[must_use]
    pub fn own_label(self, label: usize, classes: usize) -> Option<usize> {
        let own = if label < classes { label } else { label - classes + self.classes };
        let is_own = if label < classes { own < self.classes } else { own < self.labels };
        is_own.then_some(own)
    }
}

/// The questions of a joint crowd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joint {
    /// The questions, in their order.
    pub questions: Vec<JointQuestion>,
    /// The first instance of each question, and one past the last.
    pub offsets: Vec<usize>,
    /// The number of each instance among the distinct instances of all questions.
    pub shared: Vec<u32>,
    /// The number of distinct instances.
    pub n_shared: usize,
}

impl Joint {
    /// The question of an instance.
    #[must_use]
    pub fn question_of(&self, instance: usize) -> JointQuestion {
        self.questions[self.offsets.partition_point(|first| *first <= instance) - 1]
    }

    /// The instances of a question.
    #[must_use]
    pub fn instances_of(&self, question: JointQuestion) -> Range<usize> {
        self.offsets[question.index]..self.offsets[question.index + 1]
    }
}
