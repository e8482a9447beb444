//! An annotator's confusion matrix: P(label given class), one row per class.

/// A confusion matrix whose rows sum to 1.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfusionMatrix {
    classes: usize,
    /// `[class, label]`, row-major.
    cells: Vec<f64>,
}

impl ConfusionMatrix {
    /// The matrix with these weights, each row divided by its sum.
    #[must_use]
    pub fn from_weights(classes: usize, mut weight: impl FnMut(usize, usize) -> f64) -> Self {
        let mut cells = Vec::with_capacity(classes * classes);
        for class in 0..classes {
            let row: Vec<f64> = (0..classes).map(|label| weight(class, label)).collect();
            let sum: f64 = row.iter().sum();
            cells.extend(row.iter().map(|w| w / sum));
        }
        Self { classes, cells }
    }

    /// Right with probability `right(class)`, else any other label, all equally likely.
    #[must_use]
    pub fn spread(classes: usize, right: impl Fn(usize) -> f64) -> Self {
        let others = classes.saturating_sub(1).max(1) as f64;
        let cell = |k: usize, l: usize| if k == l { right(k) } else { (1.0 - right(k)) / others };
        if classes == 1 {
            Self::from_weights(1, |_, _| 1.0)
        } else {
            Self::from_weights(classes, cell)
        }
    }

    /// Right with probability `right`, else always the class's target; a class that is its own target is always right.
    #[must_use]
    pub fn targeted(right: f64, target: &[usize]) -> Self {
        Self::from_weights(target.len(), |k, l| {
            let hit = if k == l { right } else { 0.0 };
            hit + if target[k] == l { 1.0 - right } else { 0.0 }
        })
    }

    /// Mixes two matrices row by row; `share` gives the weight of `other` in the row of a class.
    #[must_use]
    pub fn mixed(&self, other: &Self, share: impl Fn(usize) -> f64) -> Self {
        Self::from_weights(self.classes, |k, l| {
            (1.0 - share(k)) * self.row(k)[l] + share(k) * other.row(k)[l]
        })
    }

    /// How many classes there are.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// P(label given this class).
    #[must_use]
    pub fn row(&self, class: usize) -> &[f64] {
        &self.cells[class * self.classes..(class + 1) * self.classes]
    }

    /// P(right given this class).
    #[must_use]
    pub fn right(&self, class: usize) -> f64 {
        self.row(class)[class]
    }

    /// The expected accuracy where the classes have these shares.
    #[must_use]
    pub fn accuracy(&self, shares: &[f64]) -> f64 {
        shares.iter().enumerate().map(|(k, share)| share * self.right(k)).sum()
    }

    /// The mistakes as features of an annotator, `2 * classes` numbers: for each class minus the probability of missing
    /// it, then for each label the sum of its probabilities in the rows of other classes.
    #[must_use]
    pub fn mistakes(&self) -> Vec<f32> {
        let n = self.classes;
        let missed = |k: usize| (self.right(k) - 1.0) as f32;
        let instead =
            |l: usize| (0..n).filter(|k| *k != l).map(|k| self.row(k)[l]).sum::<f64>() as f32;
        (0..n).map(missed).chain((0..n).map(instead)).collect()
    }

    /// The label for a uniform draw from `[0, 1)`, by inversion; never one of probability zero.
    #[must_use]
    pub fn label(&self, class: usize, draw: f64) -> usize {
        let row = self.row(class);
        let mut below = 0.0;
        for (label, p) in row.iter().enumerate() {
            below += p;
            if draw < below {
                return label;
            }
        }
        row.iter().rposition(|p| *p > 0.0).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draw_falls_where_its_share_of_the_row_lies() {
        // Row 0 is 0.25, 0, 0.75.
        let confusion = ConfusionMatrix::from_weights(3, |_, l| [1.0, 0.0, 3.0][l]);
        let labels = [0.0, 0.24, 0.25, 0.999].map(|draw| confusion.label(0, draw));
        assert_eq!(labels, [0, 0, 2, 2]);
        // Rounding may leave a row's sum below a draw: the last label with a probability above zero is returned.
        assert_eq!(ConfusionMatrix::targeted(1.0, &[1, 1]).label(0, 1.0), 0);
    }

    #[test]
    fn a_mixture_lies_between_its_matrices() {
        let right = ConfusionMatrix::spread(2, |_| 1.0);
        let wrong = ConfusionMatrix::spread(2, |_| 0.0);
        let mixed = right.mixed(&wrong, |k| [0.25, 1.0][k]);
        assert_eq!((mixed.row(0), mixed.row(1)), (&[0.75, 0.25][..], &[1.0, 0.0][..]));
        assert_eq!(mixed.accuracy(&[0.5, 0.5]), 0.375);
    }
}
