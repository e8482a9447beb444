//! Convolutions; on the host by hand-written products (im2col).
//!
//! # Why
//! On the host candle's own convolution takes thirteen times as long (an epoch of LeNet). Here the patches of a group of
//! images are the columns of a matrix (im2col), and forward and backward are products with it:
//!
//! ```text
//! cols [patch, place]   patch = channel x row x column of the kernel, place = image x row x column of the output
//! out = W cols + b      dW = dout cols^T      dcols = W^T dout, summed into the pixels of the patches (col2im)
//! ```
//! Threads work on groups of images whose sizes do not depend on the number of threads.

use candle_core::backprop::GradStore;
use candle_core::{DType, Result, Tensor};
use rayon::prelude::*;

use crate::model::neural::net::host::product::{MatrixView, multiply_into};
use crate::model::neural::net::host::read;
use crate::model::neural::net::im2col::{ConvShape, GROUPS};

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
    /// Whether its input is the data, whose gradient is not needed.
    pub(crate) is_first: bool,
}

/// The largest number of elements that one convolution on a GPU may address: what a signed number of 32 bits holds.
const MAX_ADDRESSED: usize = i32::MAX as usize;

impl Convolution {
    /// The output as a node of candle's graph, computed in `precision`.
    ///
    /// # Why
    /// candle's kernels on a GPU address the patches of a whole batch with 32 bits: with 64 channels and a kernel of 3 x 3,
    /// 1 024 images of 86 x 86 pixels have more. So a large batch is computed in groups of images. A stride is a choice of
    /// rows and columns of the whole output: candle's gradient of a convolution with a stride takes the remainder of the
    /// height for that of the width, too.
    pub(crate) fn node(&self, x: &Tensor, precision: DType) -> Result<Tensor> {
        self.node_of_groups(x, precision, MAX_ADDRESSED)
    }

    /// The same, where the patches of a group of images have at most `max_addressed` elements, or the group is one image.
    fn node_of_groups(&self, x: &Tensor, precision: DType, max_addressed: usize) -> Result<Tensor> {
        let weight = self.weight.to_dtype(precision)?;
        let bias = self.bias.to_dtype(precision)?.reshape((1, (), 1, 1))?;
        let shape = Self { stride: 1, ..self.clone() }.shape(x)?;
        let group = shape.images_addressed(max_addressed);
        let node = |x: &Tensor| {
            x.to_dtype(precision)?.conv2d(&weight, self.padding, 1, 1, 1)?.broadcast_add(&bias)
        };
        if shape.images <= group {
            return every(&node(x)?, self.stride);
        }
        let groups = (0..shape.images).step_by(group);
        let parts: Result<Vec<Tensor>> = groups
            .map(|first| node(&x.narrow(0, first, group.min(shape.images - first))?.contiguous()?))
            .collect();
        every(&Tensor::cat(&parts?, 0)?, self.stride)
    }

