//! Batch normalisation on the host, over the rows of a matrix `[row, column]`, with the ReLU that may follow it.
//!
//! # Why
//! In candle's graph a batch norm of images passes over memory a dozen times, two of them to exchange channels and
//! pixels: seven tenths of the time of an epoch of VGG-16; candle-nn's takes 12 to 22 times as long as this
//! (`benches/networks.md`). Here a forward pass reads its input twice, and a backward
//! pass reads its three matrices twice. Sums are taken over blocks of rows and then over the blocks in order. The
//! number of rows in a block depends only on the number of columns, so that threads do not change the result.

use candle_core::{CpuStorage, CustomOp1, CustomOp3, Layout, Result, Shape, Tensor};
use pulp::Arch;
use rayon::prelude::*;

use crate::model::neural::net::host::{contiguous, read};

/// The number of values in a block of rows, which stays in the cache between the two passes over it.
const BLOCK: usize = 1 << 14;

/// The largest number of rows in a block, whose sums are taken in f32.
const MAX_ROWS: usize = 512;

/// The number of values in a block of whole rows.
fn block(columns: usize) -> usize {
    (BLOCK / columns).clamp(1, MAX_ROWS) * columns
}

/// Mean and (biased) variance of each column.
///
/// # Precision
/// The sums over a block of n rows are f32s: its mean is off by at most n 2^-24 of the mean absolute value (3e-5 of it
/// for 512 rows), and its variance by the square of that error. This is little for scaled features and outputs of
/// layers, whose means are a few standard deviations. It is not for features that are used as they are and lie
/// thousands of standard deviations from zero: of 128 rows of 1 000 001 the mean is 0.7 too small, and the variance 0.5.
pub(crate) fn statistics(x: &[f32], columns: usize) -> [Vec<f64>; 2] {
    let of_blocks: Vec<(usize, Vec<f32>, Vec<f32>)> = x
        .par_chunks(block(columns))
        .map(|x| {
            let rows = x.len() / columns;
            let (mut mean, mut squares) = (vec![0.0; columns], vec![0.0; columns]);
            Arch::new().dispatch(|| {
                for row in x.chunks_exact(columns) {
                    mean.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
                }
                mean.iter_mut().for_each(|sum| *sum /= rows as f32);
                for row in x.chunks_exact(columns) {
                    let cells = squares.iter_mut().zip(row).zip(&mean);
                    cells.for_each(|((sum, x), mean)| *sum += (x - mean) * (x - mean));
                }
            });
            (rows, mean, squares)
        })
        .collect();
    // The sum of squares of two parts is the sum of both, plus a term for the distance between their means (Chan,
    // Golub, LeVeque 1979).
    let (mut n, mut mean, mut squares) = (0.0, vec![0.0; columns], vec![0.0; columns]);
    for (rows, of_block, squares_of_block) in of_blocks {
        let rows = rows as f64;
        let share = rows / (n + rows);
        for column in 0..columns {
            let distance = f64::from(of_block[column]) - mean[column];
            mean[column] += distance * share;
            squares[column] +=
                f64::from(squares_of_block[column]) + distance * distance * n * share;
        }
        n += rows;
    }
    squares.iter_mut().for_each(|sum| *sum /= n);
    [mean, squares]
}

/// The normalisation of each column: `(x - mean) * factor + shift`, then ReLU if `relu`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NormedColumns {
    /// The mean, which is subtracted.
    pub(crate) mean: Vec<f32>,
    /// The scale divided by the standard deviation.
    pub(crate) factor: Vec<f32>,
    /// The shift, which is added.
    pub(crate) shift: Vec<f32>,
    /// Whether ReLU follows.
    pub(crate) relu: bool,
}

impl NormedColumns {
    /// The normalised rows.
    pub(crate) fn normalise(&self, x: &[f32]) -> Vec<f32> {
        let (columns, relu) = (self.mean.len(), self.relu);
        let mut out = vec![0.0; x.len()];
        let block = block(columns);
        out.par_chunks_mut(block).zip(x.par_chunks(block)).for_each(|(out, x)| {
            Arch::new().dispatch(|| {
                for (out, x) in out.chunks_exact_mut(columns).zip(x.chunks_exact(columns)) {
                    let columns = self.mean.iter().zip(&self.factor).zip(&self.shift);
                    for ((out, x), ((mean, factor), shift)) in out.iter_mut().zip(x).zip(columns) {
                        let y = (x - mean) * factor + shift;
                        // NaN is kept.
                        *out = if relu && y < 0.0 { 0.0 } else { y };
                    }
                }
            });
        });
        out
    }

