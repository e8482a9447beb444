//! The mean of each channel, on the host.

use candle_core::{Result, Tensor};

use crate::model::neural::net::host::format::{by_image, by_pixel};
use crate::model::neural::net::host::product::row_sum;

/// The output `[image, channel]` of `[image, channel, row, column]`.
pub(crate) fn forward(x: &Tensor) -> Result<Tensor> {
    let (images, channels, height, width) = x.dims4()?;
    let pixels = by_pixel(x)?.reshape((height * width, images * channels))?;
    (row_sum(&pixels)? * (1.0 / (height * width) as f64))?.reshape((images, channels))
}

/// The gradient by the input of this shape.
pub(crate) fn backward(gradient: &Tensor, dims: (usize, usize, usize, usize)) -> Result<Tensor> {
    let (images, channels, height, width) = dims;
    let of_pixel = (gradient * (1.0 / (height * width) as f64))?;
    by_image(&of_pixel.broadcast_as((height, width, images, channels))?.contiguous()?)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    /// Two images of two channels of 1 x 3 pixels.
    #[test]
    fn every_pixel_has_its_share_of_the_mean() {
        let values = vec![1.0_f32, 2.0, 6.0, 0.0, 0.0, 3.0, -1.0, -1.0, -1.0, 4.0, 5.0, 0.0];
        let x = Tensor::from_vec(values, (2, 2, 1, 3), &Device::Cpu).unwrap();
        let numbers = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let out = forward(&x).unwrap();
        assert_eq!((out.dims(), numbers(&out)), (&[2, 2][..], vec![3.0, 1.0, -1.0, 3.0]));
        let slopes = Tensor::new(&[[3.0_f32, 6.0], [9.0, -3.0]], &Device::Cpu).unwrap();
        let gradient = backward(&slopes, (2, 2, 1, 3)).unwrap();
        let wanted = [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0, -1.0, -1.0, -1.0];
        assert_eq!(gradient.dims(), [2, 2, 1, 3]);
        for (got, wanted) in numbers(&gradient).iter().zip(wanted) {
            assert!((got - wanted).abs() < 1e-6, "{got}, {wanted}");
        }
    }
}
