//! The record of a forward pass through layers, for the backward pass.
//!
//! # Why
//! candle's graph can differentiate anything, but it fills a tensor of zeros for each node, it computes the gradients of
//! masks too, and on the host it gives long tensors to threads of its own, which spin while they wait. So the gradients
//! of dense layers are written by hand, and on the host also those of convolutions, norms, pooling, ReLU, dropout, flatten
//! and shortcuts; every other run of layers is a graph of candle's.

use candle_core::backprop::GradStore;
use candle_core::{DType, Shape, Tensor, Var};

use crate::error::Result;
use crate::model::neural::from_candle;
use crate::model::neural::net::batch_norm::{BatchNorm, Normed};
use crate::model::neural::net::convolution::Convolution;
use crate::model::neural::net::host::format::{by_image, by_pixel};
use crate::model::neural::net::host::{change, change_by};
use crate::model::neural::net::layers::{Activation, Dense, Layer, Residual, dropout_mask};
use crate::model::neural::net::max_pool::Pooled;
use crate::model::neural::net::mean_pool;
use crate::model::neural::net::mode::Mode;
use crate::model::neural::net::residual::{self, Shortcut};

/// A record of the layers that a batch has passed. A pass that predicts records nothing: what a layer was given is freed
/// when the next one has it.
pub(crate) struct Tape {
    entries: Vec<TapeEntry>,
    out: Tensor,
    /// Whether no other tensor shares `out`, so that the next layer may change it in place.
    is_own: bool,
    precision: DType,
    /// Whether the first layer's input is the data, whose gradient is not needed.
    is_data: bool,
}

enum TapeEntry {
    Dense {
        layer: Dense,
        input: Tensor,
    },
    /// The output: the gradient passes where it is positive.
    Relu(Tensor),
    /// The mask that multiplied the input.
    Dropout(Tensor),
    Convolution {
        layer: Convolution,
        input: Tensor,
    },
    Pool(Pooled),
    /// With the shape of the input.
    MeanPool((usize, usize, usize, usize)),
    Norm(Box<Normed>),
    /// With the shape of the input.
    Shortcut(Shortcut, (usize, usize, usize, usize)),
    /// The layers of a residual block, and its shortcut where that is not the identity.
    Residual {
        layers: Tape,
        shortcut: Option<Tape>,
    },
    /// The shape of the input.
    Flatten(Shape),
    Graph {
        /// The input; `None` where it is the data.
        input: Option<Var>,
        out: Tensor,
    },
}

impl Tape {
    /// A record without layers; the layers to come are computed in `precision`.
    pub(crate) fn new(data: Tensor, precision: DType) -> Self {
        Self { entries: Vec::new(), out: data, is_own: false, precision, is_data: true }
    }

    /// A record of layers that come after others.
    fn after(input: Tensor, precision: DType) -> Self {
        Self { is_data: false, ..Self::new(input, precision) }
    }

    /// The output of the last layer.
    pub(crate) fn out(&self) -> &Tensor {
        &self.out
    }

