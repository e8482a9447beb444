//! The network of a model: a backbone, its last layer, and what else the model reads from the features.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::backbone::BackboneSpec;
use super::layers::{Dense, Layer, Mode};
use super::scaler::Scaler;
use super::snapshot::Snapshot;
use super::tape::Tape;
use super::tensor;
use super::vars::Vars;
use crate::error::{Error, Result};
use crate::run::Run;

/// How numbers are stored while the network computes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// 32 bits.
    #[default]
    F32,
    /// 16 bits in the products of a card, 32 everywhere else.
    Bf16,
}

/// What a model asks of its network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Heads {
    /// One logit a class.
    pub classifier: bool,
    /// The last hidden layer itself.
    pub hidden: bool,
    /// Two linear maps of the features, one after the other, of these sizes.
    pub auxiliary: Option<[usize; 2]>,
}

impl Heads {
    /// A classifier and nothing else.
    pub const CLASSIFIER: Self = Self { classifier: true, hidden: false, auxiliary: None };
}

/// The sizes that a network is built for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes {
    /// The axes of one instance's features.
    pub features: Vec<usize>,
    /// Classes.
    pub classes: usize,
}

/// A network with its parameters.
pub struct Net {
    pub(super) vars: Vars,
    pub(super) scaler: Scaler,
    input: Vec<usize>,
    layers: Vec<Layer>,
    classifier: Option<Dense>,
    auxiliary: Option<(Dense, Dense)>,
    hidden: Option<usize>,
    precision: DType,
}

/// One number a (row, column) for each head; those that were not asked for are empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outputs {
    /// Rows.
    pub rows: usize,
    /// `[row, class]`
    pub logits: Vec<f64>,
    /// The softmax of `logits`.
    pub p: Vec<f64>,
    /// `[row, hidden]`
    pub hidden: Vec<f64>,
    /// `[row, auxiliary]`
    pub auxiliary: Vec<f64>,
}

impl Outputs {
    /// The classifier's probabilities for row `b`.
    #[must_use]
    pub fn p(&self, b: usize) -> &[f64] {
        let n = self.p.len() / self.rows.max(1);
        &self.p[b * n..(b + 1) * n]
    }

    /// The last hidden layer of row `b`.
    #[must_use]
    pub fn hidden(&self, b: usize) -> &[f64] {
        let n = self.hidden.len() / self.rows.max(1);
        &self.hidden[b * n..(b + 1) * n]
    }

    /// The auxiliary output of row `b`.
    #[must_use]
    pub fn auxiliary(&self, b: usize) -> &[f64] {
        let n = self.auxiliary.len() / self.rows.max(1);
        &self.auxiliary[b * n..(b + 1) * n]
    }
}

/// A batch's way through the network.
pub(super) struct Flow {
    trunk: Tape,
    classifier: Option<Tape>,
    auxiliary: Option<Tape>,
    /// Whether the trunk's output is put out too.
    hidden: bool,
}

impl Net {
    /// Builds the network and draws its parameters.
    ///
    /// # Errors
    /// When the features do not fit the backbone, or the device has no room.
    pub fn new(
        spec: &BackboneSpec,
        precision: Precision,
        heads: Heads,
        sizes: &Sizes,
        run: &Run,
        device: &Device,
    ) -> Result<Self> {
        let mut vars = Vars::new(run, device);
        let input = spec.input_shape(&sizes.features)?;
        let trunk = spec.build(&input, &mut vars)?;
        let width: usize = input.iter().product();
        let nothing_before = trunk.layers.is_empty();
        let classifier = heads
            .classifier
            .then(|| {
                Dense::new(&mut vars, "classifier", trunk.width, sizes.classes, nothing_before)
            })
            .transpose()?;
        let auxiliary = heads
            .auxiliary
            .map(|[between, out]| {
                let first = Dense::new(&mut vars, "auxiliary0", width, between, true)?;
                Ok::<_, Error>((first, Dense::new(&mut vars, "auxiliary1", between, out, false)?))
            })
            .transpose()?;
        let precision = match precision {
            Precision::Bf16 if device.is_cuda() => DType::BF16,
            _ => DType::F32,
        };
        Ok(Self {
            vars,
            scaler: Scaler::identity(&input, spec),
            input,
            layers: trunk.layers,
            classifier,
            auxiliary,
            hidden: heads.hidden.then_some(trunk.width),
            precision,
        })
    }

