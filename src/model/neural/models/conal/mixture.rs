//! The mixture of a common and an individual confusion for one annotation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::neural::data::batch::BatchAnnotation;
use crate::model::neural::numerics::{negative_log, row_times, softmax, softmax_backward};

/// The mixture of common and individual confusion.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mixture {
    /// Mixes logits, as in the public code.
    #[default]
    LogitMix,
    /// Mixes probabilities, as in the paper.
    ProbMix,
    /// Mixes row-stochastic confusion matrices.
    RowStochastic,
}

impl Mixture {
    /// The common part of a row: `p^T matrix`, and its softmax for `prob_mix`. It is the same for all annotations of a row.
    pub(crate) fn common(self, p: &[f64], matrix: &[f64], out: &mut [f64]) {
        row_times(p, matrix, out);
        if self == Self::ProbMix {
            let logits = out.to_vec();
            softmax(&logits, out);
        }
    }
}

/// Computes the mixture of one annotation at a time, without allocations.
pub(crate) struct Mixer {
    mixture: Mixture,
    /// The individual part: logits, or probabilities.
    individual: Vec<f64>,
    /// P(label) of the last annotation, for `logit_mix`.
    label_probabilities: Vec<f64>,
    one: Vec<f64>,
    /// The derivative of the last loss with respect to `p^T individual`.
    pub(crate) d_individual: Vec<f64>,
}

impl Mixer {
    pub(crate) fn new(mixture: Mixture, labels: usize) -> Self {
        let zeros = || vec![0.0; labels];
        Self {
            mixture,
            individual: zeros(),
            label_probabilities: zeros(),
            one: zeros(),
            d_individual: zeros(),
        }
    }

    /// P(`label`) for the common part of the row, an annotator's matrix and the share of the common part.
    pub(crate) fn mix(
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
                softmax(&self.one, &mut self.label_probabilities);
                return self.label_probabilities[label];
            }
            Mixture::ProbMix => {
                self.one.copy_from_slice(&self.individual);
                softmax(&self.one, &mut self.individual);
            }
            Mixture::RowStochastic => {}
        }
        share * common[label] + (1.0 - share) * self.individual[label]
    }

    /// The loss `weight * -ln p` of the annotation of the last [`Mixer::mix`]. Adds the derivative with respect to the
    /// common part to `d_common`, writes the one with respect to `p^T individual` to `d_individual`, and returns the
    /// loss and its derivative with respect to the share.
    pub(crate) fn loss(
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
                for l in 0..self.label_probabilities.len() {
                    let d =
                        weight * (self.label_probabilities[l] - f64::from(u8::from(l == label)));
                    d_common[l] += d * share;
                    self.d_individual[l] = d * (1.0 - share);
                    d_share += d * (common[l] - self.individual[l]);
                }
            }
        }
        (weight * term, d_share)
    }
}

/// The common and the individual matrices, whose mixture is P(label given class).
pub(crate) struct Matrices {
    pub(crate) mixture: Mixture,
    pub(crate) labels: usize,
    /// `[class, label]`: logits for `logit_mix`, else probabilities.
    pub(crate) common: Vec<f64>,
    /// `[annotator of the batch, class, label]`: logits or probabilities, as in `common`.
    pub(crate) individual: Vec<f64>,
}

impl Matrices {
    /// P(label of the annotation given class `k`), where `share` is the share of the common confusion.
    pub(crate) fn label_probability(
        &self,
        share: f64,
        annotation: &BatchAnnotation,
        k: usize,
    ) -> f64 {
        let (labels, cells) = (self.labels, self.common.len());
        let common = &self.common[k * labels..(k + 1) * labels];
        let individual = &self.individual[annotation.annotator as usize * cells..];
        let individual = &individual[k * labels..(k + 1) * labels];
        let mix = |(g, r): (&f64, &f64)| share * g + (1.0 - share) * r;
        let label = annotation.label as usize;
        if self.mixture != Mixture::LogitMix {
            return mix((&common[label], &individual[label]));
        }
        let logits: Vec<f64> = common.iter().zip(individual).map(mix).collect();
        let mut p = vec![0.0; labels];
        softmax(&logits, &mut p);
        p[label]
    }
}
