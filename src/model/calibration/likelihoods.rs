//! P(label given class) of held-out annotations, by the estimates of a fit that did not see them.
//!
//! ```text
//! pi[r][k][y] = (n[r][k] pi_r[k][y] + common[k][y]) / (n[r][k] + 1)
//! common[k][y] = (n[k][y] + 1 / L) / (n[k] + 1)
//! ```
//! Here pi_r is the fitted matrix of annotator r, without pseudo-counts where it is made of counts; `n[r][k]` the number of
//! annotations behind its row k, `n[k][y]` the expected count of all annotators, and L the number of labels.
//!
//! # Why
//! By maximum likelihood, a label that an annotator has not yet given is impossible for all classes that the annotator
//! has met, and as likely as any other for those not met. A held-out annotation with such a label would exclude the
//! former, however probable, in favour of classes that nobody has named. Each row is therefore shrunk towards that of all
//! annotators with the weight of one annotation, and their row towards a uniform one.
//!
//! The pseudo-counts of a prior for each cell, as in `ibcc`, outweigh the few annotations of a row of many labels: with
//! them, annotators would seem to be far worse than they are, so that the agreement of held-out annotations would make the
//! posteriors too certain.

use rayon::prelude::*;

use crate::frame::Annotations;
use crate::model::confusion::{Cells, Confusion, common_counts};
use crate::model::fitted::Report;
use crate::model::numerics::{MIN_PROBABILITY, at_least};

/// ln P(label given class) of each (annotator, label) pair of the held-out annotations, `[pair, class]`, by the report of
/// a fit to the training annotations.
pub(super) fn log_likelihoods(
    training: &Annotations,
    held_out: &Annotations,
    report: &Report,
) -> Vec<f64> {
    let annotators = held_out.pair_offsets().par_windows(2).filter(|own| own[0] < own[1]);
    let labels_of = |own: &[usize]| {
        let annotator = held_out.annotator_of_pair(own[0] as u32) as usize;
        (annotator, held_out.labels_in(own[0]..own[1]))
    };
    let annotators = annotators.map(labels_of);
    let log = |p: f64| at_least(p, MIN_PROBABILITY).ln();
    if let Some(confusion) = &report.confusion {
        let crowd = CrowdMatrices::new(training, confusion);
        annotators.flat_map_iter(|(r, labels)| crowd.pairs(r, labels)).map(log).collect()
    } else {
        let crowd = CrowdSkills::new(training, &report.skill);
        annotators.flat_map_iter(|(r, labels)| crowd.pairs(r, labels)).map(log).collect()
    }
}

/// `own`, which rests on `n` annotations, shrunk towards `common` with the weight of one annotation.
fn shrunk(own: f64, n: f64, common: f64) -> f64 {
    (n * own + common) / (n + 1.0)
}

/// The annotators' confusion matrices.
struct CrowdMatrices<'a> {
    training: &'a Annotations,
    confusion: &'a Confusion,
    /// The labels of the training annotations, ascending.
    labels: Vec<u32>,
    /// The expected counts of all annotators, `[label, class]`, of these labels.
    counts: Vec<f64>,
    /// The sums over the labels, `[class]`.
    sums: Vec<f64>,
}

