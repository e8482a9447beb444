//! Convolutions, which the host computes by hand-written matrix products.

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};

use super::conv_shape::ConvShape;
use crate::model::neural::net::backend::Backend;
use crate::model::neural::net::forward_pass::mode::Mode;
use crate::model::neural::net::gpu;
use crate::model::neural::net::host::conv::ConvGradients;
use crate::model::neural::net::host::{contiguous, read};

/// A convolution over `[image, channel, height, width]`.
#[derive(Clone)]
pub struct Convolution {
    /// `[out, in, kernel, kernel]`
    pub(crate) weight: Tensor,
    /// `[out]`
    pub(crate) bias: Tensor,
    /// Zeros that pad the image on each side.
    pub(crate) padding: usize,
    /// Rows and columns from one output position to the next.
    pub(crate) stride: usize,
}

impl Convolution {
    /// The output.
    pub(crate) fn forward(&self, x: &Tensor, mode: &Mode<'_>, backend: Backend) -> Result<Tensor> {
        let (weight, bias) = (mode.parameter(&self.weight), mode.parameter(&self.bias));
        match backend {
            Backend::Host => {
                let (height, width, images, in_channels) = x.dims4()?;
                let shape = self.shape(images, in_channels, height, width)?;
                x.contiguous()?.apply_op3(&weight, &bias, shape)
            }
            Backend::Device(precision) => {
                let (images, in_channels, height, width) = x.dims4()?;
                let shape = self.shape(images, in_channels, height, width)?;
                let [x, weight, bias] =
                    [x, &weight, &bias].map(|tensor| tensor.to_dtype(precision));
                gpu::layers::conv::convolution(&x?, &weight?, &bias?, shape)
            }
        }
    }

    /// The output on the host after a ReLU and a max pool.
    pub(crate) fn forward_pooled(&self, x: &Tensor, mode: &Mode<'_>) -> Result<Tensor> {
        let (weight, bias) = (mode.parameter(&self.weight), mode.parameter(&self.bias));
        let (height, width, images, in_channels) = x.dims4()?;
        let shape = self.shape(images, in_channels, height, width)?;
        x.contiguous()?.apply_op3(&weight, &bias, shape.pooled())
    }

    /// The number of rows (or columns) of the output, for an image of `size` rows (or columns) that the kernel fits.
    pub(crate) fn size_after(&self, size: usize) -> usize {
        (size + 2 * self.padding - self.weight.dims()[2]) / self.stride + 1
    }

    fn shape(
        &self,
        images: usize,
        in_channels: usize,
        height: usize,
        width: usize,
    ) -> Result<ConvShape> {
        let (out_channels, known, kernel, _) = self.weight.dims4()?;
        let padded = (height.min(width) + 2 * self.padding + 1).checked_sub(kernel);
        if in_channels != known || padded.is_none_or(|size| size == 0) {
            candle_core::bail!(
                "images of {in_channels} x {height} x {width} for kernels of {known} x {kernel}"
            );
        }
        let Self { padding, stride, .. } = *self;
        let (out_height, out_width) = (self.size_after(height), self.size_after(width));
        Ok(ConvShape {
            images,
            in_channels,
            out_channels,
            kernel,
            padding,
            stride,
            height,
            width,
            out_height,
            out_width,
        })
    }
}

impl CustomOp3 for ConvShape {
    fn name(&self) -> &'static str {
        "convolution"
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
        let x = contiguous(x.as_slice()?, of_x)?;
        let weight = contiguous(weight.as_slice()?, of_weight)?;
        let bias = contiguous(bias.as_slice()?, of_bias)?;
        let out = self.forward_product(x, weight, bias).all(&self.reads());
        let dims = (self.out_height, self.out_width, self.images, self.out_channels);
        Ok((CpuStorage::F32(out), Shape::from(dims)))
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
                // The training data are no variable, and need no gradient.
                self.backward(values, weight, gradient, x.track_op())
            })?;
        gradients.tensors([x, weight, bias])
    }
}

impl ConvGradients {
    /// The gradients of the input, the weight and the bias, in their shapes.
    pub(in crate::model::neural) fn tensors(
        self,
        [x, weight, bias]: [&Tensor; 3],
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let tensor = |values, like: &Tensor| Tensor::from_vec(values, like.dims(), like.device());
        Ok((
            self.input.map(|of_input| tensor(of_input, x)).transpose()?,
            Some(tensor(self.weight, weight)?),
            Some(tensor(self.bias, bias)?),
        ))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};

    use super::*;
    use crate::job_context::JobContext;
    use crate::model::neural::net::gpu::layers::conv::{
        MAX_PATCH_ELEMENTS, in_groups, take_groups,
    };
    use crate::model::neural::net::host::format::{by_image, by_pixel};
    use crate::model::neural::net::layers::residual::strided;
    use crate::model::neural::net::testing::{
        assert_near, counted_var, gradients, largest, numbers, on_device_of, on_host_again,
    };

