//! The parameters of a network. Each has its own name and random stream, and the optimiser updates it.
//!
//! Layers ask for theirs by a [`LayerBuilder`](super::layers::layer_builder::LayerBuilder).

pub(super) mod flat;
pub(super) mod initial_values;
pub(super) mod parameters_on_gpu;
pub(crate) mod pytorch;

use std::collections::BTreeMap;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Shape, Tensor, Var};
use candle_nn::Init;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::optimiser::Optimiser;
use super::optimiser::moments::Moments;
use crate::error::{Error, Result};
use crate::job_context::JobContext;
use crate::model::neural::device::from_candle;
use crate::model::neural::net::host::read;
use crate::model::saved::snapshot::Snapshot;
use flat::Flat;
use initial_values::InitialValues;

/// How weights and biases are drawn at the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Initialisation {
    /// Uniform within 1 / sqrt(inputs) for weights and biases, as PyTorch draws them.
    #[default]
    Uniform,
    /// Weights uniform within sqrt(6 / (inputs + outputs)), biases zero (Glorot and Bengio 2010), as Keras draws them.
    Glorot,
}

/// How the optimiser treats a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterKind {
    /// Updated, with weight decay.
    Weight,
    /// Updated, without weight decay.
    Bias,
    /// Not updated by the optimiser: running statistics.
    Buffer,
}

pub(super) struct Parameter {
    pub(super) kind: ParameterKind,
    start: InitialValues,
    pub(super) var: Var,
    /// The moments, unless they are on a GPU.
    pub(super) moments: Moments,
}

/// Every parameter of a network, by name.
pub struct Parameters {
    job: JobContext,
    pub(super) device: Device,
    pub(super) initialisation: Initialisation,
    pub(super) all: BTreeMap<String, Parameter>,
    pub(super) step: u32,
    /// On a GPU, the weights and the biases, once they have been updated there.
    pub(super) flat: [Option<Flat>; 2],
    /// Whether the optimiser's loops on the host update the parameters.
    on_host: bool,
    /// How many more values the network may have.
    room: usize,
}

/// The largest number of values in a network: 16 GiB of f32.
pub(super) const MAX_NUMBERS: usize = 1 << 32;

impl Parameters {
    /// No parameters yet.
    #[must_use]
    pub fn new(job: &JobContext, device: &Device, initialisation: Initialisation) -> Self {
        Self::within(job, device, initialisation, MAX_NUMBERS)
    }

    /// No parameters yet, and room for at most `room` values. For a saved model, `room` is the number of values in its
    /// file, whatever sizes its description claims.
    #[must_use]
    pub fn within(
        job: &JobContext,
        device: &Device,
        initialisation: Initialisation,
        room: usize,
    ) -> Self {
        let (job, device, on_host) = (job.clone(), device.clone(), device.is_cpu());
        let (all, flat) = (BTreeMap::new(), [None, None]);
        Self { job, device, initialisation, all, step: 0, flat, on_host, room }
    }

    /// The number of values of a shape, after taking them from the room that is left; an error if they do not fit.
    fn take_room(&mut self, name: &str, shape: &[usize]) -> Result<usize> {
        let n = shape.iter().try_fold(1_usize, |product, size| product.checked_mul(*size));
        match n.and_then(|n| Some((n, self.room.checked_sub(n)?))) {
            Some((n, room)) => {
                self.room = room;
                Ok(n)
            }
            None => Err(Error::data("the network is larger than it can be")
                .at("model.backbone")
                .found(format!("`{name}` of shape {shape:?}, with room for {} numbers", self.room))
                .help("choose smaller layers; a saved model has as many numbers as its file")),
        }
    }

