//! The initial values of parameters, drawn from a random stream.

use candle_core::Shape;
use candle_nn::Init;
use candle_nn::init::NormalOrUniform;
use rand::Rng as _;
use rand_distr::StandardNormal;

use crate::job_context::Rng;

/// The distribution of a parameter's initial values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum InitialValues {
    /// All equal to this.
    Constant(f32),
    /// Uniform from `middle - bound` to `middle + bound`.
    Uniform { middle: f32, bound: f32 },
    /// Normal.
    Normal { mean: f32, deviation: f32 },
}

impl InitialValues {
    /// The distribution that a layer asks for; that of He et al. (2015) depends on the shape of the parameter.
    pub(super) fn new(init: Init, shape: &Shape) -> Self {
        match init {
            Init::Const(value) => Self::Constant(value as f32),
            Init::Uniform { lo, up } => Self::Uniform {
                middle: f64::midpoint(lo, up) as f32,
                bound: (0.5 * (up - lo)) as f32,
            },
            Init::Randn { mean, stdev } => {
                Self::Normal { mean: mean as f32, deviation: stdev as f32 }
            }
            Init::Kaiming { dist, fan, non_linearity } => {
                let deviation = non_linearity.gain() / (fan.for_shape(shape).max(1) as f64).sqrt();
                match dist {
                    NormalOrUniform::Uniform => {
                        Self::Uniform { middle: 0.0, bound: (3_f64.sqrt() * deviation) as f32 }
                    }
                    NormalOrUniform::Normal => {
                        Self::Normal { mean: 0.0, deviation: deviation as f32 }
                    }
                }
            }
        }
    }

    /// `n` values.
    pub(super) fn drawn(self, rng: &mut Rng, n: usize) -> Vec<f32> {
        match self {
            Self::Constant(value) => vec![value; n],
            Self::Uniform { middle, bound } => {
                (0..n).map(|_| middle + (2.0 * rng.random::<f32>() - 1.0) * bound).collect()
            }
            Self::Normal { mean, deviation } => {
                (0..n).map(|_| mean + deviation * rng.sample::<f32, _>(StandardNormal)).collect()
            }
        }
    }
}
