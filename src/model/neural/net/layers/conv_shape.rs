//! The shape of a convolution: which pixels of the input each pixel of the output reads, and through which cells of the
//! kernel.
//!
//! A matrix has one row for each `[row, column, image]` of a batch. Neighbouring columns that use the same cells of the
//! kernel form one run of rows. Cells that fall on the padding are left out, so that its zeros cost nothing.

use crate::model::neural::net::host::tiles::RowRun;

/// The largest number of rows in a run: a whole number of tiles.
const MAX_ROWS: usize = 240;

/// The sizes of a convolution of one batch.
#[derive(Debug, Clone, Copy)]
pub(in crate::model::neural) struct ConvShape {
    pub(in crate::model::neural) images: usize,
    pub(in crate::model::neural) in_channels: usize,
    pub(in crate::model::neural) out_channels: usize,
    pub(in crate::model::neural) kernel: usize,
    pub(in crate::model::neural) padding: usize,
    pub(in crate::model::neural) stride: usize,
    pub(in crate::model::neural) height: usize,
    pub(in crate::model::neural) width: usize,
    /// Rows and columns of the output.
    pub(in crate::model::neural) out_height: usize,
    pub(in crate::model::neural) out_width: usize,
}

/// For one row (or column) of pixels: each row (or column) of the kernel, with the row (or column) of pixels that it
/// reads.
type ReachedCells = Vec<(usize, usize)>;

impl ConvShape {
    /// The number of cells of the kernel.
    pub(in crate::model::neural) fn cells(&self) -> usize {
        self.kernel * self.kernel
    }

    /// The number of images, at least one, whose patches have at most `max_elements` elements.
    pub(in crate::model::neural) fn images_at_once(&self, max_elements: usize) -> usize {
        let patches = self.in_channels * self.cells() * self.out_height * self.out_width;
        (max_elements / patches.max(1)).max(1)
    }

    /// For all pixels of the output, the pixels of the input that they read.
    pub(in crate::model::neural) fn reads(&self) -> Vec<RowRun> {
        let reached = |at: usize, size: usize| -> ReachedCells {
            let inside =
                |k: &usize| (self.padding..size + self.padding).contains(&(at * self.stride + k));
            (0..self.kernel)
                .filter(inside)
                .map(|k| (k, at * self.stride + k - self.padding))
                .collect()
        };
        let rows = (0..self.out_height).map(|y| reached(y, self.height)).collect::<Vec<_>>();
        let columns = (0..self.out_width).map(|x| reached(x, self.width)).collect::<Vec<_>>();
        self.runs(&rows, &columns, self.width)
    }

    /// For all pixels of the input, the pixels of the output that read them.
    pub(in crate::model::neural) fn is_read_by(&self) -> Vec<RowRun> {
        let reached = |at: usize, size: usize| -> ReachedCells {
            let reads = |k: usize| {
                let from = (at + self.padding)
                    .checked_sub(k)
                    .filter(|from| from.is_multiple_of(self.stride))?;
                Some((k, from / self.stride)).filter(|(_, from)| *from < size)
            };
            (0..self.kernel).filter_map(reads).collect()
        };
        let rows = (0..self.height).map(|y| reached(y, self.out_height)).collect::<Vec<_>>();
        let columns = (0..self.width).map(|x| reached(x, self.out_width)).collect::<Vec<_>>();
        self.runs(&rows, &columns, self.out_width)
    }

