//! What a way forward through layers leaves for the way back.
//!
//! # Why
//! candle's graph finds the gradient of anything, but for each of its nodes it fills zeros to add to, it computes the
//! gradients of masks too, and on the host it hands long tensors to threads of its own, which spin for more. So dense
//! layers, and on the host convolutions and what usually stands between all these, go back by hand; the layers of every
//! other stretch are a graph of candle's.

use candle_core::backprop::GradStore;
use candle_core::{DType, Shape, Tensor, Var};

use super::convolution::Convolution;
use super::host::{change, change_by};
use super::layers::{Activation, Dense, Layer, Mode, dropout_mask};
use super::pool::Pooled;
use super::tensor;
use crate::error::Result;

/// The layers that a batch has gone through.
pub(super) struct Tape {
    steps: Vec<Step>,
    out: Tensor,
    precision: DType,
}

enum Step {
    Dense {
        layer: Dense,
        input: Tensor,
    },
    /// What is positive in the output was let through.
    Relu(Tensor),
    /// What every number was multiplied by.
    Dropout(Tensor),
    Convolution {
        layer: Convolution,
        input: Tensor,
    },
    Pool(Pooled),
    /// The shape before it was made flat.
    Flatten(Shape),
    Graph {
        /// `None` where it is the data.
        input: Option<Var>,
        out: Tensor,
    },
}

impl Tape {
    /// The data, before any layer, which are computed in `precision`.
    pub(super) fn new(data: Tensor, precision: DType) -> Self {
        Self { steps: Vec::new(), out: data, precision }
    }

    /// What the last layer gave.
    pub(super) fn out(&self) -> &Tensor {
        &self.out
    }

