//! Estimators: from an annotator's expected counts to the likelihood. `smoothing` is maximum likelihood with pseudo-counts,
//! `dirichlet` is variational. An estimator that no other model could use is beside its model.

use super::logarithms::ln_floored;
use super::padded_matrix::{stride, with_buffer};
use super::row_arithmetic::in_vectors;

/// The annotator whose counts an estimator receives.
#[derive(Debug, Clone, Copy)]
pub struct Annotator<'a> {
    /// The annotator's number, for estimators with parameters of each annotator.
    pub index: u32,
    /// The labels that the annotator used, ascending: one for each column.
    pub labels: &'a [u32],
    /// The number of classes.
    pub n_classes: usize,
}

/// Annotators with one annotation each: the rows of their only columns. Several annotators may share a row.
#[derive(Debug, Clone, Copy)]
pub struct SingletonRows<'a> {
    /// The annotator of each row; all 0 unless the estimator says that it reads them.
    pub annotators: &'a [u32],
    /// The label of each row; all 0 unless the estimator says that it reads them.
    pub labels: &'a [u32],
    /// The number of annotators who share each row.
    pub repeats: &'a [u32],
}

/// The singleton annotators of an instance whose annotations have weights.
#[derive(Debug, Clone, Copy)]
pub struct WeightedSingletons<'a> {
    /// One row for each annotator.
    pub rows: SingletonRows<'a>,
    /// The weight of each annotator's annotation.
    pub weights: &'a [f64],
    /// The posterior of the instance in the last M-step, `[class]`, padded with zeros to at least eight numbers.
    pub posterior: &'a [f64],
    /// The number of classes.
    pub n_classes: usize,
}

/// What an estimator reads of a singleton annotator, beside the posterior of its only instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SingletonInput {
    /// Nothing: one row serves all singleton annotators of an instance.
    Posterior,
    /// The label.
    Label,
    /// The label and the annotator.
    Annotator,
}

/// A stored cell of a sparse confusion column.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SparseCell {
    /// The class.
    pub class: u32,
    /// Inside an [`Estimator`], the expected count or the likelihood; in the stored columns, the ratio of the
    /// likelihood to that of a label that the annotator never used, or the logarithm of this ratio.
    pub value: f64,
}

