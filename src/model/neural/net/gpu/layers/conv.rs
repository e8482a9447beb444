//! Convolutions on a GPU: products of patches, the pixels that each cell of the kernel reads.
//!
//! # Why
//! candle's convolution reads patches that are one row for each pixel, and copies the product value by value to another
//! order of axes; its gradient by the input is no matrix product and reads every value once for each cell of the kernel.
//! Here the patches are one row for each cell, so that everything is read and written in the order of the pixels, and
//! output and gradients are one product each. With the feature `cudnn`, cuDNN computes the output. The training data are
//! no variable, and get no gradient.

#[cfg(test)]
use std::cell::RefCell;
use std::sync::Mutex;

use candle_core::{Result, Shape, Tensor};

use super::channels::channel_sums;
use super::patches::{images_of_patches, patches};
use crate::model::neural::net::gpu::kernel::KernelCall;
use crate::model::neural::net::gpu::op::{DeviceOp, OnDevice, expect_len, taken};
use crate::model::neural::net::gpu::swapped::swapped;
use crate::model::neural::net::layers::conv_shape::ConvShape;

/// The largest number of elements that the patches of one convolution on a GPU may have: 512 MiB of `f32`.
pub(in crate::model::neural::net) const MAX_PATCH_ELEMENTS: usize = (512 << 20) / size_of::<f32>();

/// The convolution of `x`, `[image, in, height, width]`, by `weight`, `[out, in, kernel, kernel]`, plus `bias`, `[out]`.
///
/// # Why
/// With 64 channels and a 3 x 3 kernel, the patches of 1 024 images of 86 x 86 pixels take 16 GiB, more than many GPUs
/// have. So a large batch is computed in groups of images.
pub(in crate::model::neural::net) fn convolution(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    shape: ConvShape,
) -> Result<Tensor> {
    in_groups(x, weight, bias, shape, MAX_PATCH_ELEMENTS)
}

/// [`convolution`] in groups of images whose patches have at most `max_elements` elements; a group has at least one
/// image.
pub(in crate::model::neural::net) fn in_groups(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    shape: ConvShape,
    max_elements: usize,
) -> Result<Tensor> {
    let ConvShape { out_channels, padding, stride, .. } = shape;
    expect_len("a bias", bias, out_channels)?;
    let kernels = weight.detach();
    let parts = groups(&x.detach(), shape, max_elements)?;
    let is_by_cudnn = cfg!(feature = "cudnn") && x.device().is_cuda();
    let is_by_image = is_by_cudnn || parts.len() > 1;
    let product = |x: &Tensor| {
        if is_by_cudnn {
            return x.conv2d(&kernels, padding, stride, 1, 1);
        }
        let product = kernels.reshape((out_channels, ()))?.matmul(&patches(x, shape)?)?;
        if is_by_image {
            return swapped(&product.reshape((out_channels, x.dims()[0], ()))?);
        }
        Ok(product)
    };
    let products: Vec<Tensor> = parts.iter().map(product).collect::<Result<_>>()?;
    let product = Mutex::new(Some(Tensor::cat(&products, 0)?));
    drop(products);
    let convolution = DeviceConv { shape, max_elements, is_by_image, product };
    x.contiguous()?.apply_op3(&weight.contiguous()?, &bias.contiguous()?, OnDevice(convolution))
}

/// The convolution of one batch.
struct DeviceConv {
    shape: ConvShape,
    /// The largest number of elements that the patches of a group of images may have.
    max_elements: usize,
    /// Whether the product is `[image, out, row, column]`, as several groups or cuDNN have it; otherwise it is `[out, image
    /// and pixel]`.
    is_by_image: bool,
    /// The output without the bias; the forward pass takes it, so that the graph does not keep it in memory.
    product: Mutex<Option<Tensor>>,
}

impl DeviceOp<3> for DeviceConv {
    const NAME: &'static str = "convolution";

    fn shape(&self, _: [&Shape; 3]) -> Shape {
        let ConvShape { images, out_channels, out_height, out_width, .. } = self.shape;
        Shape::from((images, out_channels, out_height, out_width))
    }

    fn more_inputs(&self) -> Result<Vec<Tensor>> {
        taken(&self.product)
    }