    /// The device of the parameters.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Adds a parameter. A parameter with more than one axis is a weight; of the others, running statistics are not
    /// trained.
    ///
    /// # Errors
    /// When there is no room for it, the device is out of memory, or another has the name.
    pub(super) fn insert(&mut self, name: &str, shape: &Shape, init: Init) -> Result<Var> {
        let (n, start) = (self.take_room(name, shape.dims())?, InitialValues::new(init, shape));
        let values = start.drawn(&mut self.job.rng(&format!("parameter {name}")), n);
        let var = from_candle(Var::from_vec(values, shape, &self.device))?;
        let kind = match name.rsplit('.').next() {
            Some("running_mean" | "running_var") => ParameterKind::Buffer,
            _ if shape.rank() > 1 => ParameterKind::Weight,
            _ => ParameterKind::Bias,
        };
        let parameter = Parameter { kind, start, var: var.clone(), moments: Moments::default() };
        match self.all.insert(name.to_owned(), parameter) {
            None => Ok(var),
            Some(_) => Err(Error::bug(format!("two parameters are called `{name}`"))),
        }
    }

    /// The same parameters, which the optimiser updates as on a GPU.
    #[cfg(test)]
    pub(crate) fn on_gpu(self) -> Self {
        Self { on_host: false, ..self }
    }

    /// The variable of a parameter.
    #[cfg(test)]
    pub(crate) fn var(&self, name: &str) -> Option<Var> {
        self.all.get(name).map(|parameter| parameter.var.clone())
    }

    /// The name of the layer that a parameter belongs to.
    #[must_use]
    pub fn layer_of(&self, parameter: &Tensor) -> Option<&str> {
        let mut all = self.all.iter();
        let (name, _) = all.find(|(_, p)| p.var.as_tensor().id() == parameter.id())?;
        name.rsplit_once('.').map(|(layer, _)| layer)
    }

    /// The sum of the squares of all gradients.
    pub(crate) fn squared_norm(&self, gradients: &GradStore) -> Result<f64> {
        if !self.on_host {
            return self.squared_norm_on_gpu(gradients);
        }
        let mut sum = 0.0;
        for gradient in self.all.values().filter_map(|p| gradients.get(p.var.as_tensor())) {
            let squares = from_candle(gradient.sqr().and_then(|g| g.sum_all()))?;
            sum += f64::from(from_candle(
                squares.to_dtype(DType::F32).and_then(|s| s.to_scalar::<f32>()),
            )?);
        }
        Ok(sum)
    }

