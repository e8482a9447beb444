//! Scores of labels and posteriors against known classes, for the table `metrics` and the command `evaluate`.

mod calibration;

use crate::model::posterior::{best, tied};
use crate::tables::metrics::Metric;

/// Instances with a known class, their labels and posteriors.
#[derive(Debug, Clone)]
pub struct Scored {
    /// The number of classes that the run knows.
    n_classes: usize,
    /// The label of each instance, as a class index; `None` for an instance without a label.
    label: Vec<Option<usize>>,
    /// The posterior, `[instance, class]`, all zero where an instance has none; `None` where posteriors are unknown, so
    /// that their scores are undefined.
    posterior: Option<Vec<f64>>,
    /// The true class; `n_classes` stands for every class that the run does not know. No label is of such a class, and
    /// its probability is 0.
    truth: Vec<usize>,
}

impl Scored {
    /// No instance yet.
    #[must_use]
    pub fn new(n_classes: usize) -> Self {
        Self { posterior: Some(Vec::new()), ..Self::without_posteriors(n_classes) }
    }

    /// No instance yet; posteriors will not be stored.
    #[must_use]
    pub fn without_posteriors(n_classes: usize) -> Self {
        Self { n_classes, label: Vec::new(), posterior: None, truth: Vec::new() }
    }

    /// Adds one instance; a posterior of zeros stands for an instance without a posterior.
    pub fn push(&mut self, label: Option<usize>, posterior: &[f64], truth: usize) {
        self.label.push(label);
        if let Some(all) = &mut self.posterior {
            all.extend_from_slice(posterior);
        }
        self.truth.push(truth);
    }

    /// Adds one prediction of a classifier; its label is the most probable class.
    pub fn push_prediction(&mut self, probabilities: &[f64], truth: usize) {
        self.push(winner(probabilities), probabilities, truth);
    }

    /// Whether no instance was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.truth.is_empty()
    }

    /// The mean of `score(posterior, truth, label)` over the instances.
    fn mean(&self, score: impl Fn(&[f64], usize, Option<usize>) -> f64) -> Option<f64> {
        let scores: Vec<f64> = self
            .rows()?
            .zip(&self.label)
            .map(|((row, truth), label)| score(row, truth, *label))
            .collect();
        (!scores.is_empty()).then(|| scores.iter().sum::<f64>() / scores.len() as f64)
    }

    /// The share of instances whose label and true class satisfy `is_so`.
    fn share(&self, is_so: impl Fn(Option<usize>, usize) -> bool) -> Option<f64> {
        let n = self.truth.len();
        let found = self.label.iter().zip(&self.truth).filter(|(l, t)| is_so(**l, **t)).count();
        (n > 0).then(|| found as f64 / n as f64)
    }

    fn rows(&self) -> Option<impl Iterator<Item = (&[f64], usize)>> {
        let (all, n) = (self.posterior.as_ref()?, self.n_classes);
        let rows = self.truth.iter().enumerate();
        Some(rows.map(move |(row, truth)| (&all[row * n..(row + 1) * n], *truth)))
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

    /// Minus the mean log-posterior of the true class, clipped at 1e-15.
    #[must_use]
    pub fn log_loss(&self) -> Option<f64> {
        self.mean(|row, truth, _| {
            let sum: f64 = row.iter().sum();
            let of_truth = row.get(truth).copied().unwrap_or(0.0);
            (if sum > 0.0 { of_truth / sum } else { 0.0 }).clamp(1e-15, 1.0).ln().abs()
        })
    }

    /// The area under the ROC curve, with ties counted half: of the second class where the run knows two classes, else the
    /// mean over its classes that have both positive and negative instances. An instance of a class that the run does not
    /// know is a negative one of every class.
    #[must_use]
    pub fn auc(&self) -> Option<f64> {
        let classes = if self.n_classes == 2 { 1..2 } else { 0..self.n_classes };
        let areas: Vec<f64> = classes.filter_map(|k| self.auc_of(k)).collect();
        (!areas.is_empty()).then(|| areas.iter().sum::<f64>() / areas.len() as f64)
    }

    fn auc_of(&self, class: usize) -> Option<f64> {
        let mut scores: Vec<(f64, bool)> =
            self.rows()?.map(|(row, truth)| (row[class], truth == class)).collect();
        scores.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut rank_sum, mut start) = (0.0, 0);
        while start < scores.len() {
            let end = start + scores[start..].iter().take_while(|s| s.0 == scores[start].0).count();
            let positives = scores[start..end].iter().filter(|s| s.1).count() as f64;
            rank_sum += positives * (start + 1 + end) as f64 / 2.0;
            start = end;
        }
        let positives = scores.iter().filter(|s| s.1).count() as f64;
        let negatives = scores.len() as f64 - positives;
        (positives * negatives > 0.0)
            .then(|| (rank_sum - positives * (positives + 1.0) / 2.0) / (positives * negatives))
    }

    /// The metrics that are also reported of uncalibrated probabilities. Each name begins with `prefix`.
    #[must_use]
    pub fn uncalibrated(&self, prefix: &str, split: &'static str) -> Vec<Metric> {
        self.measured(prefix, split, |measure| measure.is_also_uncalibrated)
    }

    /// Every metric. Each name begins with `prefix`.
    #[must_use]
    pub fn all(&self, prefix: &str, split: &'static str) -> Vec<Metric> {
        self.measured(prefix, split, |_| true)
    }

    fn measured(
        &self,
        prefix: &str,
        split: &'static str,
        is_wanted: impl Fn(&Measure) -> bool,
    ) -> Vec<Metric> {
        let metric = |measure: &Measure| Metric {
            name: format!("{prefix}{}", measure.name),
            split,
            value: (measure.of)(self),
        };
        MEASURES.iter().filter(|measure| is_wanted(measure)).map(metric).collect()
    }
}

