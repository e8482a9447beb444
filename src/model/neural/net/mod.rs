//! The network of a model: a backbone and its heads.

pub(crate) mod backbone;
pub(crate) mod backend;
pub(crate) mod forward_pass;
pub(crate) mod gpu;
pub(crate) mod heads;
pub(crate) mod host;
pub(crate) mod input;
pub(crate) mod layers;
pub(crate) mod optimiser;
pub(crate) mod parameters;
pub(crate) mod precision;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

#[cfg(test)]
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{Device, Tensor, Var};

use crate::error::Result;
use crate::job_context::JobContext;
use crate::model::neural::device::from_candle;
use crate::model::neural::net::backbone::BackboneSpec;
use crate::model::neural::net::backend::Backend;
use crate::model::neural::net::forward_pass::ForwardPass;
use crate::model::neural::net::gpu::augment::augment;
use crate::model::neural::net::heads::{Head, HeadInput, Heads};
use crate::model::neural::net::layers::{Dense, Layer, forward_all};
use crate::model::neural::net::parameters::Parameters;
use crate::model::neural::net::precision::Precision;
use crate::model::saved::snapshot::Snapshot;
use forward_pass::mode::Mode;
use input::input_rows::InputRows;
use input::scaler::Scaler;
use layers::layer_builder::LayerBuilder;

/// The sizes of a network's input and output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetShape {
    /// The shape of one instance's features.
    pub features: Vec<usize>,
    /// The number of classes.
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
    backend: Backend,
    /// How many inputs were copied to the device by themselves, and not with the gradient of the batch before.
    #[cfg(test)]
    copied_alone: AtomicUsize,
}

/// The layers of a named head.
struct NamedHead {
    from: HeadInput,
    layers: Vec<Dense>,
}