/// Turns the expected counts of one annotator at a time into the likelihood, whose columns the E-step multiplies.
///
/// A likelihood is finite, and may be below [`MIN_LIKELIHOOD`](crate::model::numerics::MIN_LIKELIHOOD): the kernels raise
/// it. Logarithms are raised by the estimator. Rows of a confusion matrix need not sum to 1.
pub trait Estimator: Sync + Sized {
    /// Replaces the expected counts in `cells`, [`stride`](super::stride) numbers for each column, by the
    /// likelihood of the same columns. The padding at the end of a column may be overwritten. Returns the annotator's
    /// term of the objective, such as minus the KL divergence from a Dirichlet prior, or 0 if it has none. `K` is the
    /// number of classes if there is a specialised kernel for it, else 0.
    fn estimate<const K: usize>(&self, annotator: Annotator<'_>, cells: &mut [f64]) -> f64;

    /// Like [`Estimator::estimate`], but replaces counts by the logarithms of likelihoods, which it raises to
    /// [`MIN_LIKELIHOOD`](crate::model::numerics::MIN_LIKELIHOOD).
    #[inline(always)]
    fn estimate_logs<const K: usize>(&self, annotator: Annotator<'_>, cells: &mut [f64]) -> f64 {
        let term = self.estimate::<K>(annotator, cells);
        ln_floored(cells);
        term
    }

    /// Like [`Estimator::estimate`], for sparse columns. `cells` holds the cells with a count and the diagonal cells,
    /// column by column; the cells of the `n`-th column end at `ends[n]`. The estimator replaces their counts by
    /// likelihoods. It also writes into `unused`, `[class]`, the likelihood of an off-diagonal cell without a count,
    /// which holds for all cells that are not in `cells`.
    ///
    /// Only called if [`Estimator::allows_sparse_columns`]. By default it is [`Estimator::estimate`] of the dense columns.
    /// An estimator has a form of its own if an estimate of a cell without a count takes long.
    fn estimate_sparse(
        &self,
        annotator: Annotator<'_>,
        ends: &[usize],
        cells: &mut [SparseCell],
        unused: &mut [f64],
    ) -> f64 {
        estimate_as_dense(self, annotator, ends, cells, unused)
    }

    /// Whether all off-diagonal cells of an annotator without a count have one likelihood for each class, whatever the
    /// label. It is not so if the estimator is tied across annotators. If false, the M-step stores dense columns with
    /// every strategy.
    fn allows_sparse_columns(&self) -> bool;

    /// Like [`Estimator::estimate`], for annotators with one annotation each. `cells` begins with the counts of the rows,
    /// `[row, class]` without padding. Returns the sum of all annotators' terms. By default it calls
    /// [`Estimator::estimate`] for each row.
    fn estimate_singletons(
        &self,
        rows: SingletonRows<'_>,
        n_classes: usize,
        cells: &mut [f64],
    ) -> f64 {
        estimate_each::<false>(self, rows, n_classes, cells)
    }

    /// Adds the logarithms of the columns of an instance's singleton annotators, as [`Estimator::estimate_logs`], each
    /// times its annotation's weight, to `sums`, which is padded as the posterior; its padding may be overwritten. Returns
    /// the sum of the annotators' terms. By default it calls [`Estimator::estimate_logs`] for each annotator.
    fn add_singleton_logs(&self, singletons: &WeightedSingletons<'_>, sums: &mut [f64]) -> f64 {
        add_logs_of_each(self, singletons, sums)
    }

    /// What the column of a singleton annotator depends on.
    ///
    /// # Why
    /// Labels and annotators of columns are random reads from memory, and the less is read, the more rows are shared.
    fn singleton_input(&self) -> SingletonInput {
        SingletonInput::Label
    }
}

/// The methods of an [`Estimator`] that have no generic parameters, so that kernels can call them through a pointer.
pub trait SingletonEstimator: Sync {
    /// [`Estimator::estimate_singletons`].
    fn estimate_rows(&self, rows: SingletonRows<'_>, n_classes: usize, cells: &mut [f64]) -> f64;
    /// [`Estimator::estimate_logs`] for each row. `cells` is as in [`Estimator::estimate_singletons`].
    fn estimate_row_logs(
        &self,
        rows: SingletonRows<'_>,
        n_classes: usize,
        cells: &mut [f64],
    ) -> f64;
    /// [`Estimator::add_singleton_logs`].
    fn add_row_logs(&self, singletons: &WeightedSingletons<'_>, sums: &mut [f64]) -> f64;
    /// [`Estimator::singleton_input`].
    fn input(&self) -> SingletonInput;
}

impl<E: Estimator> SingletonEstimator for E {
    fn estimate_rows(&self, rows: SingletonRows<'_>, n_classes: usize, cells: &mut [f64]) -> f64 {
        self.estimate_singletons(rows, n_classes, cells)
    }

    fn estimate_row_logs(
        &self,
        rows: SingletonRows<'_>,
        n_classes: usize,
        cells: &mut [f64],
    ) -> f64 {
        estimate_each::<true>(self, rows, n_classes, cells)
    }

    fn add_row_logs(&self, singletons: &WeightedSingletons<'_>, sums: &mut [f64]) -> f64 {
        self.add_singleton_logs(singletons, sums)
    }

    fn input(&self) -> SingletonInput {
        self.singleton_input()
    }
}

/// [`Estimator::estimate_sparse`] by a call of [`Estimator::estimate`] with the annotator's dense columns.
fn estimate_as_dense(
    estimator: &impl Estimator,
    annotator: Annotator<'_>,
    ends: &[usize],
    cells: &mut [SparseCell],
    unused: &mut [f64],
) -> f64 {
    let (n, width) = (annotator.n_classes, stride(annotator.n_classes));
    let mut columns = vec![0.0; annotator.labels.len() * width];
    let starts = || std::iter::once(&0).chain(ends);
    let ranges = || starts().zip(ends).map(|(start, end)| *start..*end);
    for (column, range) in columns.chunks_exact_mut(width).zip(ranges()) {
        cells[range].iter().for_each(|cell| column[cell.class as usize] = cell.value);
    }
    let term = estimator.estimate::<0>(annotator, &mut columns);
    // If all cells of a class are listed, any number will do: the caller stores the ratios of the cells to it.
    unused.fill(1.0);
    let mut is_listed = vec![false; n];
    for (column, range) in columns.chunks_exact(width).zip(ranges()) {
        is_listed.fill(false);
        for cell in &mut cells[range] {
            cell.value = column[cell.class as usize];
            is_listed[cell.class as usize] = true;
        }
        let others = column.iter().zip(unused.iter_mut()).zip(&is_listed);
        others.filter(|(_, listed)| !**listed).for_each(|((cell, unused), _)| *unused = *cell);
    }
    term
}

/// [`Estimator::add_singleton_logs`] by calls of [`Estimator::estimate_logs`].
pub(super) fn add_logs_of_each(
    estimator: &impl Estimator,
    singletons: &WeightedSingletons<'_>,
    sums: &mut [f64],
) -> f64 {
    let WeightedSingletons { rows, weights, posterior, n_classes } = *singletons;
    in_vectors(
        sums,
        #[inline(always)]
        move |sums| {
            with_buffer::<0>(
                n_classes,
                #[inline(always)]
                |column| {
                    let (mut terms, annotators) = (0.0, rows.annotators.iter().zip(rows.labels));
                    for ((index, label), weight) in annotators.zip(weights) {
                        for (count, p) in column.iter_mut().zip(posterior) {
                            *count = weight * p;
                        }
                        let annotator = Annotator { index: *index, labels: &[*label], n_classes };
                        terms += estimator.estimate_logs::<0>(annotator, column);
                        for (sum, log) in sums.iter_mut().zip(&*column) {
                            *sum += weight * log;
                        }
                    }
                    terms
                },
            )
        },
    )
}

/// [`Estimator::estimate`] for each singleton annotator, or [`Estimator::estimate_logs`] if `LOGS`; returns the sum of
/// their terms.
pub(super) fn estimate_each<const LOGS: bool>(
    estimator: &impl Estimator,
    SingletonRows { annotators, labels, repeats }: SingletonRows<'_>,
    n_classes: usize,
    cells: &mut [f64],
) -> f64 {
    in_vectors(
        cells,
        #[inline(always)]
        move |cells| {
            with_buffer::<0>(
                n_classes,
                #[inline(always)]
                |column| {
                    let mut terms = 0.0;
                    let rows = cells.chunks_exact_mut(n_classes.max(1)).zip(annotators);
                    for ((row, index), (label, repeats)) in rows.zip(labels.iter().zip(repeats)) {
                        let annotator = Annotator { index: *index, labels: &[*label], n_classes };
                        column[..n_classes].copy_from_slice(row);
                        let term = if LOGS {
                            estimator.estimate_logs::<0>(annotator, column)
                        } else {
                            estimator.estimate::<0>(annotator, column)
                        };
                        terms += f64::from(*repeats) * term;
                        row.copy_from_slice(&column[..n_classes]);
                    }
                    terms
                },
            )
        },
    )
}
