//! Convolutions of stride 1, on the host by hand.
//!
//! # Why
//! On the host candle's own takes thirteen times as long (an epoch of LeNet). Here the patches of some images lie side by
//! side as the columns of a matrix, and all that a convolution is, forward and back, are products with it:
//!
//! ```text
//! cols [patch, place]   patch = channel x row x column of the kernel, place = image x row x column of the output
//! out = W cols + b      dW = dout cols^T      dcols = W^T dout, which is added up where the patches came from
//! ```
//! Images are shared out among threads in groups that do not depend on how many threads there are.

use candle_core::backprop::GradStore;
use candle_core::{DType, Result, Tensor};
use rayon::prelude::*;

use super::host::read;
use super::product::{Matrix, multiply_into};

/// A convolution of stride 1 over `[image, channel, height, width]`.
#[derive(Clone)]
pub struct Convolution {
    /// `[out, in, kernel, kernel]`
    pub(super) weight: Tensor,
    /// `[out]`
    pub(super) bias: Tensor,
    /// Zeros around the image.
    pub(super) padding: usize,
    /// Whether its input is the data: nobody asks for the data's gradient.
    pub(super) is_first: bool,
}

/// Groups of images, at most, that go back side by side, each with a gradient of the weights of its own.
const GROUPS: usize = 16;

/// Places that a product should have, so that the weights are not read for a few of them.
const ENOUGH_PLACES: usize = 256;

impl Convolution {
    /// The output as a node of candle's graph, computed in `precision`.
    pub(super) fn node(&self, x: &Tensor, precision: DType) -> Result<Tensor> {
        let weight = self.weight.to_dtype(precision)?;
        let bias = self.bias.to_dtype(precision)?.reshape((1, (), 1, 1))?;
        x.to_dtype(precision)?.conv2d(&weight, self.padding, 1, 1, 1)?.broadcast_add(&bias)
    }

    /// The output, for images on the host that lie in one piece.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let sizes = self.sizes(x)?;
        let mut out = vec![0.0; sizes.images * sizes.output()];
        let together = sizes.together();
        read([x, &self.weight, &self.bias], |[x, weight, bias]| {
            let weight = Matrix::by_rows(weight, sizes.to, sizes.patch());
            out.par_chunks_mut(together * sizes.output())
                .zip(x.par_chunks(together * sizes.input()))
                .for_each_init(Vec::new, |cols, (out, x)| {
                    let places = sizes.unfold(x, cols);
                    let cols = Matrix::by_rows(cols, sizes.patch(), places);
                    let mut by_channel = vec![0.0; sizes.to * places];
                    multiply_into(&mut by_channel, &weight, &cols, false);
                    sizes.by_image(&by_channel, bias, out);
                });
        })?;
        Tensor::from_vec(out, (sizes.images, sizes.to, sizes.high, sizes.wide), x.device())
    }

    /// Puts the gradients of weight and bias into `found`, from the input and the gradient by the output, and returns
    /// that by the input, unless the input is the data.
    pub(super) fn backward(
        &self,
        x: &Tensor,
        gradient: &Tensor,
        found: &mut GradStore,
    ) -> Result<Option<Tensor>> {
        let sizes = self.sizes(x)?;
        let group = sizes.images.div_ceil(GROUPS).max(1);
        let wanted = if self.is_first { 0 } else { sizes.input() };
        let mut of_input = vec![0.0; sizes.images * wanted];
        let mut parts: Vec<&mut [f32]> = of_input.chunks_mut((group * wanted).max(1)).collect();
        parts.resize_with(sizes.images.div_ceil(group), Default::default);
        let of_groups = read([x, gradient, &self.weight], |[x, gradient, weight]| {
            let groups = x
                .par_chunks(group * sizes.input())
                .zip(gradient.par_chunks(group * sizes.output()))
                .zip(parts);
            groups
                .map(|((x, gradient), part)| sizes.back(weight, x, gradient, part))
                .collect::<Vec<_>>()
        })?;
        let mut of_weight = vec![0.0; sizes.to * sizes.patch()];
        let mut of_bias = vec![0.0; sizes.to];
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

    fn sizes(&self, x: &Tensor) -> Result<Sizes> {
        let (images, from, height, width) = x.dims4()?;
        let (to, known, kernel, _) = self.weight.dims4()?;
        let padded = (height.min(width) + 2 * self.padding + 1).checked_sub(kernel);
        if from != known || padded.is_none_or(|size| size == 0) {
            candle_core::bail!(
                "images of {from} x {height} x {width} for kernels of {known} x {kernel}"
            );
        }
        let after = |size: usize| size + 2 * self.padding + 1 - kernel;
        let (high, wide) = (after(height), after(width));
        let padding = self.padding;
        Ok(Sizes { images, from, to, kernel, padding, height, width, high, wide })
    }
}