    /// Computes layers one after the other.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn layers(&mut self, layers: &[Layer], mode: &mut Mode<'_>) -> Result<()> {
        let mut rest = layers;
        while let [layer, others @ ..] = rest {
            rest = match (layer, others) {
                (Layer::BatchNorm(norm), [Layer::Activation(Activation::Relu), others @ ..])
                    if self.out.device().is_cpu() =>
                {
                    self.norm(norm, mode, true)?;
                    self.recorded(mode);
                    others
                }
                _ => {
                    self.forward(layer, mode)?;
                    others
                }
            };
        }
        Ok(())
    }

    /// Computes the next layer.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn forward(&mut self, layer: &Layer, mode: &mut Mode<'_>) -> Result<()> {
        if matches!((&layer, &*mode), (Layer::Dropout(_), Mode::Fixed)) {
            return Ok(());
        }
        self.record(layer, mode)?;
        self.recorded(mode);
        Ok(())
    }

    /// What follows from the last record: a graph shares its output with its nodes, and a pass that predicts forgets.
    fn recorded(&mut self, mode: &Mode<'_>) {
        self.is_own = !matches!(self.entries.last(), Some(TapeEntry::Graph { .. }));
        if matches!(mode, Mode::Fixed) {
            self.entries.clear();
            self.out = self.out.detach();
        }
    }

    /// Computes the next layer and records it.
    fn record(&mut self, layer: &Layer, mode: &mut Mode<'_>) -> Result<()> {
        let on_host = self.out.device().is_cpu();
        let by_hand = self.is_own && on_host;
        match layer {
            Layer::Dense(layer) => self.dense(layer),
            Layer::Activation(Activation::Relu) if by_hand => {
                let relu = |x: &mut [f32]| {
                    x.iter_mut().for_each(|x| *x = if *x < 0.0 { 0.0 } else { *x });
                };
                let out = from_candle(by_pixel(&self.out))?;
                from_candle(change(&out, relu))?;
                self.out = from_candle(by_image(&out))?;
                self.entries.push(TapeEntry::Relu(self.out.clone()));
                Ok(())
            }
            Layer::Dropout(share) if by_hand && self.out.is_contiguous() => match mode {
                Mode::Training(rng) if *share > 0.0 => {
                    let mask = from_candle(dropout_mask(rng, &self.out, *share))?;
                    from_candle(change_by(&self.out, &mask, multiply))?;
                    self.entries.push(TapeEntry::Dropout(mask));
                    Ok(())
                }
                _ => Ok(()),
            },
            Layer::Convolution(layer) if on_host => {
                let input = from_candle(by_pixel(&self.out.detach()).and_then(|x| by_image(&x)))?;
                self.out = from_candle(layer.forward(&input))?;
                self.entries.push(TapeEntry::Convolution { layer: layer.clone(), input });
                Ok(())
            }
            Layer::MaxPool if on_host => {
                let (pooled, out) = from_candle(Pooled::forward(&self.out.detach()))?;
                self.out = out;
                self.entries.push(TapeEntry::Pool(pooled));
                Ok(())
            }
            Layer::MeanPool if on_host => {
                let dims = from_candle(self.out.dims4())?;
                self.out = from_candle(mean_pool::forward(&self.out.detach()))?;
                self.entries.push(TapeEntry::MeanPool(dims));
                Ok(())
            }
            Layer::Shortcut(shortcut) if on_host => {
                let dims = from_candle(self.out.dims4())?;
                self.out = from_candle(shortcut.forward(&self.out.detach()))?;
                self.entries.push(TapeEntry::Shortcut(*shortcut, dims));
                Ok(())
            }
            Layer::BatchNorm(norm) if on_host => self.norm(norm, mode, false),
            Layer::Residual(block) => self.residual(block, mode),
            Layer::Flatten if by_hand => {
                self.entries.push(TapeEntry::Flatten(self.out.shape().clone()));
                self.out = from_candle(self.out.flatten_from(1))?;
                Ok(())
            }
            _ => self.graph(layer, mode),
        }
    }

    /// Computes a dense layer.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn dense(&mut self, layer: &Dense) -> Result<()> {
        let x = self.out.detach();
        let input = from_candle(x.to_dtype(self.precision).and_then(|x| x.contiguous()))?;
        self.out = layer.forward(&input)?;
        self.is_own = true;
        self.entries.push(TapeEntry::Dense { layer: layer.clone(), input });
        Ok(())
    }

    /// Computes a norm on the host, and the ReLU that may follow it.
    fn norm(&mut self, norm: &BatchNorm, mode: &Mode<'_>, relu: bool) -> Result<()> {
        let training = matches!(mode, Mode::Training(_));
        let (normed, out) = norm.on_host(&self.out, training, relu)?;
        self.out = out;
        self.entries.push(TapeEntry::Norm(Box::new(normed)));
        Ok(())
    }

    fn residual(&mut self, block: &Residual, mode: &mut Mode<'_>) -> Result<()> {
        let input = self.out.detach();
        let mut layers = Self::after(input.clone(), self.precision);
        layers.layers(&block.layers, mode)?;
        let shortcut = match block.shortcut {
            Some(shortcut) => {
                let mut tape = Self::after(input.clone(), self.precision);
                tape.forward(&Layer::Shortcut(shortcut), mode)?;
                Some(tape)
            }
            None => None,
        };
        let beside = shortcut.as_ref().map_or(&input, Self::out);
        self.out = from_candle(residual::sum(&layers.out.detach(), &beside.detach()))?;
        self.entries.push(TapeEntry::Residual { layers, shortcut });
        Ok(())
    }

    fn graph(&mut self, layer: &Layer, mode: &mut Mode<'_>) -> Result<()> {
        let input = match self.entries.pop() {
            Some(TapeEntry::Graph { input, .. }) => input,
            None if self.is_data || matches!(mode, Mode::Fixed) => None,
            by_hand => {
                self.entries.extend(by_hand);
                let input = from_candle(Var::from_tensor(&self.out))?;
                self.out = input.as_tensor().clone();
                Some(input)
            }
        };
        self.out = layer.forward(&self.out, mode, self.precision)?;
        self.entries.push(TapeEntry::Graph { input, out: self.out.clone() });
        Ok(())
    }

    /// The backward pass for the gradient by the output, which is changed in place. Adds the gradients by parameters to
    /// `found` and returns the gradient by the data, unless the first layer does not compute it.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn backward(
        &self,
        mut gradient: Tensor,
        found: &mut GradStore,
    ) -> Result<Option<Tensor>> {
        for entry in self.entries.iter().rev() {
            let next = match entry {
                TapeEntry::Dense { layer, input } => layer.backward(input, &gradient, found)?,
                TapeEntry::Relu(out) => {
                    gradient = from_candle((|| {
                        let gradient = by_pixel(&gradient)?;
                        change_by(&gradient, &by_pixel(out)?, pass)?;
                        by_image(&gradient)
                    })())?;
                    continue;
                }
                TapeEntry::Dropout(mask) => {
                    from_candle(change_by(&gradient, mask, multiply))?;
                    continue;
                }
                TapeEntry::Convolution { layer, input } => {
                    from_candle(layer.backward(input, &gradient, found))?
                }
                TapeEntry::Pool(pooled) => Some(from_candle(pooled.backward(&gradient))?),
                TapeEntry::MeanPool(dims) => {
                    Some(from_candle(mean_pool::backward(&gradient, *dims))?)
                }
                TapeEntry::Shortcut(shortcut, dims) => {
                    Some(from_candle(shortcut.backward(&gradient, *dims))?)
                }
                TapeEntry::Norm(normed) => Some(from_candle(normed.backward(&gradient, found))?),
                TapeEntry::Residual { layers, shortcut } => {
                    // The layers change their gradient in place.
                    let copy = from_candle(gradient.copy())?;
                    let of_shortcut = match shortcut {
                        Some(tape) => tape.backward(gradient.clone(), found)?,
                        None => Some(gradient.clone()),
                    };
                    match (layers.backward(copy, found)?, of_shortcut) {
                        (Some(a), Some(b)) => Some(from_candle(residual::sum(&b, &a))?),
                        _ => None,
                    }
                }
                TapeEntry::Flatten(shape) => Some(from_candle(gradient.reshape(shape))?),
                TapeEntry::Graph { input, out } => from_candle((|| {
                    let gradient = gradient.to_dtype(out.dtype())?.reshape(out.dims())?;
                    let mut of_graph = (out * gradient)?.sum_all()?.backward()?;
                    let of_input = input.as_ref().and_then(|input| of_graph.remove(input));
                    found.extend(of_graph)?;
                    Ok(of_input)
                })())?,
            };
            let Some(next) = next else { return Ok(None) };
            gradient = next;
        }
        Ok(Some(gradient))
    }
}

