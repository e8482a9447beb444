//! Candle's `VarBuilder` over the parameters of a network: layers ask it for their variables by name.
//!
//! # Why
//! A `VarBuilder` over candle-nn's `VarMap` draws from a generator that cannot be seeded on the host, in the order of a
//! hash map. Over [`Parameters`], the initial values depend only on the seed and the names, and the layers of candle-nn can
//! be built as ours are.

use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{DType, Device, Result as CandleResult, Shape, Tensor, bail};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};

use crate::error::{Error, Result};
use crate::model::neural::device::from_candle;
use crate::model::neural::net::parameters::{Initialisation, Parameters};

/// Where the layers of a network get their variables.
pub struct LayerBuilder {
    /// Candle's builder, which also builds layers of candle-nn.
    pub variables: VarBuilder<'static>,
    initialisation: Initialisation,
}

impl LayerBuilder {
    /// The builder of the layer of this name, as candle's `pp` (push prefix).
    #[must_use]
    pub fn pp(&self, name: impl Display) -> Self {
        Self { variables: self.variables.pp(name), initialisation: self.initialisation }
    }

    /// The weight, of this shape, and the biases of a layer, drawn by the initialisation of the network: each output is a
    /// sum over `inputs` products, and each input is in `outputs` of them.
    ///
    /// # Errors
    /// When there is no room for them, or the device is out of memory.
    pub fn weight_and_bias(
        &self,
        weight: &[usize],
        biases: usize,
        inputs: usize,
        outputs: usize,
    ) -> Result<(Tensor, Tensor)> {
        let (bound, bias_bound) = match self.initialisation {
            Initialisation::Uniform => {
                let bound = 1.0 / (inputs.max(1) as f64).sqrt();
                (bound, bound)
            }
            Initialisation::Glorot => {
                ((6.0 / inputs.saturating_add(outputs).max(1) as f64).sqrt(), 0.0)
            }
        };
        let within = |bound: f64| Init::Uniform { lo: -bound, up: bound };
        Ok((
            from_candle(self.variables.get_with_hints(weight, "weight", within(bound)))?,
            from_candle(self.variables.get_with_hints(biases, "bias", within(bias_bound)))?,
        ))
    }

    /// A parameter of `n` values that are all `value` at the start.
    ///
    /// # Errors
    /// When there is no room for it, or the device is out of memory.
    pub fn constant(&self, name: &str, n: usize, value: f64) -> Result<Tensor> {
        from_candle(self.variables.get_with_hints(n, name, Init::Const(value)))
    }
}

/// The parameters that layers are being built over.
struct SeededBackend(Arc<Mutex<Building>>);

struct Building {
    parameters: Parameters,
    /// The error of a parameter that was refused.
    refused: Option<Error>,
}

impl SeededBackend {
    fn building(&self) -> MutexGuard<'_, Building> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SimpleBackend for SeededBackend {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        init: Init,
        dtype: DType,
        _: &Device,
    ) -> CandleResult<Tensor> {
        if dtype != DType::F32 {
            bail!("parameters are numbers of 32 bits, not {dtype:?}");
        }
        let mut building = self.building();
        match building.parameters.insert(name, &shape, init) {
            Ok(var) => Ok(var.as_tensor().clone()),
            Err(error) => {
                building.refused = Some(error);
                bail!("`{name}` was refused")
            }
        }
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> CandleResult<Tensor> {
        match self.building().parameters.all.get(name) {
            Some(parameter) => Ok(parameter.var.as_tensor().clone()),
            None => bail!("there is no parameter `{name}`"),
        }
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.building().parameters.all.contains_key(name)
    }
}

