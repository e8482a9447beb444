//! Naive EM on dense arrays with sums of logarithms: slow, short, and a literal transcription of the formulas.

pub mod glad;
mod models;

pub use models::{DenseDawidSkene, DenseIbcc, DenseOneCoin};

use crate::frame::Annotations;

/// A matrix, row by row; of an annotator: `[class][label]`.
pub type Rows = Vec<Vec<f64>>;

/// The estimates of a model from expected counts.
pub trait DenseModel {
    /// The prior of the E-step, `[class]`, from the summed posteriors of annotated instances, and its term of the
    /// objective.
    fn prior(&self, class_counts: &[f64]) -> (Vec<f64>, f64);

    /// The posterior of an instance without annotations.
    fn unannotated(&self, class_counts: &[f64]) -> Vec<f64> {
        self.prior(class_counts).0
    }

    /// The likelihood of an annotator's labels from its expected counts, and its term of the objective.
    fn likelihood(&self, annotator: usize, counts: &Rows) -> (Rows, f64);
}

/// The result of the naive fit.
#[derive(Debug, Clone)]
pub struct DenseFit {
    /// The posteriors, `[instance][class]`.
    pub t: Rows,
    /// Their sum over annotated instances, `[class]`.
    pub class_counts: Vec<f64>,
    /// Their sum over the annotations, times the weights, `[annotator][class][label]`.
    pub counts: Vec<Rows>,
    /// What each iteration maximises: the marginal log-likelihood with the model's terms.
    pub objectives: Vec<f64>,
    /// The marginal log-likelihood of each iteration.
    pub log_likelihoods: Vec<f64>,
}

/// Starts from the vote shares and runs `iterations` M-steps, each with the E-step after it.
#[must_use]
pub fn fit(a: &Annotations, model: &impl DenseModel, iterations: usize) -> DenseFit {
    let mut t = votes(a);
    let (mut objectives, mut log_likelihoods) = (Vec::new(), Vec::new());
    for _ in 0..iterations {
        let class_counts = class_counts(a, &t);
        let (prior, prior_term) = model.prior(&class_counts);
        let (likelihood, term) = likelihoods(model, &counts(a, &t));
        let log_likelihood;
        (t, log_likelihood) = e_step(a, |_| prior.clone(), |_, r, k, l| likelihood[r][k][l]);
        objectives.push(log_likelihood + prior_term + term);
        log_likelihoods.push(log_likelihood);
        for (i, row) in t.iter_mut().enumerate() {
            if !is_annotated(a, i) && a.trusted_class(i).is_none() {
                *row = model.unannotated(&class_counts);
            }
        }
    }
    let (class_counts, counts) = (class_counts(a, &t), counts(a, &t));
    DenseFit { t, class_counts, counts, objectives, log_likelihoods }
}

/// (instance, annotator, label, weight) of every annotation.
#[must_use]
pub fn quads(a: &Annotations) -> Vec<(usize, usize, usize, f64)> {
    let of = |i: usize| {
        a.triples_of_instance(i)
            .map(move |(r, label, weight)| (i, r as usize, label as usize, weight))
    };
    (0..a.dims().instances).flat_map(of).collect()
}

fn is_annotated(a: &Annotations, i: usize) -> bool {
    a.triples_of_instance(i).len() > 0
}

/// The share of each class in the votes for an instance; uniform without a vote; one-hot where the class is trusted.
#[must_use]
pub fn votes(a: &Annotations) -> Rows {
    let d = a.dims();
    let mut t = vec![vec![0.0; d.classes]; d.instances];
    for (i, _, l, w) in quads(a).into_iter().filter(|quad| quad.2 < d.classes) {
        t[i][l] += w;
    }
    for (i, row) in t.iter_mut().enumerate() {
        let sum: f64 = row.iter().sum();
        row.iter_mut().for_each(|v| *v = if sum > 0.0 { *v / sum } else { 1.0 / d.classes as f64 });
        trust(a, i, row);
    }
    t
}

fn trust(a: &Annotations, i: usize, row: &mut [f64]) {
    if let Some(class) = a.trusted_class(i) {
        row.fill(0.0);
        row[class as usize] = 1.0;
    }
}

/// The summed posteriors of annotated instances, `[class]`.
#[must_use]
pub fn class_counts(a: &Annotations, t: &Rows) -> Vec<f64> {
    let mut sums = vec![0.0; a.dims().classes];
    for (_, row) in t.iter().enumerate().filter(|(i, _)| is_annotated(a, *i)) {
        sums.iter_mut().zip(row).for_each(|(sum, p)| *sum += p);
    }
    sums
}

/// The expected counts of the posteriors, `[annotator][class][label]`.
#[must_use]
pub fn counts(a: &Annotations, t: &Rows) -> Vec<Rows> {
    let d = a.dims();
    let mut counts = vec![vec![vec![0.0; d.labels]; d.classes]; d.annotators];
    for (i, r, l, w) in quads(a) {
        for k in 0..d.classes {
            counts[r][k][l] += w * t[i][k];
        }
    }
    counts
}

/// The likelihood of every annotator, `[annotator][class][label]`, and the sum of the terms of those with annotations.
#[must_use]
pub fn likelihoods(model: &impl DenseModel, counts: &[Rows]) -> (Vec<Rows>, f64) {
    let mut terms = 0.0;
    let likelihood = |(annotator, counts): (usize, &Rows)| {
        let (likelihood, term) = model.likelihood(annotator, counts);
        if counts.iter().flatten().any(|count| *count > 0.0) {
            terms += term;
        }
        likelihood
    };
    (counts.iter().enumerate().map(likelihood).collect(), terms)
}

/// The posteriors, `[instance][class]`, and the marginal log-likelihood of annotated instances, from the prior
/// `[class]` of an instance and the likelihood of (instance, annotator, class, label). Trusted rows are one-hot and count
/// with the log-joint of their class.
#[must_use]
pub fn e_step(
    a: &Annotations,
    prior: impl Fn(usize) -> Vec<f64>,
    likelihood: impl Fn(usize, usize, usize, usize) -> f64,
) -> (Rows, f64) {
    let (mut t, mut objective) = (Vec::new(), 0.0);
    for i in 0..a.dims().instances {
        let log = |(k, p): (usize, &f64)| {
            let terms = a
                .triples_of_instance(i)
                .map(|(r, l, w)| w * likelihood(i, r as usize, k, l as usize).ln());
            p.ln() + terms.sum::<f64>()
        };
        let logs: Vec<f64> = prior(i).iter().enumerate().map(log).collect();
        let max = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = logs.iter().map(|log| (log - max).exp()).sum();
        let mut row: Vec<f64> = logs.iter().map(|log| (log - max).exp() / sum).collect();
        trust(a, i, &mut row);
        t.push(row);
        if is_annotated(a, i) {
            objective += a.trusted_class(i).map_or(max + sum.ln(), |class| logs[class as usize]);
        }
    }
    (t, objective)
}
