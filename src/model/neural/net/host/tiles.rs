//! The products of convolutions on the host, in tiles that stay in the processor's registers.
//!
//! A matrix of images has a row for each pixel of each image and a column for each channel, so that the pixels under
//! one cell of a kernel are consecutive rows of the matrix in memory:
//!
//! ```text
//! out[row] = start + sum over cells: x[row moved by the cell] W[cell]          RowProduct
//! dW[cell] = sum over rows: x[row moved by the cell]^T dout[row]               OuterProduct
//! ```
//! # Why
//! No patches are copied (im2col): a kernel of 3 x 3 would write and read nine times the image. In every tile, each
//! value of a result is summed over cells first and then over channels or rows, so that tiles and threads change no
//! bit.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

/// The number of rows in a tile.
const ROWS: usize = 6;

/// The number of SIMD vectors in a tile's row: with 16 vector registers, 6 rows of 2 leave room for the factors.
const VECTORS: usize = 2;

/// Consecutive rows of the output that use the same cells of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RowRun {
    /// The first row.
    pub(crate) first: usize,
    /// The number of rows.
    pub(crate) rows: usize,
    /// Each of these cells, and the row of `x` that it multiplies for the first row.
    pub(crate) sources: Vec<(usize, usize)>,
}

/// The split of a product's columns into blocks, which depends on the processor's vector width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ColumnBlocks {
    columns: usize,
    vectors: usize,
    /// The number of columns in a block.
    pub(crate) width: usize,
}

impl ColumnBlocks {
    /// Blocks of two vectors, or of one where that wastes less.
    pub(crate) fn new(columns: usize) -> Self {
        let lanes = Arch::new().dispatch(Lanes);
        let vectors = if columns.div_ceil(lanes).is_multiple_of(VECTORS) { VECTORS } else { 1 };
        Self { columns, vectors, width: vectors * lanes }
    }

    /// The number of blocks.
    pub(crate) fn len(self) -> usize {
        self.columns.div_ceil(self.width)
    }

    /// The number of columns in all blocks.
    pub(crate) fn all(self) -> usize {
        self.columns
    }

    /// The columns of a block.
    pub(crate) fn columns(self, block: usize) -> Range<usize> {
        block * self.width..((block + 1) * self.width).min(self.columns)
    }
}

struct Lanes;

impl WithSimd for Lanes {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> usize {
        S::F32_LANES
    }
}

/// The product for one run of rows, given all rows of `x`.
pub(crate) struct RowProduct<'a> {
    /// `[row, inner]`
    pub(crate) x: &'a [f32],
    /// The number of columns of `x`.
    pub(crate) inner: usize,
    /// `[block, cell, inner, width]`, zero beyond the last column.
    pub(crate) weight: &'a [f32],
    /// The length of a block of `weight`.
    pub(crate) block: usize,
    /// The initial values of the sums, `[block, width]`.
    pub(crate) start: &'a [f32],
    /// The blocks of the output's columns.
    pub(crate) blocks: ColumnBlocks,
    /// The run of rows to compute.
    pub(crate) run: &'a RowRun,
    /// The output of these rows, `[row, column]`.
    pub(crate) out: &'a mut [f32],
}

impl RowProduct<'_> {
    /// Computes the rows.
    pub(crate) fn compute(self) {
        Arch::new().dispatch(self);
    }

    #[inline(always)]
    fn by_blocks<S: Simd, const N: usize>(self, simd: S) {
        let Self { x, inner, weight, block, start, blocks, run, out } = self;
        for n in 0..blocks.len() {
            let tile = RowTile {
                x,
                inner,
                weight: &weight[n * block..(n + 1) * block],
                start: &start[n * blocks.width..(n + 1) * blocks.width],
                run,
                columns: blocks.columns(n),
                n_columns: blocks.columns,
            };
            let mut row = 0;
            while row < run.rows {
                row += match run.rows - row {
                    1 => tile.compute::<S, 1, N>(simd, row, out),
                    2 => tile.compute::<S, 2, N>(simd, row, out),
                    3 => tile.compute::<S, 3, N>(simd, row, out),
                    4 => tile.compute::<S, 4, N>(simd, row, out),
                    5 => tile.compute::<S, 5, N>(simd, row, out),
                    _ => tile.compute::<S, ROWS, N>(simd, row, out),
                };
            }
        }
    }
}

impl WithSimd for RowProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match self.blocks.vectors {
            1 => self.by_blocks::<S, 1>(simd),
            _ => self.by_blocks::<S, VECTORS>(simd),
        }
    }
}

/// Rows of one block of columns.
struct RowTile<'a> {
    x: &'a [f32],
    inner: usize,
    weight: &'a [f32],
    start: &'a [f32],
    run: &'a RowRun,
    columns: Range<usize>,
    /// The number of columns of the output.
    n_columns: usize,
}

