//! Maximum pooling over squares of 2 x 2; an odd last row or column is left out.

use candle_core::{Result, Tensor};
use pulp::Arch;
use rayon::prelude::*;

use crate::model::neural::net::host::format::{by_pixel, images};
use crate::model::neural::net::host::read;

/// The output as a node of candle's graph. candle's own pooling propagates only a quarter of the gradient.
pub(crate) fn node(x: &Tensor) -> Result<Tensor> {
    let (batch, channels, height, width) = x.dims4()?;
    let (height, width) = (height / 2, width / 2);
    let even = x.narrow(2, 0, 2 * height)?.narrow(3, 0, 2 * width)?;
    let pairs = even.contiguous()?.reshape((batch, channels, height, 2, width, 2))?;
    let rows = pairs.narrow(3, 0, 1)?.maximum(&pairs.narrow(3, 1, 1)?)?;
    let largest = rows.narrow(5, 0, 1)?.maximum(&rows.narrow(5, 1, 1)?)?;
    largest.reshape((batch, channels, height, width))
}

/// What the backward pass of pooling on the host needs.
pub(crate) struct Pooled {
    /// The shape of the input.
    dims: (usize, usize, usize, usize),
    /// The position of each maximum in its square, row by row; the first of equals.
    largest: Vec<u8>,
}

impl Pooled {
    /// The output, on the host.
    pub(crate) fn forward(x: &Tensor) -> Result<(Self, Tensor)> {
        let dims = x.dims4()?;
        let (n_images, channels, height, width) = dims;
        let (high, wide) = (height / 2, width / 2);
        let pixel = n_images * channels;
        let (mut out, mut largest) = (vec![0.0; high * wide * pixel], vec![0; high * wide * pixel]);
        read([&by_pixel(x)?], |[x]| {
            out.par_chunks_mut(pixel.max(1))
                .zip(largest.par_chunks_mut(pixel.max(1)))
                .enumerate()
                .for_each(|(place, (out, largest))| {
                    let pixels = square(place, wide, width).map(|at| &x[at * pixel..][..pixel]);
                    Arch::new().dispatch(|| maxima(pixels, out, largest));
                });
        })?;
        Ok((Self { dims, largest }, images(out, (n_images, channels, high, wide), x)?))
    }

    /// The gradient by the input: all of it goes to the maximum.
    pub(crate) fn backward(&self, gradient: &Tensor) -> Result<Tensor> {
        let (n_images, channels, height, width) = self.dims;
        let wide = width / 2;
        let pixel = n_images * channels;
        let mut of_input = vec![0.0; height * width * pixel];
        read([&by_pixel(gradient)?], |[gradient]| {
            // Two rows of the input, and one of the output.
            let rows = of_input
                .par_chunks_mut((2 * width * pixel).max(1))
                .zip(gradient.par_chunks((wide * pixel).max(1)))
                .zip(self.largest.par_chunks((wide * pixel).max(1)));
            rows.for_each(|((of_input, gradient), largest)| {
                let places = gradient.chunks_exact(pixel).zip(largest.chunks_exact(pixel));
                for (place, (gradient, largest)) in places.enumerate() {
                    for (k, at) in square(place, wide, width).into_iter().enumerate() {
                        let of_pixel = &mut of_input[at * pixel..][..pixel];
                        for ((of, g), largest) in of_pixel.iter_mut().zip(gradient).zip(largest) {
                            *of = if usize::from(*largest) == k { *g } else { 0.0 };
                        }
                    }
                }
            });
        })?;
        images(of_input, self.dims, gradient)
    }
}

/// The maximum of four pixels, channel by channel, and its number; NaN is larger than every number.
#[inline(always)]
fn maxima(pixels: [&[f32]; 4], out: &mut [f32], largest: &mut [u8]) {
    out.copy_from_slice(pixels[0]);
    for (k, pixel) in pixels.iter().enumerate().skip(1) {
        for ((out, largest), x) in out.iter_mut().zip(&mut *largest).zip(*pixel) {
            let larger = *x > *out || x.is_nan();
            *out = if larger { *x } else { *out };
            *largest = if larger { k as u8 } else { *largest };
        }
    }
}

/// The four pixels under a position of the output; a row has `wide` positions and `width` pixels.
fn square(place: usize, wide: usize, width: usize) -> [usize; 4] {
    let first = 2 * (place / wide * width + place % wide);
    [first, first + 1, first + width, first + width + 1]
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    /// Of 5 x 5, where the last row and column are left out: the maximum of each square gets the whole gradient.
    #[test]
    fn pooling_hands_the_whole_slope_to_the_largest() {
        let values: Vec<f32> = (0..25).map(|n| (n * 7 % 25) as f32).collect();
        let x = Var::from_vec(values, (1, 1, 5, 5), &Device::Cpu).unwrap();
        let pooled = node(&x).unwrap();
        let numbers = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(numbers(&pooled), [17.0, 24.0, 20.0, 19.0]);
        let slopes = Tensor::new(&[1.0_f32, 2.0, 3.0, 4.0], &Device::Cpu).unwrap();
        let loss = (pooled.flatten_all().unwrap() * &slopes).unwrap().sum_all().unwrap();
        let gradient = numbers(loss.backward().unwrap().get(&x).unwrap());
        let mut wanted = [0.0; 25];
        for (at, slope) in [(6, 1.0), (7, 2.0), (10, 3.0), (17, 4.0)] {
            wanted[at] = slope;
        }
        assert_eq!(gradient, wanted);
        let (pooled, out) = Pooled::forward(&x).unwrap();
        assert_eq!(numbers(&out), [17.0, 24.0, 20.0, 19.0]);
        assert_eq!(numbers(&pooled.backward(&slopes).unwrap()), wanted);
    }

    /// Two images of two channels of 2 x 5: of equals the first, and NaN, are the largest.
    #[test]
    fn images_and_channels_are_pooled_by_themselves() {
        let rows: [[[f32; 5]; 2]; 4] = [
            [[1.0, 2.0, 3.0, 3.0, 9.0], [0.0, 2.0, 3.0, 3.0, 9.0]],
            [[-1.0, -2.0, 1.0, f32::NAN, 9.0], [-3.0, -4.0, 5.0, 6.0, 9.0]],
            [[0.0, 0.0, 4.0, 1.0, 9.0], [7.0, 0.0, 1.0, 1.0, 9.0]],
            [[0.0, 8.0, 1.0, 1.0, 9.0], [0.0, 0.0, 1.0, 5.0, 9.0]],
        ];
        let x = Tensor::new(&rows, &Device::Cpu).unwrap().reshape((2, 2, 2, 5)).unwrap();
        let numbers = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let (pooled, out) = Pooled::forward(&x).unwrap();
        let out = numbers(&out);
        assert_eq!(out[..3], [2.0, 3.0, -1.0]);
        assert!(out[3].is_nan());
        assert_eq!(out[4..], [7.0, 4.0, 8.0, 5.0]);
        let slopes = Tensor::arange(1.0_f32, 9.0, &Device::Cpu).unwrap().reshape((2, 2, 1, 2));
        let gradient = numbers(&pooled.backward(&slopes.unwrap()).unwrap());
        let mut wanted = [0.0; 40];
        for (at, slope) in
            [(1, 1.0), (2, 2.0), (10, 3.0), (13, 4.0), (25, 5.0), (22, 6.0), (31, 7.0), (38, 8.0)]
        {
            wanted[at] = slope;
        }
        assert_eq!(gradient, wanted);
    }
}
