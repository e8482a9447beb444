//! The memory layout of images on the host.
//!
//! # Why
//! In the matrix `[row, column, image][channel]` the operands of convolutions are contiguous rows, which need no
//! copies, and norms and sums run along the rows. candle permutes axes value by value, in the backward pass twice.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use crate::model::neural::net::host::{PART, contiguous};

/// Images `[image, channel, row, column]` as `[row, column, image, channel]`; tensors of other ranks are only made
/// contiguous.
pub(crate) fn by_pixel(x: &Tensor) -> Result<Tensor> {
    if x.rank() == 4 { x.contiguous()?.apply_op1(Transpose) } else { x.contiguous() }
}

/// `[row, column, image, channel]` as `[image, channel, row, column]`; tensors of other ranks unchanged.
pub(crate) fn by_image(x: &Tensor) -> Result<Tensor> {
    if x.rank() == 4 { x.contiguous()?.apply_op1(Transpose) } else { Ok(x.clone()) }
}

/// `[a, b, c, d]` as `[c, d, a, b]`: the transpose of a matrix `[a b, c d]`.
struct Transpose;

impl CustomOp1 for Transpose {
    fn name(&self) -> &'static str {
        "transpose"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (a, b, c, d) = layout.shape().dims4()?;
        let values = contiguous(storage.as_slice()?, layout)?;
        Ok((CpuStorage::F32(transpose(values, a * b, c * d)), Shape::from((c, d, a, b))))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        gradient.contiguous()?.apply_op1_no_bwd(&Self).map(Some)
    }
}

/// The number of columns that are read together: the f32 of a cache line.
const LINE: usize = 16;

/// The transpose of a row-major matrix.
fn transpose(x: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    if rows <= 1 || columns <= 1 {
        return x.to_vec();
    }
    let mut out = vec![0.0; x.len()];
    let at_once = (PART / rows).next_multiple_of(LINE).max(LINE);
    out.par_chunks_mut(at_once * rows).enumerate().for_each(|(n, out)| {
        for (line, out) in out.chunks_mut(LINE * rows).enumerate() {
            let first = n * at_once + line * LINE;
            for (row, x) in x.chunks_exact(columns).enumerate() {
                let x = &x[first..][..out.len() / rows];
                out[row..].iter_mut().step_by(rows).zip(x).for_each(|(out, x)| *out = *x);
            }
        }
    });
    out
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;
    use crate::model::neural::net::testing::numbers;

    /// One row or column of a matrix, matrices whose columns do and do not fill cache lines, and one of several parts.
    #[test]
    fn axes_and_gradients_are_those_of_a_permutation() {
        for dims in [
            (1, 1, 2, 3),
            (5, 1, 1, 1),
            (2, 3, 4, 5),
            (4, 4, 4, 4),
            (3, 11, 7, 5),
            (130, 3, 9, 8),
            (0, 2, 3, 4),
        ] {
            let n = dims.0 * dims.1 * dims.2 * dims.3;
            let values = (0..n).map(|n| n as f32).collect::<Vec<_>>();
            let x = Var::from_vec(values, dims, &Device::Cpu).unwrap();
            let want = x.permute((2, 3, 0, 1)).unwrap();
            for got in [by_pixel(&x).unwrap(), by_image(&x).unwrap()] {
                assert_eq!((got.dims(), numbers(&got)), (want.dims(), numbers(&want)));
                let slopes = (want.detach() * 0.5).unwrap();
                let loss = (&got * slopes).unwrap().sum_all().unwrap();
                let gradient = loss.backward().unwrap().remove(&x).unwrap();
                let halves = (x.as_detached_tensor() * 0.5).unwrap();
                assert_eq!(numbers(&gradient), numbers(&halves), "{dims:?}");
            }
        }
    }
}
