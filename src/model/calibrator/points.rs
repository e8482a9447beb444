//! What a map is fitted to.

/// What a [`Calibrator`](super::Calibrator) is fitted to: rows of probabilities, and what they should have told.
///
/// # Shapes
/// `probabilities` and `targets` are `[points, classes]`, row-major; `weights` is `[points]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Points {
    pub(crate) n_classes: usize,
    pub(crate) probabilities: Vec<f64>,
    pub(crate) targets: Vec<f64>,
    pub(super) weights: Vec<f64>,
}

impl Points {
    /// None yet.
    #[must_use]
    pub fn new(n_classes: usize) -> Self {
        Self { n_classes, probabilities: Vec::new(), targets: Vec::new(), weights: Vec::new() }
    }

    /// A row whose class is known. A row of zeros says nothing and is left out.
    pub fn push_class(&mut self, probabilities: &[f64], class: usize, weight: f64) {
        let target: Vec<f64> =
            (0..self.n_classes).map(|k| f64::from(u8::from(k == class))).collect();
        self.push(probabilities, &target, weight);
    }

    /// A row whose class is known by its distribution `target`. A row of zeros says nothing and is left out.
    pub fn push(&mut self, probabilities: &[f64], target: &[f64], weight: f64) {
        if probabilities.iter().any(|p| *p > 0.0) && weight > 0.0 {
            self.probabilities.extend_from_slice(probabilities);
            self.targets.extend_from_slice(target);
            self.weights.push(weight);
        }
    }

    /// Points.
    #[must_use]
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// The sum of all weights.
    pub(super) fn weight(&self) -> f64 {
        self.weights.iter().sum()
    }
}

/// Numbers are kept to this, so that their text in a saved model is read back to the same bits.
const PRECISION: f64 = 1e12;

pub(super) fn rounded(value: f64) -> f64 {
    (value * PRECISION).round() / PRECISION
}