    /// Whether all parameters are finite numbers.
    pub(crate) fn is_finite(&self) -> Result<bool> {
        if !self.on_host {
            return self.is_finite_on_gpu();
        }
        for parameter in self.all.values() {
            let var = parameter.var.as_tensor();
            if !from_candle(read([var], |[values]| values.iter().all(|v| v.is_finite())))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Updates every parameter, each gradient multiplied by `scale` first.
    pub(crate) fn step(
        &mut self,
        gradients: &GradStore,
        scale: f64,
        optimiser: &Optimiser,
        rate: f64,
        weight_decay: f64,
    ) -> Result<()> {
        self.step += 1;
        if !self.on_host {
            return self.step_on_gpu(gradients, scale, optimiser, rate, weight_decay);
        }
        for parameter in self.all.values_mut().filter(|p| p.kind != ParameterKind::Buffer) {
            let Some(gradient) = gradients.get(parameter.var.as_tensor()) else { continue };
            // Otherwise the moments, which are sums of gradients, would keep the graphs of all steps in memory.
            let gradient = gradient.detach();
            let gradient = if scale == 1.0 { gradient } else { from_candle(gradient * scale)? };
            let decay = if parameter.kind == ParameterKind::Weight { weight_decay } else { 0.0 };
            let (var, moments) = (&parameter.var, &mut parameter.moments);
            optimiser.update_host(var, &gradient, moments, self.step, rate, decay)?;
        }
        Ok(())
    }

    /// Sets all moments and step counts to zero.
    pub(crate) fn reset_moments(&mut self) {
        (self.step, self.flat) = (0, [None, None]);
        self.all.values_mut().for_each(|parameter| parameter.moments = Moments::default());
    }

    /// Reinitialises all parameters from the random streams of `name`, and resets the moments and step counts.
    pub(crate) fn reset(&mut self, name: &str) -> Result<()> {
        self.reset_moments();
        for (parameter_name, Parameter { start, var, .. }) in &self.all {
            let stream = format!("parameter {parameter_name} of {name}");
            let values = start.drawn(&mut self.job.rng(&stream), var.elem_count());
            let values = from_candle(Tensor::from_vec(values, var.dims(), &self.device))?;
            from_candle(var.set(&values))?;
        }
        Ok(())
    }

    /// Adds all parameters to a snapshot.
    pub(crate) fn save(&self, to: &mut Snapshot) -> Result<()> {
        for (name, parameter) in &self.all {
            let values = from_candle(parameter.var.flatten_all().and_then(|v| v.to_vec1::<f32>()))?;
            to.f32s(format!("net.{name}"), parameter.var.dims().to_vec(), values);
        }
        Ok(())
    }

    /// Adds moments and the number of steps, which only a resumed training needs.
    pub(crate) fn save_moments(&self, to: &mut Snapshot) -> Result<()> {
        to.u32s("optimiser.net.steps".to_owned(), vec![self.step]);
        let on_gpu = self.moments_on_gpu()?;
        for (name, parameter) in &self.all {
            let moments = on_gpu.get(&parameter.var.id()).unwrap_or(&parameter.moments);
            moments.save(&format!("optimiser.net.{name}"), to);
        }
        Ok(())
    }

    /// Takes all parameters from a snapshot.
    ///
    /// # Errors
    /// When the snapshot belongs to another network, or the device fails.
    pub(crate) fn load(&mut self, from: &Snapshot) -> Result<()> {
        for (name, parameter) in &self.all {
            let values = from.take_array(&format!("net.{name}"), parameter.var.dims())?;
            let values = from_candle(Tensor::from_vec(values, parameter.var.dims(), &self.device))?;
            from_candle(parameter.var.set(&values))?;
        }
        self.forget_flat_values()?;
        Ok(())
    }

    /// Takes moments and the number of steps from a snapshot.
    ///
    /// # Errors
    /// When the snapshot has none.
    pub(crate) fn load_moments(&mut self, from: &Snapshot) -> Result<()> {
        self.step = from.take_u32s("optimiser.net.steps", 1)?[0];
        self.flat = [None, None];
        for (name, parameter) in &mut self.all {
            parameter.moments = Moments::load(&format!("optimiser.net.{name}"), from);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::neural::net::optimiser::optimiser_spec::OptimiserSpec;
    use crate::model::neural::net::testing::numbers;

    /// A step with zero gradients at the rate 0.1 with decay 0.5: weights shrink by a twentieth, biases and statistics
    /// do not change.
    #[test]
    fn only_weights_decay() {
        let all = Parameters::new(&JobContext::new(1), &Device::Cpu, Initialisation::Uniform);
        let built = all.build(|layers| {
            let buffer = layers.constant("running_mean", 4, 2.0)?;
            Ok((layers.pp("layer").weight_and_bias(&[3, 4], 4, 3, 4)?, buffer))
        });
        let (((weight, bias), buffer), mut all) = built.unwrap();
        let (w, b) = (numbers(&weight), numbers(&bias));
        let mut gradients = GradStore::default();
        for tensor in [&weight, &bias, &buffer] {
            gradients.insert(tensor, tensor.zeros_like().unwrap());
        }
        let optimiser = Optimiser::new(&OptimiserSpec::default());
        all.step(&gradients, 1.0, &optimiser, 0.1, 0.5).unwrap();
        for (now, before) in numbers(&weight).iter().zip(&w) {
            assert!((now - 0.95 * before).abs() < 1e-6, "{now}, before {before}");
        }
        assert_eq!((numbers(&bias), numbers(&buffer)), (b, vec![2.0; 4]));
    }

    /// For 3 inputs and 5 outputs the bound is sqrt(6 / 8), larger than the 1 / sqrt(3) of `uniform`.
    #[test]
    fn glorot_draws_within_its_bound_and_leaves_biases_zero() {
        let all = Parameters::new(&JobContext::new(1), &Device::Cpu, Initialisation::Glorot);
        let built = all.build(|layers| layers.pp("layer").weight_and_bias(&[300, 5], 5, 3, 5));
        let ((weight, bias), _) = built.unwrap();
        let largest = numbers(&weight).iter().fold(0.0_f32, |max, w| max.max(w.abs()));
        assert!(largest <= 0.866_03 && largest > 0.85, "{largest}");
        assert!(numbers(&bias).iter().all(|b| *b == 0.0));
    }
}
