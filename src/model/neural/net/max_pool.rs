//! Maximum pooling over squares of 2 x 2; an odd last row or column is left out.

use std::sync::OnceLock;

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use pulp::Arch;
use rayon::prelude::*;

use crate::model::neural::net::backend::Backend;
use crate::model::neural::net::host::{contiguous, read};

/// The pooled images.
pub(crate) fn max_pool(x: &Tensor, backend: Backend) -> Result<Tensor> {
    match backend {
        Backend::Host => x.contiguous()?.apply_op1(MaxPool::default()),
        Backend::Candle(_) => by_candle(x),
    }
}

/// The output by candle's operations. candle's own pooling propagates only a quarter of the gradient.
fn by_candle(x: &Tensor) -> Result<Tensor> {
    let (batch, channels, height, width) = x.dims4()?;
    let (height, width) = (height / 2, width / 2);
    let even = x.narrow(2, 0, 2 * height)?.narrow(3, 0, 2 * width)?;
    let pairs = even.contiguous()?.reshape((batch, channels, height, 2, width, 2))?;
    let rows = larger(&pairs.narrow(5, 0, 1)?, &pairs.narrow(5, 1, 1)?)?;
    let largest = larger(&rows.narrow(3, 0, 1)?, &rows.narrow(3, 1, 1)?)?;
    largest.reshape((batch, channels, height, width))
}

/// The larger of two values, the first of equal ones; NaN is larger than every number.
///
/// # Why
/// On a GPU candle's maximum is the number where the other value is NaN, and so hides that the training has diverged.
/// It also gives each of equal values half of the gradient.
fn larger(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let is_nan = b.detach().ne(&b.detach())?;
    b.detach().gt(&a.detach())?.maximum(&is_nan)?.where_cond(b, a)
}

/// The pooling of one batch on the host.
#[derive(Default)]
struct MaxPool {
    /// The position of each maximum in its square, row by row; the first of equal values.
    largest: OnceLock<Vec<u8>>,
}

impl CustomOp1 for MaxPool {
    fn name(&self) -> &'static str {
        "max pool"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (height, width, images, channels) = layout.shape().dims4()?;
        let squares = Squares { width, pixel: images * channels, relu: false };
        let n = height / 2 * squares.row();
        let (mut out, mut largest) = (vec![0.0; n], vec![0; n]);
        let x = contiguous(x.as_slice()?, layout)?;
        out.par_chunks_mut(squares.row().max(1))
            .zip(largest.par_chunks_mut(squares.row().max(1)))
            .zip(x.par_chunks(squares.two_rows().max(1)))
            .for_each(|((out, largest), x)| squares.forward(x, out, largest));
        // candle calls the forward pass of an operation once; a second call would store the same positions.
        self.largest.get_or_init(|| largest);
        Ok((CpuStorage::F32(out), Shape::from((height / 2, width / 2, images, channels))))
    }

    /// The whole gradient of an output goes to the pixel with the maximum.
    fn bwd(&self, x: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let (height, width, images, channels) = x.dims4()?;
        let Some(largest) = self.largest.get() else {
            candle_core::bail!("a pooling goes back before it went forward")
        };
        let squares = Squares { width, pixel: images * channels, relu: false };
        let of_input = read([&gradient.contiguous()?], |[gradient]| {
            squares.backward(gradient, largest, height)
        })?;
        Tensor::from_vec(of_input, x.dims(), x.device()).map(Some)
    }
}

/// The squares of images, `[row, column, image, channel]`.
#[derive(Clone, Copy)]
pub(super) struct Squares {
    /// The number of pixels in a row of an image.
    pub(super) width: usize,
    /// The number of values in a pixel of all images.
    pub(super) pixel: usize,
    /// Whether ReLU follows.
    pub(super) relu: bool,
}

/// The position of the maximum in a square whose maximum has no gradient.
const NONE: u8 = 4;

impl Squares {
    /// The number of values in a row of the output.
    pub(super) fn row(self) -> usize {
        self.width / 2 * self.pixel
    }

    /// The number of values in two rows of the input.
    pub(super) fn two_rows(self) -> usize {
        2 * self.width * self.pixel
    }

    /// Computes a row of the output from two rows of the input, and the position of each maximum in its square.
    pub(super) fn forward(self, x: &[f32], out: &mut [f32], largest: &mut [u8]) {
        let places = out
            .chunks_exact_mut(self.pixel.max(1))
            .zip(largest.chunks_exact_mut(self.pixel.max(1)));
        for (place, (out, largest)) in places.enumerate() {
            let pixels = self.pixels(place).map(|at| &x[at * self.pixel..][..self.pixel]);
            Arch::new().dispatch(|| maxima(pixels, self.relu, out, largest));
        }
    }

    /// The gradient of images with this number of rows.
    pub(super) fn backward(self, gradient: &[f32], largest: &[u8], height: usize) -> Vec<f32> {
        let mut of_input = vec![0.0; height * self.width * self.pixel];
        let row = self.row().max(1);
        of_input
            .par_chunks_mut(self.two_rows().max(1))
            .zip(gradient.par_chunks(row).zip(largest.par_chunks(row)))
            .for_each(|(of_input, (gradient, largest))| {
                let places = gradient.chunks_exact(self.pixel.max(1));
                let places = places.zip(largest.chunks_exact(self.pixel.max(1))).enumerate();
                for (place, (gradient, largest)) in places {
                    for (k, at) in (0_u8..).zip(self.pixels(place)) {
                        let of_pixel = &mut of_input[at * self.pixel..][..self.pixel];
                        Arch::new().dispatch(|| {
                            for ((of, g), largest) in of_pixel.iter_mut().zip(gradient).zip(largest)
                            {
                                *of = if *largest == k { *g } else { 0.0 };
                            }
                        });
                    }
                }
            });
        of_input
    }