    /// The width of the last hidden layer, where the model asks for it.
    #[must_use]
    pub fn hidden(&self) -> usize {
        self.hidden.unwrap_or_default()
    }

    /// Scaled features, `[row, ...]`, through the network.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn forward(&self, features: Vec<f32>, mode: &mut Mode<'_>) -> Result<Flow> {
        let width: usize = self.input.iter().product();
        let rows = features.len() / width.max(1);
        let shape: Vec<usize> = std::iter::once(rows).chain(self.input.iter().copied()).collect();
        let x = tensor(Tensor::from_vec(features, shape, self.vars.device()))?;
        let mut trunk = Tape::new(x.clone(), self.precision);
        for layer in &self.layers {
            trunk.through(layer, mode)?;
        }
        let dense = |x: &Tensor, layers: &[&Dense]| -> Result<Tape> {
            let mut tape = Tape::new(tensor(x.flatten_from(1))?, self.precision);
            layers.iter().try_for_each(|layer| tape.dense(layer))?;
            Ok(tape)
        };
        let classifier = self.classifier.as_ref().map(|last| dense(trunk.out(), &[last]));
        let auxiliary = self.auxiliary.as_ref().map(|(first, second)| dense(&x, &[first, second]));
        Ok(Flow {
            classifier: classifier.transpose()?,
            auxiliary: auxiliary.transpose()?,
            hidden: self.hidden.is_some(),
            trunk,
        })
    }

    /// Adds parameters and scaling to a snapshot.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn save(&self, to: &mut Snapshot) -> Result<()> {
        self.scaler.save(to);
        self.vars.save(to)
    }

    /// Takes parameters and scaling from a snapshot.
    ///
    /// # Errors
    /// When it is of another network, or the device fails.
    pub(super) fn load(&mut self, from: &Snapshot) -> Result<()> {
        self.scaler.load(from)?;
        self.vars.load(from)
    }
}

impl Flow {
    /// The outputs on the host.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn to_host(&self) -> Result<Outputs> {
        let host = |tape: Option<&Tape>| -> Result<Vec<f64>> {
            let Some(tape) = tape else { return Ok(Vec::new()) };
            let out = tape.out().to_dtype(DType::F32);
            let values = tensor(out.and_then(|out| out.flatten_all()?.to_vec1::<f32>()))?;
            Ok(values.into_iter().map(f64::from).collect())
        };
        let rows = self.trunk.out().dims()[0];
        let logits = host(self.classifier.as_ref())?;
        let mut p = vec![0.0; logits.len()];
        let n = logits.len() / rows.max(1);
        if n > 0 {
            for (row, p) in logits.chunks_exact(n).zip(p.chunks_exact_mut(n)) {
                super::maths::softmax(row, p);
            }
        }
        Ok(Outputs {
            rows,
            logits,
            p,
            hidden: host(self.hidden.then_some(&self.trunk))?,
            auxiliary: host(self.auxiliary.as_ref())?,
        })
    }

    /// The gradients of all parameters, from those by the outputs.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn backward(&self, gradient: &Outputs) -> Result<GradStore> {
        let mut found = GradStore::default();
        let of = |values: &[f64], out: &Tensor| {
            let values: Vec<f32> = values.iter().map(|g| *g as f32).collect();
            tensor(Tensor::from_vec(values, out.dims(), out.device()))
        };
        if let Some(tape) = &self.auxiliary {
            tape.backward(of(&gradient.auxiliary, tape.out())?, &mut found)?;
        }
        let mut of_trunk = match &self.classifier {
            Some(tape) => tape.backward(of(&gradient.logits, tape.out())?, &mut found)?,
            None => None,
        };
        if self.hidden {
            let of_hidden = of(&gradient.hidden, self.trunk.out())?;
            of_trunk = Some(match of_trunk {
                Some(other) => tensor(
                    other
                        .to_dtype(DType::F32)
                        .and_then(|o| o.reshape(of_hidden.dims())? + of_hidden),
                )?,
                None => of_hidden,
            });
        }
        if let Some(gradient) = of_trunk {
            self.trunk.backward(gradient, &mut found)?;
        }
        Ok(found)
    }
}
