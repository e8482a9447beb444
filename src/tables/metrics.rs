//! `metrics`: scores against trusted classes that the model was not told, and how they are computed.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Array, StringArray};

use super::{Answer, Column, Outcome, REAL, TEXT, Table, column, nullable};
use crate::error::Result;
use crate::model::fitted::best;

/// Equal-width bins of the expected calibration error.
const ECE_BINS: usize = 15;

/// One score.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    /// What is measured; a classifier's scores begin with `prediction_`.
    pub name: String,
    /// On which instances: the gold role, or `truth`.
    pub split: &'static str,
    /// The value; `None` where it is not defined.
    pub value: Option<f64>,
}

/// Instances with a known class.
#[derive(Debug, Clone, Default)]
pub struct Scored {
    /// Classes.
    pub n_classes: usize,
    /// The label that was given, by class number; `None` where there is none.
    pub label: Vec<Option<usize>>,
    /// The posterior, `[instance, class]`; all zero where there is none.
    pub posterior: Vec<f64>,
    /// The true class.
    pub truth: Vec<usize>,
}

impl Scored {
    /// Adds one instance.
    pub fn push(&mut self, label: Option<usize>, posterior: &[f64], truth: usize) {
        self.label.push(label);
        self.posterior.extend_from_slice(posterior);
        self.truth.push(truth);
    }

    /// Takes away the last class, which is nobody's.
    pub fn drop_last_class(&mut self) {
        let n = self.n_classes;
        let mut column = 0;
        self.posterior.retain(|_| {
            column = column % n + 1;
            column < n
        });
        self.n_classes = n - 1;
    }

    fn rows(&self) -> impl Iterator<Item = (&[f64], usize)> {
        self.posterior.chunks_exact(self.n_classes.max(1)).zip(self.truth.iter().copied())
    }

    fn mean(&self, score: impl Fn(usize) -> f64) -> Option<f64> {
        let n = self.truth.len();
        (n > 0).then(|| (0..n).map(score).sum::<f64>() / n as f64)
    }

    /// The share of instances with a label.
    #[must_use]
    pub fn coverage(&self) -> Option<f64> {
        self.mean(|i| f64::from(u8::from(self.label[i].is_some())))
    }

    /// The share of instances whose label is right; none at all counts as wrong.
    #[must_use]
    pub fn accuracy(&self) -> Option<f64> {
        self.mean(|i| f64::from(u8::from(self.label[i] == Some(self.truth[i]))))
    }

    /// The accuracy to expect if ties were broken at random.
    #[must_use]
    pub fn accuracy_expected_ties(&self) -> Option<f64> {
        let score = |(row, truth): (&[f64], usize)| -> f64 {
            let Some((first, _)) = best(row).filter(|(k, _)| row[*k] > 0.0) else { return 0.0 };
            let equal = |k: &usize| row[*k] >= row[first] * (1.0 - 2.0 * crate::model::fitted::TIE);
            let n = (0..row.len()).filter(equal).count();
            if equal(&truth) { 1.0 / n as f64 } else { 0.0 }
        };
        let scores: Vec<f64> = self.rows().map(score).collect();
        self.mean(|i| scores[i])
    }

    /// The plain mean of F1 over all classes that are true or were given.
    #[must_use]
    pub fn macro_f1(&self) -> Option<f64> {
        let (mut hit, mut given, mut there) =
            (vec![0_u64; self.n_classes], vec![0_u64; self.n_classes], vec![0_u64; self.n_classes]);
        for (label, truth) in self.label.iter().zip(&self.truth) {
            there[*truth] += 1;
            if let Some(label) = label {
                given[*label] += 1;
                hit[*label] += u64::from(label == truth);
            }
        }
        let scores: Vec<f64> = (0..self.n_classes)
            .filter(|k| given[*k] + there[*k] > 0)
            .map(|k| 2.0 * hit[k] as f64 / (given[k] + there[k]) as f64)
            .collect();
        (!scores.is_empty()).then(|| scores.iter().sum::<f64>() / scores.len() as f64)
    }

    /// Minus the mean log-posterior of the true class, clipped at 1e-15.
    #[must_use]
    pub fn log_loss(&self) -> Option<f64> {
        let loss: Vec<f64> = self
            .rows()
            .map(|(row, truth)| {
                let sum: f64 = row.iter().sum();
                -(if sum > 0.0 { row[truth] / sum } else { 0.0 }).clamp(1e-15, 1.0).ln()
            })
            .collect();
        self.mean(|i| loss[i])
    }

