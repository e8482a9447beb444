//! Maximises a smooth function by limited-memory BFGS: the M-step of models without a closed-form one.
//!
//! J. Nocedal, S. J. Wright: Numerical Optimization, 2nd edition, algorithms 7.4 and 3.1. doi:10.1007/978-0-387-40065-5
//!
//! # Why
//! An M-step needs a few ascent steps from a good start, and the same bits on any number of threads. Here sums over
//! parameters have one fixed order; the objective function must fix the order of its own sums.

/// The number of [`Correction`]s that are kept.
const MEMORY: usize = 8;

/// The numbers for each coordinate that a search holds at once: the point, the next one, their gradients and the
/// direction, and two for each correction and for the next one.
pub const NUMBERS_OF_SEARCH: usize = 5 + 2 * (MEMORY + 1);

/// The sufficient-increase condition: a step must achieve this share of the increase that the gradient predicts.
const SUFFICIENT: f64 = 1e-4;

/// The largest number of times that a line search halves its step before it gives up.
const MAX_HALVINGS: usize = 30;

/// Moves `x` uphill until no component of the gradient exceeds `tolerance`, for at most `max_iter` iterations; `f`
/// writes the gradient at a point and returns the value. The value never decreases. Returns the value at the final `x`.
///
/// # Errors
/// The errors of `f`; `x` is then the last point that the search reached.
pub fn try_maximise<E>(
    x: &mut Vec<f64>,
    mut f: impl FnMut(&[f64], &mut [f64]) -> Result<f64, E>,
    tolerance: f64,
    max_iter: u32,
) -> Result<f64, E> {
    let mut gradient = vec![0.0; x.len()];
    let mut value = f(x, &mut gradient)?;
    let (mut next, mut next_gradient) = (x.clone(), gradient.clone());
    let mut memory: Vec<Correction> = Vec::new();
    for _ in 0..max_iter {
        if gradient.iter().all(|g| g.abs() <= tolerance) {
            break;
        }
        let direction = ascent(&gradient, &memory);
        let slope = dot(&direction, &gradient);
        if slope.is_nan() || slope <= 0.0 {
            // Rounding has turned the direction downhill.
            break;
        }
        // There is no curvature information yet: the first step moves no coordinate by more than 1.
        let longest = direction.iter().fold(0.0, |max: f64, d| max.max(d.abs()));
        let mut length = if memory.is_empty() { 1.0 / longest.max(1.0) } else { 1.0 };
        let mut is_sufficient = false;
        for _ in 0..MAX_HALVINGS {
            if length * slope <= f64::EPSILON * value.abs() {
                // Rounding hides so small an increase.
                break;
            }
            next.iter_mut().zip(&*x).zip(&direction).for_each(|((n, x), d)| *n = x + length * d);
            let next_value = f(&next, &mut next_gradient)?;
            if next_value >= value + SUFFICIENT * length * slope {
                value = next_value;
                is_sufficient = true;
                break;
            }
            length *= 0.5;
        }
        if !is_sufficient {
            break;
        }
        let step: Vec<f64> = next.iter().zip(&*x).map(|(n, x)| n - x).collect();
        let gradient_change: Vec<f64> =
            gradient.iter().zip(&next_gradient).map(|(g, n)| g - n).collect();
        let curvature = dot(&step, &gradient_change);
        if curvature > 1e-12 * dot(&gradient_change, &gradient_change) {
            memory.push(Correction { step, gradient_change, curvature });
            if memory.len() > MEMORY {
                memory.remove(0);
            }
        }
        std::mem::swap(x, &mut next);
        std::mem::swap(&mut gradient, &mut next_gradient);
    }
    Ok(value)
}

/// One step and its change of the gradient, from which the Hessian of -f is approximated.
struct Correction {
    /// s = the next x - x
    step: Vec<f64>,
    /// y = the change of the gradient of -f
    gradient_change: Vec<f64>,
    /// 1 / rho = y s
    curvature: f64,
}

