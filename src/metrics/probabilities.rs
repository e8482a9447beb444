//! The log-loss, and the area under the ROC curve: whether posteriors are high for the true class.

use super::LabelsWithTruth;

/// The increase of the log-loss when instances get other probabilities.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogLossIncrease {
    /// The mean over the instances.
    pub mean: f64,
    /// By how many standard deviations the increase is more than it would be if the true classes were drawn from the new
    /// probabilities. The expected increase is then minus their Kullback-Leibler divergence from the old ones: true
    /// probabilities have the least log-loss. NaN where no class has a probability between 0 and 1.
    ///
    /// # Why
    /// The spread of the observed increases says little: where a model is right about all of a few instances, a map that
    /// rightly makes it less certain adds the same small loss to each.
    pub z_score: f64,
}

impl LabelsWithTruth {
    /// Minus the mean log-posterior of the true class, clipped at 1e-15.
    #[must_use]
    pub fn log_loss(&self) -> Option<f64> {
        self.mean(|row, truth, _| loss_of(shares(row).nth(truth).unwrap_or(0.0)))
    }

    /// How the log-loss of the same instances, in the same order, increases with other probabilities; `None` where
    /// probabilities are unknown.
    #[must_use]
    pub fn log_loss_increase(&self, with: &Self) -> Option<LogLossIncrease> {
        let (mut sum, mut expected, mut variance) = (0.0, 0.0, 0.0);
        for ((before, truth), (after, _)) in self.rows()?.zip(with.rows()?) {
            let increases: Vec<f64> = log_losses(after)
                .zip(log_losses(before))
                .map(|(after, before)| after - before)
                .collect();
            // A class that the run does not know has the same loss with all probabilities.
            sum += increases.get(truth).copied().unwrap_or(0.0);
            let shares: Vec<f64> = shares(after).collect();
            let mean: f64 = shares.iter().zip(&increases).map(|(p, increase)| p * increase).sum();
            expected += mean;
            let squares = increases.iter().map(|increase| (increase - mean).powi(2));
            variance += shares.iter().zip(squares).map(|(p, square)| p * square).sum::<f64>();
        }
        let z_score = (sum - expected) / variance.sqrt();
        Some(LogLossIncrease { mean: sum / self.len().max(1) as f64, z_score })
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

/// Minus the log-posterior of each class, clipped at 1e-15.
fn log_losses(row: &[f64]) -> impl Iterator<Item = f64> {
    shares(row).map(loss_of)
}

/// The probabilities of a row divided by their sum; zeros stay.
fn shares(row: &[f64]) -> impl Iterator<Item = f64> {
    let sum: f64 = row.iter().sum();
    row.iter().map(move |p| if sum > 0.0 { p / sum } else { 0.0 })
}

fn loss_of(probability: f64) -> f64 {
    probability.clamp(1e-15, 1.0).ln().abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::close;

    fn scored(n: u32, of_truth: f64) -> LabelsWithTruth {
        let mut s = LabelsWithTruth::new(2);
        (0..n).for_each(|_| s.push(Some(0), &[of_truth, 1.0 - of_truth], 0));
        s
    }

    /// With probabilities of 0.5, each loss increases by ln 1.9 or by ln 0.1, with equal probabilities: the standard
    /// deviation, half of their difference, is as far from their mean as ln 1.9.
    #[test]
    fn the_z_score_of_an_increase_is_that_of_classes_drawn_from_the_new_probabilities() {
        let increase = scored(9, 0.95).log_loss_increase(&scored(9, 0.5)).unwrap();
        close(Some(increase.mean), 1.9_f64.ln());
        close(Some(increase.z_score), 3.0);
        // Thirty instances that a model is rightly certain about are no evidence against a little less certainty.
        let increase = scored(30, 0.99999).log_loss_increase(&scored(30, 0.996)).unwrap();
        assert!(increase.mean > 0.0 && increase.z_score < 1.0, "{increase:?}");
        let none = LabelsWithTruth::new(2);
        let increase = none.log_loss_increase(&none).unwrap();
        assert!(increase.mean == 0.0 && increase.z_score.is_nan(), "{increase:?}");
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
