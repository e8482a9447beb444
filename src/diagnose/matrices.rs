//! The confusion matrices that explain how far annotators agree: those of the fit, or of its labels.
//!
//! ```text
//! pi[r][k][l] = counts[r][k][l] / sum_l counts[r][k][l]
//! ```
//! # Why no prior
//! The annotators are independent given the class, so that the mean of a product of two shares, `pi[r] pi[s]`, is the product
//! of the means: the expected agreement has no bias however few the counts are. A prior, or one count more for each of a
//! hundred labels, would draw every matrix to chance or to the crowd's, and independent annotators with two instances of a
//! class would seem to agree more than their skills explain. The instance itself is among the counts: of `n` instances of a
//! class a true dependence shows `(n - 1) / n`, and where each class has one instance nothing.

use std::borrow::Cow;

use crate::frame::Annotations;
use crate::model::fitted::Fitted;

/// Expected counts by pair and class, and the posteriors that go with them.
pub(super) struct ExplainingMatrices<'a> {
    a: &'a Annotations,
    fitted: &'a Fitted,
    /// `[pair, class]`.
    counts: Cow<'a, [f64]>,
    is_of_labels: bool,
}

/// The most counts that are made for a kind without confusion matrices: 128 MiB.
const MAX_COUNTS: usize = 1 << 24;

/// Divided between the labels of a row, so that a row without counts has probabilities too. See the module doc.
const PSEUDO_COUNT: f64 = 0.01;

/// A class less probable than this changes no expectation that counts.
const MIN_CLASS: f64 = 0.01;

impl<'a> ExplainingMatrices<'a> {
    /// `None` where there are fewer than two classes or annotators, or too many classes for a kind without matrices.
    ///
    /// # Why
    /// The shares of a vote are no posteriors: they are far less certain, so that independent annotators would agree more
    /// than they explain. Where the kind has no matrices, its most probable class counts as the true one.
    pub(super) fn new(a: &'a Annotations, fitted: &'a Fitted) -> Option<Self> {
        let n = a.dims().classes;
        if n < 2 || a.dims().annotators < 2 {
            return None;
        }
        if let Some(confusion) = &fitted.report.confusion {
            let counts = Cow::Borrowed(confusion.expected_count.as_slice());
            return Some(Self { a, fitted, counts, is_of_labels: false });
        }
        let cells = a.n_pairs().checked_mul(n).filter(|cells| *cells <= MAX_COUNTS)?;
        let mut counts = vec![0.0; cells];
        for i in 0..a.dims().instances {
            if let Some(class) = best(fitted, a, i) {
                for (pair, weight) in a.annotations_of_instance(i) {
                    counts[pair as usize * n + class] += weight;
                }
            }
        }
        Some(Self { a, fitted, counts: Cow::Owned(counts), is_of_labels: true })
    }

    /// The probable classes of instance `i`, with their probabilities.
    pub(super) fn classes(&self, i: usize, into: &mut Vec<(usize, f64)>) {
        into.clear();
        if self.is_of_labels {
            into.extend(best(self.fitted, self.a, i).map(|class| (class, 1.0)));
            return;
        }
        let row = self.fitted.posterior.row(i);
        into.extend(row.iter().copied().enumerate().filter(|(_, p)| *p >= MIN_CLASS));
        let sum: f64 = into.iter().map(|(_, p)| p).sum();
        into.iter_mut().for_each(|(_, p)| *p /= sum);
    }

    /// Appends the probabilities of the labels that annotator `r` gives to a class.
    pub(super) fn append_row(&self, r: usize, class: usize, rows: &mut Vec<f64>) {
        let (n, start) = (self.a.dims().classes, rows.len());
        let labels = self.a.dims().labels;
        rows.resize(start + labels, PSEUDO_COUNT / labels as f64);
        let row = &mut rows[start..];
        for (pair, label) in self.a.pairs_of_annotator(r).zip(self.a.labels_of_annotator(r)) {
            row[*label as usize] += self.counts[pair * n + class];
        }
        let sum: f64 = row.iter().sum();
        row.iter_mut().for_each(|p| *p /= sum);
    }
}

/// The most probable class of an instance with evidence.
fn best(fitted: &Fitted, a: &Annotations, i: usize) -> Option<usize> {
    if let Some(class) = a.trusted_class(i) {
        return Some(class as usize);
    }
    fitted.posterior.entries(i).best().filter(|_| a.has_evidence(i)).map(|(class, _)| class)
}