/// A number that scores labels or posteriors.
struct Measure {
    name: &'static str,
    /// Whether a calibrated run also reports it as `uncalibrated_...`, of the probabilities before calibration.
    is_also_uncalibrated: bool,
    of: fn(&Scored) -> Option<f64>,
}

const fn measure(name: &'static str, of: fn(&Scored) -> Option<f64>) -> Measure {
    Measure { name, is_also_uncalibrated: false, of }
}

const fn also_uncalibrated(name: &'static str, of: fn(&Scored) -> Option<f64>) -> Measure {
    Measure { is_also_uncalibrated: true, ..measure(name, of) }
}

/// In the order of the table `metrics`.
const MEASURES: &[Measure] = &[
    measure("instances", |scored| Some(scored.truth.len() as f64)),
    measure("coverage", Scored::coverage),
    also_uncalibrated("accuracy", Scored::accuracy),
    measure("accuracy_expected_ties", Scored::accuracy_expected_ties),
    measure("macro_f1", Scored::macro_f1),
    also_uncalibrated("log_loss", Scored::log_loss),
    also_uncalibrated("ece", Scored::ece),
    also_uncalibrated("ece_adaptive", Scored::ece_adaptive),
    also_uncalibrated("ece_classwise", Scored::ece_classwise),
    measure("auc", Scored::auc),
];

