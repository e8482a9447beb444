//! What tables beside the annotations give: the probabilities of the classes of instances, confusion matrices, and pairs
//! that the job asks about.

use std::sync::Arc;

/// The tables beside the annotations of one question; none where the job names none, or the model reads none.
#[derive(Debug, Clone, Default)]
pub struct GivenTables {
    /// P(class) of the instances.
    pub predictions: Option<Arc<GivenPredictions>>,
    /// The annotators' confusion matrices.
    pub confusion: Option<Arc<GivenConfusion>>,
    /// The pairs (instance, annotator) that the job asks about, ascending, each once.
    pub pairs: Arc<Vec<(u32, u32)>>,
}

/// P(class) of instances, by a classifier of the user's.
#[derive(Debug, Clone, PartialEq)]
pub struct GivenPredictions {
    n_classes: usize,
    row_of_instance: Vec<Option<u32>>,
    /// `[row, class]`; each row sums to 1.
    values: Vec<f64>,
}

impl GivenPredictions {
    /// From the row of each instance, where it has one, and the rows `[row, class]`, each of sum 1.
    #[must_use]
    pub fn new(n_classes: usize, row_of_instance: Vec<Option<u32>>, values: Vec<f64>) -> Self {
        Self { n_classes, row_of_instance, values }
    }

    /// P(class) of instance `i`, where it is given.
    #[must_use]
    pub fn row(&self, i: usize) -> Option<&[f64]> {
        let row = self.row_of_instance.get(i).copied().flatten()? as usize;
        self.values.get(row * self.n_classes..(row + 1) * self.n_classes)
    }
}

/// How far a start is drawn to chance.
const SOFTENING: f64 = 0.02;

/// P(label given class) of annotators, as the user knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct GivenConfusion {
    n_classes: usize,
    n_labels: usize,
    matrix_of_annotator: Vec<u32>,
    /// `[matrix, class, label]`; each row sums to 1.
    cells: Vec<f64>,
}

impl GivenConfusion {
    /// From the matrix of each annotator and the matrices, `[matrix, class, label]`, whose rows sum to 1. Annotators may
    /// share a matrix.
    #[must_use]
    pub fn new(
        (n_classes, n_labels): (usize, usize),
        matrix_of_annotator: Vec<u32>,
        cells: Vec<f64>,
    ) -> Self {
        Self { n_classes, n_labels, matrix_of_annotator, cells }
    }

    /// P(`label` given `class`) of annotator `r`.
    #[inline]
    #[must_use]
    pub fn cell(&self, r: usize, class: usize, label: usize) -> f64 {
        let matrix = self.matrix_of_annotator[r] as usize;
        self.cells[(matrix * self.n_classes + class) * self.n_labels + label]
    }

    /// A cell, drawn by a fiftieth to chance, for a fit that starts at it.
    ///
    /// # Why
    /// A 0 or 1 counted on a few annotations would rule out classes, and the fit could never correct it.
    #[must_use]
    pub fn soften(&self, cell: f64) -> f64 {
        cell + SOFTENING * (1.0 / self.n_labels.max(1) as f64 - cell)
    }

    /// The matrix of annotator `r`, `[class, label]`.
    #[must_use]
    pub fn matrix_of(&self, r: usize) -> &[f64] {
        let (width, matrix) =
            (self.n_classes * self.n_labels, self.matrix_of_annotator[r] as usize);
        &self.cells[matrix * width..(matrix + 1) * width]
    }

    /// The matrix of each annotator.
    #[must_use]
    pub fn matrix_of_annotator(&self) -> &[u32] {
        &self.matrix_of_annotator
    }

    /// The matrices, `[matrix, class, label]`.
    #[must_use]
    pub fn cells(&self) -> &[f64] {
        &self.cells
    }
}