    /// The output, for contiguous images on the host.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let shape = self.shape(x)?;
        let mut out = vec![0.0; shape.images * shape.output()];
        let together = shape.images_per_product();
        read([x, &self.weight, &self.bias], |[x, weight, bias]| {
            let weight = MatrixView::by_rows(weight, shape.to, shape.patch());
            out.par_chunks_mut(together * shape.output())
                .zip(x.par_chunks(together * shape.input()))
                .for_each_init(Vec::new, |cols, (out, x)| {
                    let places = shape.unfold(x, cols);
                    let cols = MatrixView::by_rows(cols, shape.patch(), places);
                    let mut by_channel = vec![0.0; shape.to * places];
                    multiply_into(&mut by_channel, &weight, &cols, false);
                    shape.by_image(&by_channel, bias, out);
                });
        })?;
        Tensor::from_vec(out, (shape.images, shape.to, shape.high, shape.wide), x.device())
    }

    /// Adds the gradients by weight and bias to `found`, given the input and the gradient by the output; returns the
    /// gradient by the input, or `None` where the input is the data.
    pub(crate) fn backward(
        &self,
        x: &Tensor,
        gradient: &Tensor,
        found: &mut GradStore,
    ) -> Result<Option<Tensor>> {
        let shape = self.shape(x)?;
        let group = shape.images.div_ceil(GROUPS).max(1);
        let wanted = if self.is_first { 0 } else { shape.input() };
        let mut of_input = vec![0.0; shape.images * wanted];
        let mut parts: Vec<&mut [f32]> = of_input.chunks_mut((group * wanted).max(1)).collect();
        parts.resize_with(shape.images.div_ceil(group), Default::default);
        let of_groups = read([x, gradient, &self.weight], |[x, gradient, weight]| {
            let groups = x
                .par_chunks(group * shape.input())
                .zip(gradient.par_chunks(group * shape.output()))
                .zip(parts);
            groups
                .map(|((x, gradient), part)| shape.back(weight, x, gradient, part))
                .collect::<Vec<_>>()
        })?;
        let mut of_weight = vec![0.0; shape.to * shape.patch()];
        let mut of_bias = vec![0.0; shape.to];
        for (weight, bias) in &of_groups {
            of_weight.iter_mut().zip(weight).for_each(|(sum, g)| *sum += g);
            of_bias.iter_mut().zip(bias).for_each(|(sum, g)| *sum += g);
        }
        found.insert(&self.weight, Tensor::from_vec(of_weight, self.weight.dims(), x.device())?);
        found.insert(&self.bias, Tensor::from_vec(of_bias, self.bias.dims(), x.device())?);
        if self.is_first {
            return Ok(None);
        }
        Tensor::from_vec(of_input, x.dims(), x.device()).map(Some)
    }

    /// Rows or columns of the output, given those of an image that the kernel fits.
    pub(crate) fn size_after(&self, size: usize) -> usize {
        (size + 2 * self.padding - self.weight.dims()[2]) / self.stride + 1
    }

    fn shape(&self, x: &Tensor) -> Result<ConvShape> {
        let (images, from, height, width) = x.dims4()?;
        let (to, known, kernel, _) = self.weight.dims4()?;
        let padded = (height.min(width) + 2 * self.padding + 1).checked_sub(kernel);
        if from != known || padded.is_none_or(|size| size == 0) {
            candle_core::bail!(
                "images of {from} x {height} x {width} for kernels of {known} x {kernel}"
            );
        }
        let (high, wide) = (self.size_after(height), self.size_after(width));
        let (padding, stride) = (self.padding, self.stride);
        Ok(ConvShape { images, from, to, kernel, padding, stride, height, width, high, wide })
    }
}

