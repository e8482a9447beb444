//! The product of images with the gradient of a convolution's output, which gives the gradient of its weights.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use crate::model::neural::net::host::tiles::{
    ColumnBlocks, RowRun, Tile, VECTORS, add_products, in_registers,
};

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
    /// The channels of `x` whose weights' gradient it is.
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
        if let Some(whole) = whole.first_chunk::<N>() {
            *packed = *whole;
        } else {
            let mut rest = rest.chunks(S::F32_LANES);
            *packed = packed.map(|_| simd.partial_load_f32s(rest.next().unwrap_or_default()));
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
    use crate::model::neural::net::host::tiles::test_cases::{SIZES, counted, with_all_vectors};

    #[test]
    fn outer_products_of_any_size_are_those_by_hand() {
        with_all_vectors(OuterProducts);
    }

    #[derive(Clone, Copy)]
    struct OuterProducts;

    impl WithSimd for OuterProducts {
        type Output = ();

        /// Of all channels, and of all but the first.
        fn with_simd<S: Simd>(self, simd: S) {
            for sizes in SIZES {
                are_those_by_hand(simd, sizes, 0..sizes.1);
                are_those_by_hand(simd, sizes, 1..sizes.1);
            }
        }
    }

    /// Two cells read rows 1 and 4 of `x` for the first row.
    fn are_those_by_hand<S: Simd>(
        simd: S,
        (rows, inner, columns): (usize, usize, usize),
        channels: Range<usize>,
    ) {
        let x = counted((rows + 4) * inner, 7);
        let run = RowRun { first: 2, rows, sources: vec![(0, 1), (1, 4)] };
        let blocks = ColumnBlocks::of_vectors(columns, S::F32_LANES);
        let gradient = counted((rows + 2) * columns, 9);
        for block in 0..blocks.len() {
            let mut of_weight = vec![0.0; 2 * channels.len() * blocks.width];
            let mut of_bias = vec![0.0; blocks.width];
            OuterProduct {
                x: &x,
                inner,
                gradient: &gradient,
                blocks,
                block,
                channels: channels.clone(),
                runs: std::slice::from_ref(&run),
                of_weight: &mut of_weight,
                of_bias: &mut of_bias,
            }
            .with_simd(simd);
            for (at, c) in blocks.columns(block).enumerate() {
                let (lanes, of) = (S::F32_LANES, &channels);
                let what = format!("{lanes} lanes, {rows} x {inner} x {columns}, {of:?}, {c}");
                let slope = |row: usize| gradient[(2 + row) * columns + c];
                let sum: f32 = (0..rows).map(slope).sum();
                assert_eq!(of_bias[at], sum, "{what}");
                for (cell, first) in &run.sources {
                    for (n, k) in channels.clone().enumerate() {
                        let want: f32 =
                            (0..rows).map(|row| x[(first + row) * inner + k] * slope(row)).sum();
                        let got = of_weight[(cell * channels.len() + n) * blocks.width + at];
                        assert_eq!(got, want, "{what}, cell {cell}, channel {k}");
                    }
                }
            }
        }
    }
}
