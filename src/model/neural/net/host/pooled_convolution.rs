//! A convolution with the ReLU and the max pool that follow it, as one operation on the host.
//!
//! # Why
//! The output of LeNet's first convolution is four times its pooled output. As three operations, it and its gradient are
//! written to memory and read again, and candle adds the gradient to zeros: an epoch of LeNet takes 161 ms, and 143 ms
//! as one operation (8 192 images, two threads of an AMD EPYC). Here two rows of the output are computed at a time,
//! pooled while they are in the cache, and forgotten; the backward pass needs only the index of each maximum.

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use crate::model::neural::net::host::max_pool::{MaxPool, PoolOutput};
use crate::model::neural::net::host::tiles::RowRun;
use crate::model::neural::net::host::{contiguous, read};
use crate::model::neural::net::layers::conv_shape::ConvShape;

/// The operation on one batch.
pub(crate) struct PooledConvolution {
    shape: ConvShape,
    pool: MaxPool,
}

impl ConvShape {
    /// The convolution with a ReLU and a max pool after it.
    pub(crate) fn pooled(self) -> PooledConvolution {
        let Self { out_height, out_width, images, out_channels, .. } = self;
        let dims = (out_height, out_width, images, out_channels);
        PooledConvolution { shape: self, pool: MaxPool::new(dims, PoolOutput::Relu) }
    }
}

impl CustomOp3 for PooledConvolution {
    fn name(&self) -> &'static str {
        "convolution, ReLU and max pool"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        of_x: &Layout,
        weight: &CpuStorage,
        of_weight: &Layout,
        bias: &CpuStorage,
        of_bias: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let Self { shape, pool } = self;
        let x = contiguous(x.as_slice()?, of_x)?;
        let weight = contiguous(weight.as_slice()?, of_weight)?;
        let bias = contiguous(bias.as_slice()?, of_bias)?;
        let product = shape.forward_product(x, weight, bias);
        let runs = shape.reads();
        let row = |run: &RowRun| run.first / (2 * shape.out_width * shape.images).max(1);
        let of_two_rows: Vec<&[RowRun]> = runs.chunk_by(|a, b| row(a) == row(b)).collect();
        let out = pool.forward(of_two_rows.into_par_iter().map(|runs| {
            let mut rows = vec![0.0; pool.two_rows()];
            product.write(runs, &mut rows);
            rows
        }));
        Ok((CpuStorage::F32(out), pool.shape()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let gradients =
            read([x, weight, &gradient.contiguous()?], |[values, weight, gradient]| {
                let of_output = self.pool.backward(gradient);
                // The training data are no variable, and need no gradient.
                of_output.map(|g| self.shape.backward(values, weight, &g, x.track_op()))
            })??;
        gradients.tensors([x, weight, bias])
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::job_context::JobContext;
    use crate::model::neural::net::backend::Backend;
    use crate::model::neural::net::forward_pass::mode::Mode;
    use crate::model::neural::net::layers::convolution::Convolution;
    use crate::model::neural::net::layers::{Activation, Layer, forward_all};
    use crate::model::neural::net::testing::{counted_var, gradients, numbers};

    fn bits(t: &Tensor) -> Vec<u32> {
        numbers(t).into_iter().map(f32::to_bits).collect()
    }

    /// Outputs with an odd last row or column, of one row, with and without padding and a stride; images with a pixel
    /// that is not a number. Many outputs are negative in all four pixels of a window.
    #[test]
    fn output_and_gradients_are_those_of_the_layers_one_by_one() {
        for (images, padding, kernel, stride, height, width) in [
            (3, 2, 5, 1, 6, 8),
            (37, 0, 3, 1, 7, 8),
            (40, 1, 3, 1, 16, 17),
            (20, 1, 3, 2, 9, 12),
            (1, 0, 1, 1, 2, 2),
            (2, 0, 3, 1, 3, 5),
        ] {
            let x = counted_var(&[height, width, images, 2], 7);
            if images == 37 {
                let index = Tensor::arange(0_u32, 7 * 8 * 37 * 2, &Device::Cpu).unwrap();
                let is_broken = index.eq(5 * 37 * 2).unwrap().reshape(x.dims()).unwrap();
                let nan = Tensor::full(f32::NAN, x.dims(), &Device::Cpu).unwrap();
                x.set(&is_broken.where_cond(&nan, &x.as_detached_tensor()).unwrap()).unwrap();
            }
            let (weight, bias) = (counted_var(&[3, 2, kernel, kernel], 5), counted_var(&[3], 11));
            let [w, b] = [&weight, &bias].map(|var| var.as_tensor().clone());
            let convolution = Convolution { weight: w, bias: b, padding, stride };
            let layers = [
                Layer::Convolution(convolution),
                Layer::Activation(Activation::Relu),
                Layer::MaxPool,
            ];
            let mut rng = JobContext::new(1).rng("none");
            let mut mode = Mode::Training(&mut rng);
            let together = forward_all(&layers, &x, &mut mode, Backend::Host).unwrap();
            let one_by_one = layers.iter().fold(x.as_tensor().clone(), |x, layer| {
                layer.forward(&x, &mut mode, Backend::Host).unwrap()
            });
            let what = format!("{images} images of {height} x {width}");
            assert_eq!(together.dims(), one_by_one.dims(), "{what}");
            assert_eq!(bits(&together), bits(&one_by_one), "{what}");
            let slopes = counted_var(together.dims(), 3).as_detached_tensor();
            let [found, wanted] = [together, one_by_one].map(|out| gradients(&out, &slopes));
            for var in [&x, &weight, &bias] {
                let [got, want] = [&found, &wanted].map(|g| g.get(var).map(bits));
                assert_eq!(got, want, "{what}: {:?}", var.dims());
            }
        }
    }
}
