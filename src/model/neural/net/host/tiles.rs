//! Register tiles: a product is computed in tiles whose sums stay in the processor's registers. This file has the tiles'
//! sizes, the split of a product's columns into vectors, and the runs of rows that a product is computed for.

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
    pub(super) fn of_vectors(columns: usize, lanes: usize) -> Self {
        let vectors = if columns.div_ceil(lanes).is_multiple_of(VECTORS) { VECTORS } else { 1 };
        Self { columns, vectors, width: vectors * lanes }
    }

    /// The number of blocks.
    pub(crate) fn len(self) -> usize {
        self.columns.div_ceil(self.width)
    }

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

/// Cases for the tests of products.
#[cfg(test)]
pub(super) mod test_cases {
    use pulp::{Arch, Scalar128b, Scalar256b, Scalar512b, WithSimd};

    /// The numbers of rows, of columns of `x` and of columns of the product: row counts around the size of a tile, column
    /// counts that are not multiples of a vector, and channels of two cells in one tile.
    pub(crate) const SIZES: [(usize, usize, usize); 11] = [
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
    ];

    /// Integers, so that every order of summation gives the same result.
    pub(crate) fn counted(n: usize, step: usize) -> Vec<f32> {
        (0..n).map(|n| (n * step % 11) as f32 - 5.0).collect()
    }

    /// Runs a test with the vectors of the processor, and with those of others.
    pub(crate) fn with_all_vectors(test: impl WithSimd<Output = ()> + Copy) {
        Arch::new().dispatch(test);
        test.with_simd(Scalar128b);
        test.with_simd(Scalar256b);
        test.with_simd(Scalar512b);
    }
}