    fn kernel(&self, values: usize) -> Result<KernelCall> {
        let ConvShape { images, out_channels, .. } = self.shape;
        let pixels = self.shape.out_height * self.shape.out_width;
        if self.is_by_image {
            return KernelCall::for_each("add_bias", values).with(&[out_channels, pixels]);
        }
        KernelCall::for_each("add_bias_and_swap", values).with(&[images, out_channels, pixels])
    }

    fn on_host(&self, inputs: &[&[f32]], out: &mut [f32]) {
        let (bias, product) = (inputs[2], inputs[3]);
        let pixels = self.shape.out_height * self.shape.out_width;
        for (plane, out) in out.chunks_exact_mut(pixels).enumerate() {
            let (image, channel) = (plane / bias.len(), plane % bias.len());
            let by_channel = channel * self.shape.images + image;
            let product = &product[if self.is_by_image { plane } else { by_channel } * pixels..];
            out.iter_mut().zip(product).for_each(|(out, product)| *out = product + bias[channel]);
        }
    }

    fn backward(
        &self,
        [x, weight, bias]: [&Tensor; 3],
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let of_groups = |images: &Tensor| groups(images, self.shape, self.max_elements);
        let matrix = weight.detach().reshape((self.shape.out_channels, ()))?.t()?;
        let (mut of_weight, mut of_inputs) = (None, Vec::new());
        for (x, gradient) in of_groups(x)?.iter().zip(&of_groups(gradient)?) {
            let gradient = swapped(gradient)?.flatten_from(1)?;
            // A network that is not trained only passes the gradient on.
            if weight.track_op() {
                let part = gradient.matmul(&patches(&x.detach(), self.shape)?.t()?)?;
                of_weight = Some(match of_weight {
                    Some(sum) => (sum + part)?,
                    None => part,
                });
            }
            if x.track_op() {
                of_inputs.push(images_of_patches(&matrix.matmul(&gradient)?, self.shape)?);
            }
        }
        let of_input = if of_inputs.is_empty() { None } else { Some(Tensor::cat(&of_inputs, 0)?) };
        let of_weight = of_weight.map(|sum| sum.reshape(weight.dims())).transpose()?;
        let of_bias = bias.track_op().then(|| channel_sums(gradient)).transpose()?;
        Ok([of_input, of_weight, of_bias])
    }
}

/// The batch in groups of images whose patches have at most `max_elements` elements.
fn groups(x: &Tensor, shape: ConvShape, max_elements: usize) -> Result<Vec<Tensor>> {
    let (images, group) = (x.dims()[0], shape.images_at_once(max_elements));
    let groups = if images <= group {
        vec![x.clone()]
    } else {
        let part = |first| x.narrow(0, first, group.min(images - first))?.contiguous();
        (0..images).step_by(group).map(part).collect::<Result<_>>()?
    };
    #[cfg(test)]
    GROUPS.with_borrow_mut(|all| {
        let sizes = groups.iter().map(|group| group.dims()[0]).collect();
        all.push((max_elements, sizes));
    });
    Ok(groups)
}

#[cfg(test)]
thread_local! {
    /// The limit of each division of a batch on this thread, and the number of images in each group.
    static GROUPS: RefCell<Vec<(usize, Vec<usize>)>> = const { RefCell::new(Vec::new()) };
}

/// The divisions of batches on this thread since the last call: the limit of each, and the number of images in each
/// group.
#[cfg(test)]
pub(in crate::model::neural::net) fn take_groups() -> Vec<(usize, Vec<usize>)> {
    GROUPS.take()
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    /// The patches of an image have 2 channels x 9 cells x 20 pixels = 360 elements.
    #[test]
    fn a_batch_is_cut_where_its_patches_have_too_many_elements() {
        let shape = ConvShape {
            images: 7,
            in_channels: 2,
            out_channels: 3,
            kernel: 3,
            padding: 1,
            stride: 1,
            height: 5,
            width: 4,
            out_height: 5,
            out_width: 4,
        };
        let x = Tensor::zeros((7, 2, 5, 4), DType::F32, &Device::Cpu).unwrap();
        let images = |max_elements| -> Vec<usize> {
            let parts = groups(&x, shape, max_elements).unwrap();
            parts.iter().map(|part| part.dims()[0]).collect()
        };
        assert_eq!(images(1_085), [3, 3, 1]);
        assert_eq!(images(1_079), [2, 2, 2, 1]);
        assert_eq!(images(1 << 31), [7]);
    }
}
