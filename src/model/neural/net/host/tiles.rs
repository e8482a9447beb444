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

/// The largest number of SIMD vectors in a tile's row.
const VECTORS: usize = 2;

/// The number of vectors in a tile, which are 6 rows of 2 or 12 rows of 1: with 16 vector registers, they leave room for
/// the factors, and no sum waits for its previous addition.
const TILE: usize = 12;

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
            let start = S::as_simd_f32s(&start[n * blocks.width..][..blocks.width]).0;
            let mut tile = RowTile::<S, N> {
                simd,
                x,
                inner,
                weight: S::as_simd_f32s(&weight[n * block..(n + 1) * block]).0.as_chunks().0,
                start: start.first_chunk().copied().unwrap_or([simd.splat_f32s(0.0); N]),
                run,
                columns: blocks.columns(n),
                n_columns: blocks.columns,
                row: 0,
                out,
            };
            while tile.row < run.rows {
                tile.row += in_registers::<N>(run.rows - tile.row, &mut tile);
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

/// A part of a product that stays in registers.
trait Tile {
    /// Computes `M` rows.
    fn compute<const M: usize>(&mut self);
}

/// Computes as many of the `rows` rows that are left as fit into registers, in `N` vectors each; returns their number.
/// The rows are divided evenly among tiles, because a tile of few rows takes as long as one of many.
#[inline(always)]
fn in_registers<const N: usize>(rows: usize, tile: &mut impl Tile) -> usize {
    let rows = rows.div_ceil(rows.div_ceil(TILE / N));
    match rows {
        1 => tile.compute::<1>(),
        2 => tile.compute::<2>(),
        3 => tile.compute::<3>(),
        4 => tile.compute::<4>(),
        5 => tile.compute::<5>(),
        6 => tile.compute::<6>(),
        7 if N == 1 => tile.compute::<7>(),
        8 if N == 1 => tile.compute::<8>(),
        9 if N == 1 => tile.compute::<9>(),
        10 if N == 1 => tile.compute::<10>(),
        11 if N == 1 => tile.compute::<11>(),
        _ => tile.compute::<TILE>(),
    }
    rows
}

/// Rows of one block of columns.
struct RowTile<'a, S: Simd, const N: usize> {
    simd: S,
    x: &'a [f32],
    inner: usize,
    /// `[cell, inner]`
    weight: &'a [[S::f32s; N]],
    start: [S::f32s; N],
    run: &'a RowRun,
    columns: Range<usize>,
    /// The number of columns of the output.
    n_columns: usize,
    /// The first row.
    row: usize,
    out: &'a mut [f32],
}

impl<S: Simd, const N: usize> Tile for RowTile<'_, S, N> {
    #[inline(always)]
    fn compute<const M: usize>(&mut self) {
        let sums =
            if self.inner == 1 { self.of_one_channel::<M>() } else { self.of_channels::<M>() };
        for (m, sums) in sums.iter().enumerate() {
            self.write(self.row + m, sums);
        }
    }
}

impl<S: Simd, const N: usize> RowTile<'_, S, N> {
    #[inline(always)]
    fn of_channels<const M: usize>(&self) -> [[S::f32s; N]; M] {
        let (simd, inner) = (self.simd, self.inner);
        let mut sums = [self.start; M];
        for (cell, first) in &self.run.sources {
            let rows = &self.x[(first + self.row) * inner..][..M * inner];
            let rows: [&[f32]; M] = std::array::from_fn(|m| &rows[m * inner..][..inner]);
            for (k, weight) in self.weight[cell * inner..][..inner].iter().enumerate() {
                add_products(simd, &rows.map(|row| row[k]), weight, &mut sums);
            }
        }
        sums
    }

    /// The rows of one channel are adjacent numbers.
    #[inline(always)]
    fn of_one_channel<const M: usize>(&self) -> [[S::f32s; N]; M] {
        let mut sums = [self.start; M];
        for (cell, first) in &self.run.sources {
            let Some(numbers) = self.x[first + self.row..].first_chunk::<M>() else { break };
            add_products(self.simd, numbers, &self.weight[*cell], &mut sums);
        }
        sums
    }

    /// Writes the columns of a row. A store of whole vectors is several times faster than one of a part. If the block
    /// has all columns, it also writes over the rows behind, which are computed later.
    #[inline(always)]
    fn write(&mut self, row: usize, vectors: &[S::f32s; N]) {
        let width = N * S::F32_LANES;
        let (first, n) = (row * self.n_columns + self.columns.start, self.columns.len());
        let writes_over = n == width || n == self.n_columns;
        let whole = self.out.get_mut(first..first + width).filter(|_| writes_over);
        if let Some(out) = whole.and_then(|out| S::as_mut_simd_f32s(out).0.first_chunk_mut()) {
            *out = *vectors;
            return;
        }
        let (whole, rest) = S::as_mut_simd_f32s(&mut self.out[first..first + n]);
        let n = whole.len();
        whole.iter_mut().zip(vectors).for_each(|(out, vector)| *out = *vector);
        if let Some(vector) = vectors.get(n).filter(|_| !rest.is_empty()) {
            self.simd.partial_store_f32s(rest, *vector);
        }
    }
}

