//! Calibration: whether predictions with a confidence of 80 % are right four times out of five.
//!
//! Every error here is the mean gap between confidence and accuracy over bins, weighted by the predictions in each bin:
//! sum over the bins of |hits - sum of the confidences|, divided by the number of predictions. An instance without a
//! posterior has no confidence, and does not count.

use super::{LabelsWithTruth, winner};
use crate::tables::metrics::Metric;

/// Bins of every calibration error.
const BINS: usize = 15;

impl LabelsWithTruth {
    /// The expected calibration error over 15 bins of equal width, ((m - 1) / 15, m / 15]: Guo et al. 2017,
    /// arXiv:1706.04599.
    #[must_use]
    pub fn ece(&self) -> Option<f64> {
        equal_width(&self.predictions()?)
    }

    /// The expected calibration error over 15 bins of equal mass: Nguyen and O'Connor 2015, arXiv:1508.05154.
    #[must_use]
    pub fn ece_adaptive(&self) -> Option<f64> {
        equal_mass(self.predictions()?)
    }

    /// The mean over the classes that the run knows of the calibration error of P(class), over 15 bins of equal width:
    /// Kull et al. 2019, arXiv:1910.12656.
    #[must_use]
    pub fn ece_classwise(&self) -> Option<f64> {
        let of = |k: usize| {
            let rows = self.rows()?.filter(|(row, _)| winner(row).is_some());
            equal_width(&rows.map(|(row, truth)| (row[k], truth == k)).collect::<Vec<_>>())
        };
        let errors = (0..self.n_classes).map(of).collect::<Option<Vec<f64>>>()?;
        (!errors.is_empty()).then(|| errors.iter().sum::<f64>() / errors.len() as f64)
    }

    /// The reliability table: for each non-empty bin of [`LabelsWithTruth::ece`] the number of predictions, their mean confidence
    /// and their accuracy. Each name begins with `prefix`. Bin 8 is (7 / 15, 8 / 15].
    #[must_use]
    pub fn reliability(&self, prefix: &str, split: &'static str) -> Vec<Metric> {
        let predictions = self.predictions().unwrap_or_default();
        let mut counts = [0_u32; BINS];
        predictions.iter().for_each(|prediction| counts[bin_of(prediction.0)] += 1);
        let filled = bins(&predictions).into_iter().zip(counts).enumerate();
        filled
            .filter(|(_, (_, count))| *count > 0)
            .flat_map(|(bin, ((confidence, hits), count))| {
                let n = f64::from(count);
                let cells = [("count", n), ("confidence", confidence / n), ("accuracy", hits / n)];
                cells.map(|(what, value)| Metric {
                    name: format!("{prefix}reliability_{what}"),
                    split,
                    bin: Some(bin as u32 + 1),
                    value: Some(value),
                })
            })
            .collect()
    }

    /// The probability of each instance's most probable class, and whether this class is the true one.
    fn predictions(&self) -> Option<Vec<(f64, bool)>> {
        let prediction =
            |(row, truth): (&[f64], usize)| winner(row).map(|class| (row[class], class == truth));
        Some(self.rows()?.filter_map(prediction).collect())
    }
}

/// The sum of the confidences in a bin, and the number of hits.
type Bin = (f64, f64);

fn equal_width(predictions: &[(f64, bool)]) -> Option<f64> {
    gap(&bins(predictions), predictions.len())
}

/// Bins of equal width, ((m - 1) / 15, m / 15].
fn bins(predictions: &[(f64, bool)]) -> [Bin; BINS] {
    let mut bins = [Bin::default(); BINS];
    predictions.iter().for_each(|prediction| add(&mut bins[bin_of(prediction.0)], prediction));
    bins
}

#[allow(clippy::cast_sign_loss)]
fn bin_of(confidence: f64) -> usize {
    ((confidence * BINS as f64).ceil() as usize).clamp(1, BINS) - 1
}

/// The error over bins of equal mass. Equal confidences share the bin of the middle one, so that the order of the rows
/// does not matter.
fn equal_mass(mut predictions: Vec<(f64, bool)>) -> Option<f64> {
    predictions.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut bins = [Bin::default(); BINS];
    let mut start = 0;
    for equal in predictions.chunk_by(|a, b| a.0 == b.0) {
        let bin = (start + equal.len() / 2) * BINS / predictions.len();
        equal.iter().for_each(|prediction| add(&mut bins[bin], prediction));
        start += equal.len();
    }
    gap(&bins, predictions.len())
}

fn add((confidence, hits): &mut Bin, prediction: &(f64, bool)) {
    *confidence += prediction.0;
    *hits += f64::from(u8::from(prediction.1));
}