    /// Goes through one more layer.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn through(&mut self, layer: &Layer, mode: &mut Mode<'_>) -> Result<()> {
        // What a step by hand gave is nobody else's, and may be changed where it lies.
        let own = self.steps.last().is_some_and(|step| !matches!(step, Step::Graph { .. }));
        let on_host = self.out.device().is_cpu();
        let by_hand = own && on_host;
        match layer {
            Layer::Dense(layer) => self.dense(layer),
            Layer::Activation(Activation::Relu) if by_hand => {
                let relu = |x: &mut [f32]| {
                    x.iter_mut().for_each(|x| *x = if *x < 0.0 { 0.0 } else { *x });
                };
                tensor(change(&self.out, relu))?;
                self.steps.push(Step::Relu(self.out.clone()));
                Ok(())
            }
            Layer::Dropout(share) if by_hand => match mode {
                Mode::Training(rng) if *share > 0.0 => {
                    let mask = tensor(dropout_mask(rng, &self.out, *share))?;
                    tensor(change_by(&self.out, &mask, multiply))?;
                    self.steps.push(Step::Dropout(mask));
                    Ok(())
                }
                _ => Ok(()),
            },
            Layer::Convolution(layer) if on_host => {
                let input = tensor(self.out.detach().contiguous())?;
                self.out = tensor(layer.forward(&input))?;
                self.steps.push(Step::Convolution { layer: layer.clone(), input });
                Ok(())
            }
            Layer::MaxPool if on_host => {
                let input = tensor(self.out.detach().contiguous())?;
                let (pooled, out) = tensor(Pooled::forward(&input))?;
                self.out = out;
                self.steps.push(Step::Pool(pooled));
                Ok(())
            }
            Layer::Flatten if by_hand => {
                self.steps.push(Step::Flatten(self.out.shape().clone()));
                self.out = tensor(self.out.flatten_from(1))?;
                Ok(())
            }
            _ => self.graph(layer, mode),
        }
    }

    /// Goes through a dense layer.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn dense(&mut self, layer: &Dense) -> Result<()> {
        let x = self.out.detach();
        let input = tensor(x.to_dtype(self.precision).and_then(|x| x.contiguous()))?;
        self.out = layer.forward(&input)?;
        self.steps.push(Step::Dense { layer: layer.clone(), input });
        Ok(())
    }

    fn graph(&mut self, layer: &Layer, mode: &mut Mode<'_>) -> Result<()> {
        let input = match self.steps.pop() {
            Some(Step::Graph { input, .. }) => input,
            None => None,
            Some(by_hand) => {
                self.steps.push(by_hand);
                let input = tensor(Var::from_tensor(&self.out))?;
                self.out = input.as_tensor().clone();
                Some(input)
            }
        };
        self.out = layer.forward(&self.out, mode, self.precision)?;
        self.steps.push(Step::Graph { input, out: self.out.clone() });
        Ok(())
    }

    /// Goes back with the gradient by the output, which is changed; puts the gradients of parameters into `found` and
    /// returns that by the data, unless the first layer knows that nobody asks for it.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn backward(
        &self,
        mut gradient: Tensor,
        found: &mut GradStore,
    ) -> Result<Option<Tensor>> {
        for step in self.steps.iter().rev() {
            let next = match step {
                Step::Dense { layer, input } => layer.backward(input, &gradient, found)?,
                Step::Relu(out) => {
                    tensor(change_by(&gradient, out, pass))?;
                    continue;
                }
                Step::Dropout(mask) => {
                    tensor(change_by(&gradient, mask, multiply))?;
                    continue;
                }
                Step::Convolution { layer, input } => {
                    tensor((|| layer.backward(input, &gradient.contiguous()?, found))())?
                }
                Step::Pool(pooled) => {
                    Some(tensor((|| pooled.backward(&gradient.contiguous()?))())?)
                }
                Step::Flatten(shape) => Some(tensor(gradient.reshape(shape))?),
                Step::Graph { input, out } => tensor((|| {
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

/// Keeps the gradient where the output is positive.
fn pass(gradient: &mut [f32], out: &[f32]) {
    gradient.iter_mut().zip(out).for_each(|(g, out)| *g = if *out > 0.0 { *g } else { 0.0 });
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::super::layers::BatchNorm;
    use super::super::vars::Vars;
    use super::*;
    use crate::run::Run;

    fn counted(rows: usize, columns: usize) -> Tensor {
        let values = (0..rows * columns).map(|n| (n * 7 % 11) as f32 * 0.2 - 1.0).collect();
        Tensor::from_vec::<_, f32>(values, (rows, columns), &Device::Cpu).unwrap()
    }

    /// Against candle's graph of the same layers, every number to 1e-6.
    #[test]
    fn gradients_are_those_of_one_graph() {
        let (run, share) = (Run::new(1), 0.5);
        let mut vars = Vars::new(&run, &Device::Cpu);
        let mut dense =
            |name: &str, from, to| Dense::new(&mut vars, name, from, to, false).unwrap();
        let (a, b, c) = (dense("a", 3, 4), dense("b", 4, 4), dense("c", 4, 2));
        let norm = Layer::BatchNorm(BatchNorm::new(&mut vars, "norm", 4, true).unwrap());
        let (data, slope) = (Var::from_tensor(&counted(6, 3)).unwrap(), counted(6, 2));
        let bend = Layer::Activation(Activation::Tanh);

        let mut tape = Tape::new(data.as_detached_tensor(), DType::F32);
        let mut rng = run.rng("dropout");
        let relu = Layer::Activation(Activation::Relu);
        let layers = [&relu, &Layer::Dropout(share)];
        tape.dense(&a).unwrap();
        layers.iter().for_each(|l| tape.through(l, &mut Mode::Training(&mut rng)).unwrap());
        tape.dense(&b).unwrap();
        [&bend, &norm].iter().for_each(|l| tape.through(l, &mut Mode::Training(&mut rng)).unwrap());
        tape.dense(&c).unwrap();
        let by_hand = tape.steps.iter().filter(|s| !matches!(s, Step::Graph { .. })).count();
        assert_eq!((by_hand, tape.steps.len()), (5, 6));
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
