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
//! value of a result is summed over cells first and then over channels or rows, so that tiles, vectors and threads
//! change no bit. With AVX-512, convolutions of 128 and of 256 channels take 0.53 of the time that they take with AVX2
//! (forward and backward, two threads of an AMD EPYC of Zen 5).

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

/// The largest number of SIMD vectors in a tile's row.
pub(super) const VECTORS: usize = 2;

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
    /// The number of columns in all blocks.
    pub(crate) columns: usize,
    /// The number of vectors in a block's row.
    pub(super) vectors: usize,
    /// The number of columns in a block.
    pub(crate) width: usize,
}

impl ColumnBlocks {
    /// Blocks of two vectors, or of one where that wastes less.
    pub(crate) fn new(columns: usize) -> Self {
        Self::of_vectors(columns, Arch::new().dispatch(Lanes))
    }

    /// Blocks of vectors with this number of lanes.
    fn of_vectors(columns: usize, lanes: usize) -> Self {
        let vectors = if columns.div_ceil(lanes).is_multiple_of(VECTORS) { VECTORS } else { 1 };
        Self { columns, vectors, width: vectors * lanes }
    }

    /// The number of blocks.
    pub(crate) fn len(self) -> usize {
        self.columns.div_ceil(self.width)
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

/// A part of a product that stays in registers.
pub(super) trait Tile {
    /// Computes `M` rows.
    fn compute<const M: usize>(&mut self);
}

/// Computes as many of the `rows` rows that are left as fit into registers, in `N` vectors each; returns their number.
/// The rows are divided evenly among tiles, because a tile of few rows takes as long as one of many.
#[inline(always)]
pub(super) fn in_registers<const N: usize>(rows: usize, tile: &mut impl Tile) -> usize {
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

/// Adds the products of `M` numbers with the same vectors.
#[inline(always)]
pub(super) fn add_products<S: Simd, const M: usize, const N: usize>(
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

#[cfg(test)]
mod tests {
    use pulp::{Scalar128b, Scalar256b, Scalar512b};

    use super::*;
    use crate::model::neural::net::host::outer_product::OuterProduct;
    use crate::model::neural::net::host::row_product::RowProduct;

    /// Integers, so that every order of summation gives the same result.
    fn counted(n: usize, step: usize) -> Vec<f32> {
        (0..n).map(|n| (n * step % 11) as f32 - 5.0).collect()
    }

    /// With the vectors of the processor, and with those of others.
    #[test]
    fn products_of_any_size_are_those_by_hand() {
        Arch::new().dispatch(Products);
        Products.with_simd(Scalar128b);
        Products.with_simd(Scalar256b);
        Products.with_simd(Scalar512b);
    }

    struct Products;

    impl WithSimd for Products {
        type Output = ();

        fn with_simd<S: Simd>(self, simd: S) {
            products_are_those_by_hand(simd);
        }
    }

    /// Two cells read rows 1 and 4 of `x` for the first row. The cases have row counts around the size of a tile, column
    /// counts that are not multiples of a vector, and channels of two cells in one tile.
    fn products_are_those_by_hand<S: Simd>(simd: S) {
        for (rows, inner, columns) in [
            (1, 1, 1),
            (2, 3, 5),
            (5, 4, 16),
            (6, 2, 17),
            (7, 1, 33),
            (13, 5, 24),
            (17, 7, 40),
            (12, 1, 6),
            (29, 1, 3),
            (25, 16, 6),
            (31, 6, 16),
        ] {
            let x = counted((rows + 4) * inner, 7);
            let run = RowRun { first: 2, rows, sources: vec![(0, 1), (1, 4)] };
            let blocks = ColumnBlocks::of_vectors(columns, S::F32_LANES);
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
            RowProduct { x, inner, weight, block, start, blocks, run, out: out_rows }
                .with_simd(simd);
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
                .with_simd(simd);
            }
            for c in 0..columns {
                let lanes = S::F32_LANES;
                let what = format!("{lanes} lanes, {rows} x {inner} x {columns}, column {c}");
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
