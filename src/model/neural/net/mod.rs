//! The network of a model: a backbone and its heads.

pub(crate) mod backbone;
pub(crate) mod batch_norm;
mod conv_shape;
pub(crate) mod convolution;
pub(crate) mod heads;
pub(crate) mod host;
pub(crate) mod image_backbones;
pub(crate) mod layers;
pub(crate) mod max_pool;
mod mean_pool;
pub(crate) mod mode;
pub(crate) mod parameters;
pub(crate) mod pytorch;
pub(crate) mod residual;
mod rows;
pub(crate) mod tape;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::model::neural::data::scaler::Scaler;
use crate::model::neural::from_candle;
use crate::model::neural::net::backbone::BackboneSpec;
use crate::model::neural::net::heads::{Head, HeadInput, Heads, Outputs};
use crate::model::neural::net::layers::{Dense, Layer};
use crate::model::neural::net::mode::Mode;
use crate::model::neural::net::parameters::Parameters;
use crate::model::neural::net::tape::Tape;
use crate::model::neural::train::checkpoint::Snapshot;
use crate::run::Run;

/// The type of numbers in the network's products.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// 32 bits.
    #[default]
    F32,
    /// bfloat16 in the products on a GPU, f32 everywhere else.
    Bf16,
}

/// The sizes of a network's input and output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetShape {
    /// The axes of one instance's features.
    pub features: Vec<usize>,
    /// Classes.
    pub classes: usize,
}

/// A network with its parameters.
pub struct Network {
    pub(crate) parameters: Parameters,
    pub(crate) scaler: Scaler,
    input: Vec<usize>,
    layers: Vec<Layer>,
    classifier: Option<Dense>,
    named: Vec<NamedHead>,
    hidden: Option<usize>,
    precision: DType,
}

/// The layers of a named head.
struct NamedHead {
    from: HeadInput,
    layers: Vec<Dense>,
}

impl NamedHead {
    /// Draws the layers' parameters, given the numbers of features and of the last hidden layer.
    fn new(head: &Head, features: usize, hidden: usize, all: &mut Parameters) -> Result<Self> {
        let is_of_data = head.from == HeadInput::Features;
        let inputs = [if is_of_data { features } else { hidden }];
        let inputs = inputs.iter().chain(&head.widths);
        let layer = |(n, (from, to)): (usize, (&usize, &usize))| {
            let name = format!("{}{n}", head.name);
            Dense::new(all, &name, *from, *to, is_of_data && n == 0)
        };
        let layers = inputs.zip(&head.widths).enumerate().map(layer).collect::<Result<_>>()?;
        Ok(Self { from: head.from, layers })
    }
}

/// The forward pass of a batch, kept for its backward pass.
pub(crate) struct ForwardPass {
    trunk: Tape,
    classifier: Option<Tape>,
    named: Vec<(HeadInput, Tape)>,
    /// Whether the trunk's output is a head too.
    hidden: bool,
}

impl Network {
    /// Builds the network and draws its parameters.
    ///
    /// # Errors
    /// When the features do not fit the backbone, or the device is out of memory.
    pub fn new(
        spec: &BackboneSpec,
        precision: Precision,
        heads: &Heads,
        sizes: &NetShape,
        run: &Run,
        device: &Device,
    ) -> Result<Self> {
        let parameters = Parameters::new(run, device, spec.initialisation);
        Self::build(spec, precision, heads, sizes, parameters)
    }

    /// Builds the network and draws its parameters into `parameters`.
    ///
    /// # Errors
    /// As [`Network::new`], and when `parameters` may not hold so many numbers.
    pub(crate) fn build(
        spec: &BackboneSpec,
        precision: Precision,
        heads: &Heads,
        sizes: &NetShape,
        mut parameters: Parameters,
    ) -> Result<Self> {
        let input = spec.input_shape(&sizes.features)?;
        let trunk = spec.build(&input, &mut parameters)?;
        let width: usize = input.iter().product();
        let nothing_before = trunk.layers.is_empty();
        let classifier = heads
            .classifier
            .then(|| {
                Dense::new(
                    &mut parameters,
                    "classifier",
                    trunk.width,
                    sizes.classes,
                    nothing_before,
                )
            })
            .transpose()?;
        let head = |head: &Head| NamedHead::new(head, width, trunk.width, &mut parameters);
        let named = heads.named.iter().map(head).collect::<Result<_>>()?;
        let precision = match precision {
            Precision::Bf16 if parameters.device().is_cuda() => DType::BF16,
            _ => DType::F32,
        };
        Ok(Self {
            parameters,
            scaler: Scaler::identity(&input, spec),
            input,
            layers: trunk.layers,
            classifier,
            named,
            hidden: heads.hidden.then_some(trunk.width),
            precision,
        })
    }

