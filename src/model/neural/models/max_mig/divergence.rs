//! The f-mutual information of two classifications of the same rows.

use candle_core::{Result, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The function f of the f-mutual information.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FDivergence {
    /// t ln t
    #[default]
    Kl,
    /// -ln t
    ReverseKl,
    /// (t - 1)^2
    Pearson,
    /// (sqrt t - 1)^2
    Hellinger,
    /// t ln t - (t + 1) ln((t + 1) / 2)
    JensenShannon,
    /// |t - 1| / 2
    TotalVariation,
}

/// K[i][j] is raised to at least this, since some f need it above zero.
const MIN_SHARED: f64 = 1e-12;

impl FDivergence {
    /// Minus the f-mutual information of h and g; `u` is added to the diagonal of K.
    ///
    /// # Shapes
    /// h and g `[row, class]`, `prior` `[1, class]`; the result is a scalar.
    ///
    /// # Why
    /// There are B^2 pairs of rows. The costs of the KL divergence are K itself, whose sum needs no pair alone:
    ///
    /// ```text
    /// sum_{i, j} K[i][j] = sum_k (sum_i h[i][k]) (sum_j g[j][k]) / prior[k]
    /// ```
    pub(super) fn loss(self, u: f64, h: &Tensor, g: &Tensor, prior: &Tensor) -> Result<Tensor> {
        let rows = h.dim(0)? as f64;
        let over_prior = h.broadcast_div(prior)?;
        let own = over_prior.mul(g)?.sum(1)?;
        let gains = self.gain(&raised(&(&own + u)?)?)?.sum_all()?;
        let same = (gains / -rows)?;
        if rows < 2.0 {
            return Ok(same);
        }
        let costs = if self == Self::Kl {
            over_prior.sum(0)?.mul(&g.sum(0)?)?.sum_all()? - own.sum_all()?
        } else {
            let all = self.cost(&raised(&over_prior.matmul(&g.t()?)?)?)?.sum_all()?;
            all - self.cost(&raised(&own)?)?.sum_all()?
        };
        same + (costs? / (rows * (rows - 1.0)))?
    }

    /// f'(t), the gain of a pair from the same instance.
    fn gain(self, t: &Tensor) -> Result<Tensor> {
        match self {
            Self::Kl => t.log()? + 1.0,
            Self::ReverseKl => t.recip()?.neg(),
            Self::Pearson => (t - 1.0)? * 2.0,
            Self::Hellinger => 1.0 - t.sqrt()?.recip()?,
            Self::JensenShannon => (t * 2.0)?.div(&(t + 1.0)?)?.log(),
            Self::TotalVariation => half_tanh(&(t - 1.0)?),
        }
    }

    /// f*(f'(t)), the cost of a pair from two different instances.
    fn cost(self, t: &Tensor) -> Result<Tensor> {
        match self {
            Self::Kl => Ok(t.clone()),
            Self::ReverseKl => t.log()? - 1.0,
            Self::Pearson => t.sqr()? - 1.0,
            Self::Hellinger => t.sqrt()? - 1.0,
            Self::JensenShannon => ((t / 2.0)? + 0.5)?.log(),
            Self::TotalVariation => half_tanh(&(t - 1.0)?),
        }
    }
}

/// `max(t, MIN_SHARED)`, whose derivative is 1 everywhere: rows that share no class are drawn together too.
fn raised(t: &Tensor) -> Result<Tensor> {
    t + (t.maximum(MIN_SHARED)? - t)?.detach()
}

fn half_tanh(x: &Tensor) -> Result<Tensor> {
    x.tanh()? * 0.5
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    /// `f'(t)` and `f*(f'(t))` by their formulas.
    fn by_formula(divergence: FDivergence, t: f64) -> [f64; 2] {
        match divergence {
            FDivergence::Kl => [1.0 + t.ln(), t],
            FDivergence::ReverseKl => [-1.0 / t, t.ln() - 1.0],
            FDivergence::Pearson => [2.0 * (t - 1.0), t * t - 1.0],
            FDivergence::Hellinger => [1.0 - 1.0 / t.sqrt(), t.sqrt() - 1.0],
            FDivergence::JensenShannon => [(2.0 * t / (1.0 + t)).ln(), f64::midpoint(1.0, t).ln()],
            FDivergence::TotalVariation => [0.5 * (t - 1.0).tanh(); 2],
        }
    }

    const PRIOR: [f64; 3] = [0.5, 0.3, 0.2];
    const U: f64 = 5e-5;

    /// The loss pair by pair.
    fn pair_by_pair(divergence: FDivergence, h: &[[f64; 3]], g: &[[f64; 3]]) -> f64 {
        let (rows, mut gains, mut costs) = (h.len() as f64, 0.0, 0.0);
        for (i, h) in h.iter().enumerate() {
            for (j, g) in g.iter().enumerate() {
                let shared: f64 = (0..3).map(|k| h[k] * g[k] / PRIOR[k]).sum();
                if i == j {
                    gains += by_formula(divergence, shared + U)[0];
                } else {
                    costs += by_formula(divergence, shared.max(MIN_SHARED))[1];
                }
            }
        }
        costs / (rows * (rows - 1.0)).max(1.0) - gains / rows
    }

    /// One row alone, which has no pair, and several rows; the first share no class.
    #[test]
    fn the_loss_is_that_of_all_pairs() {
        let row = |at: usize, step: usize| {
            let x = [0, 1, 2].map(|k| (((3 * at + k) * step % 101) as f64 / 20.0 - 2.5).exp());
            x.map(|own| own / x.iter().sum::<f64>())
        };
        let tensor = |rows: &[[f64; 3]]| {
            Tensor::from_slice(rows.as_flattened(), (rows.len(), 3), &Device::Cpu).unwrap()
        };
        for rows in [1_usize, 2, 5, 70] {
            let mut h: Vec<[f64; 3]> = (0..rows).map(|at| row(at, 37)).collect();
            let mut g: Vec<[f64; 3]> = (0..rows).map(|at| row(at, 59)).collect();
            (h[0], g[0]) = ([1.0, 0.0, 0.0], [0.0, 0.5, 0.5]);
            for divergence in [
                FDivergence::Kl,
                FDivergence::ReverseKl,
                FDivergence::Pearson,
                FDivergence::Hellinger,
                FDivergence::JensenShannon,
                FDivergence::TotalVariation,
            ] {
                let want = pair_by_pair(divergence, &h, &g);
                let loss = divergence.loss(U, &tensor(&h), &tensor(&g), &tensor(&[PRIOR]));
                let got = loss.unwrap().to_scalar::<f64>().unwrap();
                let error = (got - want).abs() / want.abs().max(1.0);
                assert!(error < 1e-12, "{divergence:?}, {rows} rows: {got}, expected {want}");
            }
        }
    }
}
