//! A layer for each annotator on top of the classifier's probabilities.
//!
//! ```text
//! mw    a = p^T W[r]            W = I at first        vw    a[l] = w[r][l] p[l]             w = 1
//! vb    a[l] = p[l] + b[r][l]   b = 0                 vw_b  a[l] = w[r][l] p[l] + b[r][l]
//! sw    a = w[r] p              w = 1                 loss = CE(softmax(a), y)
//! over  a = softmax(p^T V[r])^T W[r]                  V = W = I
//! ```
//! F. Rodrigues, F. Pereira: Deep Learning from Crowds. AAAI 2018. arXiv:1709.01779; `over` is the over-parametrised layer
//! of Z. Chu, J. Ma, H. Wang: Learning from Crowds by Modeling Common Confusions. AAAI 2021, appendix, table 3.
//!
//! P(label given class k) is the layer's output for p = e_k; it is the reported confusion matrix, and posteriors follow
//! from it by Bayes' rule with p as the prior. Since p is at most 1, even a perfect annotator's matrix is far from the
//! identity. Labels that are no class have p = 0.
//!
//! With matrices to start at, of gold or a table, W[r] is the logarithm of the annotator's (form `mw`).
//!
//! Differs from the authors' code in the divisor of the loss: the number of annotations, where the code divides by
//! instances times annotators (`train.reduction = "mean_dense"`); in that the layers are frozen in the first fifth of
//! the epochs (`annotator_delay`), and in their learning rate of 0.1 where the code has one rate for all
//! (`annotator_learning_rate`); in the start of `over`, of which the paper says nothing; and in network and training, which
//! are labelmill's defaults. `preset = "paper"` has the settings of the code for LabelMe.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::frame::Dims;
use crate::model::neural::net::parameters::Initialisation;
use crate::model::neural::numerics::{
    RowStochastic, diagonal, row_times, row_times_backward, softmax, softmax_backward,
};
use crate::model::neural::objective::batch_context::{BatchContext, BatchPrediction, Gradient};
use crate::model::neural::objective::crowd_net::{AnnotatorReport, CrowdNet, Task};
use crate::model::neural::objective::given_matrices::parameters;
use crate::model::neural::objective::network_spec::NetworkSpec;
use crate::model::neural::objective::paper;
use crate::model::neural::objective::train_spec::Reduction;
use crate::model::neural::objective::training_objective::TrainingObjective;
use crate::model::neural::params::annotator_params::AnnotatorParams;
use crate::model::neural::params::param_table::ParamTable;

/// The form of an annotator's layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LayerForm {
    /// A matrix.
    #[default]
    Mw,
    /// A weight for each label.
    Vw,
    /// A bias for each label.
    Vb,
    /// A weight and a bias for each label.
    VwB,
    /// One weight.
    Sw,
    /// Two matrices one after the other, with a softmax between them.
    Over,
}

/// The crowd layer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CrowdLayer {
    /// The form of an annotator's layer.
    pub form: LayerForm,
}

impl CrowdLayer {
    /// Writes the layer's output for one annotator with the parameters `w` to `a`.
    fn layer(&self, p: &[f64], w: &[f64], a: &mut [f64]) {
        let n = a.len();
        let p_of = |l: usize| p.get(l).copied().unwrap_or_default();
        match self.form {
            LayerForm::Mw => row_times(p, w, a),
            LayerForm::Vw => (0..n).for_each(|l| a[l] = w[l] * p_of(l)),
            LayerForm::Vb => (0..n).for_each(|l| a[l] = p_of(l) + w[l]),
            LayerForm::VwB => (0..n).for_each(|l| a[l] = w[l] * p_of(l) + w[n + l]),
            LayerForm::Sw => (0..n).for_each(|l| a[l] = w[0] * p_of(l)),
            LayerForm::Over => row_times(&inner(p, w), &w[p.len() * p.len()..], a),
        }
    }

    fn layer_backward(&self, p: &[f64], w: &[f64], d_a: &[f64], d_p: &mut [f64], d_w: &mut [f64]) {
        let n = d_a.len();
        if self.form == LayerForm::Mw {
            return row_times_backward(p, w, d_a, d_p, d_w);
        }
        if self.form == LayerForm::Over {
            let ((first, second), inner) = (w.split_at(p.len() * p.len()), inner(p, w));
            let (d_first, d_second) = d_w.split_at_mut(first.len());
            let (mut d_inner, mut d_sums) = (vec![0.0; p.len()], vec![0.0; p.len()]);
            row_times_backward(&inner, second, d_a, &mut d_inner, d_second);
            softmax_backward(&inner, &d_inner, &mut d_sums);
            return row_times_backward(p, first, &d_sums, d_p, d_first);
        }
        for (l, d) in d_a.iter().enumerate() {
            let p_l = p.get(l).copied().unwrap_or_default();
            let slope = match self.form {
                LayerForm::Vb => 1.0,
                LayerForm::Sw => w[0],
                _ => w[l],
            };
            if let Some(d_p) = d_p.get_mut(l) {
                *d_p += slope * d;
            }
            match self.form {
                LayerForm::Vb => d_w[l] += d,
                LayerForm::Sw => d_w[0] += d * p_l,
                _ => d_w[l] += d * p_l,
            }
            if self.form == LayerForm::VwB {
                d_w[n + l] += d;
            }
        }
    }

