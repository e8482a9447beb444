//! One batch through a model: its loss with all derivatives, or its judgement.

use super::batch::{Batch, read};
use super::crowd::Crowd;
use super::layers::Mode;
use super::maths::softmax_backward;
use super::net::{Net, Outputs};
use super::{CrowdNet, Gradient, Judged, Step};
use crate::error::Result;
use crate::frame::{Dims, Matrix};

/// A model's loss on a batch, and its derivatives by the network's outputs and the gathered parameters.
pub(super) fn loss_and_gradient<N: CrowdNet>(model: &N, step: &Step<'_>) -> (f64, Gradient) {
    let zeros = |values: &[f64]| vec![0.0; values.len()];
    let out = step.out;
    let mut gradient = Gradient {
        out: Outputs {
            rows: out.rows,
            logits: zeros(&out.logits),
            p: zeros(&out.p),
            hidden: zeros(&out.hidden),
            auxiliary: zeros(&out.auxiliary),
        },
        tables: step.gathered.iter().map(|rows| zeros(rows)).collect(),
    };
    let mut loss = model.loss(step, &mut gradient);
    let n = step.dims.classes;
    if !out.p.is_empty() {
        if !N::TELLS_TARGETS {
            loss += trust(step, &mut gradient);
        }
        let rows = out.p.chunks_exact(n).zip(gradient.out.p.chunks_exact(n));
        for ((p, d_p), d_logits) in rows.zip(gradient.out.logits.chunks_exact_mut(n)) {
            softmax_backward(p, d_p, d_logits);
        }
    }
    (loss, gradient)
}

/// The cross-entropy of trusted classes, which every classifier is told beside the annotations.
fn trust(step: &Step<'_>, gradient: &mut Gradient) -> f64 {
    let n = step.dims.classes;
    let scale = 1.0 / step.batch.len().max(1) as f64;
    let mut loss = 0.0;
    for (b, class) in step.batch.trusted.iter().enumerate() {
        let Some(class) = class else { continue };
        let p = step.out.p(b);
        loss -= scale * p[*class as usize].max(f64::MIN_POSITIVE).ln();
        for (k, d) in gradient.out.logits[b * n..(b + 1) * n].iter_mut().enumerate() {
            *d += scale * (p[k] - f64::from(u8::from(k == *class as usize)));
        }
    }
    loss
}

/// What a model says of a batch.
///
/// # Errors
/// When the device fails.
pub(super) fn judge<N: CrowdNet>(
    model: &N,
    net: &Net,
    crowd: &Crowd,
    matrix: &Matrix,
    dims: Dims,
    batch: &Batch,
) -> Result<Judged> {
    let features = read(matrix, &net.scaler, &batch.rows);
    let out = net.forward(features, &mut Mode::Fixed)?.to_host()?;
    let gathered = crowd.gather(&batch.annotators);
    Ok(model.judge(&Step { phase: 0, batch, out: &out, gathered: &gathered, crowd, dims }))
}
