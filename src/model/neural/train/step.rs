//! One batch through a model: its loss with all derivatives, or its prediction.

use crate::error::Result;
use crate::frame::Dims;
use crate::model::neural::data::batch::Batch;
use crate::model::neural::data::inputs::Inputs;
use crate::model::neural::net::heads::Outputs;
use crate::model::neural::numerics::{at_least, softmax_backward};
use crate::model::neural::objective::batch_context::{BatchContext, Gradient};
use crate::model::neural::objective::train_spec::Reduction;
use crate::model::neural::objective::train_state::Estimates;
use crate::model::neural::objective::training_objective::TrainingObjective;
use crate::model::neural::params::annotator_params::AnnotatorParams;
use crate::model::neural::train::learners::Learners;

/// A model's loss on a batch, and its derivatives with respect to the networks' outputs and the gathered parameters.
///
/// # Errors
/// As [`TrainingObjective::loss`].
pub(crate) fn loss_and_gradient<N: TrainingObjective>(
    model: &N,
    context: &BatchContext<'_>,
) -> Result<(f64, Gradient)> {
    let out = context.out;
    let mut gradient = Gradient {
        out: out.zeros_like(),
        others: context.others.iter().map(Outputs::zeros_like).collect(),
        tables: context.gathered.iter().map(|rows| vec![0.0; rows.len()]).collect(),
    };
    let n = context.dims.classes;
    let known = with_trusted_classes::<N>(context);
    let mut loss = match &known {
        Some(known) => model.loss(&BatchContext { out: known, ..*context }, &mut gradient)?,
        None => model.loss(context, &mut gradient)?,
    };
    if !out.p.is_empty() {
        if known.is_some() {
            loss += trust::<N>(context, &mut gradient);
        }
        propagate(out, &mut gradient.out, n);
    }
    for (out, gradient) in context.others.iter().zip(&mut gradient.others) {
        propagate(out, gradient, n);
    }
    Ok((loss, gradient))
}

/// Propagates the gradient of the probabilities to the logits: adds the result to the gradient of the logits.
fn propagate(out: &Outputs, gradient: &mut Outputs, classes: usize) {
    let rows = out.p.chunks_exact(classes).zip(gradient.p.chunks_exact(classes));
    for ((p, d_p), d_logits) in rows.zip(gradient.logits.chunks_exact_mut(classes)) {
        softmax_backward(p, d_p, d_logits);
    }
}

/// The likelihood of every annotation; that of an annotation of a trusted row is given its class, as in the loss.
pub(crate) fn likelihood<N: TrainingObjective>(model: &N, context: &BatchContext<'_>) -> Vec<f64> {
    match with_trusted_classes::<N>(context) {
        Some(known) => model.likelihood(&BatchContext { out: &known, ..*context }),
        None => model.likelihood(context),
    }
}

/// The outputs in which trusted classes, one-hot, replace the classifier's probabilities; `None` if no row of the batch
/// is trusted, and for a model that trains on targets, which hold the trusted classes. So the loss of annotations uses
/// the known class, not the classifier's sum over all classes.
fn with_trusted_classes<N: TrainingObjective>(context: &BatchContext<'_>) -> Option<Outputs> {
    let n = context.dims.classes;
    let trusts = !N::TRAINS_ON_TARGETS && context.batch.trusted.iter().any(Option::is_some);
    let mut out = (trusts && !context.out.p.is_empty()).then(|| context.out.clone())?;
    for (p, class) in out.p.chunks_exact_mut(n).zip(&context.batch.trusted) {
        if let Some(class) = class {
            p.fill(0.0);
            p[*class as usize] = 1.0;
        }
    }
    Some(out)
}

/// The cross-entropy of trusted classes, to be added to the loss of annotations: a trusted class counts as one
/// annotation, and is the mean over the rows if the loss is no sum over annotations. Its derivatives replace those of
/// the annotations in trusted rows, so that these annotations do not train the classifier.
fn trust<N: TrainingObjective>(context: &BatchContext<'_>, gradient: &mut Gradient) -> f64 {
    let (n, batch) = (context.dims.classes, context.batch);
    let mean = || 1.0 / batch.len().max(1) as f64;
    let of_class = N::REDUCTION.map_or_else(mean, |_| context.scale());
    let mut loss = 0.0;
    for (b, (class, share)) in batch.trusted.iter().zip(&batch.trusted_share).enumerate() {
        let Some(class) = class else { continue };
        let scale = of_class * share;
        let p = context.out.p(b);
        loss -= scale * at_least(p[*class as usize], f64::MIN_POSITIVE).ln();
        gradient.out.p[b * n..(b + 1) * n].fill(0.0);
        for (k, d) in gradient.out.logits[b * n..(b + 1) * n].iter_mut().enumerate() {
            *d = scale * (p[k] - f64::from(u8::from(k == *class as usize)));
        }
    }
    loss
}

/// The networks and parameters that predictions are computed from.
pub(crate) struct Predictor<'a> {
    pub(crate) learners: &'a Learners,
    pub(crate) annotator_params: &'a AnnotatorParams,
    pub(crate) estimates: &'a Estimates,
    pub(crate) dims: Dims,
}

impl Predictor<'_> {
    /// Computes the networks' outputs for a batch without training, and passes them to `read_out`.
    pub(crate) fn with_outputs<R>(
        &self,
        inputs: Inputs<'_>,
        batch: &Batch,
        read_out: impl FnOnce(&BatchContext<'_>) -> R,
    ) -> Result<R> {
        let inputs = inputs.with_tables(self.annotator_params);
        let (out, others) = self.learners.predict(inputs, batch)?;
        Ok(self.with(&out, &others, batch, read_out))
    }

    /// Passes these outputs for a batch to `read_out`.
    pub(crate) fn with<R>(
        &self,
        out: &Outputs,
        others: &[Outputs],
        batch: &Batch,
        read_out: impl FnOnce(&BatchContext<'_>) -> R,
    ) -> R {
        let gathered = self.annotator_params.gather(batch);
        read_out(&BatchContext {
            phase: "",
            batch,
            out,
            others,
            gathered: &gathered,
            annotator_params: self.annotator_params,
            estimates: self.estimates,
            reduction: Reduction::Sum,
            dims: self.dims,
        })
    }
}
