//! Convolutions on a device: candle's convolution forwards, and products backwards.
//!
//! # Why
//! candle computes the gradient by the input with a kernel that is no matrix product and reads every value once for
//! each cell of the kernel; without contiguous operands cuDNN's build does the same for the gradient by the weight. Here
//! the gradient by the weight is one matrix product, and the gradient by the input is a convolution, which cuDNN can
//! compute, too. The training data are no variable, and get no gradient.

#[cfg(test)]
use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};

use candle_core::{Layout, Result, Shape, Tensor, op};

use crate::model::neural::net::conv_shape::ConvShape;
use crate::model::neural::net::gpu::norm::sums;
use crate::model::neural::net::gpu::{DeviceOp, DeviceStorage, OnDevice, of_channels, read_on};

/// The largest number of elements that the patches of one convolution on a GPU may have: 512 MiB of `f32`.
pub(in crate::model::neural::net) const MAX_PATCH_ELEMENTS: usize = (512 << 20) / size_of::<f32>();

/// The convolution of `x`, `[image, in, height, width]`, by `weight`, `[out, in, kernel, kernel]`, plus `bias`, `[out]`.
///
/// # Why
/// candle's kernels on a GPU address the patches of a whole batch with 32 bits: with 64 channels and a 3 x 3 kernel,
/// 1 024 images of 86 x 86 pixels have more elements. These would also take 16 GiB, more than many GPUs have. So a large
/// batch is computed in groups of images.
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
    let ConvShape { kernel, padding, stride, .. } = shape;
    if padding >= kernel {
        candle_core::bail!("a padding of {padding} for kernels of {kernel} x {kernel}");
    }
    let kernels = weight.detach();
    let parts = groups(&x.detach(), shape, max_elements)?;
    let products: Vec<Tensor> =
        parts.iter().map(|x| x.conv2d(&kernels, padding, stride, 1, 1)).collect::<Result<_>>()?;
    let product = Mutex::new(Some(Tensor::cat(&products, 0)?));
    x.apply_op3(weight, bias, OnDevice(DeviceConv { shape, max_elements, product }))
}

/// The convolution of one batch.
struct DeviceConv {
    shape: ConvShape,
    /// The largest number of elements that the patches of a group of images may have.
    max_elements: usize,
    /// The output without the bias; the forward pass takes it, so that the graph does not keep it in memory.
    product: Mutex<Option<Tensor>>,
}

impl DeviceOp<3> for DeviceConv {
    const NAME: &'static str = "convolution";

    fn forward<S: DeviceStorage>(
        &self,
        [_, _, (bias, of_bias)]: [(&S, &Layout); 3],
    ) -> Result<(S, Shape)> {
        let product = self.product.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(product) = product else { candle_core::bail!("a convolution goes forward twice") };
        let of_bias = of_channels(of_bias, product.shape())?;
        let sum = |product: &S, of_product: &Layout| {
            product.binary_impl::<op::Add>(bias, of_product, &of_bias)
        };
        Ok((read_on(&product, sum)?, product.shape().clone()))
    }

    fn backward(
        &self,
        [x, weight, _]: [&Tensor; 3],
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let of_groups = |images: &Tensor| groups(images, self.shape, self.max_elements);
        let (inputs, gradients) = (of_groups(&x.detach())?, of_groups(gradient)?);
        let mut of_weight = None;
        for (x, gradient) in inputs.iter().zip(&gradients) {
            let part = self.of_weight(x, gradient)?;
            of_weight = Some(match of_weight {
                Some(sum) => (sum + part)?,
                None => part,
            });
        }
        let of_input = if x.track_op() {
            let flipped = flipped(&weight.detach())?;
            let parts: Vec<Tensor> =
                gradients.iter().map(|g| self.of_input(g, &flipped)).collect::<Result<_>>()?;
            Some(Tensor::cat(&parts, 0)?)
        } else {
            None
        };
        let (images, channels, ..) = gradient.dims4()?;
        let of_bias = sums(&gradient.reshape((images, channels, ()))?)?.reshape(channels)?;
        Ok([of_input, of_weight, Some(of_bias)])
    }
}

