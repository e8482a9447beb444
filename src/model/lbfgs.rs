//! Maximises a smooth function by limited-memory BFGS: the M-step of models without a closed-form one.
//!
//! J. Nocedal, S. J. Wright: Numerical Optimization, 2nd edition, algorithms 7.4 and 3.1. doi:10.1007/978-0-387-40065-5
//!
//! # Why
//! An M-step needs a few ascent steps from a good start, and the same bits on any number of threads. Here sums over
//! parameters have one fixed order; the objective function must fix the order of its own sums.

/// The number of (step, gradient difference) pairs that are kept.
const MEMORY: usize = 8;

/// The sufficient-increase condition: a step must achieve this share of the increase that the gradient predicts.
const SUFFICIENT: f64 = 1e-4;

/// Halvings of a step before the line search gives up.
const MOST_HALVINGS: usize = 30;

/// Moves `x` uphill until no component of the gradient exceeds `tolerance`, for at most `max_iter` iterations; `f`
/// writes the gradient at a point and returns the value. The value never decreases. Returns the value at the final `x`.
pub fn maximise(
    x: &mut Vec<f64>,
    mut f: impl FnMut(&[f64], &mut [f64]) -> f64,
    tolerance: f64,
    max_iter: u32,
) -> f64 {
    let mut gradient = vec![0.0; x.len()];
    let mut value = f(x, &mut gradient);
    let (mut next, mut next_gradient) = (x.clone(), gradient.clone());
    let mut memory: Vec<(Vec<f64>, Vec<f64>, f64)> = Vec::new();
    for _ in 0..max_iter {
        if gradient.iter().all(|g| g.abs() <= tolerance) {
            break;
        }
        let direction = ascent(&gradient, &memory);
        let slope = dot(&direction, &gradient);
        // There is no curvature information yet: the first step moves no coordinate by more than 1.
        let longest = direction.iter().fold(0.0, |max: f64, d| max.max(d.abs()));
        let mut step = if memory.is_empty() { 1.0 / longest.max(1.0) } else { 1.0 };
        let mut climbs = false;
        for _ in 0..MOST_HALVINGS {
            next.iter_mut().zip(&*x).zip(&direction).for_each(|((n, x), d)| *n = x + step * d);
            let next_value = f(&next, &mut next_gradient);
            if next_value >= value + SUFFICIENT * step * slope {
                value = next_value;
                climbs = true;
                break;
            }
            step *= 0.5;
        }
        if !climbs {
            break;
        }
        let moved: Vec<f64> = next.iter().zip(&*x).map(|(n, x)| n - x).collect();
        let bent: Vec<f64> = gradient.iter().zip(&next_gradient).map(|(g, n)| g - n).collect();
        let curvature = dot(&moved, &bent);
        if curvature > 1e-12 * dot(&bent, &bent) {
            memory.push((moved, bent, curvature));
            if memory.len() > MEMORY {
                memory.remove(0);
            }
        }
        std::mem::swap(x, &mut next);
        std::mem::swap(&mut gradient, &mut next_gradient);
    }
    value
}

/// The ascent direction: the gradient times the approximate inverse Hessian of -f, by the two-loop recursion (7.4).
fn ascent(gradient: &[f64], memory: &[(Vec<f64>, Vec<f64>, f64)]) -> Vec<f64> {
    let mut direction = gradient.to_vec();
    let mut shares = Vec::with_capacity(memory.len());
    for (moved, bent, curvature) in memory.iter().rev() {
        let share = dot(moved, &direction) / curvature;
        direction.iter_mut().zip(bent).for_each(|(d, b)| *d -= share * b);
        shares.push(share);
    }
    if let Some((_, bent, curvature)) = memory.last() {
        let scale = curvature / dot(bent, bent);
        direction.iter_mut().for_each(|d| *d *= scale);
    }
    for ((moved, bent, curvature), share) in memory.iter().zip(shares.into_iter().rev()) {
        let back = share - dot(bent, &direction) / curvature;
        direction.iter_mut().zip(moved).for_each(|(d, m)| *d += back * m);
    }
    direction
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_top_of_a_bent_ridge_is_found() {
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
}
