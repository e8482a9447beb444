//! A map from probabilities to calibrated ones: fitted to [`Points`] (rows of probabilities, each with its true class
//! or a distribution over the classes, and a weight), applied to rows, and serialised.
//!
//! It depends on neither annotations nor gold, so that a model may use it between the rounds of its own training.

mod bias_corrected;
mod isotonic;
mod latent;
mod points;
mod temperature;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::posterior::Posterior;
pub use isotonic::Isotonic;
pub use points::Points;
use temperature::{MAX_TEMPERATURE, MIN_TEMPERATURE};

/// The map from the model's probabilities to calibrated ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// None: the probabilities are the model's own.
    #[default]
    None,
    /// One exponent for all classes: keeps the most probable class, and needs few instances.
    Temperature,
    /// A temperature and a bias for each class, which corrects for classes that are predicted too often or too rarely:
    /// needs a hundred instances, and may change labels.
    BiasCorrectedTemperature,
    /// An increasing function for each class, then normalisation: needs gold of hundreds of instances, and may change labels.
    Isotonic,
}

/// A map from a row of probabilities to a calibrated one.
///
/// ```
/// use labelmill::model::calibration::Calibrator;
/// let flatter = Calibrator::temperature(2.0);
/// let mut row = [0.8, 0.2];
/// flatter.apply(&mut row);
/// assert!((row[0] - 2.0 / 3.0).abs() < 1e-12);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "method", rename_all = "snake_case")]
pub enum Calibrator {
    /// Each probability to the power of 1 / temperature, normalised: Guo et al. 2017, arXiv:1706.04599.
    Temperature {
        /// More than 1 makes the probabilities more alike.
        temperature: f64,
        /// Lower probabilities, such as 0, count as this one.
        #[serde(default = "least_floor", skip_serializing_if = "is_least_floor")]
        floor: f64,
    },
    /// Each probability to the power of 1 / temperature times e to the power of its class's bias, normalised:
    /// Alexandari, Kundaje and Shrikumar 2020, arXiv:1901.06852.
    BiasCorrectedTemperature {
        /// More than 1 makes the probabilities more alike.
        temperature: f64,
        /// More than 0 makes the class more probable.
        biases: Vec<f64>,
        /// Lower probabilities, such as 0, count as this one.
        #[serde(default = "least_floor", skip_serializing_if = "is_least_floor")]
        floor: f64,
    },
    /// An increasing function of each class's probability, normalised: Zadrozny and Elkan 2002,
    /// doi:10.1145/775047.775151.
    Isotonic {
        /// The function of each class.
        classes: Vec<Isotonic>,
    },
}

fn is_floor(floor: f64) -> bool {
    (f64::MIN_POSITIVE..1.0).contains(&floor)
}

fn least_floor() -> f64 {
    temperature::MIN_FLOOR
}

// The signature that serde wants.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_least_floor(floor: &f64) -> bool {
    *floor == temperature::MIN_FLOOR
}

impl Calibrator {
    /// The map of this temperature, without a floor.
    #[must_use]
    pub fn temperature(temperature: f64) -> Self {
        Self::Temperature { temperature, floor: least_floor() }
    }

    /// The temperature, if it is the lowest or the highest that a fit may find.
    pub(crate) fn temperature_at_bound(&self) -> Option<f64> {
        let (Self::Temperature { temperature, .. }
        | Self::BiasCorrectedTemperature { temperature, .. }) = self
        else {
            return None;
        };
        // The last step of a fit may end beside the bound.
        let inner = MIN_TEMPERATURE * 1.01..=MAX_TEMPERATURE / 1.01;
        (!inner.contains(temperature)).then_some(*temperature)
    }

    /// The map of this method that fits best; `None` for [`Method::None`] and without points.
    ///
    /// `smoothing` is a weight of pseudo-observations. For a temperature, their target is uniform over the classes. For
    /// isotonic regression, each class gets hits of this weight at its lowest probability, and misses of this weight at
    /// its highest. Without them, a fit to few points gives probabilities of 0 and 1.
    #[must_use]
    pub fn fit(method: Method, smoothing: f64, points: &Points) -> Option<Self> {
        if points.is_empty() {
            return None;
        }
        match method {
            Method::None => None,
            Method::Temperature => {
                let (floor, temperature) = temperature::fit(points, smoothing);
                Some(Self::Temperature { temperature, floor })
            }
            Method::BiasCorrectedTemperature => {
                let (floor, temperature, biases) = bias_corrected::fit(points, smoothing);
                Some(Self::BiasCorrectedTemperature { temperature, biases, floor })
            }
            Method::Isotonic => {
                let target = |i, k| points.targets[i * points.n_classes + k];
                Some(Self::Isotonic { classes: Isotonic::of_classes(points, target, smoothing) })
            }
        }
    }

