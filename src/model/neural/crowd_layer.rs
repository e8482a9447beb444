//! A layer for each annotator on top of the classifier's probabilities.
//!
//! ```text
//! mw    a = p^T W[r]            W = I at first        vw    a[l] = w[r][l] p[l]             w = 1
//! vb    a[l] = p[l] + b[r][l]   b = 0                 vw_b  a[l] = w[r][l] p[l] + b[r][l]
//! sw    a = w[r] p              w = 1                 loss = CE(softmax(a), y)
//! ```
//! F. Rodrigues, F. Pereira: Deep Learning from Crowds. AAAI 2018. arXiv:1709.01779
//!
//! The reported confusion matrix is the softmax of each row of W: since p is at most 1, even a perfect annotator's is
//! compressed. Labels that are no class have p = 0.
//!
//! Differs from the authors' code in the divisor of the loss: annotations, where it divides by instances times annotators
//! (`train.reduction = "mean_dense"`); and in that the layers stand still in the first fifth of the epochs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::maths::{Rows, diagonal, row_times, row_times_backward, softmax};
use super::{
    BackboneSpec, Crowd, CrowdNet, CrowdReport, Gradient, Judged, Parts, Reduction, Step, Table,
    Task, TrainSpec, auto, check_parts,
};
use crate::error::Result;
use crate::frame::Dims;
use crate::model::Spec;
use crate::spec::Problems;

/// The form of an annotator's layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Form {
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
}

/// The crowd layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CrowdLayer {
    /// Where the network computes: `auto`, `cpu` or `cuda:0`.
    pub device: String,
    /// The classifier before its last layer.
    pub backbone: BackboneSpec,
    /// How it is trained.
    pub train: TrainSpec,
    /// The form of an annotator's layer.
    pub form: Form,
}

impl Default for CrowdLayer {
    fn default() -> Self {
        Self {
            device: auto(),
            backbone: BackboneSpec::default(),
            train: TrainSpec::default(),
            form: Form::Mw,
        }
    }
}

impl Spec for CrowdLayer {
    const KIND: &'static str = "crowd_layer";
    const SUMMARY: &'static str = "a classifier with a layer for each annotator on top";
    const SOURCE: &'static str = "Rodrigues and Pereira 2018, arXiv:1709.01779";

    fn check(&self, place: &str, problems: &mut Problems) {
        check_parts(self, place, problems);
    }
}

impl CrowdLayer {
    /// `a` for one annotator with the parameters `w`.
    fn layer(&self, p: &[f64], w: &[f64], a: &mut [f64]) {
        let n = a.len();
        let p_of = |l: usize| p.get(l).copied().unwrap_or_default();
        match self.form {
            Form::Mw => row_times(p, w, a),
            Form::Vw => (0..n).for_each(|l| a[l] = w[l] * p_of(l)),
            Form::Vb => (0..n).for_each(|l| a[l] = p_of(l) + w[l]),
            Form::VwB => (0..n).for_each(|l| a[l] = w[l] * p_of(l) + w[n + l]),
            Form::Sw => (0..n).for_each(|l| a[l] = w[0] * p_of(l)),
        }
    }

    fn layer_backward(&self, p: &[f64], w: &[f64], d_a: &[f64], d_p: &mut [f64], d_w: &mut [f64]) {
        let n = d_a.len();
        if self.form == Form::Mw {
            return row_times_backward(p, w, d_a, d_p, d_w);
        }
        for (l, d) in d_a.iter().enumerate() {
            let p_l = p.get(l).copied().unwrap_or_default();
            let slope = match self.form {
                Form::Vb => 1.0,
                Form::Sw => w[0],
                Form::Mw | Form::Vw | Form::VwB => w[l],
            };
            if let Some(d_p) = d_p.get_mut(l) {
                *d_p += slope * d;
            }
            match self.form {
                Form::Vb => d_w[l] += d,
                Form::Sw => d_w[0] += d * p_l,
                Form::Mw | Form::Vw | Form::VwB => d_w[l] += d * p_l,
            }
            if self.form == Form::VwB {
                d_w[n + l] += d;
            }
        }
    }

    /// An annotator's P(label) for an instance of class probabilities `p`.
    fn says(&self, p: &[f64], w: &[f64], labels: usize) -> Vec<f64> {
        let (mut a, mut says) = (vec![0.0; labels], vec![0.0; labels]);
        self.layer(p, w, &mut a);
        softmax(&a, &mut says);
        says
    }
}

impl CrowdNet for CrowdLayer {
    const REDUCTION: Option<Reduction> = Some(Reduction::MeanAnnotation);

    fn parts(&self) -> Parts<'_> {
        Parts { device: &self.device, backbone: &self.backbone, train: &self.train }
    }

    fn tables(&self, task: &Task<'_>) -> Result<Vec<Table>> {
        let Dims { annotators, classes, labels, .. } = task.dims;
        let start = match self.form {
            Form::Mw => diagonal(classes, labels, 1.0, 0.0),
            Form::Vw => vec![1.0; labels],
            Form::Vb => vec![0.0; labels],
            Form::VwB => [vec![1.0; labels], vec![0.0; labels]].concat(),
            Form::Sw => vec![1.0],
        };
        Ok(vec![Table::each("layer", annotators, &start)])
    }

    fn loss(&self, step: &Step<'_>, gradient: &mut Gradient) -> f64 {
        let Dims { classes, labels, .. } = step.dims;
        let width = step.crowd.tables[0].width;
        let scale = self.scale(step);
        let (mut a, mut says) = (vec![0.0; labels], vec![0.0; labels]);
        let mut loss = 0.0;
        for (b, said) in step.said() {
            let own = said.who as usize * width..(said.who as usize + 1) * width;
            let w = &step.gathered[0][own.clone()];
            self.layer(step.out.p(b), w, &mut a);
            let log_sum = softmax(&a, &mut says);
            let weight = scale * said.weight;
            loss += weight * (log_sum - a[said.label as usize]);
            says[said.label as usize] -= 1.0;
            says.iter_mut().for_each(|d| *d *= weight);
            let d_p = &mut gradient.out.p[b * classes..(b + 1) * classes];
            self.layer_backward(step.out.p(b), w, &says, d_p, &mut gradient.tables[0][own]);
        }
        loss
    }

    fn judge(&self, step: &Step<'_>) -> Judged {
        let width = step.crowd.tables[0].width;
        let likelihood = step.said().map(|(b, said)| {
            let w = &step.gathered[0][said.who as usize * width..(said.who as usize + 1) * width];
            self.says(step.out.p(b), w, step.dims.labels)[said.label as usize]
        });
        Judged {
            classes: step.out.p.clone(),
            posterior: step.out.p.clone(),
            likelihood: likelihood.collect(),
            parameters: Vec::new(),
        }
    }

    fn report(&self, task: &Task<'_>, crowd: &Crowd) -> CrowdReport {
        let Dims { annotators, classes, labels, .. } = task.dims;
        let mut confusion = Vec::with_capacity(annotators * classes * labels);
        for r in 0..annotators {
            let w = crowd.tables[0].row(r);
            if self.form == Form::Mw {
                let mut rows = vec![0.0; w.len()];
                Rows::Softmax.forward(&w, labels, &mut rows);
                confusion.extend(rows);
            } else {
                for k in 0..classes {
                    let mut sure = vec![0.0; classes];
                    sure[k] = 1.0;
                    confusion.extend(self.says(&sure, &w, labels));
                }
            }
        }
        CrowdReport { confusion: Some(confusion), ..CrowdReport::default() }
    }
}
