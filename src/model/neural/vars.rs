//! The classifier's parameters: named, drawn each from its own random stream, and moved by the optimiser.
//!
//! # Why
//! candle's own `VarMap` draws from a source that the host cannot seed, in the order of a hash map. Here a parameter's
//! first value depends on the seed and its name alone.

use std::collections::BTreeMap;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use rand::Rng as _;

use super::moments::Moments;
use super::optimiser::Optimiser;
use super::snapshot::Snapshot;
use super::tensor;
use crate::error::{Error, Result};
use crate::run::Run;

/// What a parameter is to the optimiser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Decayed.
    Weight,
    /// Moved, never decayed.
    Bias,
    /// Not moved: running statistics.
    Buffer,
}

struct Parameter {
    kind: Kind,
    var: Var,
    moments: Moments,
    /// The moments of a variable on a card, from its first step there on.
    on_card: Option<[Tensor; 3]>,
}

/// Every parameter of a classifier, by name.
pub struct Vars {
    run: Run,
    device: Device,
    all: BTreeMap<String, Parameter>,
    step: u32,
}

impl Vars {
    /// None yet.
    #[must_use]
    pub fn new(run: &Run, device: &Device) -> Self {
        Self { run: run.clone(), device: device.clone(), all: BTreeMap::new(), step: 0 }
    }

    /// Where the parameters are.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// A parameter drawn uniformly from -`bound` to `bound`.
    ///
    /// # Errors
    /// When the device has no room.
    pub fn uniform(
        &mut self,
        name: &str,
        kind: Kind,
        shape: &[usize],
        bound: f64,
    ) -> Result<Tensor> {
        let mut rng = self.run.rng(&format!("parameter {name}"));
        let n = shape.iter().product();
        let bound = bound as f32;
        let values = (0..n).map(|_| (2.0 * rng.random::<f32>() - 1.0) * bound).collect();
        Ok(self.insert(name, kind, shape, values)?.as_tensor().clone())
    }

    /// A parameter that begins as one number everywhere.
    ///
    /// # Errors
    /// When the device has no room.
    pub fn constant(&mut self, name: &str, kind: Kind, shape: &[usize], value: f32) -> Result<Var> {
        self.insert(name, kind, shape, vec![value; shape.iter().product()])
    }

    fn insert(&mut self, name: &str, kind: Kind, shape: &[usize], values: Vec<f32>) -> Result<Var> {
        let var = tensor(Var::from_vec(values, shape, &self.device))?;
        let parameter =
            Parameter { kind, var: var.clone(), moments: Moments::default(), on_card: None };
        match self.all.insert(name.to_owned(), parameter) {
            None => Ok(var),
            Some(_) => Err(Error::bug(format!("two parameters are called `{name}`"))),
        }
    }

    /// The sum of the squares of all gradients.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn squared_norm(&self, gradients: &GradStore) -> Result<f64> {
        let mut sum = 0.0;
        for gradient in self.all.values().filter_map(|p| gradients.get(p.var.as_tensor())) {
            let squares = tensor(gradient.sqr().and_then(|g| g.sum_all()))?;
            sum +=
                f64::from(tensor(squares.to_dtype(DType::F32).and_then(|s| s.to_scalar::<f32>()))?);
        }
        Ok(sum)
    }

    /// One step of every parameter, each gradient multiplied by `scale` first.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn step(
        &mut self,
        gradients: &GradStore,
        scale: f64,
        optimiser: &Optimiser,
        rate: f64,
        weight_decay: f64,
    ) -> Result<()> {
        self.step += 1;
        for parameter in self.all.values_mut().filter(|p| p.kind != Kind::Buffer) {
            let Some(gradient) = gradients.get(parameter.var.as_tensor()) else { continue };
            // Moments that are sums of gradients would keep the graphs of all steps.
            let gradient = gradient.detach();
            let gradient = if scale == 1.0 { gradient } else { tensor(gradient * scale)? };
            let decay = if parameter.kind == Kind::Weight { weight_decay } else { 0.0 };
            let (var, step) = (&parameter.var, self.step);
            if self.device.is_cpu() {
                let moments = &mut parameter.moments;
                optimiser.update_host(var, &gradient, moments, step, rate, decay)?;
            } else {
                let moments = match &mut parameter.on_card {
                    Some(moments) => moments,
                    empty => empty.insert(parameter.moments.to_card(var)?),
                };
                optimiser.update_card(var, &gradient, moments, step, rate, decay)?;
            }
        }
        Ok(())
    }

    /// Forgets all moments.
    pub(super) fn forget(&mut self) {
        self.step = 0;
        for parameter in self.all.values_mut() {
            (parameter.moments, parameter.on_card) = (Moments::default(), None);
        }
    }

    /// Adds all parameters to a snapshot.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn save(&self, to: &mut Snapshot) -> Result<()> {
        for (name, parameter) in &self.all {
            let values = tensor(parameter.var.flatten_all().and_then(|v| v.to_vec1::<f32>()))?;
            to.reals(format!("net.{name}"), parameter.var.dims().to_vec(), values);
        }
        Ok(())
    }

    /// Adds moments and the number of steps, which only going on needs.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn save_moments(&self, to: &mut Snapshot) -> Result<()> {
        to.counts("optimiser.net.steps".to_owned(), vec![self.step]);
        for (name, parameter) in &self.all {
            let name = format!("optimiser.net.{name}");
            match &parameter.on_card {
                Some(moments) => Moments::from_card(moments)?.save(&name, to),
                None => parameter.moments.save(&name, to),
            }
        }
        Ok(())
    }

    /// Takes all parameters from a snapshot.
    ///
    /// # Errors
    /// When it is of another classifier, or the device fails.
    pub(super) fn load(&mut self, from: &Snapshot) -> Result<()> {
        for (name, parameter) in &self.all {
            let values = from.take_reals(&format!("net.{name}"), parameter.var.elem_count())?;
            let values = tensor(Tensor::from_vec(values, parameter.var.dims(), &self.device))?;
            tensor(parameter.var.set(&values))?;
        }
        Ok(())
    }

    /// Takes moments and the number of steps from a snapshot.
    ///
    /// # Errors
    /// When it has none.
    pub(super) fn load_moments(&mut self, from: &Snapshot) -> Result<()> {
        self.step = from.take_counts("optimiser.net.steps", 1)?[0];
        for (name, parameter) in &mut self.all {
            parameter.moments = Moments::load(&format!("optimiser.net.{name}"), from);
            parameter.on_card = None;
        }
        Ok(())
    }
}