    /// For each column the sum of the gradient, and the sum of the gradient times `x - mean`.
    pub(crate) fn sums(&self, x: &[f32], out: &[f32], gradient: &[f32]) -> [Vec<f64>; 2] {
        let (columns, relu) = (self.mean.len(), self.relu);
        let block = block(columns);
        let of_blocks: Vec<[Vec<f32>; 2]> = x
            .par_chunks(block)
            .zip(out.par_chunks(block))
            .zip(gradient.par_chunks(block))
            .map(|((x, out), gradient)| {
                let [mut sums, mut products] = [vec![0.0; columns], vec![0.0; columns]];
                Arch::new().dispatch(|| {
                    let rows = x.chunks_exact(columns).zip(out.chunks_exact(columns));
                    for ((x, out), gradient) in rows.zip(gradient.chunks_exact(columns)) {
                        let cells = x.iter().zip(out).zip(gradient).zip(&self.mean);
                        let sums = sums.iter_mut().zip(&mut products);
                        for ((((x, out), g), mean), (sum, product)) in cells.zip(sums) {
                            let g = if !relu || *out > 0.0 { *g } else { 0.0 };
                            *sum += g;
                            *product += g * (x - mean);
                        }
                    }
                });
                [sums, products]
            })
            .collect();
        let mut all = [vec![0.0; columns], vec![0.0; columns]];
        for (sums, of_block) in
            of_blocks.iter().flat_map(|of_block| [0, 1].map(|n| (n, &of_block[n])))
        {
            all[sums].iter_mut().zip(of_block).for_each(|(sum, part)| *sum += f64::from(*part));
        }
        all
    }

    /// The gradient of `x`: `factor (gradient - constant - slope (x - mean))`. `constant` and `slope` are zero unless
    /// mean and variance were computed from `x`.
    pub(crate) fn backward(
        &self,
        x: &[f32],
        out: &[f32],
        gradient: &[f32],
        constant: &[f32],
        slope: &[f32],
    ) -> Vec<f32> {
        let (columns, relu) = (self.mean.len(), self.relu);
        let mut of_x = vec![0.0; x.len()];
        let block = block(columns);
        let blocks = of_x.par_chunks_mut(block).zip(x.par_chunks(block)).zip(out.par_chunks(block));
        blocks.zip(gradient.par_chunks(block)).for_each(|(((of_x, x), out), gradient)| {
            Arch::new().dispatch(|| {
                let rows = of_x.chunks_exact_mut(columns).zip(x.chunks_exact(columns));
                let rows = rows.zip(out.chunks_exact(columns)).zip(gradient.chunks_exact(columns));
                for (((of_x, x), out), gradient) in rows {
                    let columns =
                        self.mean.iter().zip(&self.factor).zip(constant.iter().zip(slope));
                    let cells = of_x.iter_mut().zip(x).zip(out.iter().zip(gradient)).zip(columns);
                    for (((of_x, x), (out, g)), ((mean, factor), (constant, slope))) in cells {
                        let g = if !relu || *out > 0.0 { *g } else { 0.0 };
                        *of_x = factor * (g - constant - slope * (x - mean));
                    }
                }
            });
        });
        of_x
    }
}

/// The batch norm of one batch on the host.
pub(crate) struct Normed {
    pub(crate) columns: NormedColumns,
    /// One over each column's standard deviation.
    pub(crate) inverse: Vec<f64>,
    /// Whether mean and variance were computed from the batch.
    pub(crate) uses_batch_statistics: bool,
}

impl Normed {
    /// The gradients of the input, the scale and the shift.
    fn backward(&self, x: &Tensor, out: &Tensor, gradient: &Tensor) -> Result<[Tensor; 3]> {
        let columns = &self.columns;
        let of_all = read([x, out, &gradient.contiguous()?], |[x, out, gradient]| {
            let [sums, products] = columns.sums(x, out, gradient);
            let of_input = if self.uses_batch_statistics {
                let rows = (x.len() / sums.len()) as f64;
                let constant: Vec<f32> = sums.iter().map(|sum| (sum / rows) as f32).collect();
                let slopes = products.iter().zip(&self.inverse);
                let slope: Vec<f32> = slopes.map(|(p, i)| (p * i * i / rows) as f32).collect();
                columns.backward(x, out, gradient, &constant, &slope)
            } else {
                let zeros = vec![0.0; sums.len()];
                columns.backward(x, out, gradient, &zeros, &zeros)
            };
            (of_input, sums, products)
        });
        let (of_input, sums, products) = of_all?;
        let of_scale = products.iter().zip(&self.inverse).map(|(p, i)| (p * i) as f32);
        Ok([
            Tensor::from_vec(of_input, x.dims(), x.device())?,
            Tensor::from_iter(of_scale, x.device())?,
            Tensor::from_iter(sums.iter().map(|sum| *sum as f32), x.device())?,
        ])
    }
}

impl CustomOp1 for Normed {
    fn name(&self) -> &'static str {
        "batch norm"
    }

    fn cpu_fwd(&self, x: &CpuStorage, of_x: &Layout) -> Result<(CpuStorage, Shape)> {
        let out = self.columns.normalise(contiguous(x.as_slice()?, of_x)?);
        Ok((CpuStorage::F32(out), of_x.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, out: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let [of_input, ..] = self.backward(x, out, gradient)?;
        Ok(Some(of_input))
    }
}

impl CustomOp3 for Normed {
    fn name(&self) -> &'static str {
        "batch norm with scale and shift"
    }

    /// The last two inputs, scale and shift, are already part of `columns`.
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        of_x: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        CustomOp1::cpu_fwd(self, x, of_x)
    }

    fn bwd(
        &self,
        x: &Tensor,
        _: &Tensor,
        _: &Tensor,
        out: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [of_input, of_scale, of_shift] = self.backward(x, out, gradient)?;
        Ok((Some(of_input), Some(of_scale), Some(of_shift)))
    }
}
