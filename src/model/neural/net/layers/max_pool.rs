//! Maximum pooling over windows of 2 x 2; an odd last row or column is left out.

use candle_core::{Result, Tensor};

use crate::model::neural::net::backend::Backend;
use crate::model::neural::net::{gpu, host};

/// The pooled images.
pub(crate) fn max_pool(x: &Tensor, backend: Backend) -> Result<Tensor> {
    match backend {
        Backend::Host => host::max_pool::max_pool(x),
        Backend::Device(_) => gpu::layers::max_pool::max_pool(x),
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};

    use super::*;
    use crate::model::neural::net::host::format::{by_image, by_pixel};
    use crate::model::neural::net::testing::{numbers, on_device_of, on_host_again};

    fn on_host(x: &Tensor) -> Tensor {
        by_image(&max_pool(&by_pixel(x).unwrap(), Backend::Host).unwrap()).unwrap()
    }

    fn on_gpu(x: &Tensor) -> Tensor {
        let gpu = Backend::Device(DType::F32);
        on_host_again(&max_pool(&on_device_of(gpu, x), gpu).unwrap())
    }

    /// The gradient of `x`, given the gradient of `out`.
    fn gradient(out: &Tensor, slopes: &Tensor, x: &Var) -> Vec<f32> {
        let loss = (out.flatten_all().unwrap() * slopes).unwrap().sum_all().unwrap();
        numbers(loss.backward().unwrap().get(x).unwrap())
    }

    /// An image of 5 x 5 pixels, whose last row and column are left out: the maximum of each window gets the whole
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
        for out in [on_host(&x), on_gpu(&x)] {
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
        for pooled in [on_host(&x), on_gpu(&x)] {
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
            for out in [on_host(&x), on_gpu(&x)] {
                assert_eq!(gradient(&out, &slopes, &x), wanted);
            }
        }
    }
}
