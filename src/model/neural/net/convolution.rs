//! Convolutions; on the host by hand-written products.

use candle_core::backprop::GradStore;
use candle_core::{DType, Result, Tensor};

use crate::model::neural::net::conv_shape::ConvShape;
use crate::model::neural::net::host::format::{by_pixel, images};
use crate::model::neural::net::host::read;
use crate::model::neural::net::host::tiles::ColumnBlocks;

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

    /// The output, on the host.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let shape = self.shape(x)?;
        let blocks = ColumnBlocks::new(shape.to);
        let out = read([&by_pixel(x)?, &self.weight, &self.bias], |[x, weight, bias]| {
            let packed = shape.packed(weight, blocks);
            let mut start = bias.to_vec();
            start.resize(blocks.len() * blocks.width, 0.0);
            shape.rows(&shape.reads(), x, shape.from, &packed, &start, blocks)
        })?;
        images(out, (shape.images, shape.to, shape.high, shape.wide), x)
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
        let numbers = [&by_pixel(x)?, &by_pixel(gradient)?, &self.weight];
        let (of_weight, of_bias, of_input) = read(numbers, |[x, gradient, weight]| {
            let (of_weight, of_bias) = shape.of_parameters(x, gradient);
            let of_input = (!self.is_first).then(|| {
                let blocks = ColumnBlocks::new(shape.from);
                let packed = shape.packed_transpose(weight, blocks);
                let zeros = vec![0.0; blocks.len() * blocks.width];
                shape.rows(&shape.is_read_by(), gradient, shape.to, &packed, &zeros, blocks)
            });
            (of_weight, of_bias, of_input)
        })?;
        found.insert(&self.weight, Tensor::from_vec(of_weight, self.weight.dims(), x.device())?);
        found.insert(&self.bias, Tensor::from_vec(of_bias, self.bias.dims(), x.device())?);
        of_input.map(|of_input| images(of_input, x.dims4()?, x)).transpose()
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

    /// One image of two rows of three pixels, under a kernel of 2 x 2 with a zero around it and a stride of 2: the corners
    /// that the kernel's last row and column read, and so on; the bias is 0.5.
    #[test]
    fn a_small_convolution_is_that_by_hand() {
        let tensor = |values: &[f32], dims: (usize, usize, usize, usize)| {
            Tensor::from_slice(values, dims, &Device::Cpu).unwrap()
        };
        let x = tensor(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], (1, 1, 2, 3));
        let convolution = Convolution {
            weight: tensor(&[1.0, 10.0, 100.0, 1000.0], (1, 1, 2, 2)),
            bias: Tensor::new(&[0.5_f32], &Device::Cpu).unwrap(),
            padding: 1,
            stride: 2,
            is_first: false,
        };
        let out = convolution.forward(&x).unwrap();
        assert_eq!(out.dims(), [1, 1, 2, 2]);
        assert_eq!(numbers(&out), [1000.5, 3200.5, 40.5, 65.5]);
        let mut found = GradStore::default();
        let slopes = tensor(&[1.0, 2.0, 3.0, 4.0], (1, 1, 2, 2));
        let of_input = convolution.backward(&x, &slopes, &mut found).unwrap().unwrap();
        assert_eq!(numbers(&of_input), [1000.0, 200.0, 2000.0, 30.0, 4.0, 40.0]);
        let of = |parameter| numbers(found.get(parameter).unwrap());
        // Slopes times pixels: 4 x 5, 3 x 4 + 4 x 6, 2 x 2, 1 x 1 + 2 x 3.
        assert_eq!(of(&convolution.weight), [20.0, 36.0, 4.0, 7.0]);
        assert_eq!(of(&convolution.bias), [10.0]);
    }

    /// Against candle's graph, for one image, some, and more than a run holds, with and without zeros around them.
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
