//! The function f of the f-mutual information.

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

impl FDivergence {
    /// f'(t), the gain of a pair from the same instance, and its derivative.
    pub(super) fn gain(self, t: f64) -> (f64, f64) {
        match self {
            Self::Kl => (1.0 + t.ln(), 1.0 / t),
            Self::ReverseKl => (-1.0 / t, 1.0 / (t * t)),
            Self::Pearson => (2.0 * (t - 1.0), 2.0),
            Self::Hellinger => (1.0 - 1.0 / t.sqrt(), 0.5 / (t * t.sqrt())),
            Self::JensenShannon => ((2.0 * t / (1.0 + t)).ln(), 1.0 / (t * (1.0 + t))),
            Self::TotalVariation => half_tanh(t - 1.0),
        }
    }

    /// f*(f'(t)), the cost of a pair from two different instances, and its derivative.
    pub(super) fn cost(self, t: f64) -> (f64, f64) {
        match self {
            Self::Kl => (t, 1.0),
            Self::ReverseKl => (t.ln() - 1.0, 1.0 / t),
            Self::Pearson => (t * t - 1.0, 2.0 * t),
            Self::Hellinger => (t.sqrt() - 1.0, 0.5 / t.sqrt()),
            Self::JensenShannon => (f64::midpoint(1.0, t).ln(), 1.0 / (1.0 + t)),
            Self::TotalVariation => half_tanh(t - 1.0),
        }
    }
}

fn half_tanh(x: f64) -> (f64, f64) {
    let y = x.tanh();
    (0.5 * y, 0.5 * (1.0 - y * y))
}