impl RowTile<'_> {
    /// Computes `M` rows from `row` on; returns `M`.
    #[inline(always)]
    fn compute<S: Simd, const M: usize, const N: usize>(
        &self,
        simd: S,
        row: usize,
        out: &mut [f32],
    ) -> usize {
        let inner = self.inner;
        let start = S::as_simd_f32s(self.start).0.first_chunk::<N>();
        let mut sums = [start.copied().unwrap_or([simd.splat_f32s(0.0); N]); M];
        for (cell, first) in &self.run.sources {
            let rows = &self.x[(first + row) * inner..][..M * inner];
            let rows: [&[f32]; M] = std::array::from_fn(|m| &rows[m * inner..][..inner]);
            let length = inner * N * S::F32_LANES;
            let weight = S::as_simd_f32s(&self.weight[cell * length..][..length]).0;
            let weight = &weight.as_chunks::<N>().0[..inner];
            for k in 0..inner {
                for m in 0..M {
                    let x = simd.splat_f32s(rows[m][k]);
                    for n in 0..N {
                        sums[m][n] = simd.mul_add_e_f32s(x, weight[k][n], sums[m][n]);
                    }
                }
            }
        }
        for (m, sums) in sums.iter().enumerate() {
            let out = &mut out[(row + m) * self.n_columns..][self.columns.clone()];
            write(simd, sums, out);
        }
        M
    }
}

/// Writes the first values of the vectors, as many as `out` holds.
#[inline(always)]
fn write<S: Simd, const N: usize>(simd: S, vectors: &[S::f32s; N], out: &mut [f32]) {
    let (whole, rest) = S::as_mut_simd_f32s(out);
    let n = whole.len();
    whole.iter_mut().zip(vectors).for_each(|(out, vector)| *out = *vector);
    if let Some(vector) = vectors.get(n).filter(|_| !rest.is_empty()) {
        simd.partial_store_f32s(rest, *vector);
    }
}

/// The gradient of the weights between some channels and one block of columns, summed over runs.
pub(crate) struct OuterProduct<'a> {
    /// `[row, channel]`
    pub(crate) x: &'a [f32],
    /// The number of channels of `x`.
    pub(crate) inner: usize,
    /// The gradient of the output, `[row, column]`.
    pub(crate) gradient: &'a [f32],
    /// The blocks of the output's columns.
    pub(crate) blocks: ColumnBlocks,
    /// The index of the block of columns.
    pub(crate) block: usize,
    /// The channels of `x` in this tile.
    pub(crate) channels: Range<usize>,
    /// The runs of rows to sum over.
    pub(crate) runs: &'a [RowRun],
    /// `[cell, channel, width]`
    pub(crate) of_weight: &'a mut [f32],
    /// The sums of the gradient's columns, `[width]`.
    pub(crate) of_bias: &'a mut [f32],
}

impl OuterProduct<'_> {
    /// Adds the products of all rows to `of_weight` and `of_bias`.
    pub(crate) fn add(self) {
        Arch::new().dispatch(self);
    }

    #[inline(always)]
    fn by_runs<S: Simd, const N: usize>(self, simd: S) {
        let Self { x, inner, gradient, blocks, block, channels, runs, of_weight, of_bias } = self;
        let (columns, width) = (blocks.columns(block), blocks.width);
        let mut packed = Vec::new();
        for run in runs {
            packed.clear();
            packed.resize(run.rows * width, 0.0);
            let rows = gradient[run.first * blocks.columns..].chunks_exact(blocks.columns);
            for (packed, row) in packed.chunks_exact_mut(width).zip(rows) {
                packed[..columns.len()].copy_from_slice(&row[columns.clone()]);
                of_bias.iter_mut().zip(&*packed).for_each(|(sum, g)| *sum += g);
            }
            let gradient = S::as_simd_f32s(&packed).0.as_chunks::<N>().0;
            for (cell, first) in &run.sources {
                let x = &x[first * inner..(first + run.rows) * inner];
                let of_cell = &mut of_weight[cell * channels.len() * width..];
                let of_cell = &mut of_cell[..channels.len() * width];
                let mut done = 0;
                while done < channels.len() {
                    let at = channels.start + done;
                    let of = &mut of_cell[done * width..];
                    done += match channels.len() - done {
                        1 => outer::<S, 1, N>(simd, x, inner, at, gradient, of),
                        2 => outer::<S, 2, N>(simd, x, inner, at, gradient, of),
                        3 => outer::<S, 3, N>(simd, x, inner, at, gradient, of),
                        4 => outer::<S, 4, N>(simd, x, inner, at, gradient, of),
                        5 => outer::<S, 5, N>(simd, x, inner, at, gradient, of),
                        _ => outer::<S, ROWS, N>(simd, x, inner, at, gradient, of),
                    };
                }
            }
        }
    }
}