    /// Calibrates one row; a row of zeros stays as it is.
    pub fn apply(&self, row: &mut [f64]) {
        if !row.iter().any(|p| *p > 0.0) {
            return;
        }
        match self {
            Self::Temperature { temperature, floor } => {
                temperature::apply(*floor, *temperature, row);
            }
            Self::BiasCorrectedTemperature { temperature, biases, floor } => {
                bias_corrected::apply(*floor, *temperature, biases, row);
            }
            Self::Isotonic { classes } => {
                row.iter_mut().zip(classes).for_each(|(p, class)| *p = class.apply(*p));
                let sum: f64 = row.iter().sum();
                row.iter_mut().for_each(|p| *p /= sum);
            }
        }
    }

    /// Calibrates the rows for which `is_wanted` holds.
    pub fn apply_to(&self, rows: &mut Posterior, is_wanted: impl Fn(usize) -> bool + Sync) {
        rows.par_rows_mut(|i, row| {
            if is_wanted(i) {
                self.apply(row);
            }
        });
    }

    /// Whether this is a valid map of `n_classes` classes; a deserialised one may not be.
    #[must_use]
    pub fn is_valid(&self, n_classes: usize) -> bool {
        match self {
            Self::Temperature { temperature, floor } => {
                temperature.is_finite() && *temperature > 0.0 && is_floor(*floor)
            }
            Self::BiasCorrectedTemperature { temperature, biases, floor } => {
                bias_corrected::is_valid(*temperature, biases, n_classes) && is_floor(*floor)
            }
            Self::Isotonic { classes } => {
                classes.len() == n_classes && classes.iter().all(Isotonic::is_valid)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::posterior::best;

    const METHODS: [Method; 3] =
        [Method::Temperature, Method::BiasCorrectedTemperature, Method::Isotonic];

    fn row() -> impl Strategy<Value = Vec<f64>> {
        let cell = prop_oneof![Just(0.0), Just(0.25), 1e-12..1.0, Just(1e-200), Just(0.5 + 1e-10)];
        proptest::collection::vec(cell, 3).prop_filter_map("all zero", |mut row| {
            let sum: f64 = row.iter().sum();
            row.iter_mut().for_each(|p| *p /= sum);
            (sum > 1e-13).then_some(row)
        })
    }

    fn points(rows: &[(Vec<f64>, usize, f64)]) -> Points {
        let mut points = Points::new(3);
        rows.iter().for_each(|(row, class, weight)| points.push_class(row, *class, *weight));
        points
    }

    fn rows() -> impl Strategy<Value = Vec<(Vec<f64>, usize, f64)>> {
        proptest::collection::vec((row(), 0..3_usize, 0.1..3.0), 1..30)
    }

    proptest! {
        #[test]
        fn rows_stay_probabilities_and_the_map_survives_its_text(
            fitted_to in rows(), new in row(), smoothing in prop_oneof![Just(0.0), Just(0.5)]
        ) {
            for method in METHODS {
                let map = Calibrator::fit(method, smoothing, &points(&fitted_to)).unwrap();
                prop_assert!(map.is_valid(3), "{map:?}");
                let mut calibrated = new.clone();
                map.apply(&mut calibrated);
                let sum: f64 = calibrated.iter().sum();
                prop_assert!((sum - 1.0).abs() < 1e-12 && calibrated.iter().all(|p| (0.0..=1.0).contains(p)));
                let text = serde_json::to_string(&map).unwrap();
                prop_assert_eq!(serde_json::from_str::<Calibrator>(&text).unwrap(), map);
            }
        }

        #[test]
        fn a_temperature_changes_neither_the_best_class_nor_a_tie(
            new in row(), temperature in prop_oneof![0.05..20.0, Just(0.05), Just(1000.0)]
        ) {
            let mut calibrated = new.clone();
            Calibrator::temperature(temperature).apply(&mut calibrated);
            prop_assert_eq!(best(&calibrated), best(&new), "{:?} {:?}", new, calibrated);
        }

        #[test]
        fn a_larger_probability_stays_larger_for_its_class(fitted_to in rows(), p in 0.0..1.0, more in 1e-6..1.0) {
            let Some(Calibrator::Isotonic { classes }) =
                Calibrator::fit(Method::Isotonic, 0.5, &points(&fitted_to)) else { unreachable!() };
            for class in &classes {
                prop_assert!(class.apply(p) < class.apply(p + more));
            }
        }
    }

    /// Classes with a relative difference of 5e-10 are tied; with 3e-9 they are not.
    #[test]
    fn classes_that_were_tied_stay_tied_and_classes_that_were_not_do_not_become_so() {
        let tied = [0.45, 0.45 * (1.0 + 5e-10), 0.1];
        let apart = [0.45, 0.45 * (1.0 + 3e-9), 0.1];
        for temperature in [0.05, 20.0] {
            let map = Calibrator::temperature(temperature);
            let [mut one, mut other] = [tied, apart];
            map.apply(&mut one);
            map.apply(&mut other);
            assert_eq!((best(&one), best(&other)), (Some((0, true)), Some((1, false))));
        }
    }

    /// Shares of three votes. Nobody named the class of four of 200 instances: by these alone, with a floor of 1e-30, the
    /// temperature is 15.7, and two votes of three become 0.51. With a floor of 0.1 / 3 it is 0.64, and they become 0.74.
    #[test]
    fn classes_that_nobody_named_do_not_decide_the_map_of_the_others() {
        let mut rows = Vec::new();
        for n in 0..200 {
            let class = n % 3;
            let mut row = vec![0.0; 3];
            row[class] = if n % 5 == 0 { 2.0 / 3.0 } else { 1.0 };
            row[(class + 1) % 3] = 1.0 - row[class];
            rows.push((row, if n % 50 == 0 { (class + 2) % 3 } else { class }, 1.0));
        }
        let points = points(&rows);
        for method in [Method::Temperature, Method::BiasCorrectedTemperature] {
            let map = Calibrator::fit(method, 0.5, &points).unwrap();
            let mut row = [1.0, 0.0, 0.0];
            map.apply(&mut row);
            assert!((0.95..0.999).contains(&row[0]), "{map:?}: {row:?}");
            let mut row = [2.0 / 3.0, 1.0 / 3.0, 0.0];
            map.apply(&mut row);
            assert!(row[0] > 0.7 && row[2] < 0.1, "{map:?}: {row:?}");
        }
    }

    /// A model of an earlier version has no floor.
    #[test]
    fn a_map_without_a_floor_is_read() {
        let text = r#"{"method": "temperature", "temperature": 2.5}"#;
        assert_eq!(serde_json::from_str::<Calibrator>(text).unwrap(), Calibrator::temperature(2.5));
        let with = |floor: f64| Calibrator::Temperature { temperature: 2.5, floor }.is_valid(3);
        assert!(with(0.01) && !with(0.0) && !with(1.0) && !with(f64::NAN));
    }

    #[test]
    fn nothing_to_fit_to_is_no_map_and_rows_of_zeros_stay() {
        let none = Points::new(3);
        assert!(METHODS.iter().all(|m| Calibrator::fit(*m, 0.5, &none).is_none()));
        let one = points(&[(vec![0.2, 0.5, 0.3], 1, 1.0), (vec![0.0; 3], 0, 1.0)]);
        assert_eq!(one.len(), 1, "a row of zeros says nothing");
        for method in METHODS {
            let mut row = [0.0; 3];
            Calibrator::fit(method, 0.5, &one).unwrap().apply(&mut row);
            assert_eq!(row, [0.0; 3]);
        }
    }

    #[test]
    fn a_map_of_other_classes_and_one_that_falls_are_not_valid() {
        let isotonic = |text: &str| serde_json::from_str::<Calibrator>(text).unwrap();
        let of = |at: &str, value: &str| {
            isotonic(&format!(
                r#"{{"method": "isotonic", "classes": [{{"at": {at}, "value": {value}}}]}}"#
            ))
        };
        assert!(of("[0.1, 0.4]", "[0.2, 0.2]").is_valid(1));
        assert!(!of("[0.1, 0.4]", "[0.2, 0.2]").is_valid(2));
        for (at, value) in [
            ("[0.4, 0.1]", "[0.2, 0.3]"),
            ("[0.1, 0.4]", "[0.3, 0.2]"),
            ("[]", "[]"),
            ("[0.1]", "[2.0]"),
            ("[0.1]", "[0.2, 0.3]"),
        ] {
            assert!(!of(at, value).is_valid(1), "{at} {value}");
        }
        for temperature in [0.0, -1.0, f64::NAN] {
            assert!(!Calibrator::temperature(temperature).is_valid(2));
        }
    }
}
