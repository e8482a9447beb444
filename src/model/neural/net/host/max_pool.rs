//! Maximum pooling over windows of 2 x 2 on the host, with the ReLU that may follow it; an odd last row or column is
//! left out.
//!
//! # Why
//! candle-nn's takes 7.4 times as long on 64 images of 64 channels and 16 x 16 pixels (`benches/networks.md`), and
//! propagates a quarter of the gradient.

use std::sync::OnceLock;

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use pulp::Arch;
use rayon::prelude::*;

use crate::model::neural::net::host::{contiguous, read};

/// The pooled images, `[row, column, image, channel]`.
pub(crate) fn max_pool(x: &Tensor) -> Result<Tensor> {
    let x = x.contiguous()?;
    x.apply_op1(MaxPool::new(x.dims4()?, PoolOutput::Maximum))
}

/// The output for a pooling window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PoolOutput {
    /// The maximum; NaN is larger than every number.
    Maximum,
    /// The ReLU of the maximum.
    Relu,
}

/// The index in a window whose output has no gradient.
const NONE: u8 = 4;

/// The pooling of one batch of images.
pub(super) struct MaxPool {
    height: usize,
    width: usize,
    images: usize,
    channels: usize,
    output: PoolOutput,
    /// The index of each maximum in its window, row by row, the first of equal values; [`NONE`] without a gradient. The
    /// forward pass stores them for the backward pass.
    indices: OnceLock<Vec<u8>>,
}

impl MaxPool {
    /// The pooling of images with these numbers of rows, columns, images and channels.
    pub(super) fn new(
        (height, width, images, channels): (usize, usize, usize, usize),
        output: PoolOutput,
    ) -> Self {
        Self { height, width, images, channels, output, indices: OnceLock::new() }
    }

    /// The shape of the output.
    pub(super) fn shape(&self) -> Shape {
        Shape::from((self.height / 2, self.width / 2, self.images, self.channels))
    }

    /// The number of values in two rows of the input.
    pub(super) fn two_rows(&self) -> usize {
        2 * self.width * self.pixel()
    }

    /// The number of values in a row of the output.
    fn row(&self) -> usize {
        self.width / 2 * self.pixel()
    }

    /// The number of values in a pixel of all images.
    fn pixel(&self) -> usize {
        self.images * self.channels
    }

    /// The output, given every two rows of the input.
    pub(super) fn forward<R: AsRef<[f32]>>(
        &self,
        two_rows: impl IndexedParallelIterator<Item = R>,
    ) -> Vec<f32> {
        let (n, row) = (self.height / 2 * self.row(), self.row().max(1));
        let (mut out, mut indices) = (vec![0.0; n], vec![0; n]);
        out.par_chunks_mut(row)
            .zip(indices.par_chunks_mut(row))
            .zip(two_rows)
            .for_each(|((out, indices), x)| self.pool(x.as_ref(), out, indices));
        // candle calls the forward pass of an operation once; a second call would store the same indices.
        self.indices.get_or_init(|| indices);
        out
    }

    /// Computes a row of the output from two rows of the input.
    fn pool(&self, x: &[f32], out: &mut [f32], indices: &mut [u8]) {
        let pixel = self.pixel().max(1);
        let windows = out.chunks_exact_mut(pixel).zip(indices.chunks_exact_mut(pixel));
        for (n, (out, indices)) in windows.enumerate() {
            let window = self.window(n).map(|at| &x[at * pixel..][..pixel]);
            Arch::new().dispatch(|| maxima(window, self.output, out, indices));
        }
    }

    /// The gradient of the input. The whole gradient of an output goes to the pixel with the maximum.
    pub(super) fn backward(&self, gradient: &[f32]) -> Result<Vec<f32>> {
        let Some(indices) = self.indices.get() else {
            candle_core::bail!("a max pool goes back before it went forward")
        };
        let (row, pixel) = (self.row().max(1), self.pixel().max(1));
        let mut of_input = vec![0.0; self.height * self.width * self.pixel()];
        of_input
            .par_chunks_mut(self.two_rows().max(1))
            .zip(gradient.par_chunks(row).zip(indices.par_chunks(row)))
            .for_each(|(of_input, (gradient, indices))| {
                let windows = gradient.chunks_exact(pixel).zip(indices.chunks_exact(pixel));
                for (n, (gradient, indices)) in windows.enumerate() {
                    for (k, at) in (0_u8..).zip(self.window(n)) {
                        let of_pixel = &mut of_input[at * pixel..][..pixel];
                        Arch::new().dispatch(|| {
                            for ((of, g), index) in of_pixel.iter_mut().zip(gradient).zip(indices) {
                                *of = if *index == k { *g } else { 0.0 };
                            }
                        });
                    }
                }
            });
        Ok(of_input)
    }

    /// The four pixels of the `n`-th window in two rows of the input.
    fn window(&self, n: usize) -> [usize; 4] {
        let first = 2 * n;
        [first, first + 1, first + self.width, first + self.width + 1]
    }
}

/// The outputs of a window, channel by channel, and the indices of their pixels.
#[inline(always)]
fn maxima(window: [&[f32]; 4], output: PoolOutput, out: &mut [f32], indices: &mut [u8]) {
    out.copy_from_slice(window[0]);
    for (k, pixel) in window.iter().enumerate().skip(1) {
        for ((out, index), x) in out.iter_mut().zip(&mut *indices).zip(*pixel) {
            let larger = *x > *out || x.is_nan();
            *out = if larger { *x } else { *out };
            *index = if larger { k as u8 } else { *index };
        }
    }
    if output == PoolOutput::Relu {
        for (out, index) in out.iter_mut().zip(indices) {
            *index = if *out > 0.0 { *index } else { NONE };
            // NaN is kept.
            *out = if *out < 0.0 { 0.0 } else { *out };
        }
    }
}

impl CustomOp1 for MaxPool {
    fn name(&self) -> &'static str {
        "max pool"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = contiguous(x.as_slice()?, layout)?;
        let out = self.forward(x.par_chunks(self.two_rows().max(1)));
        Ok((CpuStorage::F32(out), self.shape()))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let of_input = read([&gradient.contiguous()?], |[gradient]| self.backward(gradient))??;
        Tensor::from_vec(of_input, x.dims(), x.device()).map(Some)
    }
}
