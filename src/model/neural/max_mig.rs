//! Classifier and annotators are two views of the truth; what they share is made as large as it can be.
//!
//! ```text
//! h[i] = classifier(x_i)       g[i] = softmax( sum over (r, y) said of i of V[r][.][y] + ln prior )
//! K[i][j] = sum_k h[i][k] g[j][k] / prior[k]
//! loss = -( mean_i f'(K[i][i] + u) - mean_{i != j} f*(f'(K[i][j])) )
//! ```
//! V[r] = ln(CM[r] + c) at first, with CM[r] counted on the soft votes; the reported matrix is the softmax of each row.
//! An instance's posterior is h g / prior, normalised.
//!
//! P. Cao, Y. Xu, Y. Kong, Y. Wang: Max-MIG: an Information Theoretic Approach for Joint Learning from Crowds. ICLR 2019.
//! arXiv:1905.13436
//!
//! Differs from the public code in u, which is the mean of what is drawn there; in the total variation, whose slope is
//! zero almost everywhere: a hyperbolic tangent stands for its sign; and in that V stands still in the first fifth of the
//! epochs and then learns faster than the classifier (`train.optimiser.annotator_delay` and `annotator_learning_rate`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::maths::{Rows, softmax, softmax_backward};
use super::{
    BackboneSpec, Crowd, CrowdNet, CrowdReport, Gradient, Judged, Parts, Reduction, Step, Table,
    Task, TrainSpec, auto, check_parts,
};
use crate::error::Result;
use crate::frame::Dims;
use crate::model::Spec;
use crate::model::em::counts::{Counts, expected_counts};
use crate::model::fitted::Posterior;
use crate::spec::Problems;

/// The f of the mutual information.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Divergence {
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

impl Divergence {
    /// f'(t), what a pair of the same instance gains, and its slope.
    fn same(self, t: f64) -> (f64, f64) {
        match self {
            Self::Kl => (1.0 + t.ln(), 1.0 / t),
            Self::ReverseKl => (-1.0 / t, 1.0 / (t * t)),
            Self::Pearson => (2.0 * (t - 1.0), 2.0),
            Self::Hellinger => (1.0 - 1.0 / t.sqrt(), 0.5 / (t * t.sqrt())),
            Self::JensenShannon => ((2.0 * t / (1.0 + t)).ln(), 1.0 / (t * (1.0 + t))),
            Self::TotalVariation => half_tanh(t - 1.0),
        }
    }

    /// f*(f'(t)), what a pair of two instances costs, and its slope.
    fn other(self, t: f64) -> (f64, f64) {
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

/// The prior of the classes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Prior {
    /// All alike.
    #[default]
    Uniform,
    /// Their shares among the votes.
    Votes,
}

/// Max-MIG.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MaxMig {
    /// Where the network computes: `auto`, `cpu` or `cuda:0`.
    pub device: String,
    /// The classifier before its last layer.
    pub backbone: BackboneSpec,
    /// How it is trained.
    pub train: TrainSpec,
    /// The f of the mutual information.
    pub divergence: Divergence,
    /// The prior of the classes.
    pub prior: Prior,
    /// Added to what the classifier and an instance's own annotators share, so that nothing in common costs no infinity.
    #[schemars(range(min = 0.0))]
    pub u: f64,
    /// Added to the counted confusion matrices before their logarithm is taken.
    #[schemars(range(min = 1e-12))]
    pub start_floor: f64,
}

impl Default for MaxMig {
    fn default() -> Self {
        Self {
            device: auto(),
            backbone: BackboneSpec::default(),
            train: TrainSpec::default(),
            divergence: Divergence::Kl,
            prior: Prior::Uniform,
            u: 5e-5,
            start_floor: 0.01,
        }
    }
}

impl Spec for MaxMig {
    const KIND: &'static str = "max_mig";
    const SUMMARY: &'static str =
        "a classifier that shares as much information with the annotators as possible";
    const SOURCE: &'static str = "Cao et al. 2019, arXiv:1905.13436";

    fn check(&self, place: &str, problems: &mut Problems) {
        check_parts(self, place, problems);
    }
}

/// The tables, by place.
const LOG_CONFUSION: usize = 0;
/// The prior; it stays.
const PRIOR: usize = 1;

/// What two rows share must be above zero for every f.
const LEAST_SHARED: f64 = 1e-12;

impl MaxMig {
    /// The annotators' view of each row, `[row, class]`.
    fn aggregator(step: &Step<'_>) -> Vec<f64> {
        let Dims { classes, labels, .. } = step.dims;
        let log_prior: Vec<f64> = step.gathered[PRIOR].iter().map(|p| p.ln()).collect();
        let mut g = log_prior.repeat(step.batch.len());
        for (b, said) in step.said() {
            let first = said.who as usize * classes * labels + said.label as usize;
            for k in 0..classes {
                g[b * classes + k] +=
                    said.weight * step.gathered[LOG_CONFUSION][first + k * labels];
            }
        }
        for row in g.chunks_exact_mut(classes) {
            let sums = row.to_vec();
            softmax(&sums, row);
        }
        g
    }
}