    /// The width of the last hidden layer, where the model asks for it.
    #[must_use]
    pub fn hidden(&self) -> usize {
        self.hidden.unwrap_or_default()
    }

    /// Computes the network's outputs of scaled features, `[row, ...]`.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn forward(&self, features: Vec<f32>, mode: &mut Mode<'_>) -> Result<ForwardPass> {
        let width: usize = self.input.iter().product();
        let rows = features.len() / width.max(1);
        let shape: Vec<usize> = std::iter::once(rows).chain(self.input.iter().copied()).collect();
        let x = from_candle(Tensor::from_vec(features, shape, self.parameters.device()))?;
        let mut trunk = Tape::new(x.clone(), self.precision);
        trunk.layers(&self.layers, mode)?;
        let dense = |x: &Tensor, layers: &[Dense]| -> Result<Tape> {
            let mut tape = Tape::new(from_candle(x.flatten_from(1))?, self.precision);
            layers.iter().try_for_each(|layer| tape.dense(layer))?;
            Ok(tape)
        };
        let last = self.classifier.as_ref().map(std::slice::from_ref);
        let classifier = last.map(|last| dense(trunk.out(), last)).transpose()?;
        let of_head = |head: &NamedHead| {
            let input = if head.from == HeadInput::Features { &x } else { trunk.out() };
            Ok((head.from, dense(input, &head.layers)?))
        };
        let named = self.named.iter().map(of_head).collect::<Result<_>>()?;
        Ok(ForwardPass { classifier, named, hidden: self.hidden.is_some(), trunk })
    }

    /// Adds parameters and scaling to a snapshot.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn save(&self, to: &mut Snapshot) -> Result<()> {
        self.scaler.save(to);
        self.parameters.save(to)
    }

    /// Takes parameters and scaling from a snapshot.
    ///
    /// # Errors
    /// When it is of another network, or the device fails.
    pub(crate) fn load(&mut self, from: &Snapshot) -> Result<()> {
        self.scaler.load(from)?;
        self.parameters.load(from)
    }
}

impl ForwardPass {
    /// Copies the outputs to the host.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn to_host(&self) -> Result<Outputs> {
        let host = |tape: Option<&Tape>| -> Result<Vec<f64>> {
            let Some(tape) = tape else { return Ok(Vec::new()) };
            let out = tape.out().to_dtype(DType::F32);
            let values = from_candle(out.and_then(|out| out.flatten_all()?.to_vec1::<f32>()))?;
            Ok(values.into_iter().map(f64::from).collect())
        };
        let rows = self.trunk.out().dims()[0];
        let logits = host(self.classifier.as_ref())?;
        let mut p = vec![0.0; logits.len()];
        let n = logits.len() / rows.max(1);
        if n > 0 {
            for (row, p) in logits.chunks_exact(n).zip(p.chunks_exact_mut(n)) {
                crate::model::neural::numerics::softmax(row, p);
            }
        }
        Ok(Outputs {
            rows,
            logits,
            p,
            hidden: host(self.hidden.then_some(&self.trunk))?,
            named: self.named.iter().map(|(_, tape)| host(Some(tape))).collect::<Result<_>>()?,
        })
    }

    /// The gradients by all parameters, given those by the outputs.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn backward(&self, gradient: &Outputs) -> Result<GradStore> {
        let mut found = GradStore::default();
        let of = |values: &[f64], out: &Tensor| {
            let values: Vec<f32> = values.iter().map(|g| *g as f32).collect();
            from_candle(Tensor::from_vec(values, out.dims(), out.device()))
        };
        let mut of_trunk = match &self.classifier {
            Some(tape) => tape.backward(of(&gradient.logits, tape.out())?, &mut found)?,
            None => None,
        };
        let mut add = |more: Tensor| -> Result<()> {
            of_trunk =
                Some(match of_trunk.take() {
                    Some(other) => from_candle(other.to_dtype(DType::F32).and_then(|other| {
                        other.reshape(more.dims())? + more.to_dtype(DType::F32)
                    }))?,
                    None => more,
                });
            Ok(())
        };
        for ((from, tape), gradient) in self.named.iter().zip(&gradient.named) {
            let of_input = tape.backward(of(gradient, tape.out())?, &mut found)?;
            if let (HeadInput::Hidden, Some(of_input)) = (from, of_input) {
                let of_input = of_input.reshape(self.trunk.out().dims());
                add(from_candle(of_input)?)?;
            }
        }
        if self.hidden {
            add(of(&gradient.hidden, self.trunk.out())?)?;
        }
        if let Some(gradient) = of_trunk {
            self.trunk.backward(gradient, &mut found)?;
        }
        Ok(found)
    }
}
