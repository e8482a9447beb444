//! A naive Dawid-Skene on dense arrays with sums of logarithms: slow, short, and a literal transcription of the
//! formulas.

use crate::frame::Annotations;
use crate::model::numerics::MIN_PROBABILITY;

/// The result of the naive fit.
#[derive(Debug, Clone)]
pub struct DenseFit {
    /// `[instance][class]`
    pub t: Vec<Vec<f64>>,
    /// `[class]`
    pub q: Vec<f64>,
    /// `[annotator][class][label]`
    pub pi: Vec<Vec<Vec<f64>>>,
    /// The log-likelihood of each iteration.
    pub ll: Vec<f64>,
}

/// (instance, annotator, label, weight) of every annotation.
#[must_use]
pub fn quads(a: &Annotations) -> Vec<(usize, usize, usize, f64)> {
    let of = |i: usize| {
        a.triples_of(i).map(move |(r, label, weight)| (i, r as usize, label as usize, weight))
    };
    (0..a.dims().instances).flat_map(of).collect()
}

/// Dawid-Skene: starts from the vote shares, runs `iterations` E-steps, each after an M-step, and one final M-step.
#[must_use]
pub fn dawid_skene(a: &Annotations, smoothing: f64, diagonal: f64, iterations: usize) -> DenseFit {
    let d = a.dims();
    let quads = quads(a);
    let clamp = |t: &mut Vec<Vec<f64>>| {
        for (i, row) in t.iter_mut().enumerate() {
            if let Some(class) = a.trusted_class(i) {
                row.fill(0.0);
                row[class as usize] = 1.0;
            }
        }
    };
    let mut t = vec![vec![0.0; d.classes]; d.instances];
    for &(i, _, l, w) in quads.iter().filter(|q| q.2 < d.classes) {
        t[i][l] += w;
    }
    for row in &mut t {
        let sum: f64 = row.iter().sum();
        row.iter_mut().for_each(|v| *v = if sum > 0.0 { *v / sum } else { 1.0 / d.classes as f64 });
    }
    clamp(&mut t);
    let annotated: Vec<bool> = (0..d.instances).map(|i| quads.iter().any(|q| q.0 == i)).collect();
    let (mut q, mut pi) = m_step(a, &quads, &annotated, &t, smoothing, diagonal);
    let mut ll = Vec::new();
    for _ in 0..iterations {
        let mut total = 0.0;
        for i in 0..d.instances {
            let logs: Vec<f64> = (0..d.classes)
                .map(|k| {
                    let said = quads.iter().filter(|s| s.0 == i);
                    q[k].ln() + said.map(|&(_, r, l, w)| w * pi[r][k][l].ln()).sum::<f64>()
                })
                .collect();
            let max = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = logs.iter().map(|l| (l - max).exp()).sum();
            if annotated[i] {
                total += a.trusted_class(i).map_or(max + sum.ln(), |class| logs[class as usize]);
            }
            t[i] = logs.iter().map(|l| (l - max).exp() / sum).collect();
        }
        clamp(&mut t);
        ll.push(total);
        (q, pi) = m_step(a, &quads, &annotated, &t, smoothing, diagonal);
    }
    DenseFit { t, q, pi, ll }
}

#[allow(clippy::type_complexity)]
fn m_step(
    a: &Annotations,
    quads: &[(usize, usize, usize, f64)],
    annotated: &[bool],
    t: &[Vec<f64>],
    smoothing: f64,
    diagonal: f64,
) -> (Vec<f64>, Vec<Vec<Vec<f64>>>) {
    let d = a.dims();
    let floored = |row: &[f64]| -> Vec<f64> {
        let sum: f64 = row.iter().sum();
        let share = |v: &f64| if sum > 0.0 { v / sum } else { 1.0 / row.len() as f64 };
        let row: Vec<f64> = row.iter().map(|v| share(v).max(MIN_PROBABILITY)).collect();
        let sum: f64 = row.iter().sum();
        row.iter().map(|v| v / sum).collect()
    };
    let mut q = vec![0.0; d.classes];
    for (row, _) in t.iter().zip(annotated).filter(|(_, annotated)| **annotated) {
        q.iter_mut().zip(row).for_each(|(q, p)| *q += p);
    }
    let mut pi = vec![vec![vec![smoothing; d.labels]; d.classes]; d.annotators];
    for matrix in &mut pi {
        for (k, row) in matrix.iter_mut().enumerate() {
            row[k] += diagonal;
        }
    }
    for &(i, r, l, w) in quads {
        for k in 0..d.classes {
            pi[r][k][l] += w * t[i][k];
        }
    }
    for row in pi.iter_mut().flatten() {
        let sum: f64 = row.iter().map(|n| n.max(MIN_PROBABILITY)).sum();
        row.iter_mut().for_each(|n| *n = n.max(MIN_PROBABILITY) / sum);
    }
    (floored(&q), pi)
}