impl WithSimd for OuterProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match self.blocks.vectors {
            1 => self.by_runs::<S, 1>(simd),
            _ => self.by_runs::<S, VECTORS>(simd),
        }
    }
}

/// Adds the products of `M` channels of `x`, from channel `at` on, with all columns of `gradient` to `of`; returns `M`.
#[inline(always)]
fn outer<S: Simd, const M: usize, const N: usize>(
    simd: S,
    x: &[f32],
    inner: usize,
    at: usize,
    gradient: &[[S::f32s; N]],
    of: &mut [f32],
) -> usize {
    let of = S::as_mut_simd_f32s(&mut of[..M * N * S::F32_LANES]).0;
    let mut sums = [[simd.splat_f32s(0.0); N]; M];
    for m in 0..M {
        sums[m].copy_from_slice(&of[m * N..(m + 1) * N]);
    }
    for (x, gradient) in x.chunks_exact(inner).zip(gradient) {
        let Some(x) = x[at..].first_chunk::<M>() else { break };
        for m in 0..M {
            let x = simd.splat_f32s(x[m]);
            for n in 0..N {
                sums[m][n] = simd.mul_add_e_f32s(x, gradient[n], sums[m][n]);
            }
        }
    }
    for m in 0..M {
        of[m * N..(m + 1) * N].copy_from_slice(&sums[m]);
    }
    M
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Integers, so that every order of summation gives the same result.
    fn counted(n: usize, step: usize) -> Vec<f32> {
        (0..n).map(|n| (n * step % 11) as f32 - 5.0).collect()
    }

    /// Two cells read rows 1 and 4 of `x` for the first row. The cases have row counts around the size of a tile, and
    /// column counts that are not multiples of a vector.
    #[test]
    fn products_of_any_size_are_those_by_hand() {
        for (rows, inner, columns) in
            [(1, 1, 1), (2, 3, 5), (5, 4, 16), (6, 2, 17), (7, 1, 33), (13, 5, 24), (17, 7, 40)]
        {
            let x = counted((rows + 4) * inner, 7);
            let run = RowRun { first: 2, rows, sources: vec![(0, 1), (1, 4)] };
            let blocks = ColumnBlocks::new(columns);
            let (weight, bias) = (counted(2 * inner * columns, 5), counted(columns, 3));
            let w = |cell: usize, k: usize, c: usize| weight[(cell * inner + k) * columns + c];
            let block = 2 * inner * blocks.width;
            let (mut packed, mut start) = (vec![0.0; blocks.len() * block], bias.clone());
            start.resize(blocks.len() * blocks.width, 0.0);
            for (c, row) in (0..columns).flat_map(|c| (0..2 * inner).map(move |row| (c, row))) {
                let at = c / blocks.width * block + row * blocks.width + c % blocks.width;
                packed[at] = w(row / inner, row % inner, c);
            }
            let mut out = vec![f32::NAN; rows * columns];
            let (x, weight, start, out_rows) = (&x[..], &packed[..], &start[..], &mut out[..]);
            let run = &run;
            RowProduct { x, inner, weight, block, start, blocks, run, out: out_rows }.compute();
            let gradient = counted((rows + 2) * columns, 9);
            let mut of_weight = vec![vec![0.0; 2 * inner * blocks.width]; blocks.len()];
            let mut of_bias = vec![vec![0.0; blocks.width]; blocks.len()];
            for (block, (of_weight, of_bias)) in of_weight.iter_mut().zip(&mut of_bias).enumerate()
            {
                let (runs, gradient) = (std::slice::from_ref(run), &gradient[..]);
                let channels = 0..inner;
                OuterProduct {
                    x,
                    inner,
                    gradient,
                    blocks,
                    block,
                    channels,
                    runs,
                    of_weight,
                    of_bias,
                }
                .add();
            }
            for c in 0..columns {
                let what = format!("{rows} x {inner} x {columns}, column {c}");
                for row in 0..rows {
                    let product = |cell, first| -> f32 {
                        (0..inner).map(|k| x[(first + row) * inner + k] * w(cell, k, c)).sum()
                    };
                    let want = bias[c] + product(0, 1) + product(1, 4);
                    assert_eq!(out[row * columns + c], want, "{what}, row {row}");
                }
                let slope = |row: usize| gradient[(2 + row) * columns + c];
                let (of_weight, at) = (&of_weight[c / blocks.width], c % blocks.width);
                let sum: f32 = (0..rows).map(slope).sum();
                assert_eq!(of_bias[c / blocks.width][at], sum, "{what}");
                for (cell, first) in &run.sources {
                    for k in 0..inner {
                        let want: f32 =
                            (0..rows).map(|row| x[(first + row) * inner + k] * slope(row)).sum();
                        let got = of_weight[(cell * inner + k) * blocks.width + at];
                        assert_eq!(got, want, "{what}, cell {cell}, channel {k}");
                    }
                }
            }
        }
    }
}