impl Parameters {
    /// Builds `layers`, whose parameters are added to these.
    ///
    /// # Errors
    /// When a layer cannot be built: there is no room for a parameter, or the device is out of memory.
    pub fn build<L>(self, layers: impl FnOnce(&LayerBuilder) -> Result<L>) -> Result<(L, Self)> {
        let (initialisation, device) = (self.initialisation, self.device.clone());
        let building = Arc::new(Mutex::new(Building { parameters: self, refused: None }));
        let backend = Box::new(SeededBackend(Arc::clone(&building)));
        let variables = VarBuilder::from_backend(backend, DType::F32, device);
        let built = layers(&LayerBuilder { variables, initialisation });
        let building = Arc::into_inner(building)
            .ok_or_else(|| Error::bug("a layer has kept the builder of its parameters"))?;
        let Building { parameters, refused } =
            building.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok((built.map_err(|error| refused.unwrap_or(error))?, parameters))
    }
}

#[cfg(test)]
mod tests {
    use candle_nn::{Module as _, linear};

    use super::*;
    use crate::job_context::JobContext;
    use crate::model::neural::net::testing::numbers;

    fn parameters(seed: u64) -> Parameters {
        Parameters::new(&JobContext::new(seed), &Device::Cpu, Initialisation::Uniform)
    }

    /// Its weights are normal with the deviation sqrt(2 / 200), its biases uniform within 1 / sqrt(200).
    #[test]
    fn a_layer_of_candle_nn_is_drawn_by_seed_and_name() {
        let build = |seed, names: [&str; 2]| {
            let built = parameters(seed).build(|layers| {
                let layer = |name| from_candle(linear(200, 300, layers.variables.pp(name)));
                Ok([layer(names[0])?, layer(names[1])?])
            });
            built.unwrap()
        };
        let ([a, b], all) = build(1, ["a", "b"]);
        let ([second_b, second_a], _) = build(1, ["b", "a"]);
        let ([other, _], _) = build(2, ["a", "b"]);
        let weights = numbers(a.weight());
        assert_eq!(weights, numbers(second_a.weight()));
        assert_eq!(numbers(b.weight()), numbers(second_b.weight()));
        assert!(weights != numbers(b.weight()) && weights != numbers(other.weight()));
        let squares: f32 = weights.iter().map(|w| w * w).sum();
        let deviation = (squares / weights.len() as f32).sqrt();
        assert!((deviation - 0.1).abs() < 1e-3, "{deviation}");
        let largest = numbers(a.bias().unwrap()).iter().fold(0.0_f32, |max, b| max.max(b.abs()));
        assert!(largest < 0.070_711 && largest > 0.065, "{largest}");
        let x = Tensor::ones((1, 200), DType::F32, &Device::Cpu).unwrap();
        assert_eq!(a.forward(&x).unwrap().dims(), [1, 300]);
        assert_eq!(
            all.all.keys().collect::<Vec<_>>(),
            ["a.bias", "a.weight", "b.bias", "b.weight"]
        );
    }

    #[test]
    fn the_builder_finds_what_it_has_drawn_and_refuses_what_it_cannot_hold() {
        let built = parameters(1).build(|layers| {
            let layer = layers.pp("layer");
            let drawn = layer.constant("bias", 2, 3.0)?;
            assert!(layer.variables.contains_tensor("bias"));
            assert!(!layer.variables.contains_tensor("weight"));
            let found = layer.variables.get_unchecked("bias").unwrap();
            assert_eq!((numbers(&found), found.id()), (vec![3.0; 2], drawn.id()));
            assert!(layer.variables.get_unchecked("weight").is_err());
            assert!(
                layer
                    .variables
                    .get_with_hints_dtype(2, "half", Init::Const(0.0), DType::F16)
                    .is_err()
            );
            layer.constant("bias", 2, 3.0)
        });
        let Err(error) = built else { panic!("two parameters of one name") };
        assert!(error.to_string().contains("two parameters are called `layer.bias`"), "{error}");
        let little =
            Parameters::within(&JobContext::new(1), &Device::Cpu, Initialisation::Uniform, 3);
        let Err(error) = little.build(|layers| layers.pp("layer").constant("bias", 4, 0.0)) else {
            panic!("four values in the room of three")
        };
        assert!(error.to_string().contains("larger than it can be"), "{error}");
    }
}