impl CrowdNet for MaxMig {
    const REDUCTION: Option<Reduction> = None;
    const WHOLE_BATCHES: bool = true;
    const WHOLE_INSTANCES: bool = true;

    fn parts(&self) -> Parts<'_> {
        Parts { device: &self.device, backbone: &self.backbone, train: &self.train }
    }

    fn tables(&self, task: &Task<'_>) -> Result<Vec<Table>> {
        let Dims { annotators, classes, labels, .. } = task.dims;
        let a = task.evidence.annotations;
        let votes = Posterior::from_votes(a);
        let counted = expected_counts(a, &votes);
        let mut values = Vec::with_capacity(annotators * classes * labels);
        for r in 0..annotators {
            let mut counts = vec![0.0; classes * labels];
            for column in a.columns_of(r) {
                let label = a.label_of(column as u32) as usize;
                let of_classes = &counted[column * classes..(column + 1) * classes];
                of_classes.iter().enumerate().for_each(|(k, n)| counts[k * labels + label] += n);
            }
            for row in counts.chunks_exact_mut(labels) {
                let sum: f64 = row.iter().sum();
                let share = |c: f64| if sum > 0.0 { c / sum } else { 1.0 / labels as f64 };
                values.extend(row.iter().map(|c| (share(*c) + self.start_floor).ln() as f32));
            }
        }
        let mut prior = vec![1.0 / classes as f64; classes];
        if self.prior == Prior::Votes {
            let mut counts = Counts::new(a);
            counts.count(a, &votes);
            counts.prior(&mut prior);
        }
        let prior = prior.into_iter().map(|p| p as f32).collect();
        Ok(vec![
            Table::drawn("log_confusion", classes * labels, values),
            Table::shared("prior", prior).fixed(),
        ])
    }

    fn loss(&self, step: &Step<'_>, gradient: &mut Gradient) -> f64 {
        let Dims { classes, labels, .. } = step.dims;
        let rows = step.batch.len();
        let prior = &step.gathered[PRIOR];
        let g = Self::aggregator(step);
        let mut d_g = vec![0.0; g.len()];
        let (own, pair) = (1.0 / rows as f64, 1.0 / (rows * rows.saturating_sub(1)).max(1) as f64);
        let mut loss = 0.0;
        for (i, d_h) in gradient.out.p.chunks_exact_mut(classes).enumerate() {
            let h = step.out.p(i);
            for (j, (g, d_g)) in
                g.chunks_exact(classes).zip(d_g.chunks_exact_mut(classes)).enumerate()
            {
                let shared: f64 = (0..classes).map(|k| h[k] * g[k] / prior[k]).sum();
                let slope = if i == j {
                    let (gain, slope) = self.divergence.same((shared + self.u).max(LEAST_SHARED));
                    loss -= own * gain;
                    -own * slope
                } else {
                    let (cost, slope) = self.divergence.other(shared.max(LEAST_SHARED));
                    loss += pair * cost;
                    pair * slope
                };
                for k in 0..classes {
                    d_h[k] += slope * g[k] / prior[k];
                    d_g[k] += slope * h[k] / prior[k];
                }
            }
        }
        let mut d_sums = vec![0.0; g.len()];
        for b in 0..rows {
            let row = b * classes..(b + 1) * classes;
            softmax_backward(&g[row.clone()], &d_g[row.clone()], &mut d_sums[row]);
        }
        for (b, said) in step.said() {
            let first = said.who as usize * classes * labels + said.label as usize;
            for k in 0..classes {
                gradient.tables[LOG_CONFUSION][first + k * labels] +=
                    said.weight * d_sums[b * classes + k];
            }
        }
        loss
    }

    fn judge(&self, step: &Step<'_>) -> Judged {
        let classes = step.dims.classes;
        let mut posterior = Self::aggregator(step);
        for (b, row) in posterior.chunks_exact_mut(classes).enumerate() {
            for ((g, h), prior) in row.iter_mut().zip(step.out.p(b)).zip(&step.gathered[PRIOR]) {
                *g = (*g * h / prior).max(f64::MIN_POSITIVE);
            }
            let sum: f64 = row.iter().sum();
            row.iter_mut().for_each(|p| *p /= sum);
        }
        let mut matrices = vec![0.0; step.gathered[LOG_CONFUSION].len()];
        Rows::Softmax.forward(&step.gathered[LOG_CONFUSION], step.dims.labels, &mut matrices);
        Judged { posterior, ..step.judged_by_matrices(&matrices) }
    }

    fn report(&self, task: &Task<'_>, crowd: &Crowd) -> CrowdReport {
        let values: Vec<f64> =
            crowd.tables[LOG_CONFUSION].values.iter().map(|v| f64::from(*v)).collect();
        let mut confusion = vec![0.0; values.len()];
        Rows::Softmax.forward(&values, task.dims.labels, &mut confusion);
        CrowdReport { confusion: Some(confusion), ..CrowdReport::default() }
    }
}