/// The sizes of a batch's convolution.
#[derive(Clone, Copy)]
struct Sizes {
    images: usize,
    from: usize,
    to: usize,
    kernel: usize,
    padding: usize,
    height: usize,
    width: usize,
    /// Rows and columns of the output.
    high: usize,
    wide: usize,
}

impl Sizes {
    /// Numbers of an image.
    fn input(&self) -> usize {
        self.from * self.height * self.width
    }

    /// Numbers of an image's output.
    fn output(&self) -> usize {
        self.to * self.places()
    }

    /// Places of an image's output.
    fn places(&self) -> usize {
        self.high * self.wide
    }

    /// Numbers that the kernel sees.
    fn patch(&self) -> usize {
        self.from * self.kernel * self.kernel
    }

    /// Images whose patches lie side by side.
    fn together(&self) -> usize {
        let enough = ENOUGH_PLACES.div_ceil(self.places());
        enough.min(self.images.div_ceil(GROUPS)).max(1)
    }

    /// Where the kernel's row or column `k` reads for the places `0..n` of a side of `size`: the first of them that is
    /// inside the image, how many are, and what the first one reads.
    fn inside(&self, k: usize, n: usize, size: usize) -> (usize, usize, usize) {
        let first = self.padding.saturating_sub(k).min(n);
        let end = (size + self.padding).saturating_sub(k).min(n);
        (first, end.saturating_sub(first), (first + k).saturating_sub(self.padding))
    }

    /// Calls `each(place, number, n)` for every stretch of `n` places in `cols` and the numbers of the images under them.
    fn stretches(&self, images: usize, mut each: impl FnMut(usize, usize, usize)) {
        let (kernel, columns) = (self.kernel, images * self.places());
        for patch in 0..self.patch() {
            let (channel, cell) = (patch / (kernel * kernel), patch % (kernel * kernel));
            let (top, rows, from_row) = self.inside(cell / kernel, self.high, self.height);
            let (left, n, from_column) = self.inside(cell % kernel, self.wide, self.width);
            for image in 0..images {
                let place = patch * columns + image * self.places() + left;
                let origin = (image * self.from + channel) * self.height * self.width;
                for row in 0..rows {
                    let number = origin + (from_row + row) * self.width + from_column;
                    each(place + (top + row) * self.wide, number, n);
                }
            }
        }
    }

    /// The patches of some images side by side, `[patch, place]`; how many places there are.
    fn unfold(&self, x: &[f32], cols: &mut Vec<f32>) -> usize {
        let images = x.len() / self.input();
        cols.clear();
        cols.resize(self.patch() * images * self.places(), 0.0);
        self.stretches(images, |place, number, n| {
            cols[place..place + n].copy_from_slice(&x[number..number + n]);
        });
        images * self.places()
    }

    /// Adds what patches say to the images that they came from.
    fn fold(&self, cols: &[f32], x: &mut [f32]) {
        self.stretches(x.len() / self.input(), |place, number, n| {
            let (x, cols) = (&mut x[number..number + n], &cols[place..place + n]);
            x.iter_mut().zip(cols).for_each(|(x, col)| *x += col);
        });
    }

