//! The matrix products of a convolution on the host, in parallel.
//!
//! A matrix of images has a row for each pixel of each image and a column for each channel, so that the pixels under
//! one cell of a kernel are consecutive rows of the matrix in memory:
//!
//! ```text
//! out[row] = start + sum over cells: x[row moved by the cell] W[cell]          RowProduct
//! dW[cell] = sum over rows: x[row moved by the cell]^T dout[row]               OuterProduct
//! ```
//! # Why
//! No patches are copied (im2col): a kernel of 3 x 3 would write and read nine times the image. Each value of a result
//! is summed over cells first and then over channels or rows, so that tiles, vectors and threads change no bit. candle-nn's
//! convolution takes 6.2 times as long (64 images of 64 channels, 3 x 3; `benches/networks.md`). With AVX-512,
//! convolutions of 128 and of 256 channels take 0.53 of the time that they take with AVX2 (forward and backward, two
//! threads of an AMD EPYC of Zen 5).

use rayon::prelude::*;

use crate::model::neural::net::host::outer_product::OuterProduct;
use crate::model::neural::net::host::row_product::RowProduct;
use crate::model::neural::net::host::tiles::{ColumnBlocks, RowRun};
use crate::model::neural::net::layers::conv_shape::ConvShape;

/// The number of input channels in one product of the weights' gradient.
const CHANNELS: usize = 96;

/// The number of products that keeps all threads busy. If there are fewer, the rows of each are divided, too.
const ENOUGH_PRODUCTS: usize = 16;

/// The number of columns that count as one product, whatever the processor's vector width: the sums of a network's
/// gradients do not depend on it.
const COLUMNS: usize = 16;

/// A product of images with the weights of a convolution.
pub(crate) struct ImageProduct<'a> {
    /// `[row, inner]`
    x: &'a [f32],
    inner: usize,
    /// `[block of columns, cell, inner, width]`
    weight: Vec<f32>,
    /// The length of a block of `weight`.
    block: usize,
    /// The initial values of the sums, `[block of columns, width]`.
    start: Vec<f32>,
    blocks: ColumnBlocks,
}

impl ImageProduct<'_> {
    /// The rows of all runs, `[row, column]`.
    pub(crate) fn all(&self, runs: &[RowRun]) -> Vec<f32> {
        let rows: usize = runs.iter().map(|run| run.rows).sum();
        let mut out = vec![0.0; rows * self.blocks.columns];
        self.write(runs, &mut out);
        out
    }

    /// Writes the rows of consecutive runs.
    pub(crate) fn write(&self, runs: &[RowRun], mut out: &mut [f32]) {
        let Self { x, inner, block, blocks, .. } = *self;
        let (weight, start) = (&self.weight[..], &self.start[..]);
        let mut parts = Vec::with_capacity(runs.len());
        for run in runs {
            let (part, rest) = out.split_at_mut(run.rows * blocks.columns);
            parts.push((run, part));
            out = rest;
        }
        parts.into_par_iter().for_each(|(run, out)| {
            RowProduct { x, inner, weight, block, start, blocks, run, out }.compute();
        });
    }
}

/// The gradients of a convolution's weight, bias and input.
pub(crate) struct ConvGradients {
    pub(crate) weight: Vec<f32>,
    pub(crate) bias: Vec<f32>,
    pub(crate) input: Option<Vec<f32>>,
}

