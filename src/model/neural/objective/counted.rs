//! Confusion matrices from expected counts instead of gradient descent: an M-step in closed form.

use crate::frame::{Annotations, Dims};
use crate::model::neural::data::batch::BatchAnnotation;
use crate::model::neural::objective::batch_context::{BatchContext, BatchPrediction};
use crate::model::neural::params::annotator_matrices::AnnotatorMatrices;
use crate::model::neural::params::annotator_params::AnnotatorParams;
use crate::model::neural::params::param_table::ParamTable;
use crate::model::numerics::at_least;

/// The index of the table of confusion matrices, `[annotator, class * labels + label]`.
const CONFUSION: usize = 0;

/// The table of confusion matrices, filled with zeros.
pub(crate) fn table(dims: Dims) -> ParamTable {
    let row = vec![0.0; dims.classes * dims.labels];
    ParamTable::each("confusion", dims.annotators, &row).fixed()
}

/// Sets the matrices to the expected counts `[pair, class]`, clamped to at least `floor` and divided by the sums of
/// their rows. A row of zeros stays zero, and the rows of a class that nobody names are zero.
///
/// # Why
/// The prior of a class is never 0, so that a little of each posterior belongs to a class that is only listed. A row of
/// such counts would sum to 1 like any other, and within a few rounds annotations would be evidence for that class.
pub(crate) fn count(a: &Annotations, counts: &[f64], floor: f64, params: &mut AnnotatorParams) {
    let Dims { annotators, classes, labels, .. } = a.dims();
    let is_named = named_classes(a);
    let matrices = params.tables[CONFUSION].values.chunks_exact_mut((classes * labels).max(1));
    for (r, matrix) in (0..annotators).zip(matrices) {
        let mut own = of_annotator(a, counts, r);
        own.iter_mut().for_each(|count| *count = at_least(*count, floor));
        let rows = matrix.chunks_exact_mut(labels).zip(own.chunks_exact_mut(labels));
        for ((to, row), is_named) in rows.zip(&is_named) {
            if !is_named {
                row.fill(0.0);
            }
            let sum: f64 = row.iter().sum();
            let share = |count: &f64| if sum == 0.0 { 0.0 } else { count / sum };
            to.iter_mut().zip(row).for_each(|(to, count)| *to = share(count) as f32);
        }
    }
}

/// Whether an annotation or a trusted instance names each class.
pub(crate) fn named_classes(a: &Annotations) -> Vec<bool> {
    let mut is_named = vec![false; a.dims().classes];
    let labels = a.labels_in(0..a.n_pairs()).iter();
    for class in labels.chain(a.trusted.iter().flatten().flatten()) {
        if let Some(is_named) = is_named.get_mut(*class as usize) {
            *is_named = true;
        }
    }
    is_named
}

/// The matrices of an E-step, which adds `added` to each cell.
pub(crate) fn matrices(params: &AnnotatorParams, added: f64, dims: Dims) -> AnnotatorMatrices<'_> {
    AnnotatorMatrices { table: &params.tables[CONFUSION].values, added, labels: dims.labels }
}

/// Divides each row of the matrices by its sum. A row of zeros stays zero.
pub(crate) fn normalise(params: &mut AnnotatorParams, dims: Dims) {
    for row in params.tables[CONFUSION].values.chunks_exact_mut(dims.labels.max(1)) {
        let sum: f64 = row.iter().map(|p| f64::from(*p)).sum();
        if sum > 0.0 {
            row.iter_mut().for_each(|p| *p = (f64::from(*p) / sum) as f32);
        }
    }
}

/// The expected counts of annotator `r`, `[class, label]`, out of those of all pairs, `[pair, class]`.
pub(crate) fn of_annotator(a: &Annotations, counts: &[f64], r: usize) -> Vec<f64> {
    let Dims { classes, labels, .. } = a.dims();
    let mut matrix = vec![0.0; classes * labels];
    for (pair, label) in a.pairs_of_annotator(r).zip(a.labels_of_annotator(r)) {
        let of_pair = &counts[pair * classes..(pair + 1) * classes];
        for (row, count) in matrix.chunks_exact_mut(labels).zip(of_pair) {
            row[*label as usize] = *count;
        }
    }
    matrix
}