    /// Asserts that both tensors are equal up to 1e-5 of the largest value.
    fn near(what: &str, got: &Tensor, want: &Tensor) {
        let allowed = 1e-5 * largest(want, 1.0);
        assert_near(what, got, want, |_| allowed);
    }

    /// The output on the host.
    fn on_host(convolution: &Convolution, x: &Tensor) -> Result<Tensor> {
        let mut rng = JobContext::new(1).rng("none");
        let mode = Mode::Training(&mut rng);
        by_image(&convolution.forward(&by_pixel(x)?, &mode, Backend::Host)?)
    }

    const GPU: Backend = Backend::Device(DType::F32);

    fn of_vars([weight, bias]: [&Var; 2], padding: usize, stride: usize) -> Convolution {
        let [weight, bias] = [weight, bias].map(|var| var.as_tensor().clone());
        Convolution { weight, bias, padding, stride }
    }

    fn copied_to_gpu(of: &Convolution) -> Convolution {
        let [weight, bias] = [&of.weight, &of.bias].map(|tensor| on_device_of(GPU, tensor));
        Convolution { weight, bias, ..*of }
    }

    /// The output by the operations of `gpu/`.
    fn on_gpu(convolution: &Convolution, x: &Tensor) -> Result<Tensor> {
        let mut rng = JobContext::new(1).rng("none");
        let (convolution, mode) = (copied_to_gpu(convolution), Mode::Training(&mut rng));
        Ok(on_host_again(&convolution.forward(&on_device_of(GPU, x), &mode, GPU)?))
    }

    /// The output by the operations of `gpu/`, in groups of images with at most so many elements.
    fn by_groups(of: &Convolution, x: &Tensor, max_elements: usize) -> Result<Tensor> {
        let (images, in_channels, height, width) = x.dims4()?;
        let (of, x) = (copied_to_gpu(of), on_device_of(GPU, x));
        let shape = of.shape(images, in_channels, height, width)?;
        Ok(on_host_again(&in_groups(&x, &of.weight, &of.bias, shape, max_elements)?))
    }

    /// The output by candle's convolution with a stride of 1, whose gradients are right for every size.
    fn by_candle(of: &Convolution, x: &Tensor) -> Tensor {
        let out = x.conv2d(&of.weight, of.padding, 1, 1, 1).unwrap();
        let bias = of.bias.reshape((1, (), 1, 1)).unwrap();
        strided(&out.broadcast_add(&bias).unwrap(), of.stride).unwrap()
    }

