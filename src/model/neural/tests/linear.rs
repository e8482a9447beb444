//! Linear networks by hand: their saved parameters, their probabilities, and one step of plain gradient descent.

use super::*;
use crate::frame::Matrix;
use crate::model::saved::snapshot::Snapshot;

/// What a kind of these tests says of itself.
macro_rules! test_kind {
    ($kind:literal) => {
        const KIND: &'static str = $kind;
        const SUMMARY: &'static str = "";
        const SOURCE: &'static str = "";

        fn paper() -> (NetworkSpec, Self) {
            Default::default()
        }
    };
}
pub(super) use test_kind;

/// Every number of the saved model, in PyTorch's layout.
pub(super) fn numbers(fitted: Fitted) -> Snapshot {
    Snapshot::from_bytes(&fitted.model.unwrap().parameters).unwrap()
}

/// The weights and biases of a learner: those of the classifier have no prefix.
pub(super) fn weights(learner: &str, snapshot: &Snapshot) -> (Vec<f32>, Vec<f32>) {
    let part = |name: &str| snapshot.find_f32s(&format!("{learner}net.{name}")).unwrap().to_vec();
    (part("classifier.weight"), part("classifier.bias"))
}

/// P(class) of each row, by weights `[class, column]` and biases.
pub(super) fn probabilities(
    (weights, biases): &(Vec<f32>, Vec<f32>),
    matrix: &Matrix,
) -> Vec<Vec<f64>> {
    let mut row = vec![0.0; matrix.width()];
    let of_row = |i: usize| {
        matrix.read(i, &mut row);
        let logit = |(w, bias): (&[f32], &f32)| -> f64 {
            let products = w.iter().zip(&row).map(|(w, x)| f64::from(*w) * f64::from(*x));
            f64::from(*bias) + products.sum::<f64>()
        };
        let logits: Vec<f64> = weights.chunks(row.len()).zip(biases).map(logit).collect();
        let sum: f64 = logits.iter().map(|l| l.exp()).sum();
        logits.iter().map(|l| l.exp() / sum).collect()
    };
    (0..matrix.len()).map(of_row).collect()
}

/// Checks the change by a step at the rate 0.1: minus 0.1 X^T D for weights, where D holds the derivatives with respect
/// to the logits.
pub(super) fn expect_step(
    before: &(Vec<f32>, Vec<f32>),
    after: &(Vec<f32>, Vec<f32>),
    d_logits: &[Vec<f64>],
    matrix: &Matrix,
) {
    let mut row = vec![0.0; matrix.width()];
    for k in 0..3 {
        let mut d_weights = vec![0.0; row.len()];
        for (i, d) in d_logits.iter().enumerate() {
            matrix.read(i, &mut row);
            d_weights.iter_mut().zip(&row).for_each(|(sum, x)| *sum += d[k] * f64::from(*x));
        }
        let d_bias: f64 = d_logits.iter().map(|d| d[k]).sum();
        let at = k * row.len()..(k + 1) * row.len();
        let weights = before.0[at.clone()].iter().zip(&after.0[at]).zip(&d_weights);
        let all = weights.chain([((&before.1[k], &after.1[k]), &d_bias)]);
        for ((before, after), d) in all {
            let (got, want) = (f64::from(after - before), -0.1 * d);
            assert!((got - want).abs() < 1e-6, "class {k}: moved by {got}, expected {want}");
        }
        assert!(d_weights.iter().any(|d| d.abs() > 1e-3), "nothing changes");
    }
}
