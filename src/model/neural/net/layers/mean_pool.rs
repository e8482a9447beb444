//! The mean of each channel.
//!
//! # Why
//! candle-nn's takes 0.55 of the time on the host (`benches/networks.md`), but reads the pixels of a channel one after the
//! other, where our convolutions have the channels of a pixel so. It is less than a thousandth of a step of ResNet-20.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use crate::model::neural::net::backend::Backend;
use crate::model::neural::net::host::product::add_rows;
use crate::model::neural::net::host::{contiguous, read};

/// The output, `[image, channel]`.
pub(crate) fn mean_pool(x: &Tensor, backend: Backend) -> Result<Tensor> {
    match backend {
        Backend::Host => x.contiguous()?.apply_op1(MeanPool),
        Backend::Device(_) => x.mean((2, 3)),
    }
}

struct MeanPool;

impl CustomOp1 for MeanPool {
    fn name(&self) -> &'static str {
        "mean pool"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (height, width, images, channels) = layout.shape().dims4()?;
        let mut mean = vec![0.0; images * channels];
        add_rows(contiguous(x.as_slice()?, layout)?, &mut mean);
        let share = 1.0 / (height * width) as f32;
        mean.iter_mut().for_each(|sum| *sum *= share);
        Ok((CpuStorage::F32(mean), Shape::from((images, channels))))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let (height, width, ..) = x.dims4()?;
        let share = 1.0 / (height * width) as f32;
        let of_input = read([&gradient.contiguous()?], |[gradient]| {
            let of_pixel: Vec<f32> = gradient.iter().map(|g| g * share).collect();
            of_pixel.repeat(height * width)
        })?;
        Tensor::from_vec(of_input, x.dims(), x.device()).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};

    use super::*;
    use crate::model::neural::net::host::format::by_pixel;
    use crate::model::neural::net::testing::{gradients, numbers, on_device_of, on_host_again};

    /// Two images of two channels of 1 x 3 pixels.
    #[test]
    fn every_pixel_has_its_share_of_the_mean() {
        let values = vec![1.0_f32, 2.0, 6.0, 0.0, 0.0, 3.0, -1.0, -1.0, -1.0, 4.0, 5.0, 0.0];
        let x = Var::from_vec(values, (2, 2, 1, 3), &Device::Cpu).unwrap();
        let slopes = Tensor::new(&[[3.0_f32, 6.0], [9.0, -3.0]], &Device::Cpu).unwrap();
        let host = mean_pool(&by_pixel(&x).unwrap(), Backend::Host).unwrap();
        let candle = Backend::Device(DType::F32);
        let on_gpu = on_host_again(&mean_pool(&on_device_of(candle, &x), candle).unwrap());
        for out in [host, on_gpu] {
            assert_eq!((out.dims(), numbers(&out)), (&[2, 2][..], vec![3.0, 1.0, -1.0, 3.0]));
            let gradient = numbers(gradients(&out, &slopes).get(&x).unwrap());
            let wanted = [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0, -1.0, -1.0, -1.0];
            for (got, wanted) in gradient.iter().zip(wanted) {
                assert!((got - wanted).abs() < 1e-6, "{got}, {wanted}");
            }
        }
    }
}
