//! How a common and an individual confusion make the probability of one annotation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::neural::maths::{negative_log, row_times, softmax, softmax_backward};

/// How common and individual confusion are mixed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mixture {
    /// Their logits, as in the public code.
    #[default]
    LogitMix,
    /// Their probabilities, as in the paper.
    ProbMix,
    /// Confusion matrices.
    RowStochastic,
}

impl Mixture {
    /// What the common matrix (logits, or row-stochastic) makes of the class probabilities `p`: the same for all
    /// annotations of a row.
    pub(super) fn common(self, p: &[f64], matrix: &[f64], out: &mut [f64]) {
        row_times(p, matrix, out);
        if self == Self::ProbMix {
            let logits = out.to_vec();
            softmax(&logits, out);
        }
    }
}

/// Mixes one annotation after the other, without allocating.
pub(super) struct Mixer {
    mixture: Mixture,
    /// What the individual matrix makes of the class probabilities: logits, or probabilities.
    individual: Vec<f64>,
    /// P(label), where logits are mixed.
    says: Vec<f64>,
    one: Vec<f64>,
    /// The derivative of the last loss by the individual part, before any softmax.
    pub(super) d_individual: Vec<f64>,
}

impl Mixer {
    pub(super) fn new(mixture: Mixture, labels: usize) -> Self {
        let zeros = || vec![0.0; labels];
        Self { mixture, individual: zeros(), says: zeros(), one: zeros(), d_individual: zeros() }
    }

    /// P(`label`) by an annotator of the matrix `individual`, given what is common to the row and its part.
    pub(super) fn mix(
        &mut self,
        common: &[f64],
        p: &[f64],
        individual: &[f64],
        share: f64,
        label: usize,
    ) -> f64 {
        row_times(p, individual, &mut self.individual);
        match self.mixture {
            Mixture::LogitMix => {
                let parts = common.iter().zip(&self.individual);
                let mixed = parts.map(|(g, r)| share * g + (1.0 - share) * r);
                self.one.iter_mut().zip(mixed).for_each(|(one, mixed)| *one = mixed);
                softmax(&self.one, &mut self.says);
                return self.says[label];
            }
            Mixture::ProbMix => {
                self.one.copy_from_slice(&self.individual);
                softmax(&self.one, &mut self.individual);
            }
            Mixture::RowStochastic => {}
        }
        share * common[label] + (1.0 - share) * self.individual[label]
    }

    /// The loss of the annotation that was mixed last, of this weight: `weight * -ln p`. Adds its derivative to
    /// `d_common`, leaves that by the individual part in `d_individual`, and returns it with that by the share.
    pub(super) fn loss(
        &mut self,
        common: &[f64],
        p: f64,
        share: f64,
        label: usize,
        weight: f64,
        d_common: &mut [f64],
    ) -> (f64, f64) {
        let (term, slope) = negative_log(p);
        let slope = weight * slope;
        self.d_individual.fill(0.0);
        let mut d_share = slope * (common[label] - self.individual[label]);
        match self.mixture {
            Mixture::RowStochastic => {
                d_common[label] += slope * share;
                self.d_individual[label] = slope * (1.0 - share);
            }
            Mixture::ProbMix => {
                self.one.fill(0.0);
                self.one[label] = slope * share;
                softmax_backward(common, &self.one, d_common);
                self.one[label] = slope * (1.0 - share);
                softmax_backward(&self.individual, &self.one, &mut self.d_individual);
            }
            Mixture::LogitMix => {
                d_share = 0.0;
                for l in 0..self.says.len() {
                    let d = weight * (self.says[l] - f64::from(u8::from(l == label)));
                    d_common[l] += d * share;
                    self.d_individual[l] = d * (1.0 - share);
                    d_share += d * (common[l] - self.individual[l]);
                }
            }
        }
        (weight * term, d_share)
    }
}