    /// The matrices `[annotator, class, label]` of annotators with these parameters: P(label) if the class is certain.
    fn matrices(&self, layers: &[f64], dims: Dims) -> Vec<f64> {
        let Dims { classes, labels, .. } = dims;
        if self.form == LayerForm::Mw {
            let mut matrices = vec![0.0; layers.len()];
            RowStochastic::Softmax.forward(layers, labels, &mut matrices);
            return matrices;
        }
        let width = match self.form {
            LayerForm::Sw => 1,
            LayerForm::VwB => 2 * labels,
            LayerForm::Over => classes * (classes + labels),
            LayerForm::Mw | LayerForm::Vw | LayerForm::Vb => labels,
        };
        let mut matrices = Vec::with_capacity(layers.len() / width * classes * labels);
        for w in layers.chunks_exact(width) {
            for k in 0..classes {
                let mut certain = vec![0.0; classes];
                certain[k] = 1.0;
                matrices.extend(self.label_probabilities(&certain, w, labels));
            }
        }
        matrices
    }

    /// An annotator's P(label) for an instance with the class probabilities `p`.
    fn label_probabilities(&self, p: &[f64], w: &[f64], labels: usize) -> Vec<f64> {
        let (mut a, mut label_probabilities) = (vec![0.0; labels], vec![0.0; labels]);
        self.layer(p, w, &mut a);
        softmax(&a, &mut label_probabilities);
        label_probabilities
    }
}

/// The output of the first matrix of `over`.
fn inner(p: &[f64], w: &[f64]) -> Vec<f64> {
    let (mut sums, mut inner) = (vec![0.0; p.len()], vec![0.0; p.len()]);
    row_times(p, &w[..p.len() * p.len()], &mut sums);
    softmax(&sums, &mut inner);
    inner
}

impl CrowdNet for CrowdLayer {
    const KIND: &'static str = "crowd_layer";
    const SUMMARY: &'static str = "a classifier with a layer for each annotator on top";
    const SOURCE: &'static str = "Rodrigues and Pereira 2018, arXiv:1709.01779";
    const STARTS_AT_MATRICES: bool = true;

    /// The settings of the authors' code for LabelMe; its layers are initialised as in Keras.
    fn paper() -> (NetworkSpec, Self) {
        let mut network = paper::network(50, Some(64), 1e-3);
        network.backbone.initialisation = Initialisation::Glorot;
        network.train.reduction = Some(Reduction::MeanDense);
        (network, Self::default())
    }

    fn tables(&self, task: &Task<'_>) -> Result<Vec<ParamTable>> {
        let Dims { annotators, classes, labels, .. } = task.dims;
        if let Some(given) = &task.evidence.annotations.given.confusion {
            if self.form != LayerForm::Mw {
                return Err(Error::spec(
                    "only layers of the form `mw` can start at given matrices",
                )
                .at("model.form")
                .help("leave form out, or init_from_gold and source.confusion"));
            }
            let layers = parameters(given, annotators, |p| given.soften(p).ln());
            return Ok(vec![ParamTable::drawn("layer", classes * labels, layers)]);
        }
        let start = match self.form {
            LayerForm::Mw => diagonal(classes, labels, 1.0, 0.0),
            LayerForm::Vw => vec![1.0; labels],
            LayerForm::Vb => vec![0.0; labels],
            LayerForm::VwB => [vec![1.0; labels], vec![0.0; labels]].concat(),
            LayerForm::Sw => vec![1.0],
            LayerForm::Over => {
                let first = diagonal(classes, classes, 1.0, 0.0);
                [first, diagonal(classes, labels, 1.0, 0.0)].concat()
            }
        };
        Ok(vec![ParamTable::each("layer", annotators, &start)])
    }

    fn report(&self, task: &Task<'_>, annotator_params: &AnnotatorParams) -> AnnotatorReport {
        let values: Vec<f64> =
            annotator_params.tables[0].values.iter().map(|v| f64::from(*v)).collect();
        AnnotatorReport {
            confusion: Some(self.matrices(&values, task.dims)),
            ..AnnotatorReport::default()
        }
    }
}

impl TrainingObjective for CrowdLayer {
    const REDUCTION: Option<Reduction> = Some(Reduction::MeanAnnotation);

    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> Result<f64> {
        let Dims { classes, labels, .. } = context.dims;
        let width = context.annotator_params.tables[0].width;
        let scale = context.scale();
        let (mut a, mut label_probabilities) = (vec![0.0; labels], vec![0.0; labels]);
        let mut loss = 0.0;
        for (b, annotation) in context.annotations() {
            let own =
                annotation.annotator as usize * width..(annotation.annotator as usize + 1) * width;
            let w = &context.gathered[0][own.clone()];
            self.layer(context.out.p(b), w, &mut a);
            let log_sum = softmax(&a, &mut label_probabilities);
            let weight = scale * annotation.weight;
            loss += weight * (log_sum - a[annotation.label as usize]);
            label_probabilities[annotation.label as usize] -= 1.0;
            label_probabilities.iter_mut().for_each(|d| *d *= weight);
            let d_p = &mut gradient.out.p[b * classes..(b + 1) * classes];
            self.layer_backward(
                context.out.p(b),
                w,
                &label_probabilities,
                d_p,
                &mut gradient.tables[0][own],
            );
        }
        Ok(loss)
    }

    fn predict(&self, context: &BatchContext<'_>) -> BatchPrediction {
        let matrices = self.matrices(&context.gathered[0], context.dims);
        let posterior = context.posterior_by_bayes(context.cells_of(&matrices));
        let likelihood = self.likelihood(context);
        let classes = context.out.p.clone();
        BatchPrediction { classes, posterior, likelihood, parameters: Vec::new() }
    }

    fn likelihood(&self, context: &BatchContext<'_>) -> Vec<f64> {
        let width = context.annotator_params.tables[0].width;
        let likelihood = context.annotations().map(|(b, annotation)| {
            let own = annotation.annotator as usize * width..;
            let w = &context.gathered[0][own][..width];
            self.label_probabilities(context.out.p(b), w, context.dims.labels)
                [annotation.label as usize]
        });
        likelihood.collect()
    }
}