impl DeviceConv {
    /// The gradient of the weight: the patches of the input, `[cell and channel, image and pixel]`, times the gradient
    /// of the output.
    fn of_weight(&self, x: &Tensor, gradient: &Tensor) -> Result<Tensor> {
        let ConvShape { in_channels, out_channels, kernel, .. } = self.shape;
        let of_out = gradient.transpose(0, 1)?.contiguous()?.reshape((out_channels, ()))?;
        let product = self.patches(x)?.matmul(&of_out.t()?)?;
        product
            .reshape((kernel, kernel, in_channels, out_channels))?
            .permute((3, 2, 0, 1))?
            .contiguous()
    }

    /// The pixels that each cell of the kernel reads, `[row of the kernel, column of the kernel, channel][image, row,
    /// column]`, as a matrix.
    fn patches(&self, x: &Tensor) -> Result<Tensor> {
        let ConvShape { kernel, padding, stride, out_height, out_width, .. } = self.shape;
        // An axis of pixels becomes two: whole strides, and pixels within a stride. So the pixels that a cell reads are
        // a view.
        let strides = |out: usize| out + (kernel - 1) / stride;
        let (rows, columns) = (strides(out_height), strides(out_width));
        let x = padded(&padded(x, 3, padding, columns * stride)?, 2, padding, rows * stride)?;
        let (images, channels, ..) = x.dims4()?;
        let x = x.reshape((images, channels, rows, stride, columns, stride))?.transpose(0, 1)?;
        let cells = |x: &Tensor, axis: usize, out: usize| -> Result<Tensor> {
            let cell = |k: usize| {
                let from = x.narrow(axis, k / stride, out)?;
                from.narrow(axis + 1, k % stride, 1)?.squeeze(axis + 1)
            };
            Tensor::stack(&(0..kernel).map(cell).collect::<Result<Vec<_>>>()?, 0)
        };
        let by_column = cells(&x, 4, out_width)?;
        let by_cell = cells(&by_column, 3, out_height)?;
        by_cell.reshape((kernel * kernel * channels, ()))
    }

    /// The gradient of the input: the gradient of the output, with zeros between its pixels for a stride, convolved by
    /// the flipped kernel.
    fn of_input(&self, gradient: &Tensor, flipped: &Tensor) -> Result<Tensor> {
        let ConvShape { kernel, padding, stride, height, width, .. } = self.shape;
        let mut spaced = gradient.contiguous()?;
        if stride > 1 {
            let (images, channels, rows, columns) = spaced.dims4()?;
            let pixels = spaced.reshape((images, channels, rows, 1, columns, 1))?;
            spaced = padded(&padded(&pixels, 5, 0, stride)?, 3, 0, stride)?
                .reshape((images, channels, rows * stride, columns * stride))?
                .narrow(2, 0, height + 2 * padding + 1 - kernel)?
                .narrow(3, 0, width + 2 * padding + 1 - kernel)?
                .contiguous()?;
        }
        spaced.conv2d(flipped, kernel - 1 - padding, 1, 1, 1)
    }
}

/// Zeros of this size along `axis`, with `x` behind the first `before` of them; what does not fit is left out.
fn padded(x: &Tensor, axis: usize, before: usize, size: usize) -> Result<Tensor> {
    let mut dims = x.dims().to_vec();
    if before == 0 && dims[axis] == size {
        return Ok(x.clone());
    }
    let read = dims[axis].min(size - before);
    dims[axis] = size;
    let out = Tensor::zeros(dims, x.dtype(), x.device())?;
    out.slice_set(&x.narrow(axis, 0, read)?.contiguous()?, axis, before)?;
    Ok(out)
}

/// The kernels with their cells in reverse order, `[in, out, kernel, kernel]`.
fn flipped(weight: &Tensor) -> Result<Tensor> {
    let (out_channels, in_channels, kernel, _) = weight.dims4()?;
    let cells = weight.reshape((out_channels, in_channels, ()))?.flip(&[2])?;
    cells.transpose(0, 1)?.contiguous()?.reshape((in_channels, out_channels, kernel, kernel))
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

    /// The patches of an image have 3 channels x 9 cells x 20 pixels = 540 elements.
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
        assert_eq!(images(1_625), [3, 3, 1]);
        assert_eq!(images(1_619), [2, 2, 2, 1]);
        assert_eq!(images(1 << 31), [7]);
    }
}