impl NamedHead {
    /// Draws the layers' parameters, given the widths of the features and of the last hidden layer.
    fn new(head: &Head, features: usize, hidden: usize, layers: &LayerBuilder) -> Result<Self> {
        let input = if head.from == HeadInput::Features { features } else { hidden };
        let inputs = std::iter::once(&input).chain(&head.widths);
        let layer = |(n, (from, to)): (usize, (&usize, &usize))| {
            Dense::new(&layers.pp(format!("{}{n}", head.name)), *from, *to)
        };
        let layers = inputs.zip(&head.widths).enumerate().map(layer).collect::<Result<_>>()?;
        Ok(Self { from: head.from, layers })
    }
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
        job: &JobContext,
        device: &Device,
    ) -> Result<Self> {
        let parameters = Parameters::new(job, device, spec.initialisation);
        Self::build(spec, precision, heads, sizes, parameters)
    }

    /// Builds the network and draws its parameters into `parameters`.
    ///
    /// # Errors
    /// As [`Network::new`], and when the network has more values than `parameters` may hold.
    pub(crate) fn build(
        spec: &BackboneSpec,
        precision: Precision,
        heads: &Heads,
        sizes: &NetShape,
        parameters: Parameters,
    ) -> Result<Self> {
        let input = spec.input_shape(&sizes.features)?;
        let width: usize = input.iter().product();
        let build = |layers: &LayerBuilder| {
            let trunk = spec.build(&input, layers)?;
            let classifier = heads
                .classifier
                .then(|| Dense::new(&layers.pp("classifier"), trunk.width, sizes.classes))
                .transpose()?;
            let head = |head: &Head| NamedHead::new(head, width, trunk.width, layers);
            let named = heads.named.iter().map(head).collect::<Result<_>>()?;
            Ok((trunk, classifier, named))
        };
        let ((trunk, classifier, named), parameters) = parameters.build(build)?;
        let backend = Backend::new(parameters.device(), precision);
        Ok(Self {
            parameters,
            scaler: Scaler::identity(&input, spec),
            input,
            layers: trunk.layers,
            classifier,
            named,
            hidden: heads.hidden.then_some(trunk.width),
            backend,
            #[cfg(test)]
            copied_alone: AtomicUsize::new(0),
        })
    }

    /// The width of the last hidden layer if the model reads it, else 0.
    #[must_use]
    pub fn hidden(&self) -> usize {
        self.hidden.unwrap_or_default()
    }

    /// The number of outputs for a row, whose gradient is copied to the network's device; `None` on the host.
    pub(crate) fn copied_outputs(&self) -> Option<usize> {
        let last = self.named.iter().filter_map(|head| head.layers.last());
        let of_layers: usize =
            last.chain(&self.classifier).map(|layer| layer.bias.elem_count()).sum();
        (self.backend != Backend::Host).then_some(of_layers + self.hidden())
    }

    /// How many inputs were copied to the device by themselves.
    #[cfg(test)]
    pub(crate) fn copied_alone(&self) -> usize {
        self.copied_alone.load(Ordering::Relaxed)
    }

    /// Uses the operations of a GPU from now on, on whatever device.
    #[cfg(test)]
    pub(crate) fn use_gpu_operations(&mut self) {
        self.backend = Backend::Device(candle_core::DType::F32);
    }

    /// Computes the network's outputs for scaled features, `[row, ...]`.
    pub(crate) fn forward(
        &self,
        features: impl Into<InputRows>,
        mode: &mut Mode<'_>,
    ) -> Result<ForwardPass> {
        self.forward_from(&self.tensor(features.into())?, mode)
    }

    /// As [`Network::forward`]; the backward pass also gives the gradient with respect to the features.
    pub(crate) fn forward_of_variable(
        &self,
        features: Vec<f32>,
        mode: &mut Mode<'_>,
    ) -> Result<ForwardPass> {
        let input = from_candle(Var::from_tensor(&self.tensor(features.into())?))?.into_inner();
        let pass = self.forward_from(&input, mode)?;
        Ok(ForwardPass { input: Some(input), ..pass })
    }

    /// Features `[row, ...]` on the device, where images are moved if the input says how.
    fn tensor(&self, input: InputRows) -> Result<Tensor> {
        let width: usize = self.input.iter().product();
        from_candle((|| {
            #[cfg(test)]
            self.copied_alone.fetch_add(usize::from(!input.is_copied()), Ordering::Relaxed);
            let (features, moves) = input.on_device(self.parameters.device())?;
            let rows = features.elem_count() / width.max(1);
            let shape: Vec<usize> = std::iter::once(rows).chain(self.input.clone()).collect();
            let features = features.reshape(shape)?;
            let Some(numbers) = moves else { return Ok(features) };
            let moves = numbers.narrow(0, 0, 3 * rows)?.reshape((rows, 3))?;
            let locations = numbers.narrow(0, 3 * rows, numbers.elem_count() - 3 * rows)?;
            augment(&features, &moves, &locations, self.scaler.padding())
        })())
    }

    fn forward_from(&self, x: &Tensor, mode: &mut Mode<'_>) -> Result<ForwardPass> {
        let rows = x.dims()[0];
        let images = from_candle(self.backend.images(x))?;
        let trunk = forward_all(&self.layers, &images, mode, self.backend)?;
        let trunk = from_candle(trunk.flatten_from(1))?;
        let classifier = self.classifier.as_ref();
        let classifier =
            classifier.map(|last| last.forward(&trunk, mode, self.backend)).transpose()?;
        let flat = from_candle(x.flatten_from(1))?;
        let of_head = |head: &NamedHead| {
            let input = if head.from == HeadInput::Features { &flat } else { &trunk };
            let mut layers = head.layers.iter();
            layers.try_fold(input.clone(), |x, layer| layer.forward(&x, mode, self.backend))
        };
        let named = self.named.iter().map(of_head).collect::<Result<_>>()?;
        let hidden = self.hidden.map(|_| trunk);
        let pass = ForwardPass { rows, input: None, classifier, named, hidden, joined: None };
        if self.backend == Backend::Host { Ok(pass) } else { from_candle(pass.join()) }
    }

    /// Adds parameters and scaling to a snapshot.
    pub(crate) fn save(&self, to: &mut Snapshot) -> Result<()> {
        self.scaler.save(to);
        self.parameters.save(to)
    }

    /// Takes parameters and scaling from a snapshot.
    ///
    /// # Errors
    /// When the snapshot belongs to another network, or the device fails.
    pub(crate) fn load(&mut self, from: &Snapshot) -> Result<()> {
        self.scaler.load(from)?;
        self.parameters.load(from)
    }
}
