//! The pixels that each cell of a convolution's kernel reads.

use candle_core::{Result, Shape, Tensor};

use crate::model::neural::net::gpu::kernel::{KernelCall, ROWS};
use crate::model::neural::net::gpu::op::{DeviceOp, of_one};
use crate::model::neural::net::layers::conv_shape::ConvShape;

/// The patches of `x`, `[image, channel, row, column]`, as a matrix `[channel and cell, image and pixel of the output]`,
/// with zeros where a cell reads the padding.
pub(super) fn patches(x: &Tensor, shape: ConvShape) -> Result<Tensor> {
    of_one(Patches(of_images(x.dims()[0], shape)), x)
}

/// The sum of all patches, each at the pixels that it was read from: `[image, channel, row, column]`.
pub(super) fn images_of_patches(patches: &Tensor, shape: ConvShape) -> Result<Tensor> {
    let pixels = shape.out_height * shape.out_width;
    let images = patches.dims()[1] / pixels.max(1);
    of_one(ImagesOfPatches(of_images(images, shape)), patches)
}

/// The same convolution of so many images.
fn of_images(images: usize, shape: ConvShape) -> ConvShape {
    ConvShape { images, ..shape }
}

/// The positions of a patch's values: in the patches and in the images, for those that do not read the padding.
fn positions(shape: ConvShape) -> impl Iterator<Item = (usize, usize)> {
    let ConvShape { images, in_channels, kernel, padding, stride, .. } = shape;
    let ConvShape { height, width, out_height, out_width, .. } = shape;
    let all = images * out_height * out_width;
    (0..in_channels * kernel * kernel * all).filter_map(move |at| {
        let (row, pixel) = (at / all, at % all);
        let (channel, cell) = (row / (kernel * kernel), row % (kernel * kernel));
        let (image, pixel) = (pixel / (out_height * out_width), pixel % (out_height * out_width));
        let y = (pixel / out_width * stride + cell / kernel).checked_sub(padding)?;
        let x = (pixel % out_width * stride + cell % kernel).checked_sub(padding)?;
        let position = ((image * in_channels + channel) * height + y) * width + x;
        (y < height && x < width).then_some((at, position))
    })
}

/// The numbers of a kernel.
fn numbers(shape: ConvShape) -> [usize; 9] {
    let ConvShape { images, in_channels, kernel, padding, stride, .. } = shape;
    let ConvShape { height, width, out_height, out_width, .. } = shape;
    [images, in_channels, kernel, padding, stride, height, width, out_height, out_width]
}

struct Patches(ConvShape);

impl DeviceOp<1> for Patches {
    const NAME: &'static str = "patches";

    fn shape(&self, _: [&Shape; 1]) -> Shape {
        let ConvShape { images, in_channels, out_height, out_width, .. } = self.0;
        Shape::from((in_channels * self.0.cells(), images * out_height * out_width))
    }

    fn kernel(&self, _: usize) -> Result<KernelCall> {
        let ConvShape { images, in_channels, out_height, out_width, .. } = self.0;
        let rows = (in_channels * self.0.cells()).div_ceil(ROWS);
        let threads = rows * images * out_height * out_width;
        KernelCall::for_each("patches", threads).with(&numbers(self.0))
    }

    fn on_host(&self, inputs: &[&[f32]], out: &mut [f32]) {
        out.fill(0.0);
        positions(self.0).for_each(|(at, position)| out[at] = inputs[0][position]);
    }
}

struct ImagesOfPatches(ConvShape);

impl DeviceOp<1> for ImagesOfPatches {
    const NAME: &'static str = "images of patches";

    fn shape(&self, _: [&Shape; 1]) -> Shape {
        let ConvShape { images, in_channels, height, width, .. } = self.0;
        Shape::from((images, in_channels, height, width))
    }

    fn kernel(&self, values: usize) -> Result<KernelCall> {
        KernelCall::for_each("images_of_patches", values).with(&numbers(self.0))
    }

    fn on_host(&self, inputs: &[&[f32]], out: &mut [f32]) {
        out.fill(0.0);
        positions(self.0).for_each(|(at, position)| out[position] += inputs[0][at]);
    }
}
