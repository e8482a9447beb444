//! A convolution with the ReLU and the max pool that follow it, as one operation on the host.
//!
//! # Why
//! The output of LeNet's first convolution is four times its pooled output, and takes longer to write, to read and to
//! add to zeros than to compute. Here two rows of it are computed at a time, pooled while they are in the cache, and
//! forgotten. The backward pass needs only the position of each maximum.

use std::sync::OnceLock;

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use crate::model::neural::net::conv_shape::ConvShape;
use crate::model::neural::net::host::tiles::RowRun;
use crate::model::neural::net::host::{contiguous, read};
use crate::model::neural::net::max_pool::Squares;

/// The operation on one batch.
pub(super) struct PooledConvolution {
    shape: ConvShape,
    squares: Squares,
    /// The position of each maximum in its square.
    largest: OnceLock<Vec<u8>>,
}

impl PooledConvolution {
    pub(super) fn new(shape: ConvShape) -> Self {
        let (width, pixel) = (shape.out_width, shape.images * shape.out_channels);
        Self { shape, squares: Squares { width, pixel, relu: true }, largest: OnceLock::new() }
    }
}

impl CustomOp3 for PooledConvolution {
    fn name(&self) -> &'static str {
        "convolution, ReLU and max pool"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        of_x: &Layout,
        weight: &CpuStorage,
        of_weight: &Layout,
        bias: &CpuStorage,
        of_bias: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let Self { shape, squares, .. } = self;
        let x = contiguous(x.as_slice()?, of_x)?;
        let weight = contiguous(weight.as_slice()?, of_weight)?;
        let bias = contiguous(bias.as_slice()?, of_bias)?;
        let product = shape.forward_product(x, weight, bias);
        let high = shape.out_height / 2;
        let n = high * squares.row();
        let (mut out, mut largest) = (vec![0.0; n], vec![0; n]);
        let runs = shape.reads();
        let row = |run: &RowRun| run.first / (2 * shape.out_width * shape.images).max(1);
        let two_rows: Vec<&[RowRun]> = runs.chunk_by(|a, b| row(a) == row(b)).collect();
        out.par_chunks_mut(squares.row().max(1))
            .zip(largest.par_chunks_mut(squares.row().max(1)))
            .zip(two_rows)
            .for_each(|((out, largest), runs)| {
                let mut rows = vec![0.0; squares.two_rows()];
                product.write(runs, &mut rows);
                squares.forward(&rows, out, largest);
            });
        // candle calls the forward pass of an operation once; a second call would store the same positions.
        self.largest.get_or_init(|| largest);
        let dims = (high, shape.out_width / 2, shape.images, shape.out_channels);
        Ok((CpuStorage::F32(out), Shape::from(dims)))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let Some(largest) = self.largest.get() else {
            candle_core::bail!("a pooling goes back before it went forward")
        };
        let gradients =
            read([x, weight, &gradient.contiguous()?], |[values, weight, gradient]| {
                let gradient = self.squares.backward(gradient, largest, self.shape.out_height);
                // The training data are no variable, and need no gradient.
                self.shape.backward(values, weight, &gradient, x.track_op())
            })?;
        gradients.tensors([x, weight, bias])
    }
}
