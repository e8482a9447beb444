//! Maximum pooling over squares of 2 x 2; an odd last row or column is left out.

use candle_core::{Result, Tensor};
use rayon::prelude::*;

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
    /// The output, for contiguous images on the host.
    pub(crate) fn forward(x: &Tensor) -> Result<(Self, Tensor)> {
        let dims = x.dims4()?;
        let (images, channels, height, width) = dims;
        let (high, wide) = (height / 2, width / 2);
        let n = images * channels * high * wide;
        let (mut out, mut largest) = (vec![0.0; n], vec![0; n]);
        let places = (high * wide).max(1);
        read([x], |[x]| {
            out.par_chunks_mut(places)
                .zip(largest.par_chunks_mut(places))
                .zip(x.par_chunks(height * width))
                .for_each(|((out, largest), x)| {
                    for (place, (out, largest)) in out.iter_mut().zip(largest).enumerate() {
                        let square = square(place, wide, width);
                        let mut best = 0;
                        for k in 1..4 {
                            if x[square[k]] > x[square[best]] || x[square[k]].is_nan() {
                                best = k;
                            }
                        }
                        (*out, *largest) = (x[square[best]], best as u8);
                    }
                });
        })?;
        let out = Tensor::from_vec(out, (images, channels, high, wide), x.device())?;
        Ok((Self { dims, largest }, out))
    }

    /// The gradient by the input: all of it goes to the maximum.
    pub(crate) fn backward(&self, gradient: &Tensor) -> Result<Tensor> {
        let (images, channels, height, width) = self.dims;
        let (high, wide) = (height / 2, width / 2);
        let mut of_input = vec![0.0; images * channels * height * width];
        let places = (high * wide).max(1);
        read([gradient], |[gradient]| {
            of_input
                .par_chunks_mut(height * width)
                .zip(gradient.par_chunks(places))
                .zip(self.largest.par_chunks(places))
                .for_each(|((of_input, gradient), largest)| {
                    for (place, (g, k)) in gradient.iter().zip(largest).enumerate() {
                        of_input[square(place, wide, width)[usize::from(*k)]] = *g;
                    }
                });
        })?;
        Tensor::from_vec(of_input, self.dims, gradient.device())
    }
}

/// The indices of the four pixels under a position of the output; a row has `wide` positions and `width` pixels.
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
}