    /// The four pixels under a position in a row of the output, in two rows of the input.
    fn pixels(self, place: usize) -> [usize; 4] {
        let first = 2 * place;
        [first, first + 1, first + self.width, first + self.width + 1]
    }
}

/// The maximum of four pixels, channel by channel, and the index of its pixel; NaN is larger than every number.
#[inline(always)]
fn maxima(pixels: [&[f32]; 4], relu: bool, out: &mut [f32], largest: &mut [u8]) {
    out.copy_from_slice(pixels[0]);
    for (k, pixel) in pixels.iter().enumerate().skip(1) {
        for ((out, largest), x) in out.iter_mut().zip(&mut *largest).zip(*pixel) {
            let larger = *x > *out || x.is_nan();
            *out = if larger { *x } else { *out };
            *largest = if larger { k as u8 } else { *largest };
        }
    }
    if relu {
        for (out, largest) in out.iter_mut().zip(largest) {
            *largest = if *out > 0.0 { *largest } else { NONE };
            // NaN is kept.
            *out = if *out < 0.0 { 0.0 } else { *out };
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};

    use super::*;
    use crate::model::neural::net::host::format::{by_image, by_pixel};

    fn numbers(t: &Tensor) -> Vec<f32> {
        t.flatten_all().unwrap().to_vec1().unwrap()
    }

    fn on_host(x: &Tensor) -> Tensor {
        by_image(&max_pool(&by_pixel(x).unwrap(), Backend::Host).unwrap()).unwrap()
    }

    /// The gradient of `x`, given the gradient of `out`.
    fn gradient(out: &Tensor, slopes: &Tensor, x: &Var) -> Vec<f32> {
        let loss = (out.flatten_all().unwrap() * slopes).unwrap().sum_all().unwrap();
        numbers(loss.backward().unwrap().get(x).unwrap())
    }

    /// An image of 5 x 5 pixels, whose last row and column are left out: the maximum of each square gets the whole
    /// gradient.
    #[test]
    fn pooling_hands_the_whole_slope_to_the_largest() {
        let values: Vec<f32> = (0..25).map(|n| (n * 7 % 25) as f32).collect();
        let x = Var::from_vec(values, (1, 1, 5, 5), &Device::Cpu).unwrap();
        let slopes = Tensor::new(&[1.0_f32, 2.0, 3.0, 4.0], &Device::Cpu).unwrap();
        let mut wanted = [0.0; 25];
        for (at, slope) in [(6, 1.0), (7, 2.0), (10, 3.0), (17, 4.0)] {
            wanted[at] = slope;
        }
        for out in [on_host(&x), max_pool(&x, Backend::Candle(DType::F32)).unwrap()] {
            assert_eq!(numbers(&out), [17.0, 24.0, 20.0, 19.0]);
            assert_eq!(gradient(&out, &slopes, &x), wanted);
        }
    }

    /// Two images of two channels of 2 x 5 pixels: the first of equal values, and NaN, are the maximum.
    #[test]
    fn images_and_channels_are_pooled_by_themselves() {
        let rows: [[[f32; 5]; 2]; 4] = [
            [[1.0, 2.0, 3.0, 3.0, 9.0], [0.0, 2.0, 3.0, 3.0, 9.0]],
            [[-1.0, -2.0, 1.0, f32::NAN, 9.0], [-3.0, -4.0, 5.0, 6.0, 9.0]],
            [[0.0, 0.0, 4.0, 1.0, 9.0], [7.0, 0.0, 1.0, 1.0, 9.0]],
            [[0.0, 8.0, 1.0, 1.0, 9.0], [0.0, 0.0, 1.0, 5.0, 9.0]],
        ];
        let x = Tensor::new(&rows, &Device::Cpu).unwrap().reshape((2, 2, 2, 5)).unwrap();
        let x = Var::from_tensor(&x).unwrap();
        let slopes = Tensor::arange(1.0_f32, 9.0, &Device::Cpu).unwrap();
        let mut wanted = [0.0; 40];
        for (at, slope) in
            [(1, 1.0), (2, 2.0), (10, 3.0), (13, 4.0), (25, 5.0), (22, 6.0), (31, 7.0), (38, 8.0)]
        {
            wanted[at] = slope;
        }
        for pooled in [on_host(&x), max_pool(&x, Backend::Candle(DType::F32)).unwrap()] {
            let out = numbers(&pooled);
            assert_eq!(out[..3], [2.0, 3.0, -1.0]);
            assert!(out[3].is_nan());
            assert_eq!(out[4..], [7.0, 4.0, 8.0, 5.0]);
            assert_eq!(gradient(&pooled, &slopes, &x), wanted);
        }
    }

    /// Every value is the largest: the first gets the whole gradient.
    #[test]
    fn the_first_of_equal_values_has_the_gradient() {
        let slopes = Tensor::new(&[5.0_f32], &Device::Cpu).unwrap();
        for (values, wanted) in [
            ([2.0_f32, 2.0, 2.0, 2.0], [5.0, 0.0, 0.0, 0.0]),
            ([1.0, 2.0, 2.0, 1.0], [0.0, 5.0, 0.0, 0.0]),
        ] {
            let x = Var::from_slice(&values, (1, 1, 2, 2), &Device::Cpu).unwrap();
            for out in [on_host(&x), max_pool(&x, Backend::Candle(DType::F32)).unwrap()] {
                assert_eq!(gradient(&out, &slopes, &x), wanted);
            }
        }
    }
}
