//! The input of a model for one question: numbers only.

use std::sync::Arc;

use arrow::array::{ArrayRef, UInt32Array};

use super::annotations::Annotations;
use super::features::{Features, Matrix};
use super::gold::Gold;
use super::ids::Ids;

/// The observations of one question.
#[derive(Clone, Copy)]
pub struct Evidence<'a> {
    /// The annotations.
    pub annotations: &'a Annotations,
    /// The features of instances and annotators, where they are given.
    pub with_features: Option<&'a QuestionFeatures>,
}

impl<'a> From<&'a Annotations> for Evidence<'a> {
    fn from(annotations: &'a Annotations) -> Self {
        Self { annotations, with_features: None }
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
    /// No features of instances, for a model that learns an embedding of each, and these of annotators.
    #[must_use]
    pub fn without_instances(
        instances: usize,
        annotators: Option<(Features, Vec<Option<u32>>)>,
    ) -> Self {
        let none: ArrayRef = Arc::new(UInt32Array::from(Vec::<u32>::new()));
        let matrix = Arc::new(Matrix::from_rows(0, &[]));
        let features = Features { ids: Ids::in_order(none), columns: Vec::new(), matrix };
        // Nothing reads the row.
        let row_of_instance = vec![Some(0); instances];
        Self { features, row_of_instance, gold: Vec::new(), annotators }
    }

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
