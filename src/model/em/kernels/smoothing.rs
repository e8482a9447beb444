//! [`Smoothing`] as an estimator: maximum likelihood with pseudo-counts.

use pulp::Arch;

use super::estimate::{
    Annotator, Estimator, SingletonInput, SingletonRows, SparseCell, estimate_each,
};
use super::logarithms::{ln, ln_1p, ln_ratios, ln_shares};
use super::padded_matrix::stride;
use super::width::width;
use crate::model::confusion::Smoothing;
use crate::model::numerics::{MIN_LIKELIHOOD, MIN_PROBABILITY};

/// The likelihood is the smoothed share of each label; the terms are the log-prior of the rows of the matrix.
impl Estimator for Smoothing {
    #[inline(always)]
    fn estimate<const K: usize>(&self, annotator: Annotator<'_>, cells: &mut [f64]) -> f64 {
        with_sums::<K>(
            annotator.n_classes,
            #[inline(always)]
            |sums| {
                let log_prior = smooth::<K>(*self, annotator, cells, sums);
                sums.iter_mut().for_each(|sum| *sum = 1.0 / *sum);
                for cells in cells.chunks_exact_mut(sums.len()) {
                    cells.iter_mut().zip(&*sums).for_each(|(cell, scale)| *cell *= scale);
                }
                log_prior
            },
        )
    }

    /// # Why
    /// The share of an annotator's only label is 1. Rounded as a product with a reciprocal it may be 1 - 1e-16, and a
    /// weight multiplies the logarithm of that.
    #[inline(always)]
    fn estimate_logs<const K: usize>(&self, annotator: Annotator<'_>, cells: &mut [f64]) -> f64 {
        with_sums::<K>(
            annotator.n_classes,
            #[inline(always)]
            |sums| {
                let log_prior = smooth::<K>(*self, annotator, cells, sums);
                ln_shares(cells, sums, ln(MIN_LIKELIHOOD));
                log_prior
            },
        )
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
        if self.has_pseudo_counts() {
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
        rows: SingletonRows<'_>,
        n_classes: usize,
        cells: &mut [f64],
    ) -> f64 {
        if self.singleton_input() == SingletonInput::Label {
            return estimate_each(
                rows,
                n_classes,
                cells,
                #[inline(always)]
                |annotator, cells| self.estimate::<0>(annotator, cells),
            );
        }
        self.change_singletons(
            rows,
            n_classes,
            cells,
            #[inline(always)]
            |cells, smoothed| {
                for cell in cells {
                    let (count, sum) = smoothed.count_and_sum(*cell);
                    *cell = count * (1.0 / sum);
                }
            },
        )
    }

    /// # Why
    /// The logarithm of a ratio needs one division; a share and then its logarithm need two. When this was changed, 1 M
    /// annotations by 5 M annotators, each annotation with a weight, took 20.5 ns per annotation with two divisions, and
    /// 17.8 ns with one (20 classes); 42.4 and 36.2 ns with 50 classes.
    fn estimate_singleton_logs(
        &self,
        rows: SingletonRows<'_>,
        n_classes: usize,
        cells: &mut [f64],
    ) -> f64 {
        if self.singleton_input() == SingletonInput::Label {
            return estimate_each(
                rows,
                n_classes,
                cells,
                #[inline(always)]
                |annotator, cells| self.estimate_logs::<0>(annotator, cells),
            );
        }
        let least = ln(MIN_LIKELIHOOD);
        self.change_singletons(
            rows,
            n_classes,
            cells,
            #[inline(always)]
            move |cells, smoothed| {
                ln_ratios(cells, least, move |cell| smoothed.count_and_sum(cell));
            },
        )
    }

    fn allows_sparse_columns(&self) -> bool {
        true
    }

    fn singleton_input(&self) -> SingletonInput {
        if self.diagonal == 0.0 { SingletonInput::Posterior } else { SingletonInput::Label }
    }
}

impl Smoothing {
    /// Whether the smoothed shares are the mode of a prior that is not flat. Pseudo-counts below the floor of counts are
    /// ignored.
    #[inline(always)]
    fn has_pseudo_counts(self) -> bool {
        self.everywhere >= MIN_PROBABILITY || self.diagonal >= MIN_PROBABILITY
    }

    /// Passes the counts of singleton annotators, and their smoothing, to `change`, which replaces them; returns their
    /// log-prior. Only without a smoothing of the diagonal's own.
    ///
    /// # Why
    /// The closures own what they capture. The compiler does not vectorise a loop if a captured number is behind a
    /// reference, because writing a cell might change it: with weights and 20 classes, an iteration then took 62
    /// instead of 24 ns per annotation.
    #[inline(always)]
    fn change_singletons(
        self,
        SingletonRows { labels, repeats, .. }: SingletonRows<'_>,
        n_classes: usize,
        cells: &mut [f64],
        change: impl FnOnce(&mut [f64], SingletonSmoothing),
    ) -> f64 {
        let cells = &mut cells[..labels.len() * n_classes];
        let smoothed =
            SingletonSmoothing { smoothing: self, others: self.counts_of_other_labels() };
        Arch::new().dispatch(
            #[inline(always)]
            move || {
                let log_prior = self.log_prior_of_singletons(repeats, n_classes, cells);
                change(cells, smoothed);
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
        if self.has_pseudo_counts() {
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

/// The smoothing of the columns of singleton annotators, the same for all of them.
#[derive(Clone, Copy)]
struct SingletonSmoothing {
    smoothing: Smoothing,
    /// The sum of the smoothed counts of the other labels, for each class.
    others: f64,
}

impl SingletonSmoothing {
    /// The smoothed count of a cell, and the sum of the smoothed counts of its row.
    #[inline(always)]
    fn count_and_sum(self, cell: f64) -> (f64, f64) {
        let count = self.smoothing.smoothed(cell);
        (count, self.others + count)
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

/// Calls `estimate` with a buffer for the sums of the rows of a confusion matrix, as long as a padded row.
#[inline(always)]
fn with_sums<const K: usize>(n_classes: usize, estimate: impl FnOnce(&mut [f64]) -> f64) -> f64 {
    // To allocate a buffer would take as long as to estimate a few short columns.
    let (mut short, mut long) = ([0.0; 64], Vec::new());
    let lanes = stride(width::<K>(n_classes));
    let sums = if let Some(sums) = short.get_mut(..lanes) {
        sums
    } else {
        long.resize(lanes, 0.0);
        &mut long
    };
    estimate(sums)
}

/// Adds the smoothing to an annotator's counts, and writes the sums of their rows into `sums`, as long as a padded row.
/// Returns the log-prior of the shares.
///
/// # Why
/// Rows are processed with their padding, whose content does not matter: five numbers take two or three operations,
/// eight take one or two.
#[inline(always)]
fn smooth<const K: usize>(
    smoothing: Smoothing,
    Annotator { labels, n_classes, .. }: Annotator<'_>,
    cells: &mut [f64],
    sums: &mut [f64],
) -> f64 {
    let n = width::<K>(n_classes).max(1);
    let lanes = stride(n);
    let sums = &mut sums[..lanes];
    let mut log_prior = 0.0;
    if smoothing.has_pseudo_counts() {
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
    log_prior
}
