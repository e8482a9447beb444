//! The product of images with the weights of a kernel, which gives the output of a convolution, or the gradient of its
//! input.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use crate::model::neural::net::host::tiles::{
    ColumnBlocks, RowRun, Tile, VECTORS, add_products, in_registers,
};

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
            let numbers = &self.x[first + self.row..][..M];
            let Some(numbers) = numbers.first_chunk::<M>() else { continue };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::neural::net::host::tiles::test_cases::{SIZES, counted, with_all_vectors};

    #[test]
    fn row_products_of_any_size_are_those_by_hand() {
        with_all_vectors(RowProducts);
    }

    #[derive(Clone, Copy)]
    struct RowProducts;

    impl WithSimd for RowProducts {
        type Output = ();

        fn with_simd<S: Simd>(self, simd: S) {
            SIZES.into_iter().for_each(|sizes| is_that_by_hand(simd, sizes));
        }
    }

    /// Two cells read rows 1 and 4 of `x` for the first row.
    fn is_that_by_hand<S: Simd>(simd: S, (rows, inner, columns): (usize, usize, usize)) {
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
        let (x, weight, start) = (&x[..], &packed[..], &start[..]);
        RowProduct { x, inner, weight, block, start, blocks, run: &run, out: &mut out }
            .with_simd(simd);
        for (row, c) in (0..rows).flat_map(|row| (0..columns).map(move |c| (row, c))) {
            let product = |cell, first| -> f32 {
                (0..inner).map(|k| x[(first + row) * inner + k] * w(cell, k, c)).sum()
            };
            let want = bias[c] + product(0, 1) + product(1, 4);
            let lanes = S::F32_LANES;
            let what = format!("{lanes} lanes, {rows} x {inner} x {columns}, ({row}, {c})");
            assert_eq!(out[row * columns + c], want, "{what}");
        }
    }
}
