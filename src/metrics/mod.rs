//! Scores of labels and posteriors against known classes, for the table `metrics` and the command `evaluate`.

mod accuracy;
mod calibration;
mod probabilities;

use crate::model::posterior::best;
use crate::tables::metrics::Metric;

/// Instances with a known class, their labels and posteriors.
#[derive(Debug, Clone)]
pub struct LabelsWithTruth {
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

impl LabelsWithTruth {
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

    /// How many instances were added.
    #[must_use]
    pub fn len(&self) -> usize {
        self.truth.len()
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

    fn rows(&self) -> Option<impl Iterator<Item = (&[f64], usize)>> {
        let (all, n) = (self.posterior.as_ref()?, self.n_classes);
        let rows = self.truth.iter().enumerate();
        Some(rows.map(move |(row, truth)| (&all[row * n..(row + 1) * n], *truth)))
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
            bin: None,
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
    of: fn(&LabelsWithTruth) -> Option<f64>,
}

const fn measure(name: &'static str, of: fn(&LabelsWithTruth) -> Option<f64>) -> Measure {
    Measure { name, is_also_uncalibrated: false, of }
}

const fn also_uncalibrated(name: &'static str, of: fn(&LabelsWithTruth) -> Option<f64>) -> Measure {
    Measure { is_also_uncalibrated: true, ..measure(name, of) }
}

/// In the order of the table `metrics`.
const MEASURES: &[Measure] = &[
    measure("instances", |scored| Some(scored.truth.len() as f64)),
    measure("coverage", LabelsWithTruth::coverage),
    also_uncalibrated("accuracy", LabelsWithTruth::accuracy),
    measure("accuracy_expected_ties", LabelsWithTruth::accuracy_expected_ties),
    measure("macro_f1", LabelsWithTruth::macro_f1),
    also_uncalibrated("log_loss", LabelsWithTruth::log_loss),
    also_uncalibrated("ece", LabelsWithTruth::ece),
    also_uncalibrated("ece_adaptive", LabelsWithTruth::ece_adaptive),
    also_uncalibrated("ece_classwise", LabelsWithTruth::ece_classwise),
    measure("auc", LabelsWithTruth::auc),
];

/// The most probable class; none where no class has any probability.
fn winner(row: &[f64]) -> Option<usize> {
    best(row).map(|(class, _)| class).filter(|class| row[*class] > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_close;

    #[track_caller]
    pub(super) fn close(got: Option<f64>, want: f64) {
        assert_close(&[got.unwrap()], &[want], 1e-12, "measure");
    }

    /// Four instances of two classes; the third is a tie, broken wrongly.
    fn scored() -> LabelsWithTruth {
        let mut s = LabelsWithTruth::new(2);
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
        let mut certain = LabelsWithTruth::new(2);
        certain.push(Some(0), &[1.0, 0.0], 0);
        assert!(certain.log_loss().is_some_and(f64::is_sign_positive), "no loss is 0, and not -0");
    }

    /// The third instance is of a class that the run does not know.
    #[test]
    fn an_unknown_class_is_not_one_more_class() {
        let mut s = LabelsWithTruth::new(2);
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

    #[test]
    fn nothing_scored_is_not_a_number_but_none() {
        let defined = |s: &LabelsWithTruth| -> Vec<String> {
            let all = s.all("", "truth").into_iter();
            all.filter(|m| m.value.is_some()).map(|m| m.name).collect()
        };
        assert_eq!(defined(&LabelsWithTruth::new(2)), ["instances"]);
        let mut labels = LabelsWithTruth::without_posteriors(2);
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