/// The ascent direction: the gradient times the approximate inverse Hessian of -f, by the two-loop recursion (7.4).
fn ascent(gradient: &[f64], memory: &[Correction]) -> Vec<f64> {
    let mut direction = gradient.to_vec();
    let mut alphas = Vec::with_capacity(memory.len());
    for Correction { step, gradient_change, curvature } in memory.iter().rev() {
        let alpha = dot(step, &direction) / curvature;
        direction.iter_mut().zip(gradient_change).for_each(|(d, y)| *d -= alpha * y);
        alphas.push(alpha);
    }
    if let Some(Correction { gradient_change, curvature, .. }) = memory.last() {
        let scale = curvature / dot(gradient_change, gradient_change);
        direction.iter_mut().for_each(|d| *d *= scale);
    }
    for (correction, alpha) in memory.iter().zip(alphas.into_iter().rev()) {
        let Correction { step, gradient_change, curvature } = correction;
        let beta = dot(gradient_change, &direction) / curvature;
        direction.iter_mut().zip(step).for_each(|(d, s)| *d += (alpha - beta) * s);
    }
    direction
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn maximise(
        x: &mut Vec<f64>,
        mut f: impl FnMut(&[f64], &mut [f64]) -> f64,
        tolerance: f64,
        max_iter: u32,
    ) -> f64 {
        let infallible = |x: &[f64], gradient: &mut [f64]| Ok::<f64, Infallible>(f(x, gradient));
        let Ok(value) = try_maximise(x, infallible, tolerance, max_iter);
        value
    }

    #[test]
    fn the_top_of_a_curved_ridge_is_found() {
        // Minus Rosenbrock's function, whose maximum is 0 at (1, 1).
        let ridge = |x: &[f64], gradient: &mut [f64]| {
            let bend = x[1] - x[0] * x[0];
            gradient[0] = 400.0 * bend * x[0] + 2.0 * (1.0 - x[0]);
            gradient[1] = -200.0 * bend;
            -(1.0 - x[0]).powi(2) - 100.0 * bend * bend
        };
        let mut x = vec![-1.2, 1.0];
        let value = maximise(&mut x, ridge, 1e-9, 200);
        assert!((x[0] - 1.0).abs() < 1e-7 && (x[1] - 1.0).abs() < 1e-7 && value > -1e-14, "{x:?}");
    }

    /// The square of 1e-170 is 0 in floating point: nothing says that the direction leads uphill.
    #[test]
    fn a_direction_without_a_slope_is_not_searched() {
        let mut evaluations = 0;
        let f = |x: &[f64], gradient: &mut [f64]| {
            evaluations += 1;
            gradient[0] = 1e-170;
            x[0]
        };
        let mut x = vec![3.0];
        assert_eq!(maximise(&mut x, f, 0.0, 50), 3.0);
        assert_eq!((x, evaluations), (vec![3.0], 1));
    }

    #[test]
    fn an_increase_that_rounding_hides_is_not_searched() {
        let mut evaluations = 0;
        let f = |x: &[f64], gradient: &mut [f64]| {
            evaluations += 1;
            gradient[0] = -2.0 * x[0];
            1e6 - x[0] * x[0]
        };
        let mut x = vec![1e-6];
        assert_eq!(maximise(&mut x, f, 0.0, 50), 1e6);
        assert_eq!((x, evaluations), (vec![1e-6], 1));
    }

    #[test]
    fn an_error_of_the_function_ends_the_search() {
        let mut evaluations = 0;
        let f = |x: &[f64], gradient: &mut [f64]| {
            evaluations += 1;
            gradient[0] = -2.0 * x[0];
            if evaluations < 3 { Ok(-x[0] * x[0]) } else { Err("interrupted") }
        };
        assert_eq!(try_maximise(&mut vec![8.0], f, 0.0, 50), Err("interrupted"));
        assert_eq!(evaluations, 3);
    }
}