fn multiply(values: &mut [f32], by: &[f32]) {
    values.iter_mut().zip(by).for_each(|(v, by)| *v *= by);
}

/// The backward pass of ReLU: keeps the gradient where the output is positive.
fn pass(gradient: &mut [f32], out: &[f32]) {
    gradient.iter_mut().zip(out).for_each(|(g, out)| *g = if *out > 0.0 { *g } else { 0.0 });
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::model::neural::net::parameters::Initialisation;
    use crate::model::neural::net::parameters::Parameters;
    use crate::run::Run;

    fn counted(rows: usize, columns: usize) -> Tensor {
        let values = (0..rows * columns).map(|n| (n * 7 % 11) as f32 * 0.2 - 1.0).collect();
        Tensor::from_vec::<_, f32>(values, (rows, columns), &Device::Cpu).unwrap()
    }

    /// Against candle's graph of the same layers, every number to 1e-6.
    #[test]
    fn gradients_are_those_of_one_graph() {
        let (run, share) = (Run::new(1), 0.5);
        let mut parameters = Parameters::new(&run, &Device::Cpu, Initialisation::default());
        let mut dense =
            |name: &str, from, to| Dense::new(&mut parameters, name, from, to, false).unwrap();
        let (a, b, c) = (dense("a", 3, 4), dense("b", 4, 4), dense("c", 4, 2));
        let norm = Layer::BatchNorm(BatchNorm::new(&mut parameters, "norm", 4, true).unwrap());
        let (data, slope) = (Var::from_tensor(&counted(6, 3)).unwrap(), counted(6, 2));
        let bend = Layer::Activation(Activation::Tanh);

        let mut tape = Tape::new(data.as_detached_tensor(), DType::F32);
        let mut rng = run.rng("dropout");
        let relu = Layer::Activation(Activation::Relu);
        let layers = [&relu, &Layer::Dropout(share)];
        tape.dense(&a).unwrap();
        layers.iter().for_each(|l| tape.forward(l, &mut Mode::Training(&mut rng)).unwrap());
        tape.dense(&b).unwrap();
        [&bend, &norm].iter().for_each(|l| tape.forward(l, &mut Mode::Training(&mut rng)).unwrap());
        tape.dense(&c).unwrap();
        let by_hand = tape.entries.iter().filter(|s| !matches!(s, TapeEntry::Graph { .. })).count();
        assert_eq!((by_hand, tape.entries.len()), (6, 7));
        let mut found = GradStore::default();
        let of_data = tape.backward(slope.clone(), &mut found).unwrap().unwrap();

        let mut rng = run.rng("dropout");
        let mut mode = Mode::Training(&mut rng);
        let graph = |x: &Tensor, dense: &Dense| {
            x.matmul(&dense.weight).unwrap().broadcast_add(&dense.bias).unwrap()
        };
        let mut x = graph(&data, &a);
        for layer in layers {
            x = layer.forward(&x, &mut mode, DType::F32).unwrap();
        }
        x = graph(&x, &b);
        for layer in [&bend, &norm] {
            x = layer.forward(&x, &mut mode, DType::F32).unwrap();
        }
        x = graph(&x, &c);
        let wanted = (&x * &slope).unwrap().backward().unwrap();

        let near = |what: &str, got: &Tensor, want: &Tensor| {
            assert_eq!(got.dims(), want.dims(), "{what}");
            let values = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            for (got, want) in values(got).iter().zip(values(want)) {
                assert!((got - want).abs() < 1e-6, "{what}: {got}, expected {want}");
            }
        };
        near("out", tape.out(), &x);
        near("data", &of_data, wanted.get(&data).unwrap());
        let mut parameters = 0;
        for id in wanted.get_ids().filter(|id| found.get_id(**id).is_some()) {
            near("parameter", found.get_id(*id).unwrap(), wanted.get_id(*id).unwrap());
            parameters += 1;
        }
        assert_eq!(parameters, 8, "of three dense layers and a norm");
    }
}