/// The most probable class; none where no class has any probability.
fn winner(row: &[f64]) -> Option<usize> {
    best(row).map(|(class, _)| class).filter(|class| row[*class] > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::posterior::TIE;
    use crate::testing::assert_close;

    #[track_caller]
    fn close(got: Option<f64>, want: f64) {
        assert_close(&[got.unwrap()], &[want], 1e-12, "measure");
    }

    /// Four instances of two classes; the third is a tie, broken wrongly.
    fn scored() -> Scored {
        let mut s = Scored::new(2);
        s.push(Some(0), &[0.9, 0.1], 0);
        s.push(Some(1), &[0.2, 0.8], 1);
        s.push(Some(0), &[0.5, 0.5], 1);
        s.push(None, &[0.0, 0.0], 0);
        s
    }

    #[test]
    fn scores_are_those_worked_out_by_hand() {
        let s = scored();
        close(s.accuracy(), 0.5);
        close(s.coverage(), 0.75);
        close(s.accuracy_expected_ties(), 0.625);
        // class 0: one hit of 2 given, 2 there; class 1: one hit of 1 given, 2 there
        close(s.macro_f1(), f64::midpoint(0.5, 2.0 / 3.0));
        // scores of class 1: 0 and 0.1 for class 0; 0.5 and 0.8 for class 1
        close(s.auc(), 1.0);
        close(s.log_loss(), -(0.9_f64.ln() + 0.8_f64.ln() + 0.5_f64.ln() + 1e-15_f64.ln()) / 4.0);
        let mut certain = Scored::new(2);
        certain.push(Some(0), &[1.0, 0.0], 0);
        assert!(certain.log_loss().is_some_and(f64::is_sign_positive), "no loss is 0, and not -0");
    }

    #[test]
    fn a_label_that_was_withheld_is_wrong_however_the_tie_would_fall() {
        let mut s = Scored::new(2);
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
        let mut s = Scored::new(3);
        let row = [0.9, 0.0, 2.4].map(|n| (1.0 - n * TIE) / 3.0);
        s.push(Some(0), &row, 1);
        s.push(Some(0), &row, 2);
        close(s.accuracy_expected_ties(), f64::midpoint(0.5, 0.0));
    }

    /// The third instance is of a class that the run does not know.
    #[test]
    fn an_unknown_class_is_not_one_more_class() {
        let mut s = Scored::new(2);
        s.push(Some(0), &[1.0, 0.0], 0);
        s.push(Some(1), &[0.0, 1.0], 1);
        s.push(Some(0), &[0.5, 0.5], 2);
        close(s.auc(), 1.0);
        // both classes: one of three instances has a P(class) of .5 without a hit, the others have no gap
        close(s.ece_classwise(), 0.5 / 3.0);
        close(s.accuracy(), 2.0 / 3.0);
        close(s.accuracy_expected_ties(), 2.0 / 3.0);
        close(s.log_loss(), -1e-15_f64.ln() / 3.0);
        // class 0: one hit of 2 given, 1 there; class 1: right; the unknown class: none
        close(s.macro_f1(), (2.0 / 3.0 + 1.0) / 3.0);
    }

    /// The unknown instance has the highest P(class 1): one of the two pairs of class 1 is in order.
    #[test]
    fn an_unknown_class_is_a_negative_of_the_area() {
        let mut s = Scored::new(2);
        s.push(Some(0), &[0.9, 0.1], 0);
        s.push(Some(0), &[0.8, 0.2], 1);
        s.push(Some(1), &[0.3, 0.7], 2);
        close(s.auc(), 0.5);
    }

    /// Class 0 wins 4.5 of its 6 pairs, class 1 three of 6, class 2 3.5 of 4: equal scores are half a win.
    #[test]
    fn the_area_of_three_classes_is_the_mean_of_all_three_and_ties_count_half() {
        let mut s = Scored::new(3);
        s.push(Some(0), &[0.6, 0.3, 0.1], 0);
        s.push(Some(0), &[0.6, 0.1, 0.3], 1);
        s.push(Some(1), &[0.2, 0.7, 0.1], 1);
        s.push(Some(0), &[0.4, 0.3, 0.3], 2);
        s.push(Some(0), &[0.5, 0.3, 0.2], 0);
        close(s.auc(), (4.5 / 6.0 + 3.0 / 6.0 + 3.5 / 4.0) / 3.0);
    }

    #[test]
    fn classes_that_differ_by_rounding_share_the_expected_accuracy() {
        let mut s = Scored::new(3);
        // .1 + .2 is larger than .3 by one bit; the true class is the smaller one.
        s.push(Some(0), &[0.1 + 0.2, 0.3, 0.4 - 1e-3], 1);
        s.push(Some(0), &[0.1 + 0.2, 0.3, 0.2], 1);
        close(s.accuracy_expected_ties(), 0.25);
    }

    #[test]
    fn nothing_scored_is_not_a_number_but_none() {
        let defined = |s: &Scored| -> Vec<String> {
            let all = s.all("", "truth").into_iter();
            all.filter(|m| m.value.is_some()).map(|m| m.name).collect()
        };
        assert_eq!(defined(&Scored::new(2)), ["instances"]);
        let mut labels = Scored::without_posteriors(2);
        labels.push(Some(0), &[], 0);
        labels.push(Some(1), &[], 0);
        assert_eq!(defined(&labels), ["instances", "coverage", "accuracy", "macro_f1"]);
        close(labels.accuracy(), 0.5);
    }

    #[test]
    fn the_metrics_of_uncalibrated_probabilities_are_those_among_all() {
        let s = scored();
        let (all, some) = (s.all("p_", "truth"), s.uncalibrated("p_", "truth"));
        let names: Vec<&str> = some.iter().map(|m| m.name.as_str()).collect();
        let wanted = ["p_accuracy", "p_log_loss", "p_ece", "p_ece_adaptive", "p_ece_classwise"];
        assert_eq!(names, wanted);
        for metric in some {
            let of_all = all.iter().find(|m| m.name == metric.name).unwrap();
            assert!(of_all.value.is_some() && of_all.value == metric.value, "{}", metric.name);
        }
        assert_eq!((all.len(), all[0].value), (10, Some(4.0)));
    }
}