impl ConvShape {
    /// The product that gives the output.
    pub(crate) fn forward_product<'a>(
        &self,
        x: &'a [f32],
        weight: &[f32],
        bias: &[f32],
    ) -> ImageProduct<'a> {
        let (blocks, inner) = (ColumnBlocks::new(self.out_channels), self.in_channels);
        let mut start = bias.to_vec();
        start.resize(blocks.len() * blocks.width, 0.0);
        let (weight, block) = (self.packed(weight, blocks), self.cells() * inner * blocks.width);
        ImageProduct { x, inner, weight, block, start, blocks }
    }

    /// The gradients, given the gradient of the output; that of the input only if `of_input`.
    pub(crate) fn backward(
        &self,
        x: &[f32],
        weight: &[f32],
        gradient: &[f32],
        of_input: bool,
    ) -> ConvGradients {
        let (of_weight, of_bias) = self.of_parameters(x, gradient);
        let of_input = of_input.then(|| {
            let (blocks, inner) = (ColumnBlocks::new(self.in_channels), self.out_channels);
            let weight = self.packed_transpose(weight, blocks);
            let start = vec![0.0; blocks.len() * blocks.width];
            let block = self.cells() * inner * blocks.width;
            let product = ImageProduct { x: gradient, inner, weight, block, start, blocks };
            product.all(&self.is_read_by())
        });
        ConvGradients { weight: of_weight, bias: of_bias, input: of_input }
    }

    /// The gradients of the weight, `[out, in, cell]`, and of the bias.
    fn of_parameters(&self, x: &[f32], gradient: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let (blocks, runs, cells) =
            (ColumnBlocks::new(self.out_channels), self.reads(), self.cells());
        let groups = self.in_channels.div_ceil(CHANNELS);
        let counted = self.out_channels.div_ceil(COLUMNS).max(1) * groups.max(1);
        let parts = ENOUGH_PRODUCTS.div_ceil(counted).min(runs.len()).max(1);
        let runs: Vec<&[RowRun]> = runs.chunks(runs.len().div_ceil(parts).max(1)).collect();
        let product = |n: usize| {
            let (block, group) = (n / groups, n % groups);
            let channels = group * CHANNELS..((group + 1) * CHANNELS).min(self.in_channels);
            let mut sums = vec![0.0; (cells * channels.len() + 1) * blocks.width];
            let of_parts: Vec<Vec<f32>> = runs
                .par_iter()
                .map(|runs| {
                    let mut sums = vec![0.0; (cells * channels.len() + 1) * blocks.width];
                    let (of_bias, of_weight) = sums.split_at_mut(blocks.width);
                    let (inner, channels) = (self.in_channels, channels.clone());
                    let outer = OuterProduct {
                        x,
                        inner,
                        gradient,
                        blocks,
                        block,
                        channels,
                        runs,
                        of_weight,
                        of_bias,
                    };
                    outer.add();
                    sums
                })
                .collect();
            for of_part in &of_parts {
                sums.iter_mut().zip(of_part).for_each(|(sum, g)| *sum += g);
            }
            sums
        };
        let n_products = blocks.len() * groups;
        let products: Vec<Vec<f32>> = (0..n_products).into_par_iter().map(product).collect();
        let of_bias =
            (0..self.out_channels).map(|o| products[o / blocks.width * groups][o % blocks.width]);
        let of_bias = of_bias.collect();
        let mut of_weight = vec![0.0; self.out_channels * self.in_channels * cells];
        of_weight.par_chunks_mut((self.in_channels * cells).max(1)).enumerate().for_each(
            |(o, out)| {
                let (block, column) = (o / blocks.width, o % blocks.width);
                for (group, out) in out.chunks_mut(CHANNELS * cells).enumerate() {
                    let product = &products[block * groups + group][blocks.width..];
                    let channels = out.len() / cells;
                    for (channel, out) in out.chunks_exact_mut(cells).enumerate() {
                        for (cell, out) in out.iter_mut().enumerate() {
                            *out = product[(cell * channels + channel) * blocks.width + column];
                        }
                    }
                }
            },
        );
        (of_weight, of_bias)
    }

    /// The weights `[out, in, cell]` repacked as `[block of outputs, cell, in, width]`, for the forward pass.
    fn packed(&self, weight: &[f32], blocks: ColumnBlocks) -> Vec<f32> {
        let (cells, width) = (self.cells(), blocks.width);
        let mut packed = vec![0.0; blocks.len() * cells * self.in_channels * width];
        packed.par_chunks_mut((cells * self.in_channels * width).max(1)).enumerate().for_each(
            |(block, packed)| {
                for (column, o) in blocks.columns(block).enumerate() {
                    let own = &weight[o * self.in_channels * cells..][..self.in_channels * cells];
                    for (i, own) in own.chunks_exact(cells).enumerate() {
                        for (cell, w) in own.iter().enumerate() {
                            packed[(cell * self.in_channels + i) * width + column] = *w;
                        }
                    }
                }
            },
        );
        packed
    }

    /// The weights `[out, in, cell]` repacked as `[block of inputs, cell, out, width]`, for the backward pass.
    fn packed_transpose(&self, weight: &[f32], blocks: ColumnBlocks) -> Vec<f32> {
        let (cells, width) = (self.cells(), blocks.width);
        let mut packed = vec![0.0; blocks.len() * cells * self.out_channels * width];
        packed.par_chunks_mut((cells * self.out_channels * width).max(1)).enumerate().for_each(
            |(block, packed)| {
                let inputs = blocks.columns(block);
                for o in 0..self.out_channels {
                    let own = &weight[(o * self.in_channels + inputs.start) * cells..]
                        [..inputs.len() * cells];
                    for (column, own) in own.chunks_exact(cells).enumerate() {
                        for (cell, w) in own.iter().enumerate() {
                            packed[(cell * self.out_channels + o) * width + column] = *w;
                        }
                    }
                }
            },
        );
        packed
    }
}
