//! Temperatures worked out by hand, against grids and differences, and at their bounds.

use super::*;

/// The temperature with the least log-loss where the floor is the least.
fn without_floor(points: &Points, smoothing: f64) -> f64 {
    LogLoss::new(points, smoothing, MIN_FLOOR).best_temperature()
}

/// Four uneven points of three classes, overconfident.
fn points() -> Points {
    let mut points = Points::new(3);
    points.push_class(&[0.97, 0.02, 0.01], 0, 2.0);
    points.push_class(&[0.05, 0.9, 0.05], 2, 1.0);
    points.push(&[0.2, 0.1, 0.7], &[0.25, 0.0, 0.75], 1.5);
    points.push_class(&[0.01, 0.98, 0.01], 1, 0.5);
    points
}

/// The log-loss at a temperature, by the definition.
fn log_loss(points: &Points, smoothing: f64, temperature: f64) -> f64 {
    let total: f64 = points.weights.iter().sum();
    let invented = smoothing / (total + smoothing);
    let rows = points.probabilities.chunks(3).zip(points.targets.chunks(3));
    let of_row = |((row, target), weight): ((&[f64], &[f64]), &f64)| {
        let powers: Vec<f64> = row.iter().map(|p| p.powf(1.0 / temperature)).collect();
        let sum: f64 = powers.iter().sum();
        let terms = powers
            .iter()
            .zip(target)
            .map(|(p, t)| -(t * (1.0 - invented) + invented / 3.0) * (p / sum).ln());
        weight * terms.sum::<f64>()
    };
    rows.zip(&points.weights).map(of_row).sum()
}

#[test]
fn the_temperature_is_the_best_of_a_grid() {
    for smoothing in [0.0, 0.5, 3.0] {
        let points = points();
        // The grid starts at the lowest temperature: below it the powers underflow to zero.
        let grid = (50..20_000_u32).map(|n| f64::from(n) * 1e-3);
        let loss = |t: &f64| log_loss(&points, smoothing, *t);
        let best = grid.min_by(|a, b| loss(a).total_cmp(&loss(b))).unwrap();
        let got = without_floor(&points, smoothing);
        assert!((got - best).abs() <= 1e-3, "{got} is not {best}");
        assert!(loss(&got) <= loss(&best) + 1e-12);
    }
}

/// Of four rows [.8, .2], three are right: (.8 / .2)^b = 3.
#[test]
fn the_temperature_is_that_worked_out_by_hand() {
    let mut points = Points::new(2);
    for class in [0, 0, 0, 1] {
        points.push_class(&[0.8, 0.2], class, 1.0);
    }
    let want = 4.0_f64.ln() / 3.0_f64.ln();
    assert!((without_floor(&points, 0.0) - want).abs() < 1e-11);
    // One of five points is a pseudo-observation with a uniform target: 3.5 of 5 are right.
    let want = 4.0_f64.ln() / (3.5_f64 / 1.5).ln();
    assert!((without_floor(&points, 1.0) - want).abs() < 1e-11);
}

/// With a wrong derivative Newton's method still converges, but as slowly as bisection.
#[test]
fn the_derivatives_of_the_log_loss_are_those_of_differences() {
    let points = points();
    let total = points.weight();
    let (smoothing, step) = (0.5, 1e-4);
    let logs = points.probabilities.iter().map(|p| log(*p, MIN_FLOOR)).collect();
    let uniform = smoothing / (total + smoothing);
    let mean = LogLoss { points: &points, logs, total, uniform };
    let value = |b: f64| log_loss(&points, smoothing, 1.0 / b) / total;
    for ln_b in [-2.0_f64, 0.0, 1.0] {
        let b = ln_b.exp();
        let (slope, curvature) = mean.derivatives(ln_b);
        let first = (value(b + step) - value(b - step)) / (2.0 * step);
        assert!((slope - first).abs() < 1e-6, "{slope} is not {first}");
        let [low, high] = [ln_b - step, ln_b + step].map(|ln_b| mean.derivatives(ln_b).0);
        let second = (high - low) / (2.0 * step);
        assert!((curvature - second).abs() < 1e-6, "{curvature} is not {second}");
    }
}

/// Four uneven points of three classes, whose classes are not known.
fn latent_points() -> Points {
    let mut points = Points::of_likelihoods(3, 4);
    points.push(&[0.97, 0.02, 0.01], &[1.0, 0.3, 0.5], 2.0);
    points.push(&[0.05, 0.9, 0.05], &[0.2, 0.1, 1.0], 1.0);
    points.push(&[0.2, 0.1, 0.7], &[0.25, 0.0, 0.75], 1.5);
    points.push(&[0.01, 0.98, 0.01], &[0.1, 1.0, 0.2], 0.5);
    points
}