    /// `[channel, image x place]` and a bias a channel as `[image, channel, place]`.
    fn by_image(&self, by_channel: &[f32], bias: &[f32], out: &mut [f32]) {
        let (places, images) = (self.places(), out.len() / self.output());
        for (n, out) in out.chunks_exact_mut(places).enumerate() {
            let (image, channel) = (n / self.to, n % self.to);
            let own = &by_channel[(channel * images + image) * places..][..places];
            out.iter_mut().zip(own).for_each(|(out, x)| *out = x + bias[channel]);
        }
    }

    /// `[image, channel, place]` as `[channel, image x place]`.
    fn by_channel(&self, images: &[f32]) -> Vec<f32> {
        let (places, n_images) = (self.places(), images.len() / self.output());
        let mut by_channel = vec![0.0; images.len()];
        for (n, own) in images.chunks_exact(places).enumerate() {
            let (image, channel) = (n / self.to, n % self.to);
            by_channel[(channel * n_images + image) * places..][..places].copy_from_slice(own);
        }
        by_channel
    }

    /// The gradients of weight and bias from some images; those by the images are added to `of_input`, unless it is
    /// empty.
    fn back(
        &self,
        weight: &[f32],
        x: &[f32],
        gradient: &[f32],
        of_input: &mut [f32],
    ) -> (Vec<f32>, Vec<f32>) {
        let (patch, together) = (self.patch(), self.together());
        let mut of_weight = vec![0.0; self.to * patch];
        let mut of_bias = vec![0.0; self.to];
        let weight = Matrix::by_rows(weight, self.to, patch).turned();
        let (mut cols, mut of_cols) = (Vec::new(), Vec::new());
        let blocks =
            x.chunks(together * self.input()).zip(gradient.chunks(together * self.output()));
        for (block, (x, gradient)) in blocks.enumerate() {
            let places = self.unfold(x, &mut cols);
            let by_channel = self.by_channel(gradient);
            for (sum, own) in of_bias.iter_mut().zip(by_channel.chunks_exact(places)) {
                *sum += own.iter().sum::<f32>();
            }
            let gradient = Matrix::by_rows(&by_channel, self.to, places);
            let cols = Matrix::by_rows(&cols, patch, places);
            multiply_into(&mut of_weight, &gradient, &cols.turned(), true);
            if !of_input.is_empty() {
                of_cols.resize(patch * places, 0.0);
                multiply_into(&mut of_cols, &weight, &gradient, false);
                self.fold(&of_cols, &mut of_input[block * together * self.input()..][..x.len()]);
            }
        }
        (of_weight, of_bias)
    }
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
        for (images, padding, kernel, height, width) in [
            (1, 0, 3, 3, 5),
            (3, 2, 5, 4, 6),
            (37, 1, 3, 5, 4),
            (20, 0, 1, 2, 2),
            (40, 1, 3, 16, 16),
        ] {
            let x = counted(&[images, 2, height, width], 7);
            let (weight, bias) = (counted(&[3, 2, kernel, kernel], 5), counted(&[3], 11));
            let convolution = |is_first| Convolution {
                weight: weight.as_tensor().clone(),
                bias: bias.as_tensor().clone(),
                padding,
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

    #[test]
    fn any_number_of_threads_gives_the_same_bits() {
        let (x, weight, bias) =
            (counted(&[40, 3, 8, 8], 7), counted(&[4, 3, 3, 3], 5), counted(&[4], 11));
        let convolution = Convolution {
            weight: weight.as_tensor().clone(),
            bias: bias.as_tensor().clone(),
            padding: 1,
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
            is_first: true,
        };
        assert!(convolution.forward(&counted(&[1, 2, 2, 9], 3)).is_err());
        assert!(convolution.forward(&counted(&[1, 3, 9, 9], 3)).is_err());
        assert!(convolution.forward(&counted(&[1, 2, 3, 9], 3)).is_ok());
    }
}
