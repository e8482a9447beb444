//! One row of numbers for each pair, `[pair, class]`, in which a row occupies as few cache lines as possible.
//!
//! # Why
//! A sweep reads the rows of an instance's pairs at random addresses, and every cache line costs a wait for memory. A row
//! of up to 8 numbers is padded to 2, 4 or 8, so that it lies in one line of 64 bytes; a longer one is padded to whole
//! lines. Kernels see rows as groups of `W` numbers, one group where `W` is 2 or 4, so that one code serves every number
//! of classes, in vectors of a fixed length.

use crate::prefetch::prefetch;

/// The bytes of a cache line.
const LINE: usize = 64;

/// The numbers of a cache line.
pub(super) const LANES: usize = LINE / size_of::<f64>();

/// How many annotations ahead of its use a row is prefetched.
pub(super) const PREFETCH_DISTANCE: usize = 64;

/// How many entries ahead a list that is read in order is prefetched: the processor does not load it by itself beside as
/// many random reads.
pub(super) const LIST_DISTANCE: usize = 512;

/// The distance from one row of `n` numbers to the next.
#[must_use]
pub const fn stride(n: usize) -> usize {
    match n {
        0..=2 => 2,
        3..=4 => 4,
        _ => n.next_multiple_of(LANES),
    }
}

/// Runs `$body` with `W`, the numbers of a group, for rows of this stride.
macro_rules! for_width {
    ($stride:expr, $width:ident => $body:expr) => {
        match $stride {
            2 => {
                const $width: usize = 2;
                $body
            }
            4 => {
                const $width: usize = 4;
                $body
            }
            _ => {
                const $width: usize = 8;
                $body
            }
        }
    };
}

pub(super) use for_width;

/// Numbers `[pair, class]`; each row is followed by its padding.
#[derive(Debug)]
pub struct PairRows {
    /// Longer than the rows by almost a cache line, so that the first row can be aligned to one.
    buffer: Vec<f64>,
    n_pairs: usize,
    stride: usize,
}

impl PairRows {
    /// Rows of zeros.
    #[must_use]
    pub fn zeros(n_pairs: usize, n_classes: usize) -> Self {
        let stride = stride(n_classes);
        Self { buffer: vec![0.0; n_pairs * stride + LANES - 1], n_pairs, stride }
    }

    /// The distance from one row to the next.
    #[must_use]
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// All rows with their padding.
    #[must_use]
    pub fn cells(&self) -> &[f64] {
        let start = self.buffer.as_ptr().align_offset(LINE);
        &self.buffer[start..start + self.n_pairs * self.stride]
    }

    /// All rows with their padding, mutable.
    pub fn cells_mut(&mut self) -> &mut [f64] {
        let start = self.buffer.as_ptr().align_offset(LINE);
        &mut self.buffer[start..start + self.n_pairs * self.stride]
    }

    /// The row of a pair, with its padding.
    #[must_use]
    pub fn row(&self, pair: usize) -> &[f64] {
        &self.cells()[pair * self.stride..(pair + 1) * self.stride]
    }

    /// All rows without their padding, `[pair, class]`.
    #[must_use]
    pub fn unpadded(&self, n_classes: usize) -> Vec<f64> {
        let mut numbers = Vec::with_capacity(self.n_pairs * n_classes);
        for row in self.cells().chunks_exact(self.stride) {
            numbers.extend_from_slice(&row[..n_classes]);
        }
        numbers
    }
}

/// Prefetches the `pair`-th row of `m` groups.
#[inline(always)]
pub(super) fn prefetch_row<const W: usize>(rows: &[[f64; W]], pair: u32, m: usize) {
    for group in 0..m {
        prefetch(rows, pair as usize * m + group);
    }
}

/// A row of `n` numbers in groups, filled up with zeros.
#[inline(always)]
pub(super) fn pad<const W: usize>(row: &[f64], groups: &mut [[f64; W]]) {
    let padded = groups.as_flattened_mut();
    padded[..row.len()].copy_from_slice(row);
    padded[row.len()..].fill(0.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_rows_lie_in_one_line_and_no_two_overlap() {
        for n in 1..=60 {
            let mut rows = PairRows::zeros(9, n);
            let (stride, start) = (stride(n), rows.cells().as_ptr() as usize);
            assert!(stride >= n && start.is_multiple_of(LINE), "{n}");
            let line = |number: usize| (start + number * size_of::<f64>()) / LINE;
            for pair in 0..9 {
                let (first, last) = (line(pair * stride), line(pair * stride + n - 1));
                assert!(last - first < n.div_ceil(LANES), "{n} {pair}");
            }
            for pair in 0..9 {
                rows.cells_mut()[pair * stride..pair * stride + n].fill(pair as f64);
            }
            assert_eq!(rows.unpadded(n).iter().sum::<f64>(), (36 * n) as f64);
        }
    }
}