/// The mean log-likelihood at a temperature, by the definition.
fn log_likelihood(points: &Points, smoothing: f64, temperature: f64) -> f64 {
    let total: f64 = points.weights.iter().sum();
    let invented = smoothing / (total + smoothing);
    let rows = points.probabilities.chunks(3).zip(points.targets.chunks(3));
    let of_row = |((row, likelihood), weight): ((&[f64], &[f64]), &f64)| {
        let powers: Vec<f64> = row.iter().map(|p| p.powf(1.0 / temperature)).collect();
        let sum: f64 = powers.iter().sum();
        let joint: f64 = powers.iter().zip(likelihood).map(|(p, l)| p / sum * l).sum();
        let logs: f64 = powers.iter().map(|p| (p / sum).ln()).sum();
        weight * ((1.0 - invented) * joint.ln() + invented * logs / 3.0)
    };
    rows.zip(&points.weights).map(of_row).sum::<f64>() / total
}

#[test]
fn the_temperature_of_a_latent_class_is_the_best_of_a_grid() {
    let (points, cancel) = (latent_points(), Cancel::default());
    for smoothing in [0.0, 0.5, 3.0] {
        let grid = (50..20_000_u32).map(|n| f64::from(n) * 1e-3);
        let value = |t: &f64| log_likelihood(&points, smoothing, *t);
        let best = grid.max_by(|a, b| value(a).total_cmp(&value(b))).unwrap();
        let got = fit_latent(&points, smoothing, &cancel).unwrap();
        assert!(value(&got) >= value(&best) - 1e-12, "{got} is not {best}");
    }
}

/// Between the points 1 and 1.25 of the grid, with its best point, the likelihood rises, falls, and rises again beyond
/// 1 + ln 1.12, but no longer to the value at 1. Many rows (e^4 : 1) are right, the more probably the greater b is. Of
/// a row (1, e^-60), the evidence is for the other class, by less than the row's own odds beyond that point.
#[test]
fn the_search_between_points_of_the_grid_does_not_end_beyond_a_valley() {
    let (b, row) = (1.0_f64.exp(), [1.0, (-4.0_f64).exp()]);
    let mut points = Points::of_likelihoods(2, 2);
    points.push(&row.map(|p| p / (row[0] + row[1])), &[1.0, 0.0], 16.5 * (4.0 * b).exp());
    points.push(&[1.0, (-60.0_f64).exp()], &[(-60.0 * 1.12 * b).exp(), 1.0], 1.0);
    let got = fit_latent(&points, 0.0, &Cancel::default()).unwrap();
    let value = |ln_b: f64| LogLoss::new(&points, 0.0, MIN_FLOOR).log_likelihood(ln_b).0;
    assert!(value(-got.ln()) > value(1.0) && value(1.0) > value(1.25), "{got}");
    // The rows rise by 16.5 times 4 e^(4 b - 4 b'), and the other falls by 60: equal at b' = b + (ln 1.1) / 4.
    assert!((1.0 / got - b - 1.1_f64.ln() / 4.0).abs() < 1e-3, "{got}");
}

#[test]
fn the_slope_of_the_likelihood_is_that_of_differences() {
    let points = latent_points();
    let mean = LogLoss::new(&points, 0.5, MIN_FLOOR);
    for ln_b in [-2.0_f64, 0.0, 1.0] {
        let at = |d: f64| mean.log_likelihood(ln_b + d);
        let want = log_likelihood(&points, 0.5, (-ln_b).exp());
        assert!((at(0.0).0 - want).abs() < 1e-12, "{ln_b}");
        let slope = (at(1e-4).0 - at(-1e-4).0) / 2e-4;
        assert!((at(0.0).1 - slope).abs() < 1e-6, "{slope}");
    }
}

/// The second class has the power e^(-69 b), which underflows beyond b = 10.8, as its logarithm says or not at all.
#[test]
fn evidence_against_a_certain_class_counts_at_every_temperature() {
    let mut points = Points::of_likelihoods(2, 1);
    points.push(&[1.0, 0.0], &[0.0, 1.0], 1.0);
    let mean = LogLoss::new(&points, 0.0, MIN_FLOOR);
    for b in [5.0_f64, 10.5, 13.0, 20.0] {
        let (value, slope) = mean.log_likelihood(b.ln());
        let want = b * MIN_FLOOR.ln();
        assert!((value - want).abs() < 1e-9 && (slope - want).abs() < 1e-9, "{value} {slope}");
    }
}

#[test]
fn the_temperature_stays_within_its_bounds_and_is_1_where_there_is_no_choice() {
    let one = |row: &[f64], class| {
        let mut points = Points::new(2);
        points.push_class(row, class, 1.0);
        points
    };
    assert_eq!(without_floor(&one(&[0.8, 0.2], 0), 0.0), MIN_TEMPERATURE);
    assert_eq!(without_floor(&one(&[0.8, 0.2], 1), 0.0), MAX_TEMPERATURE);
    assert_eq!(without_floor(&one(&[0.5, 0.5], 1), 0.0), 1.0);
    let smoothed = without_floor(&one(&[0.8, 0.2], 0), 0.5);
    assert!(smoothed > 0.5, "one right answer makes nothing certain: {smoothed}");
}
