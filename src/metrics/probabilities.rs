//! The log-loss, and the area under the ROC curve: whether posteriors are high for the true class.

use super::LabelsWithTruth;

impl LabelsWithTruth {
    /// Minus the mean log-posterior of the true class, clipped at 1e-15.
    #[must_use]
    pub fn log_loss(&self) -> Option<f64> {
        self.mean(|row, truth, _| log_loss(row, truth))
    }

    /// By how much the log-loss of the same instances, in the same order, is higher in `other`, and the standard error of
    /// this mean difference; `None` with fewer than two instances.
    #[must_use]
    pub fn rise_of_log_loss(&self, other: &Self) -> Option<(f64, f64)> {
        let rises: Vec<f64> = (self.rows()?.zip(other.rows()?))
            .map(|(before, after)| log_loss(after.0, after.1) - log_loss(before.0, before.1))
            .collect();
        let n = rises.len() as f64;
        let mean = rises.iter().sum::<f64>() / n;
        let squares: f64 = rises.iter().map(|rise| (rise - mean).powi(2)).sum();
        (rises.len() > 1).then(|| (mean, (squares / (n - 1.0) / n).sqrt()))
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
        for tied in scores.chunk_by(|a, b| a.0 == b.0) {
            let end = start + tied.len();
            let positives = tied.iter().filter(|s| s.1).count() as f64;
            rank_sum += positives * (start + 1 + end) as f64 / 2.0;
            start = end;
        }
        let positives = scores.iter().filter(|s| s.1).count() as f64;
        let negatives = scores.len() as f64 - positives;
        (positives * negatives > 0.0)
            .then(|| (rank_sum - positives * (positives + 1.0) / 2.0) / (positives * negatives))
    }
}

/// Minus the log-posterior of the true class, clipped at 1e-15.
fn log_loss(row: &[f64], truth: usize) -> f64 {
    let sum: f64 = row.iter().sum();
    let of_truth = row.get(truth).copied().unwrap_or(0.0);
    (if sum > 0.0 { of_truth / sum } else { 0.0 }).clamp(1e-15, 1.0).ln().abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::close;

    /// The losses rise by ln 2, ln 4 and 0, whose mean is ln 2 and whose standard deviation is ln 2.
    #[test]
    fn the_rise_of_the_log_loss_has_the_error_of_a_mean_difference() {
        let scored = |of_truth: [f64; 3]| {
            let mut s = LabelsWithTruth::new(2);
            of_truth.iter().for_each(|p| s.push(Some(0), &[*p, 1.0 - p], 0));
            s
        };
        let (before, after) = (scored([0.8, 0.8, 0.5]), scored([0.4, 0.2, 0.5]));
        let (rise, error) = before.rise_of_log_loss(&after).unwrap();
        close(Some(rise), 2_f64.ln());
        close(Some(error), 2_f64.ln() / 3_f64.sqrt());
        assert_eq!(LabelsWithTruth::new(2).rise_of_log_loss(&LabelsWithTruth::new(2)), None);
    }

    /// The unknown instance has the highest P(class 1): one of the two pairs of class 1 is in order.
    #[test]
    fn an_unknown_class_is_a_negative_of_the_area() {
        let mut s = LabelsWithTruth::new(2);
        s.push(Some(0), &[0.9, 0.1], 0);
        s.push(Some(0), &[0.8, 0.2], 1);
        s.push(Some(1), &[0.3, 0.7], 2);
        close(s.auc(), 0.5);
    }

    /// Class 0 wins 4.5 of its 6 pairs, class 1 three of 6, class 2 3.5 of 4: equal scores are half a win.
    #[test]
    fn the_area_of_three_classes_is_the_mean_of_all_three_and_ties_count_half() {
        let mut s = LabelsWithTruth::new(3);
        s.push(Some(0), &[0.6, 0.3, 0.1], 0);
        s.push(Some(0), &[0.6, 0.1, 0.3], 1);
        s.push(Some(1), &[0.2, 0.7, 0.1], 1);
        s.push(Some(0), &[0.4, 0.3, 0.3], 2);
        s.push(Some(0), &[0.5, 0.3, 0.2], 0);
        close(s.auc(), (4.5 / 6.0 + 3.0 / 6.0 + 3.5 / 4.0) / 3.0);
    }
}
