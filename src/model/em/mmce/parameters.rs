//! S and W: what they make of an annotation, and the M-step of one annotator or instance.

use crate::error::Result;
use crate::job_context::Cancel;
use crate::model::em::kernels::log_domain::LogLikelihood;
use crate::model::numerics::lbfgs::try_maximise;
use crate::model::numerics::{MIN_PROBABILITY, logsumexp, softmax};

/// Maximises F over the parameters of one annotator or instance; `annotations` gives the parameters of the other side, the
/// label, the weight and the posterior row of each annotation. The search ends at a gradient of this tolerance, or after
/// so many steps.
pub(super) fn maximise<'a, I: Iterator<Item = (&'a [f64], u32, f64, &'a [f64])>>(
    (gradient_tol, max_steps): (f64, u32),
    own: &mut [f64],
    strength: f64,
    cancel: &Cancel,
    annotations: impl Fn() -> I,
) -> Result<()> {
    let (mut x, mut logs, mut p) = (own.to_vec(), Vec::new(), Vec::new());
    let f = |x: &[f64], gradient: &mut [f64]| -> Result<f64> {
        cancel.check()?;
        gradient.iter_mut().zip(x).for_each(|(g, x)| *g = -strength * x);
        let mut value = -strength / 2.0 * squares(x);
        for (other, y, weight, t) in annotations() {
            let (n, y) = (x.len() / t.len(), y as usize);
            p.resize(n, 0.0);
            let rows = x.chunks_exact(n).zip(other.chunks_exact(n));
            for ((x, other), (g, t)) in rows.zip(gradient.chunks_exact_mut(n).zip(t)) {
                let count = weight * t;
                if *t <= MIN_PROBABILITY {
                    continue;
                }
                logs.clear();
                logs.extend(x.iter().zip(other).map(|(x, other)| x + other));
                value += count * (logs[y] - softmax(&logs, &mut p));
                g.iter_mut().zip(&p).for_each(|(g, p)| *g -= count * p);
                g[y] += count;
            }
        }
        Ok(value)
    };
    try_maximise(&mut x, f, gradient_tol, max_steps)?;
    own.copy_from_slice(&x);
    Ok(())
}

/// The sum of squares.
pub(super) fn squares(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum()
}

/// S and W, as the E-step reads them.
pub(super) struct Confusions<'a> {
    pub(super) annotators: &'a [f64],
    pub(super) instances: &'a [f64],
    pub(super) n_labels: usize,
}

impl LogLikelihood for Confusions<'_> {
    fn add(&self, i: usize, annotator: u32, label: u32, logs: &mut [f64]) {
        let (n, size) = (self.n_labels, self.n_labels * logs.len());
        let annotator = self.annotators[annotator as usize * size..][..size].chunks_exact(n);
        let instance = self.instances[i * size..][..size].chunks_exact(n);
        for (log, (s, w)) in logs.iter_mut().zip(annotator.zip(instance)) {
            let y = label as usize;
            *log += s[y] + w[y] - logsumexp(s.iter().zip(w).map(|(s, w)| s + w));
        }
    }
}