fn gap(bins: &[Bin], n: usize) -> Option<f64> {
    let gaps = bins.iter().map(|(confidence, hits)| (hits - confidence).abs());
    (n > 0).then(|| gaps.sum::<f64>() / n as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::close;

    #[test]
    fn calibration_errors_are_those_worked_out_by_hand() {
        let mut s = LabelsWithTruth::new(2);
        s.push(Some(0), &[0.81, 0.19], 0);
        s.push(Some(0), &[0.85, 0.15], 1);
        s.push(Some(1), &[0.3, 0.7], 1);
        // bins of a width of 1 / 15: 0.81 and 0.85 are in (0.8, 0.867], 0.7 in (0.667, 0.733]
        close(s.ece(), ((1.66 - 1.0) + 0.3) / 3.0);
        // three predictions in fifteen bins of equal mass: each by itself
        close(s.ece_adaptive(), (0.19 + 0.85 + 0.3) / 3.0);
        // class 0: 0.81 and 0.85 with one hit, 0.3 with none; class 1: 0.19 and 0.15 with one hit, 0.7 with one
        let class_0 = (1.66 - 1.0) + 0.3;
        let class_1 = (1.0 - 0.34) + 0.3;
        close(s.ece_classwise(), f64::midpoint(class_0, class_1) / 3.0);
    }

    #[test]
    fn the_reliability_table_is_that_worked_out_by_hand() {
        let mut s = LabelsWithTruth::new(2);
        s.push(Some(0), &[0.81, 0.19], 0);
        s.push(Some(0), &[0.85, 0.15], 1);
        s.push(Some(0), &[0.83, 0.17], 0);
        s.push(Some(1), &[0.3, 0.7], 1);
        let found = s.reliability("prediction_", "holdout");
        let want = [
            ("prediction_reliability_count", 11, 1.0),
            ("prediction_reliability_confidence", 11, 0.7),
            ("prediction_reliability_accuracy", 11, 1.0),
            ("prediction_reliability_count", 13, 3.0),
            ("prediction_reliability_confidence", 13, 0.83),
            ("prediction_reliability_accuracy", 13, 2.0 / 3.0),
        ];
        assert_eq!(found.len(), want.len());
        for (metric, (name, bin, value)) in found.iter().zip(want) {
            assert_eq!((metric.name.as_str(), metric.split), (name, "holdout"));
            assert_eq!(metric.bin, Some(bin));
            close(metric.value, value);
        }
        // The error follows from the table, which is all that a reliability diagram needs.
        close(s.ece(), (0.3 + 3.0 * (0.83 - 2.0 / 3.0)) / 4.0);
    }

    /// A bin includes its upper edge: .6, which is 9 / 15, is in the ninth bin, .65 in the tenth.
    #[test]
    fn a_confidence_on_the_edge_is_in_the_lower_bin() {
        let mut s = LabelsWithTruth::new(2);
        s.push(Some(0), &[0.6, 0.4], 0);
        s.push(Some(0), &[0.65, 0.35], 1);
        // In one bin the two would nearly cancel: the confidences sum to 1.25, with one hit.
        close(s.ece(), f64::midpoint(0.4, 0.65));
    }

    #[test]
    fn instances_without_a_posterior_do_not_dilute_an_error() {
        let mut s = LabelsWithTruth::new(2);
        s.push(Some(0), &[0.7, 0.3], 0);
        for _ in 0..9 {
            s.push(None, &[0.0, 0.0], 0);
        }
        close(s.ece(), 0.3);
        close(s.ece_adaptive(), 0.3);
        close(s.ece_classwise(), 0.3);
        let counts = s.reliability("", "truth");
        let counts = counts.iter().filter(|m| m.name.contains("count"));
        assert_eq!(counts.map(|m| m.value).collect::<Vec<_>>(), [Some(1.0)]);
    }

    #[test]
    fn equal_confidences_are_in_one_bin_whatever_their_order() {
        // half of the 40 at 0.5 are right: no gap; half of the 20 at 0.9 are right: a gap of 8
        for is_hit in [|n: u32| n.is_multiple_of(2), |n: u32| !(20..50).contains(&n)] {
            let predictions = (0..60).map(|n| (if n < 40 { 0.5 } else { 0.9 }, is_hit(n)));
            close(equal_mass(predictions.collect()), 8.0 / 60.0);
        }
    }

    #[test]
    fn bins_of_equal_mass_are_of_equal_mass() {
        // 30 predictions of increasing confidence, two per bin: bin 0 is right, bin 1 wrong, ... All share one ECE bin.
        let sure = |n: u32| 0.5 + f64::from(n) * 1e-4;
        let predictions: Vec<(f64, bool)> =
            (0..30).map(|n| (sure(n), (n / 2).is_multiple_of(2))).collect();
        let hits = |bin: u32| if bin.is_multiple_of(2) { 2.0_f64 } else { 0.0 };
        let gaps = (0..15).map(|bin| (hits(bin) - sure(2 * bin) - sure(2 * bin + 1)).abs());
        close(equal_mass(predictions), gaps.sum::<f64>() / 30.0);
    }
}