    /// One image of two rows of three pixels with a padding of one zero, under a 2 x 2 kernel with a stride of 2; the
    /// bias is 0.5.
    #[test]
    fn a_small_convolution_is_that_by_hand() {
        let tensor = |values: &[f32], dims: (usize, usize, usize, usize)| {
            Var::from_tensor(&Tensor::from_slice(values, dims, &Device::Cpu).unwrap()).unwrap()
        };
        let x = tensor(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], (1, 1, 2, 3));
        let weight = tensor(&[1.0, 10.0, 100.0, 1000.0], (1, 1, 2, 2));
        let bias = Var::new(&[0.5_f32], &Device::Cpu).unwrap();
        let convolution = of_vars([&weight, &bias], 1, 2);
        for out in [on_host(&convolution, &x).unwrap(), on_gpu(&convolution, &x).unwrap()] {
            assert_eq!(out.dims(), [1, 1, 2, 2]);
            assert_eq!(numbers(&out), [1000.5, 3200.5, 40.5, 65.5]);
            let found = gradients(&out, &tensor(&[1.0, 2.0, 3.0, 4.0], (1, 1, 2, 2)));
            let of = |parameter: &Var| numbers(found.get(parameter).unwrap());
            assert_eq!(of(&x), [1000.0, 200.0, 2000.0, 30.0, 4.0, 40.0]);
            // Gradients of the output times pixels: 4 x 5, 3 x 4 + 4 x 6, 2 x 2, 1 x 1 + 2 x 3.
            assert_eq!(of(&weight), [20.0, 36.0, 4.0, 7.0]);
            assert_eq!(of(&bias), [10.0]);
        }
    }

    /// Comparison with candle's operations for one image, several images and more images than a run holds, with and
    /// without padding, with few channels and with more than one product of the weights' gradient has, and on a GPU also
    /// image by image.
    #[test]
    fn output_and_gradients_are_those_of_candle() {
        for (images, [from, to], padding, kernel, stride, height, width) in [
            (1, [2, 3], 0, 3, 1, 3, 5),
            (3, [2, 3], 2, 5, 1, 4, 6),
            (37, [2, 3], 1, 3, 1, 5, 4),
            (20, [2, 3], 0, 1, 1, 2, 2),
            (40, [2, 3], 1, 3, 1, 16, 16),
            (3, [2, 3], 1, 3, 2, 5, 4),
            (20, [2, 3], 0, 1, 2, 3, 6),
            (2, [2, 3], 1, 3, 2, 1, 1),
            (3, [2, 3], 2, 5, 3, 7, 8),
            (2, [100, 40], 1, 3, 1, 3, 3),
        ] {
            let x = counted_var(&[images, from, height, width], 7);
            let (weight, bias) =
                (counted_var(&[to, from, kernel, kernel], 5), counted_var(&[to], 11));
            let convolution = of_vars([&weight, &bias], padding, stride);
            let candle = by_candle(&convolution, &x);
            let slopes = counted_var(candle.dims(), 3).as_detached_tensor();
            let wanted = gradients(&candle, &slopes);
            for is_data in [false, true] {
                let x = if is_data { x.as_detached_tensor() } else { x.as_tensor().clone() };
                let by_image = by_groups(&convolution, &x, 1);
                for out in [on_host(&convolution, &x), on_gpu(&convolution, &x), by_image] {
                    let out = out.unwrap();
                    near("output", &out, &candle);
                    let found = gradients(&out, &slopes);
                    near("weight", found.get(&weight).unwrap(), wanted.get(&weight).unwrap());
                    near("bias", found.get(&bias).unwrap(), wanted.get(&bias).unwrap());
                    let of_input = found.get(&x);
                    assert_eq!(of_input.is_none(), is_data);
                    of_input.iter().for_each(|got| near("input", got, wanted.get(&x).unwrap()));
                }
            }
        }
    }

    /// Seven images in groups of three have the same output and gradients as all at once; the groups are those of the
    /// input, forwards and backwards, and of the output's gradient. With 64 channels, a 3 x 3 kernel and 86 x 86 pixels,
    /// the patches of an image have 64 x 9 x 86 x 86 elements, and those of 31 images fit into 512 MiB.
    #[test]
    fn large_batches_are_computed_in_groups() {
        let (x, weight, bias) =
            (counted_var(&[7, 2, 5, 4], 7), counted_var(&[3, 2, 3, 3], 5), counted_var(&[3], 11));
        let convolution = of_vars([&weight, &bias], 1, 1);
        let with_gradients = |out: Result<Tensor>| {
            let out = out.unwrap();
            let found = gradients(&out, &counted_var(out.dims(), 3));
            (out, found)
        };
        take_groups();
        let limit = 3 * 2 * 9 * 20 + 5;
        let (out, found) = with_gradients(by_groups(&convolution, &x, limit));
        assert_eq!(take_groups(), vec![(limit, vec![3, 3, 1]); 3]);
        let (whole, wanted) = with_gradients(on_gpu(&convolution, &x));
        assert_eq!(take_groups(), vec![(MAX_PATCH_ELEMENTS, vec![7]); 3]);
        near("output", &out, &whole);
        for (name, var) in [("x", &x), ("weight", &weight), ("bias", &bias)] {
            near(name, found.get(var).unwrap(), wanted.get(var).unwrap());
        }
        let large = ConvShape {
            images: 1024,
            in_channels: 64,
            out_channels: 64,
            kernel: 3,
            padding: 1,
            stride: 1,
            height: 86,
            width: 86,
            out_height: 86,
            out_width: 86,
        };
        assert_eq!(large.images_at_once(MAX_PATCH_ELEMENTS), 31);
        assert_eq!(large.images_at_once(1), 1);
    }

    #[test]
    fn any_number_of_threads_gives_the_same_bits() {
        let (x, weight, bias) =
            (counted_var(&[40, 3, 8, 8], 7), counted_var(&[4, 3, 3, 3], 5), counted_var(&[4], 11));
        let convolution = of_vars([&weight, &bias], 1, 1);
        let all = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let out = on_host(&convolution, &x).unwrap();
                let found = gradients(&out, &out.detach());
                let of = |var: &Var| numbers(found.get(var).unwrap());
                [numbers(&out), of(&x), of(&weight)]
            })
        };
        assert_eq!(all(1), all(4));
    }

    #[test]
    fn images_that_a_kernel_does_not_fit_are_refused() {
        let vars = [&counted_var(&[1, 2, 5, 5], 3), &counted_var(&[1], 3)];
        let convolution = of_vars(vars, 1, 1);
        assert!(on_host(&convolution, &counted_var(&[1, 2, 2, 9], 3)).is_err());
        assert!(on_host(&convolution, &counted_var(&[1, 3, 9, 9], 3)).is_err());
        assert!(on_host(&convolution, &counted_var(&[1, 2, 3, 9], 3)).is_ok());
    }
}
