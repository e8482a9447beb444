//! The input of a model for one question: numbers only.

use super::annotations::Annotations;
use super::features::{Features, Matrix};
use super::gold::Gold;

/// The observations of one question.
#[derive(Clone, Copy)]
pub struct Evidence<'a> {
    /// The annotations.
    pub annotations: &'a Annotations,
    /// The features of instances and annotators, where they are given.
    pub described: Option<&'a QuestionFeatures>,
}

impl<'a> From<&'a Annotations> for Evidence<'a> {
    fn from(annotations: &'a Annotations) -> Self {
        Self { annotations, described: None }
    }
}

/// Features, and the rows of the question's instances and annotators in them.
#[derive(Clone)]
pub struct QuestionFeatures {
    /// The features of instances, annotated or not.
    pub features: Features,
    /// The feature row of each annotated instance.
    pub row_of_instance: Vec<Option<u32>>,
    /// Trusted classes by feature row: [`Gold::instance`] is the row.
    pub gold: Vec<Gold>,
    /// The features of annotators, and the row of each annotator.
    pub annotators: Option<(Features, Vec<Option<u32>>)>,
}

impl QuestionFeatures {
    /// The features of instances.
    #[must_use]
    pub fn matrix(&self) -> &Matrix {
        &self.features.matrix
    }

    /// The features of annotators, and the row of each annotator in them.
    #[must_use]
    pub fn annotator_matrix(&self) -> Option<(&Matrix, &[Option<u32>])> {
        self.annotators.as_ref().map(|(features, rows)| (features.matrix.as_ref(), rows.as_slice()))
    }
}
