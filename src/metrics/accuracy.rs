//! Accuracy, coverage and F1: whether labels are the true classes.

use super::{LabelsWithTruth, winner};
use crate::model::posterior::tied;

impl LabelsWithTruth {
    /// The share of instances whose label and true class satisfy `is_so`.
    fn share(&self, is_so: impl Fn(Option<usize>, usize) -> bool) -> Option<f64> {
        let n = self.truth.len();
        let found = self.label.iter().zip(&self.truth).filter(|(l, t)| is_so(**l, **t)).count();
        (n > 0).then(|| found as f64 / n as f64)
    }

    /// The share of instances with a label.
    #[must_use]
    pub fn coverage(&self) -> Option<f64> {
        self.share(|label, _| label.is_some())
    }

    /// The share of instances whose label is right; no label counts as wrong.
    #[must_use]
    pub fn accuracy(&self) -> Option<f64> {
        self.share(|label, truth| label == Some(truth))
    }

    /// The expected accuracy if ties were broken at random; no label counts as wrong.
    #[must_use]
    pub fn accuracy_expected_ties(&self) -> Option<f64> {
        self.mean(|row, truth, label| {
            if label.is_none() || winner(row).is_none() {
                return 0.0;
            }
            let is_equal = tied(row).any(|class| class == truth);
            if is_equal { 1.0 / tied(row).count() as f64 } else { 0.0 }
        })
    }

    /// The unweighted mean of F1 over all classes that occur as truth or as a label. The classes that the run does not
    /// know count as one, with an F1 of 0.
    #[must_use]
    pub fn macro_f1(&self) -> Option<f64> {
        let n = self.n_classes + 1;
        let (mut hit, mut given, mut there) = (vec![0_u64; n], vec![0_u64; n], vec![0_u64; n]);
        for (label, truth) in self.label.iter().zip(&self.truth) {
            there[*truth] += 1;
            if let Some(label) = label {
                given[*label] += 1;
                hit[*label] += u64::from(label == truth);
            }
        }
        let scores: Vec<f64> = (0..n)
            .filter(|k| given[*k] + there[*k] > 0)
            .map(|k| 2.0 * hit[k] as f64 / (given[k] + there[k]) as f64)
            .collect();
        (!scores.is_empty()).then(|| scores.iter().sum::<f64>() / scores.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::close;
    use crate::model::posterior::TIE;

    #[test]
    fn a_label_that_was_withheld_is_wrong_however_the_tie_would_fall() {
        let mut s = LabelsWithTruth::new(2);
        s.push(None, &[0.5, 0.5], 0);
        s.push(None, &[0.6, 0.4], 0);
        close(s.accuracy_expected_ties(), 0.0);
        // A prediction always has a label, unless all its probabilities are 0.
        s.push_prediction(&[0.6, 0.4], 0);
        s.push_prediction(&[0.0, 0.0], 0);
        close(s.coverage(), 0.25);
        close(s.accuracy_expected_ties(), 0.25);
    }

    #[test]
    fn classes_are_tied_with_the_most_probable_one_and_not_with_the_label() {
        let mut s = LabelsWithTruth::new(3);
        let row = [0.9, 0.0, 2.4].map(|n| (1.0 - n * TIE) / 3.0);
        s.push(Some(0), &row, 1);
        s.push(Some(0), &row, 2);
        close(s.accuracy_expected_ties(), f64::midpoint(0.5, 0.0));
    }

    #[test]
    fn classes_that_differ_by_rounding_share_the_expected_accuracy() {
        let mut s = LabelsWithTruth::new(3);
        // .1 + .2 is larger than .3 by one bit; the true class is the smaller one.
        s.push(Some(0), &[0.1 + 0.2, 0.3, 0.4 - 1e-3], 1);
        s.push(Some(0), &[0.1 + 0.2, 0.3, 0.2], 1);
        close(s.accuracy_expected_ties(), 0.25);
    }
}
