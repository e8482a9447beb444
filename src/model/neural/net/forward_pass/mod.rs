//! The outputs of a network for a batch, and their gradients.

pub(crate) mod mode;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor};

use super::input::input_rows::InputRows;
use crate::error::Result;
use crate::model::neural::device::from_candle;
use crate::model::neural::net::gpu::loss::with_gradient;
use crate::model::neural::net::heads::Outputs;
use crate::model::neural::numerics::softmax;

/// The outputs of a batch. In training they are nodes of candle's graph, which keeps the values for the backward pass.
pub(crate) struct ForwardPass {
    pub(super) rows: usize,
    /// The input, where its gradient is wanted.
    pub(super) input: Option<Tensor>,
    pub(super) classifier: Option<Tensor>,
    pub(super) named: Vec<Tensor>,
    pub(super) hidden: Option<Tensor>,
    /// On a GPU, all outputs one after the other, so that they are copied to the host at once.
    pub(super) joined: Option<Tensor>,
}

impl ForwardPass {
    /// The outputs of the classifier, of the named heads and of the last hidden layer, as far as the network has them.
    pub(super) fn outputs(&self) -> impl Iterator<Item = &Tensor> {
        self.classifier.iter().chain(&self.named).chain(&self.hidden)
    }

    /// Appends all outputs to each other.
    pub(super) fn join(mut self) -> candle_core::Result<Self> {
        let values = |out: &Tensor| out.to_dtype(DType::F32)?.flatten_all();
        let outputs = self.outputs().map(values).collect::<candle_core::Result<Vec<_>>>()?;
        self.joined = (!outputs.is_empty()).then(|| Tensor::cat(&outputs, 0)).transpose()?;
        Ok(self)
    }

    /// Copies the outputs to the host.
    pub(crate) fn to_host(&self) -> Result<Outputs> {
        let host = |out: &Tensor| -> Result<Vec<f64>> {
            let values = from_candle(out.flatten_all().and_then(|out| out.to_vec1::<f32>()))?;
            Ok(values.into_iter().map(f64::from).collect())
        };
        let mut outputs = match &self.joined {
            Some(joined) => split(&host(joined)?, self.outputs()),
            None => self.outputs().map(host).collect::<Result<_>>()?,
        }
        .into_iter();
        let rows = self.rows;
        let logits = self.classifier.as_ref().and_then(|_| outputs.next()).unwrap_or_default();
        let mut p = vec![0.0; logits.len()];
        let n = logits.len() / rows.max(1);
        if n > 0 {
            for (row, p) in logits.chunks_exact(n).zip(p.chunks_exact_mut(n)) {
                softmax(row, p);
            }
        }
        let named = outputs.by_ref().take(self.named.len()).collect();
        let hidden = outputs.next().unwrap_or_default();
        Ok(Outputs { rows, logits, p, hidden, named, constants: Vec::new() })
    }

    /// The gradient with respect to the input, `[row, column]`, where it is wanted.
    pub(crate) fn of_input(&self, gradients: &GradStore) -> Result<Option<Vec<f64>>> {
        let Some(input) = &self.input else { return Ok(None) };
        let Some(gradient) = gradients.get(input) else {
            return Ok(Some(vec![0.0; input.elem_count()]));
        };
        let values = from_candle(gradient.flatten_all().and_then(|g| g.to_vec1::<f32>()))?;
        Ok(Some(values.into_iter().map(f64::from).collect()))
    }

    /// The gradients of all parameters, given the gradients of the outputs. On a GPU these are copied together with `next`,
    /// the network's input of the next batch, if there is one.
    pub(crate) fn backward(&self, gradient: &Outputs, next: &mut InputRows) -> Result<GradStore> {
        let of_classifier = self.classifier.iter().map(|_| &gradient.logits);
        let of_hidden = self.hidden.iter().map(|_| &gradient.hidden);
        let gradients = of_classifier.chain(&gradient.named).chain(of_hidden);
        from_candle((|| {
            let f32s = |gradient: &Vec<f64>| gradient.iter().map(|g| *g as f32).collect::<Vec<_>>();
            if let Some(joined) = &self.joined {
                let gradient = gradients.flat_map(f32s).collect();
                let gradient = next.copy_with(gradient, joined.device())?;
                return with_gradient(joined, gradient)?.backward();
            }
            let mut sum = Tensor::zeros((), DType::F32, &Device::Cpu)?;
            for (n, (out, gradient)) in self.outputs().zip(gradients).enumerate() {
                let gradient = Tensor::from_vec(f32s(gradient), out.dims(), out.device())?;
                let of_head = with_gradient(out, gradient)?;
                sum = if n == 0 { of_head } else { (sum + of_head)? };
            }
            sum.backward()
        })())
    }
}

/// The values of each of these tensors, which follow each other in `joined`.
fn split<'a>(mut joined: &[f64], tensors: impl Iterator<Item = &'a Tensor>) -> Vec<Vec<f64>> {
    let next = |tensor: &Tensor| {
        let (values, others) = joined.split_at(tensor.elem_count());
        joined = others;
        values.to_vec()
    };
    tensors.map(next).collect()
}