/// Adds the products of `M` numbers with the same vectors.
#[inline(always)]
fn add_products<S: Simd, const M: usize, const N: usize>(
    simd: S,
    numbers: &[f32; M],
    vectors: &[S::f32s; N],
    sums: &mut [[S::f32s; N]; M],
) {
    for m in 0..M {
        let number = simd.splat_f32s(numbers[m]);
        for n in 0..N {
            sums[m][n] = simd.mul_add_e_f32s(number, vectors[n], sums[m][n]);
        }
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
        let columns = blocks.columns(block);
        let of_weight = S::as_mut_simd_f32s(of_weight).0.as_chunks_mut::<N>().0;
        let mut packed = Vec::new();
        for run in runs {
            packed.resize(run.rows, [simd.splat_f32s(0.0); N]);
            pack(simd, gradient, run.first * blocks.columns, blocks.columns, &columns, &mut packed);
            if let Some(of_bias) = S::as_mut_simd_f32s(of_bias).0.first_chunk_mut::<N>() {
                for row in &packed {
                    for n in 0..N {
                        of_bias[n] = simd.add_f32s(of_bias[n], row[n]);
                    }
                }
            }
            let terms = run.sources.len() * channels.len();
            let gradient = &packed;
            let channels = channels.clone();
            let mut tile =
                OuterTile { simd, x, inner, gradient, channels, run, term: 0, of_weight };
            while tile.term < terms {
                tile.term += in_registers::<N>(terms - tile.term, &mut tile);
            }
        }
    }
}

/// Copies some of the `n_columns` columns of rows that begin at `first`. A vector's lanes behind the last column are
/// the next row's columns, or anything.
#[inline(always)]
fn pack<S: Simd, const N: usize>(
    simd: S,
    matrix: &[f32],
    first: usize,
    n_columns: usize,
    columns: &Range<usize>,
    packed: &mut [[S::f32s; N]],
) {
    let width = N * S::F32_LANES;
    for (row, packed) in packed.iter_mut().enumerate() {
        let rest = &matrix[first + row * n_columns + columns.start..];
        let (whole, _) = S::as_simd_f32s(&rest[..width.min(rest.len())]);
        match whole.first_chunk::<N>() {
            Some(whole) => *packed = *whole,
            None => {
                let mut rest = rest.chunks(S::F32_LANES);
                *packed = packed.map(|_| simd.partial_load_f32s(rest.next().unwrap_or_default()));
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

/// The products of some channels under some cells with all columns of the gradient, over the rows of one run.
struct OuterTile<'a, S: Simd, const N: usize> {
    simd: S,
    x: &'a [f32],
    inner: usize,
    /// The run's rows.
    gradient: &'a [[S::f32s; N]],
    channels: Range<usize>,
    run: &'a RowRun,
    /// The first term; the terms are `[source, channel]`.
    term: usize,
    /// `[cell, channel]`
    of_weight: &'a mut [[S::f32s; N]],
}

impl<S: Simd, const N: usize> Tile for OuterTile<'_, S, N> {
    #[inline(always)]
    fn compute<const M: usize>(&mut self) {
        let (simd, inner, n) = (self.simd, self.inner, self.channels.len());
        let terms: [_; M] = std::array::from_fn(|m| {
            let (source, channel) = ((self.term + m) / n, (self.term + m) % n);
            let (cell, first) = self.run.sources[source];
            (cell * n + channel, first * inner + self.channels.start + channel)
        });
        let mut sums = terms.map(|(to, _)| self.of_weight[to]);
        let length = (self.gradient.len() - 1) * inner + 1;
        let x = terms.map(|(_, from)| &self.x[from..][..length]);
        let mut at = 0;
        for gradient in self.gradient {
            add_products(simd, &x.map(|x| x[at]), gradient, &mut sums);
            at += inner;
        }
        for ((to, _), sums) in terms.into_iter().zip(sums) {
            self.of_weight[to] = sums;
        }
    }
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