/// The first of every `stride` rows, and of every `stride` columns, as a node of candle's graph.
pub(crate) fn every(x: &Tensor, stride: usize) -> Result<Tensor> {
    if stride == 1 {
        return Ok(x.clone());
    }
    let (_, _, height, width) = x.dims4()?;
    let first = |size: usize| Tensor::arange_step(0, size as u32, stride as u32, x.device());
    x.contiguous()?.index_select(&first(height)?, 2)?.index_select(&first(width)?, 3)
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    fn numbers(t: &Tensor) -> Vec<f32> {
        t.flatten_all().unwrap().to_vec1().unwrap()
    }

    fn counted(dims: &[usize], step: usize) -> Var {
        let n: usize = dims.iter().product();
        let values = (0..n).map(|n| (n * step % 23) as f32 * 0.1 - 1.0).collect();
        Var::from_vec::<_, f32>(values, dims, &Device::Cpu).unwrap()
    }

    fn near(what: &str, got: &Tensor, want: &Tensor) {
        assert_eq!(got.dims(), want.dims(), "{what}");
        for (got, want) in numbers(got).iter().zip(numbers(want)) {
            assert!((got - want).abs() < 1e-4 * want.abs().max(1.0), "{what}: {got}, {want}");
        }
    }

    /// Against candle's graph, for groups of one image, of some, and of some products, with and without zeros around them.
    #[test]
    fn output_and_gradients_are_those_of_a_graph() {
        for (images, padding, kernel, stride, height, width) in [
            (1, 0, 3, 1, 3, 5),
            (3, 2, 5, 1, 4, 6),
            (37, 1, 3, 1, 5, 4),
            (20, 0, 1, 1, 2, 2),
            (40, 1, 3, 1, 16, 16),
            (3, 1, 3, 2, 5, 4),
            (20, 0, 1, 2, 3, 6),
            (2, 1, 3, 2, 1, 1),
            (3, 2, 5, 3, 7, 8),
        ] {
            let x = counted(&[images, 2, height, width], 7);
            let (weight, bias) = (counted(&[3, 2, kernel, kernel], 5), counted(&[3], 11));
            let convolution = |is_first| Convolution {
                weight: weight.as_tensor().clone(),
                bias: bias.as_tensor().clone(),
                padding,
                stride,
                is_first,
            };
            let graph = convolution(false).node(&x, DType::F32).unwrap();
            let out = convolution(false).forward(&x).unwrap();
            near("output", &out, &graph);
            let slopes = counted(out.dims(), 3).as_detached_tensor();
            let wanted = (graph * &slopes).unwrap().sum_all().unwrap().backward().unwrap();
            for is_first in [false, true] {
                let mut found = GradStore::default();
                let of_input = convolution(is_first).backward(&x, &slopes, &mut found).unwrap();
                near("weight", found.get(&weight).unwrap(), wanted.get(&weight).unwrap());
                near("bias", found.get(&bias).unwrap(), wanted.get(&bias).unwrap());
                assert_eq!(of_input.is_none(), is_first);
                of_input.iter().for_each(|got| near("input", got, wanted.get(&x).unwrap()));
            }
        }
    }

    /// Groups of three of seven images have the output and the gradients of all at once; with 64 channels, 3 x 3 and
    /// 86 x 86 pixels no group of images has more than 2^31 elements, where 1 024 images have 4.4 billion.
    #[test]
    fn large_batches_are_computed_in_groups() {
        let (x, weight, bias) =
            (counted(&[7, 2, 5, 4], 7), counted(&[3, 2, 3, 3], 5), counted(&[3], 11));
        let convolution = Convolution {
            weight: weight.as_tensor().clone(),
            bias: bias.as_tensor().clone(),
            padding: 1,
            stride: 1,
            is_first: false,
        };
        let gradients = |max_addressed| {
            let out = convolution.node_of_groups(&x, DType::F32, max_addressed).unwrap();
            let slopes = counted(out.dims(), 3).as_detached_tensor();
            let found = (&out * slopes).unwrap().sum_all().unwrap().backward().unwrap();
            (out, found)
        };
        let ((out, found), (whole, wanted)) = (gradients(3 * 3 * 9 * 20 + 5), gradients(1 << 31));
        near("output", &out, &whole);
        for (name, var) in [("x", &x), ("weight", &weight), ("bias", &bias)] {
            near(name, found.get(var).unwrap(), wanted.get(var).unwrap());
        }
        let large = ConvShape {
            images: 1024,
            from: 64,
            to: 64,
            kernel: 3,
            padding: 1,
            stride: 1,
            height: 86,
            width: 86,
            high: 86,
            wide: 86,
        };
        let group = large.images_addressed(MAX_ADDRESSED);
        assert!(group < 1024 && group * 64 * 9 * 86 * 86 <= 1 << 31, "{group}");
        assert_eq!(large.images_addressed(1), 1);
    }

    #[test]
    fn any_number_of_threads_gives_the_same_bits() {
        let (x, weight, bias) =
            (counted(&[40, 3, 8, 8], 7), counted(&[4, 3, 3, 3], 5), counted(&[4], 11));
        let convolution = Convolution {
            weight: weight.as_tensor().clone(),
            bias: bias.as_tensor().clone(),
            padding: 1,
            stride: 1,
            is_first: false,
        };
        let all = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let out = convolution.forward(&x).unwrap();
                let mut found = GradStore::default();
                let of_input = convolution.backward(&x, &out, &mut found).unwrap().unwrap();
                [numbers(&out), numbers(&of_input), numbers(found.get(&weight).unwrap())]
            })
        };
        assert_eq!(all(1), all(4));
    }

    #[test]
    fn images_that_a_kernel_does_not_fit_are_refused() {
        let convolution = Convolution {
            weight: counted(&[1, 2, 5, 5], 3).as_tensor().clone(),
            bias: counted(&[1], 3).as_tensor().clone(),
            padding: 1,
            stride: 1,
            is_first: true,
        };
        assert!(convolution.forward(&counted(&[1, 2, 2, 9], 3)).is_err());
        assert!(convolution.forward(&counted(&[1, 3, 9, 9], 3)).is_err());
        assert!(convolution.forward(&counted(&[1, 2, 3, 9], 3)).is_ok());
    }
}