    /// The expected calibration error: the gap between confidence and accuracy over 15 bins of equal width.
    #[must_use]
    #[allow(clippy::cast_sign_loss)]
    pub fn ece(&self) -> Option<f64> {
        let mut bins = [(0.0, 0.0); ECE_BINS];
        for (row, truth) in self.rows() {
            let (class, _) = best(row)?;
            let bin = (row[class] * ECE_BINS as f64).ceil() as usize;
            let (confidence, hits) = &mut bins[bin.clamp(1, ECE_BINS) - 1];
            *confidence += row[class];
            *hits += f64::from(u8::from(class == truth));
        }
        let n = self.truth.len() as f64;
        (n > 0.0).then(|| bins.iter().map(|(confidence, hits)| (hits - confidence).abs() / n).sum())
    }

    /// The area under the ROC curve, ties counted half: of the second class where there are two, else the mean over
    /// the classes that have both kinds.
    #[must_use]
    pub fn auc(&self) -> Option<f64> {
        let classes = if self.n_classes == 2 { 1..2 } else { 0..self.n_classes };
        let areas: Vec<f64> = classes.filter_map(|k| self.auc_of(k)).collect();
        (!areas.is_empty()).then(|| areas.iter().sum::<f64>() / areas.len() as f64)
    }

    fn auc_of(&self, class: usize) -> Option<f64> {
        let mut scores: Vec<(f64, bool)> =
            self.rows().map(|(row, truth)| (row[class], truth == class)).collect();
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

    /// Every metric, by name behind `prefix`.
    #[must_use]
    pub fn all(&self, prefix: &str, split: &'static str) -> Vec<Metric> {
        let n = Some(self.truth.len() as f64);
        let metric =
            |name, value: Option<f64>| Metric { name: format!("{prefix}{name}"), split, value };
        vec![
            metric("instances", n),
            metric("coverage", self.coverage()),
            metric("accuracy", self.accuracy()),
            metric("accuracy_expected_ties", self.accuracy_expected_ties()),
            metric("macro_f1", self.macro_f1()),
            metric("log_loss", self.log_loss()),
            metric("ece", self.ece()),
            metric("auc", self.auc()),
        ]
    }
}

pub(super) struct Metrics;

impl Table for Metrics {
    fn name(&self) -> &'static str {
        "metrics"
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            column(
                "name",
                TEXT,
                "what is measured; a classifier's scores begin with `prediction_`",
            ),
            column("split", TEXT, "on which instances: the gold role"),
            nullable("value", REAL, "the value; null where it is not defined"),
        ];
        COLUMNS
    }

    fn units(&self, _answer: &Answer) -> usize {
        1
    }

    fn rows(
        &self,
        outcome: &Outcome,
        question: usize,
        _units: Range<usize>,
    ) -> Result<Vec<ArrayRef>> {
        let of_question = outcome.metrics.iter().filter(|(q, _)| *q == question);
        let rows: Vec<&Metric> = of_question.map(|(_, metric)| metric).collect();
        Ok(vec![
            Arc::new(StringArray::from_iter_values(rows.iter().map(|m| &m.name))),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|m| m.split))),
            Arc::new(rows.iter().map(|m| m.value).collect::<Float64Array>()),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four instances of two classes; the third is a tie, broken wrongly.
    fn scored() -> Scored {
        let mut s = Scored { n_classes: 2, ..Scored::default() };
        s.push(Some(0), &[0.9, 0.1], 0);
        s.push(Some(1), &[0.2, 0.8], 1);
        s.push(Some(0), &[0.5, 0.5], 1);
        s.push(None, &[0.0, 0.0], 0);
        s
    }

    #[test]
    fn scores_by_hand() {
        let s = scored();
        let close = |got: Option<f64>, want: f64| {
            assert!((got.unwrap() - want).abs() < 1e-12, "{got:?} {want}");
        };
        close(s.accuracy(), 0.5);
        close(s.coverage(), 0.75);
        close(s.accuracy_expected_ties(), 0.625);
        // class 0: one hit of 2 given, 2 there; class 1: one hit of 1 given, 2 there
        close(s.macro_f1(), f64::midpoint(0.5, 2.0 / 3.0));
        // scores of class 1: 0 and 0.1 for class 0; 0.5 and 0.8 for class 1
        close(s.auc(), 1.0);
        close(s.log_loss(), -(0.9_f64.ln() + 0.8_f64.ln() + 0.5_f64.ln() + 1e-15_f64.ln()) / 4.0);
    }

    #[test]
    fn nothing_scored_is_not_a_number_but_none() {
        let empty = Scored { n_classes: 2, ..Scored::default() };
        assert_eq!((empty.accuracy(), empty.auc(), empty.ece()), (None, None, None));
    }
}