    /// The runs of all pixels; `width` is the width of the image that they read.
    fn runs(&self, rows: &[ReachedCells], columns: &[ReachedCells], width: usize) -> Vec<RowRun> {
        let mut runs = Vec::new();
        for (y, from_rows) in rows.iter().enumerate() {
            let mut x = 0;
            while let Some(from_columns) = columns.get(x) {
                let together = columns[x..].iter().enumerate().take_while(|(n, reached)| {
                    let moved = from_columns.iter().map(|(k, column)| (*k, column + n));
                    reached.iter().copied().eq(moved)
                });
                let n = together.count();
                let cells = from_rows.iter().flat_map(|(ky, row)| {
                    let cell = move |(kx, column): &(usize, usize)| {
                        (ky * self.kernel + kx, (row * width + column) * self.images)
                    };
                    from_columns.iter().map(cell)
                });
                let (first, rows) = ((y * columns.len() + x) * self.images, n * self.images);
                let sources: Vec<(usize, usize)> = cells.collect();
                for done in (0..rows).step_by(MAX_ROWS) {
                    let sources = sources.iter().map(|(cell, row)| (*cell, row + done)).collect();
                    runs.push(RowRun {
                        first: first + done,
                        rows: MAX_ROWS.min(rows - done),
                        sources,
                    });
                }
                x += n;
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A 3 x 3 kernel with a padding of 1 on one row of pixels of one channel.
    fn shape(images: usize, stride: usize, width: usize, out_width: usize) -> ConvShape {
        ConvShape {
            images,
            in_channels: 1,
            out_channels: 1,
            kernel: 3,
            padding: 1,
            stride,
            height: 1,
            width,
            out_height: 1,
            out_width,
        }
    }

    fn run(first: usize, rows: usize, sources: &[(usize, usize)]) -> RowRun {
        RowRun { first, rows, sources: sources.to_vec() }
    }

    /// Two images of one row of pixels, on which only the cells 3 to 5 of a 3 x 3 kernel fall.
    #[test]
    fn pixels_that_the_same_cells_reach_are_one_run() {
        let reads = shape(2, 1, 5, 5).reads();
        let inside = run(2, 6, &[(3, 0), (4, 2), (5, 4)]);
        assert_eq!(reads, [run(0, 2, &[(4, 0), (5, 2)]), inside, run(8, 2, &[(3, 6), (4, 8)])]);
        let is_read_by = shape(2, 1, 5, 5).is_read_by();
        let inside = run(2, 6, &[(3, 4), (4, 2), (5, 0)]);
        let (left, right) = (run(0, 2, &[(3, 2), (4, 0)]), run(8, 2, &[(4, 8), (5, 6)]));
        assert_eq!(is_read_by, [left, inside, right]);
    }

    /// The kernel is centred on the pixels 0, 2 and 4 for the outputs 0, 1 and 2.
    #[test]
    fn a_stride_leaves_pixels_out() {
        let reads = shape(1, 2, 5, 3).reads();
        let wanted = [
            run(0, 1, &[(4, 0), (5, 1)]),
            run(1, 1, &[(3, 1), (4, 2), (5, 3)]),
            run(2, 1, &[(3, 3), (4, 4)]),
        ];
        assert_eq!(reads, wanted);
        let is_read_by = shape(1, 2, 5, 3).is_read_by();
        let cells: Vec<_> = is_read_by.iter().map(|run| &run.sources[..]).collect();
        let wanted: [&[(usize, usize)]; 5] =
            [&[(4, 0)], &[(3, 1), (5, 0)], &[(4, 1)], &[(3, 2), (5, 1)], &[(4, 2)]];
        assert_eq!(cells, wanted);
        // A 1 x 1 kernel never reads the pixels in between.
        let shape = ConvShape { kernel: 1, padding: 0, ..shape(1, 2, 4, 2) };
        let cells: Vec<usize> = shape.is_read_by().iter().map(|run| run.sources.len()).collect();
        assert_eq!(cells, [1, 0, 1, 0]);
    }

    #[test]
    fn long_runs_are_cut() {
        let runs = shape(101, 1, 7, 7).reads();
        let rows: Vec<usize> = runs.iter().map(|run| run.rows).collect();
        assert_eq!(rows, [101, 240, 240, 25, 101]);
        assert_eq!(runs[2], run(341, 240, &[(3, 240), (4, 341), (5, 442)]));
    }
}
