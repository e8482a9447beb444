//! Numerical functions that all models share, and the least probabilities.

/// The least expected count in a confusion matrix, and the least probability in a prior.
pub const MIN_PROBABILITY: f64 = 1e-10;

/// The least probability in a confusion column: [`MIN_PROBABILITY`] divided by ten billion annotations.
pub const MIN_LIKELIHOOD: f64 = 1e-20;

/// A feature is constant unless its standard deviation is larger than this share of its mean: half the least distance
/// of neighbouring f32s, and twice the largest deviation that rounding gives to equal values with weights.
pub const MIN_RELATIVE_DEVIATION: f64 = f32::EPSILON as f64 / 4.0;

/// `out = softmax(logs)`; returns `logsumexp(logs)`.
pub fn softmax(logs: &[f64], out: &mut [f64]) -> f64 {
    let max = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    out.iter_mut().zip(logs).for_each(|(p, l)| *p = (l - max).exp());
    let sum: f64 = out.iter().sum();
    out.iter_mut().for_each(|p| *p /= sum);
    max + sum.ln()
}

/// `ln sum e^x`, without overflow or underflow, of numbers of which one is finite.
#[must_use]
pub fn logsumexp(logs: impl Iterator<Item = f64> + Clone) -> f64 {
    let max = logs.clone().fold(f64::NEG_INFINITY, f64::max);
    max + logs.map(|l| (l - max).exp()).sum::<f64>().ln()
}

/// `1 / (1 + e^-x)`, without overflow.
#[must_use]
pub fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 { 1.0 / (1.0 + (-x).exp()) } else { x.exp() / (1.0 + x.exp()) }
}

/// `ln(1 + e^x)`, without overflow.
#[must_use]
pub fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// `ln sigmoid(x)`, without overflow.
#[must_use]
pub fn ln_sigmoid(x: f64) -> f64 {
    -softplus(-x)
}

/// `x`, or `floor` where it is smaller; NaN stays NaN, where `f64::max` would return the floor and hide a training that
/// diverged.
#[must_use]
pub fn at_least(x: f64, floor: f64) -> f64 {
    if x < floor { floor } else { x }
}

/// The larger of two numbers; NaN where one is NaN, where `f64::max` would return the other.
#[must_use]
pub fn larger(a: f64, b: f64) -> f64 {
    if a > b || a.is_nan() { a } else { b }
}

/// Divides by the sum, applies `change`, and divides by the sum again; uniform where the sum is zero. NaN stays NaN.
pub fn normalise(values: &mut [f64], change: impl Fn(f64) -> f64) {
    let sum: f64 = values.iter().sum();
    let uniform = 1.0 / values.len() as f64;
    values.iter_mut().for_each(|v| *v = change(if sum == 0.0 { uniform } else { *v / sum }));
    let sum: f64 = values.iter().sum();
    values.iter_mut().for_each(|v| *v /= sum);
}

pub(super) mod assignment;
pub(super) mod lbfgs;
#[cfg(test)]
mod tests {
    use super::*;

    /// With a floor of 0.1, the second case sums to 1.1 before the last division.
    #[test]
    fn probabilities_are_normalised_and_what_is_no_number_stays_visible() {
        let normalised = |mut values: [f64; 3]| {
            normalise(&mut values, |v| at_least(v, 0.1));
            values
        };
        let near = |got: [f64; 3], want: [f64; 3]| {
            assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-15), "{got:?}");
        };
        near(normalised([4.0, 14.0, 2.0]), [0.2, 0.7, 0.1]);
        near(normalised([2.0, 8.0, 0.0]), [0.2 / 1.1, 0.8 / 1.1, 0.1 / 1.1]);
        near(normalised([0.0; 3]), [1.0 / 3.0; 3]);
        assert!(normalised([1.0, f64::NAN, 1.0]).iter().all(|v| v.is_nan()));
    }

    #[test]
    fn the_larger_of_two_numbers_is_nan_where_one_is() {
        assert_eq!((larger(1.0, 2.0), larger(2.0, 1.0)), (2.0, 2.0));
        assert!(larger(1.0, f64::NAN).is_nan() && larger(f64::NAN, 1.0).is_nan());
    }

    /// ln 4 = ln(1 + 3); a number without a part in the sum changes nothing.
    #[test]
    fn the_logarithm_of_a_sum_of_powers_stays_finite() {
        for shift in [-1e4, 0.0, 1e4] {
            let logs = [0.0, 3.0_f64.ln(), f64::NEG_INFINITY];
            let got = logsumexp(logs.iter().map(|l| l + shift)) - shift;
            assert!((got - 4.0_f64.ln()).abs() < 1e-11, "{got}");
        }
    }

    /// ln 4 = ln(1 + e^(ln 3)); sigmoid(ln 3) = 3/4.
    #[test]
    fn functions_of_large_numbers_stay_finite() {
        let (three, quarter) = (3.0_f64.ln(), 0.25_f64);
        for (got, want) in [
            (sigmoid(three), 0.75),
            (sigmoid(-three), quarter),
            (sigmoid(-800.0), 0.0),
            (sigmoid(800.0), 1.0),
            (softplus(three), 4.0_f64.ln()),
            (softplus(800.0), 800.0),
            (ln_sigmoid(-three), quarter.ln()),
            (ln_sigmoid(-800.0), -800.0),
            (ln_sigmoid(800.0), 0.0),
        ] {
            assert!((got - want).abs() < 1e-15, "{got} is not {want}");
        }
    }
}
