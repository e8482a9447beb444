//! The backbones for images.
//!
//! ```text
//! lenet     conv 5x5 6, pool, conv 5x5 16, pool, 120, 84                                  hidden: 84
//! vgg16     conv 3x3 64 64, pool, 128 128, pool, 256 x3, pool, 512 x3, pool, 512 x3, pool  hidden: 512 for 32 x 32
//! resnet20  conv 3x3 16, 3 blocks of 16, 3 of 32, 3 of 64, mean of each channel            hidden: 64
//!           block: relu( x' + norm(conv(relu(norm(conv(x))))) )       x' = x, or option A where the width changes
//! ```
//! Every convolution of `vgg16` and `resnet20` has a batch norm and a ReLU after it; the first block of 32 and of 64
//! channels begins with a stride of 2. K. He, X. Zhang, S. Ren, J. Sun: Deep Residual Learning for Image Recognition. CVPR
//! 2016. arXiv:1512.03385, section 4.2.

use crate::error::{Error, Result};
use crate::model::neural::net::layers::batch_norm::BatchNorm;
use crate::model::neural::net::layers::convolution::Convolution;
use crate::model::neural::net::layers::layer_builder::LayerBuilder;
use crate::model::neural::net::layers::residual::Shortcut;
use crate::model::neural::net::layers::{Activation, Dense, Layer, Residual};

/// The layers up to the last hidden one, and its width.
type LayersAndWidth = (Vec<Layer>, usize);

/// A convolution of stride 1 in the papers' notation: its channels and the width of its kernel.
#[derive(Clone, Copy)]
struct Kernel {
    from: usize,
    to: usize,
    size: usize,
    padding: usize,
}

fn convolution(layer: &LayerBuilder, kernel: Kernel) -> Result<Convolution> {
    let Kernel { from, to, size, padding } = kernel;
    let (area, shape) = (size * size, [to, from, size, size]);
    let (weight, bias) = layer.weight_and_bias(&shape, to, from * area, to * area)?;
    Ok(Convolution { weight, bias, padding, stride: 1 })
}

fn relu() -> Layer {
    Layer::Activation(Activation::Relu)
}

fn norm(layer: &LayerBuilder, channels: usize) -> Result<Layer> {
    Ok(Layer::BatchNorm(BatchNorm::new(layer, channels, true)?))
}

fn too_small(height: usize, width: usize) -> Error {
    Error::data("the images are too small for this backbone")
        .at("model.backbone.kind")
        .found(format!("{height} x {width}"))
        .help("choose \"mlp\" or \"resnet20\"")
}

/// The rows and columns of pixels after the last pooling of `lenet`.
///
/// # Errors
/// When no pixel is left.
pub(super) fn after_lenet(height: usize, width: usize) -> Result<[usize; 2]> {
    let after = |size: usize| (size / 2).checked_sub(4).map(|s| s / 2).filter(|s| *s > 0);
    match (after(height), after(width)) {
        (Some(rows), Some(columns)) => Ok([rows, columns]),
        _ => Err(too_small(height, width)),
    }
}

pub(super) fn lenet(
    channels: usize,
    height: usize,
    width: usize,
    builder: &LayerBuilder,
) -> Result<LayersAndWidth> {
    let [rows, columns] = after_lenet(height, width)?;
    let first = Kernel { from: channels, to: 6, size: 5, padding: 2 };
    let second = Kernel { from: 6, to: 16, size: 5, padding: 0 };
    let layers = vec![
        Layer::Convolution(convolution(&builder.pp("convolution0"), first)?),
        relu(),
        Layer::MaxPool,
        Layer::Convolution(convolution(&builder.pp("convolution1"), second)?),
        relu(),
        Layer::MaxPool,
        Layer::Flatten,
        Layer::Dense(Dense::new(&builder.pp("hidden0"), 16 * rows * columns, 120)?),
        relu(),
        Layer::Dense(Dense::new(&builder.pp("hidden1"), 120, 84)?),
        relu(),
    ];
    Ok((layers, 84))
}

/// Channels of VGG-16's convolutions; 0 is a pooling.
const VGG16: [usize; 18] =
    [64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0];

/// The rows and columns of pixels after the last pooling of `vgg16`.
///
/// # Errors
/// When no pixel is left.
pub(super) fn after_vgg16(height: usize, width: usize) -> Result<[usize; 2]> {
    match [height / 32, width / 32] {
        [0, _] | [_, 0] => Err(too_small(height, width)),
        left => Ok(left),
    }
}

pub(super) fn vgg16(
    channels: usize,
    height: usize,
    width: usize,
    builder: &LayerBuilder,
) -> Result<LayersAndWidth> {
    let [rows, columns] = after_vgg16(height, width)?;
    let mut layers = Vec::new();
    let mut from = channels;
    for (n, to) in VGG16.into_iter().enumerate() {
        if to == 0 {
            layers.push(Layer::MaxPool);
            continue;
        }
        let (name, kernel) =
            (format!("convolution{n:02}"), Kernel { from, to, size: 3, padding: 1 });
        layers.push(Layer::Convolution(convolution(&builder.pp(name), kernel)?));
        layers.push(norm(&builder.pp(format!("norm{n:02}")), to)?);
        layers.push(relu());
        from = to;
    }
    layers.push(Layer::Flatten);
    Ok((layers, 512 * rows * columns))
}

/// Channels of ResNet-20's three stages, and the residual blocks of each.
const RESNET20: [usize; 3] = [16, 32, 64];
const BLOCKS: usize = 3;

pub(super) fn resnet20(channels: usize, builder: &LayerBuilder) -> Result<LayersAndWidth> {
    let mut width = RESNET20[0];
    let kernel = |from, to| Kernel { from, to, size: 3, padding: 1 };
    let first = convolution(&builder.pp("convolution"), kernel(channels, width))?;
    let mut layers = vec![Layer::Convolution(first), norm(&builder.pp("norm"), width)?, relu()];
    for (n, to) in RESNET20.into_iter().flat_map(|to| [to; BLOCKS]).enumerate() {
        let halves = (to != width).then_some(Shortcut { to, stride: 2 });
        let part = |part: &str| builder.pp(format!("block{n}_{part}"));
        let mut one = convolution(&part("convolution0"), kernel(width, to))?;
        one.stride = halves.map_or(1, |shortcut| shortcut.stride);
        let two = convolution(&part("convolution1"), kernel(to, to))?;
        let block = vec![
            Layer::Convolution(one),
            norm(&part("norm0"), to)?,
            relu(),
            Layer::Convolution(two),
            norm(&part("norm1"), to)?,
        ];
        layers.extend([Layer::Residual(Residual { layers: block, shortcut: halves }), relu()]);
        width = to;
    }
    layers.push(Layer::MeanPool);
    Ok((layers, width))
}