impl<'a> CrowdMatrices<'a> {
    fn new(training: &'a Annotations, confusion: &'a Confusion) -> Self {
        let n = training.dims().classes;
        let mut labels = training.labels_in(0..training.n_pairs()).to_vec();
        labels.sort_unstable();
        labels.dedup();
        let classes: Vec<usize> = (0..n).collect();
        let counts = common_counts(training, &confusion.expected_count, &labels, &classes);
        let mut sums = vec![0.0; n];
        for own in confusion.expected_count.chunks_exact(n.max(1)) {
            sums.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
        Self { training, confusion, labels, counts, sums }
    }

    /// P(label given class) of annotator `r` for some labels, `[label, class]`.
    fn pairs(&self, r: usize, labels: &[u32]) -> Vec<f64> {
        let Self { training, confusion, .. } = self;
        let n = training.dims().classes;
        let mut row_sums = Vec::new();
        let matrix = confusion.matrix(training, r, &mut row_sums);
        let mut support = vec![0.0; n];
        for pair in training.pairs_of_annotator(r) {
            let counts = &confusion.expected_count[pair * n..(pair + 1) * n];
            support.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        // One accuracy rests on the annotations of all classes.
        if matches!(confusion.cells, Cells::Accuracy(_)) {
            let all: f64 = support.iter().sum();
            support.fill(all);
        }
        let is_counted = matches!(confusion.cells, Cells::Counted(_) | Cells::Drawn(_));
        let mut cells = Vec::with_capacity(labels.len() * n);
        for label in labels {
            let pair = training.pair_of(r, *label as usize);
            let own = |k: usize| match matrix.cell(k, *label as usize, pair) {
                (_, count) if is_counted => count,
                (probability, _) => support[k] * probability,
            };
            let common = self.common(*label);
            cells.extend((0..n).map(|k| (own(k) + common(k)) / (support[k] + 1.0)));
        }
        cells
    }

    /// P(label given class) of all annotators, for each class.
    fn common(&self, label: u32) -> impl Fn(usize) -> f64 {
        let at = self.labels.binary_search(&label).ok();
        let uniform = 1.0 / self.training.dims().labels as f64;
        move |k| {
            let count = at.map_or(0.0, |at| self.counts[at * self.sums.len() + k]);
            (count + uniform) / (self.sums[k] + 1.0)
        }
    }
}

/// The annotators' skills, as the probabilities that a label is right, whatever the class.
struct CrowdSkills<'a> {
    training: &'a Annotations,
    skill: &'a [f64],
    /// The skill of all annotators.
    common: f64,
}

impl<'a> CrowdSkills<'a> {
    fn new(training: &'a Annotations, skill: &'a [f64]) -> Self {
        let n = |r: usize| f64::from(training.rows_of_annotator(r));
        let right: f64 = skill.iter().enumerate().map(|(r, skill)| n(r) * skill).sum();
        let all: f64 = (0..skill.len()).map(n).sum();
        let common = shrunk(right / all.max(1.0), all, 1.0 / training.dims().labels as f64);
        Self { training, skill, common }
    }

