//! Estimators: from an annotator's expected counts to the likelihood. [`Smoothing`] is here, others are with their
//! models.

use pulp::Arch;

use super::log_domain::{floor_or_ln, ln, ln_1p, ln_ratio};
use super::padded_matrix::stride;
use super::width::width;
use crate::model::confusion::Smoothing;
use crate::model::numerics::{MIN_LIKELIHOOD, MIN_PROBABILITY};

/// The annotator whose counts an estimator receives.
#[derive(Debug, Clone, Copy)]
pub struct Annotator<'a> {
    /// The labels that the annotator used, ascending: one for each column.
    pub labels: &'a [u32],
    /// The number of classes.
    pub n_classes: usize,
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
/// A likelihood may be below [`MIN_LIKELIHOOD`]: the kernels raise it. Rows of a confusion matrix need not sum to 1.
pub trait Estimator: Sync {
    /// Replaces the expected counts in `cells`, [`stride`](super::stride) numbers for each column, by the
    /// likelihood of the same columns. The padding at the end of a column may be overwritten. Returns the annotator's
    /// term of the objective, such as minus the KL divergence from a Dirichlet prior, or 0 if it has none. `K` is the
    /// number of classes if there is a specialised kernel for it, else 0.
    fn estimate<const K: usize>(&self, annotator: Annotator<'_>, cells: &mut [f64]) -> f64
    where
        Self: Sized;

    /// Like [`Estimator::estimate`], for sparse columns. `cells` holds the cells with a count and the diagonal cells,
    /// column by column; the cells of the `n`-th column end at `ends[n]`. The estimator replaces their counts by
    /// likelihoods. It also writes into `unused`, `[class]`, the likelihood of an off-diagonal cell without a count,
    /// which holds for all cells that are not in `cells`.
    ///
    /// By default it is [`Estimator::estimate`] of the whole columns. An estimator has a form of its own if an estimate of
    /// a cell without a count takes long. One whose cells without a count differ from label to label, such as one that is
    /// tied across annotators, is for dense columns only.
    fn estimate_sparse(
        &self,
        annotator: Annotator<'_>,
        ends: &[usize],
        cells: &mut [SparseCell],
        unused: &mut [f64],
    ) -> f64
    where
        Self: Sized,
    {
        estimate_whole(self, annotator, ends, cells, unused)
    }

    /// Like [`Estimator::estimate`], for annotators with one annotation each. `rows` has the label of each row, and the
    /// number of annotators who share the row; `cells` begins with their counts, `[row, class]` without padding. Returns
    /// the sum of all annotators' terms. [`estimate_each`] does this for any estimator. The method has no generic
    /// parameters, so that kernels can call it through a pointer.
    fn estimate_singletons(
        &self,
        rows: (&[u32], &[u32]),
        n_classes: usize,
        cells: &mut [f64],
    ) -> f64;

    /// Like [`Estimator::estimate_singletons`], but replaces counts by the logarithms of likelihoods, which it raises to
    /// [`MIN_LIKELIHOOD`].
    fn estimate_singleton_logs(
        &self,
        rows: (&[u32], &[u32]),
        n_classes: usize,
        cells: &mut [f64],
    ) -> f64 {
        logs_of_estimates(self, rows, n_classes, cells)
    }

    /// Whether the column of a singleton annotator depends on its label, and not only on the posterior. If it does not,
    /// the labels passed to [`Estimator::estimate_singletons`] are arbitrary, and one row serves all singleton annotators
    /// of an instance.
    fn label_matters(&self) -> bool {
        true
    }
}

/// [`Estimator::estimate_sparse`] by a call of [`Estimator::estimate`] with the annotator's whole columns.
fn estimate_whole(
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
    // A class all of whose cells are listed has no other cell, so that its number is of no use.
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

/// [`Estimator::estimate_singletons`] by one call of [`Estimator::estimate`] for each row.
pub fn estimate_each(
    estimator: &impl Estimator,
    (labels, repeats): (&[u32], &[u32]),
    n_classes: usize,
    cells: &mut [f64],
) -> f64 {
    let (mut padded, mut terms) = (vec![0.0; stride(n_classes)], 0.0);
    let rows = cells.chunks_exact_mut(n_classes.max(1));
    for (row, (label, repeats)) in rows.zip(labels.iter().zip(repeats)) {
        let annotator = Annotator { labels: &[*label], n_classes };
        padded[..n_classes].copy_from_slice(row);
        terms += f64::from(*repeats) * estimator.estimate::<0>(annotator, &mut padded);
        row.copy_from_slice(&padded[..n_classes]);
    }
    terms
}

/// [`Estimator::estimate_singleton_logs`] by [`Estimator::estimate_singletons`], whose results then become logarithms.
fn logs_of_estimates(
    estimator: &(impl Estimator + ?Sized),
    rows: (&[u32], &[u32]),
    n_classes: usize,
    cells: &mut [f64],
) -> f64 {
    let terms = estimator.estimate_singletons(rows, n_classes, cells);
    let cells = &mut cells[..rows.0.len() * n_classes];
    // Inlined, like all closures with logarithms: else fused multiply-add is a call of the math library.
    Arch::new().dispatch(
        #[inline(always)]
        || floor_or_ln(cells, true),
    );
    terms
}

/// The likelihood is the smoothed share of each label; the terms are the log-prior of the rows of the matrix.
impl Estimator for Smoothing {
    #[inline(always)]
    fn estimate<const K: usize>(&self, annotator: Annotator<'_>, cells: &mut [f64]) -> f64 {
        // To allocate a buffer would take as long as to estimate a few short columns.
        let mut sums = [0.0; 64];
        match sums.get_mut(..stride(width::<K>(annotator.n_classes))) {
            Some(sums) => smooth::<K>(*self, annotator, cells, sums),
            None => {
                smooth::<K>(*self, annotator, cells, &mut vec![0.0; stride(annotator.n_classes)])
            }
        }
    }

    fn estimate_sparse(
        &self,
        annotator: Annotator<'_>,
        ends: &[usize],
        cells: &mut [SparseCell],
        unused: &mut [f64],
    ) -> f64 {
        let sums = unused;
        let mut log_prior = 0.0;
        if self.has_prior() {
            sums.fill(0.0);
            let mut first = 0;
            for (label, end) in annotator.labels.iter().zip(ends) {
                for cell in &cells[first..*end] {
                    sums[cell.class as usize] += cell.value;
                    log_prior += log_share(cell.value, self.added(cell.class == *label));
                }
                first = *end;
            }
            log_prior -= sums.iter().map(|sum| log_share(*sum, self.added_to_row())).sum::<f64>();
        }
        let (never, never_diagonal) = (self.cell(0.0, 0, 1), self.cell(0.0, 0, 0));
        sums.fill(self.n_labels as f64 * never + (never_diagonal - never));
        let mut first = 0;
        for (label, end) in annotator.labels.iter().zip(ends) {
            for cell in &mut cells[first..*end] {
                let k = cell.class as usize;
                let count = self.cell(cell.value, k, *label as usize);
                sums[k] += count - self.cell(0.0, k, *label as usize);
                cell.value = count;
            }
            first = *end;
        }
        cells.iter_mut().for_each(|cell| cell.value /= sums[cell.class as usize]);
        sums.iter_mut().for_each(|sum| *sum = never / *sum);
        log_prior
    }

    fn estimate_singletons(
        &self,
        rows: (&[u32], &[u32]),
        n_classes: usize,
        cells: &mut [f64],
    ) -> f64 {
        if self.label_matters() {
            return estimate_each(self, rows, n_classes, cells);
        }
        self.map_singletons(
            rows,
            n_classes,
            cells,
            #[inline(always)]
            |count, sum| count * (1.0 / sum),
        )
    }

    /// # Why
    /// The logarithm of a ratio needs one division; a share and then its logarithm need two. 1 M annotations by 5 M
    /// annotators, each annotation with a weight, took 20.5 ns per annotation with two divisions, and 17.8 ns with one
    /// (20 classes); 42.4 and 36.2 ns with 50 classes.
    fn estimate_singleton_logs(
        &self,
        rows: (&[u32], &[u32]),
        n_classes: usize,
        cells: &mut [f64],
    ) -> f64 {
        if self.label_matters() {
            return logs_of_estimates(self, rows, n_classes, cells);
        }
        let least = ln(MIN_LIKELIHOOD);
        self.map_singletons(
            rows,
            n_classes,
            cells,
            #[inline(always)]
            move |count, sum| ln_ratio(count, sum).max(least),
        )
    }

    fn label_matters(&self) -> bool {
        self.diagonal != 0.0
    }
}

impl Smoothing {
    /// Whether the smoothed shares are the mode of a prior that is not flat. Less than the floor of counts is none.
    #[inline(always)]
    fn has_prior(self) -> bool {
        self.everywhere >= MIN_PROBABILITY || self.diagonal >= MIN_PROBABILITY
    }

    /// Replaces the counts of singleton annotators by `f(smoothed count, sum of the smoothed counts of its row)`; returns
    /// their log-prior. The diagonal has no smoothing of its own.
    ///
    /// # Why
    /// Both closures own what they capture. The compiler does not vectorise the loop if a captured number is behind a
    /// reference, because writing a cell might change it: with weights and 20 classes, an iteration then took 62 ns
    /// per annotation, and takes 24.
    #[inline(always)]
    fn map_singletons(
        self,
        (labels, repeats): (&[u32], &[u32]),
        n_classes: usize,
        cells: &mut [f64],
        f: impl Fn(f64, f64) -> f64 + Copy,
    ) -> f64 {
        let cells = &mut cells[..labels.len() * n_classes];
        let others = self.counts_of_other_labels();
        Arch::new().dispatch(
            #[inline(always)]
            move || {
                let log_prior = self.log_prior_of_singletons(repeats, n_classes, cells);
                for cell in cells {
                    let count = self.smoothed(*cell);
                    *cell = f(count, others + count);
                }
                log_prior
            },
        )
    }

    /// The smoothed counts of the labels that a singleton annotator has not given, for each class.
    fn counts_of_other_labels(&self) -> f64 {
        let mut others = [0.0];
        self.row_sums(&[0], &mut others);
        others[0]
    }

    /// The log-prior of columns of one annotation each, which only off-diagonal smoothing changes.
    #[inline(always)]
    fn log_prior_of_singletons(&self, repeats: &[u32], n_classes: usize, cells: &[f64]) -> f64 {
        let mut log_prior = 0.0;
        if self.has_prior() {
            let (added, added_to_row) = (self.everywhere, self.added_to_row());
            for (counts, repeats) in cells.chunks_exact(n_classes.max(1)).zip(repeats) {
                let of_cell =
                    |count: &f64| log_share(*count, added) - log_share(*count, added_to_row);
                log_prior += f64::from(*repeats) * counts.iter().map(of_cell).sum::<f64>();
            }
        }
        log_prior
    }

    /// The pseudo-count of a cell of the diagonal, or of another cell.
    #[inline(always)]
    fn added(self, is_diagonal: bool) -> f64 {
        self.everywhere + if is_diagonal { self.diagonal } else { 0.0 }
    }

    /// The sum of the pseudo-counts of a row.
    #[inline(always)]
    fn added_to_row(self) -> f64 {
        self.n_labels as f64 * self.everywhere + self.diagonal
    }
}

/// `added` ln(1 + `count` / `added`), which is 0 if nothing is added.
///
/// With it the log-prior of a row of a confusion matrix, the Dirichlet density with parameters a\[l\] + 1, has no
/// difference of large numbers: from the shares p\[l\] = (n\[l\] + a\[l\]) / (N + A), with the sums N and A,
///
/// ```text
/// sum_l a[l] ln(p[l] A / a[l]) = sum_l a[l] ln(1 + n[l] / a[l]) - A ln(1 + N / A)
/// ```
/// which is the log-density minus that of its mode, p\[l\] = a\[l\] / A. A label without counts has no term.
#[inline(always)]
fn log_share(count: f64, added: f64) -> f64 {
    if added >= MIN_PROBABILITY { added * ln_1p(count / added) } else { 0.0 }
}

/// Adds the smoothing to an annotator's counts and divides them by the sums of their rows; `sums` is a buffer, as long
/// as a padded row. Returns the log-prior of the shares.
///
/// # Why
/// Rows are processed with their padding, whose content does not matter: five numbers take two or three operations,
/// eight take one or two.
#[inline(always)]
fn smooth<const K: usize>(
    smoothing: Smoothing,
    Annotator { labels, n_classes }: Annotator<'_>,
    cells: &mut [f64],
    sums: &mut [f64],
) -> f64 {
    let n = width::<K>(n_classes).max(1);
    let lanes = stride(n);
    let sums = &mut sums[..lanes];
    let mut log_prior = 0.0;
    if smoothing.has_prior() {
        sums.fill(0.0);
        for (cells, label) in cells.chunks_exact(lanes).zip(labels) {
            for k in 0..n {
                sums[k] += cells[k];
                log_prior += log_share(cells[k], smoothing.added(k == *label as usize));
            }
        }
        let of_row = |sum: &f64| log_share(*sum, smoothing.added_to_row());
        log_prior -= sums[..n].iter().map(of_row).sum::<f64>();
    }
    if smoothing.diagonal != 0.0 {
        for (cells, label) in cells.chunks_exact_mut(lanes).zip(labels) {
            if let Some(diagonal) = cells[..n].get_mut(*label as usize) {
                *diagonal += smoothing.diagonal;
            }
        }
    }
    smoothing.row_sums(labels, sums);
    for cells in cells.chunks_exact_mut(lanes) {
        for k in 0..lanes {
            cells[k] = smoothing.smoothed(cells[k]);
            sums[k] += cells[k];
        }
    }
    sums.iter_mut().for_each(|sum| *sum = 1.0 / *sum);
    for cells in cells.chunks_exact_mut(lanes) {
        for k in 0..lanes {
            cells[k] *= sums[k];
        }
    }
    log_prior
}