/// The matrices `[annotator, class, label]` to report, whose rows are normalised again in f64. A row of zeros, for a
/// class of which the annotator has no annotation, becomes uniform.
pub(crate) fn reported(params: &AnnotatorParams, dims: Dims) -> Vec<f64> {
    let values = params.tables[CONFUSION].values.iter();
    let mut matrices: Vec<f64> = values.map(|v| f64::from(*v)).collect();
    for row in matrices.chunks_exact_mut(dims.labels.max(1)) {
        let sum: f64 = row.iter().sum();
        let uniform = 1.0 / row.len() as f64;
        row.iter_mut().for_each(|p| *p = if sum == 0.0 { uniform } else { *p / sum });
    }
    matrices
}

/// The prediction with these posteriors, and the likelihoods by the matrices.
pub(crate) fn predict(context: &BatchContext<'_>, posterior: Vec<f64>) -> BatchPrediction {
    BatchPrediction {
        classes: context.out.p.clone(),
        posterior,
        likelihood: context.likelihood_by(|_, a, k| cell(context, a, k)),
        parameters: Vec::new(),
    }
}

/// P(label of an annotation given class).
pub(crate) fn cell(context: &BatchContext<'_>, annotation: &BatchAnnotation, k: usize) -> f64 {
    let Dims { classes, labels, .. } = context.dims;
    let row = annotation.annotator as usize * classes + k;
    context.gathered[CONFUSION][row * labels + annotation.label as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tiny;

    /// Two labels of four classes are given, and a trusted instance has class 2; the annotation is of class 3 in part.
    #[test]
    fn a_class_that_nobody_names_has_rows_of_zeros() {
        let mut a = tiny(4, &[(0, 0, 0), (1, 0, 1)]);
        a.trusted = Some(vec![None, Some(2)]);
        let counts = [0.7, 0.1, 0.0, 0.2, 0.0, 0.0, 1.0, 1e-9];
        let mut params = AnnotatorParams { tables: vec![table(a.dims())] };
        for floor in [0.0, 0.1] {
            count(&a, &counts, floor, &mut params);
            let rows: Vec<&[f32]> = params.tables[CONFUSION].values.chunks_exact(4).collect();
            assert_eq!(rows[3], [0.0; 4]);
            for (k, row) in rows[..3].iter().enumerate() {
                assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-6, "class {k}: {row:?}");
            }
        }
    }

    /// Two annotators, two classes and labels: pairs are (annotator, label). The second annotator's counts of class 1
    /// are no numbers.
    #[test]
    fn counts_that_are_no_numbers_stay_visible() {
        let a = tiny(2, &[(0, 0, 0), (1, 0, 1), (0, 1, 0), (1, 1, 1)]);
        let counts = [3.0, 0.0, 1.0, 0.0, 2.0, f64::NAN, 2.0, 4.0];
        let mut params = AnnotatorParams { tables: vec![table(a.dims())] };
        count(&a, &counts, 0.0, &mut params);
        let got = reported(&params, a.dims());
        // Class 0 of annotator 0, whose class 1 has no counts; then class 0 of annotator 1.
        assert_eq!(got[..6], [0.75, 0.25, 0.5, 0.5, 0.5, 0.5]);
        assert!(got[6..].iter().all(|p| p.is_nan()), "{got:?}");
        count(&a, &counts, 1.0, &mut params);
        let floored = &params.tables[CONFUSION].values;
        assert_eq!(floored[..6], [0.75, 0.25, 0.5, 0.5, 0.5, 0.5]);
        assert!(floored[6..].iter().all(|p| p.is_nan()), "{floored:?}");
    }
}