    /// P(label given class) of annotator `r` for some labels, `[label, class]`.
    fn pairs(&self, r: usize, labels: &[u32]) -> Vec<f64> {
        let dims = self.training.dims();
        let n = f64::from(self.training.rows_of_annotator(r));
        let right = shrunk(self.skill.get(r).copied().unwrap_or_default(), n, self.common);
        let wrong = (1.0 - right) / (dims.labels.max(2) - 1) as f64;
        let cell = |label: u32, k: usize| if k == label as usize { right } else { wrong };
        labels.iter().flat_map(|label| (0..dims.classes).map(move |k| cell(*label, k))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Dims;
    use crate::model::confusion::Smoothing;
    use crate::testing::annotations;

    /// Asserts the probabilities of every held-out pair.
    fn assert_likelihoods<const N: usize>(
        [training, held_out]: [&Annotations; 2],
        report: &Report,
        want: [[f64; 3]; N],
    ) {
        let got = log_likelihoods(training, held_out, report);
        assert_eq!(got.len(), 3 * N);
        for (at, (got, want)) in got.iter().zip(want.as_flattened()).enumerate() {
            assert!((got.exp() - want).abs() < 1e-9, "{at}: {} is not {want}", got.exp());
        }
    }

    /// The first annotator gives four instances the label `a`. The second one gives `b` to six instances of class b, `c` to
    /// three of class c, and `b` to one of class c. Afterwards each of them gives `b` once more.
    fn crowd() -> [Annotations; 2] {
        let dims = Dims { instances: 16, annotators: 2, classes: 3, labels: 3 };
        let second = |i: u32| (i, 1, if i < 11 { 1 } else { 2 });
        let rows: Vec<_> = (0..4).map(|i| (i, 0, 0)).chain((4..14).map(second)).collect();
        [annotations(dims, &rows), annotations(dims, &[(14, 0, 1), (15, 1, 1)])]
    }

    fn report(cells: Cells) -> Report {
        // [pair, class]
        let expected_count = [[4.0, 0.0, 0.0], [0.0, 6.0, 1.0], [0.0, 0.0, 3.0]];
        let expected_count = expected_count.as_flattened().to_vec();
        Report { confusion: Some(Confusion { cells, expected_count }), ..Report::default() }
    }

    /// In training, an annotator gave `a` four times, always to class a. The row of all annotators is (13/3, 1/3, 1/3) / 5,
    /// so that P(b given a) is (0 + 1/15) / 5 = 1/75. The other classes have a uniform row. An instance that is nearly
    /// certain to be of class a stays so; half of it would go to class c if `b` excluded class a.
    #[test]
    fn a_label_that_was_not_given_before_does_not_exclude_the_classes_that_were_met() {
        let dims = Dims { instances: 5, annotators: 1, classes: 3, labels: 3 };
        let training = annotations(dims, &[(0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0)]);
        let held_out = annotations(dims, &[(4, 0, 1)]);
        let cells = Cells::Counted(Smoothing::new(&training, 0.0, 0.0));
        let confusion = Confusion { cells, expected_count: vec![4.0, 0.0, 0.0] };
        let report = Report { confusion: Some(confusion), ..Report::default() };
        let third = 1.0 / 3.0;
        assert_likelihoods([&training, &held_out], &report, [[1.0 / 75.0, third, third]]);
        let likelihoods = log_likelihoods(&training, &held_out, &report);
        let joint = |(p, log): (f64, &f64)| p * log.exp();
        let target: Vec<f64> =
            [1.0 - 2e-6, 1e-6, 1e-6].into_iter().zip(&likelihoods).map(joint).collect();
        let share_of_c = target[2] / target.iter().sum::<f64>();
        assert!((share_of_c - 25e-6).abs() < 1e-8, "{share_of_c}");
    }

    /// The row of all annotators for class b is (1/3, 19/3, 1/3) / 7, and for class c (1/3, 4/3, 10/3) / 5. The first
    /// annotator has met neither class, the second has not met class a, to which all give `b` with 1/15. Pseudo-counts
    /// change nothing.
    #[test]
    fn a_class_that_an_annotator_has_not_met_has_the_row_of_all() {
        let [training, held_out] = crowd();
        for (everywhere, diagonal) in [(0.0, 0.0), (1.0, 0.0), (0.5, 2.0)] {
            let cells = Cells::Counted(Smoothing::new(&training, everywhere, diagonal));
            let second = [1.0 / 15.0, (6.0 + 19.0 / 21.0) / 7.0, (1.0 + 4.0 / 15.0) / 5.0];
            let want = [[1.0 / 75.0, 19.0 / 21.0, 4.0 / 15.0], second];
            assert_likelihoods([&training, &held_out], &report(cells), want);
        }
    }

    /// P(`b` given class) is 0.2, 0.5 and 0.1 for the first annotator, and 0.3, 0.9 and 0.4 for the second one.
    #[test]
    fn rows_of_a_network_rest_on_the_expected_annotations_of_their_class() {
        let [training, held_out] = crowd();
        let row = |b: f64| [1.0 - b, b, 0.0];
        let rows = [0.2, 0.5, 0.1, 0.3, 0.9, 0.4].map(row);
        let cells = Cells::Dense(rows.as_flattened().to_vec());
        let first = [(0.8 + 1.0 / 15.0) / 5.0, 19.0 / 21.0, 4.0 / 15.0];
        let second = [1.0 / 15.0, (5.4 + 19.0 / 21.0) / 7.0, (1.6 + 4.0 / 15.0) / 5.0];
        assert_likelihoods([&training, &held_out], &report(cells), [first, second]);
    }

    /// The accuracies 1 and 0.8 rest on 4 and 10 annotations.
    #[test]
    fn an_accuracy_rests_on_the_annotations_of_all_classes() {
        let [training, held_out] = crowd();
        let cells = Cells::Accuracy(vec![1.0, 0.8]);
        let first = [1.0 / 75.0, (4.0 + 19.0 / 21.0) / 5.0, 4.0 / 75.0];
        let second = [16.0 / 165.0, (8.0 + 19.0 / 21.0) / 11.0, (1.0 + 4.0 / 15.0) / 11.0];
        assert_likelihoods([&training, &held_out], &report(cells), [first, second]);
    }

    /// Skills of 1 and 0 rest on four annotations and one. That of all is (4 + 1/3) / 6 = 13/18, so that the annotators
    /// have (4 + 13/18) / 5 = 17/18 and (0 + 13/18) / 2 = 13/36. The pairs of an annotator with a single one come last.
    #[test]
    fn skills_are_shrunk_towards_that_of_all() {
        let dims = Dims { instances: 8, annotators: 2, classes: 3, labels: 3 };
        let training = annotations(dims, &[(0, 0, 0), (1, 0, 0), (2, 0, 1), (3, 0, 1), (4, 1, 2)]);
        let held_out = annotations(dims, &[(5, 0, 1), (6, 1, 0), (7, 1, 2)]);
        let report = Report { skill: vec![1.0, 0.0], ..Report::default() };
        let (right, wrong) = (13.0 / 36.0, 23.0 / 72.0);
        let of_first = [1.0 / 36.0, 17.0 / 18.0, 1.0 / 36.0];
        let want = [[right, wrong, wrong], [wrong, wrong, right], of_first];
        assert_likelihoods([&training, &held_out], &report, want);
    }
}
