//! Rows of numbers, in memory or in a memory-mapped scratch file.
//!
//! # Why
//! Features are the one part of the input that is larger than its annotations: two million rows of 512 numbers are
//! 4 GB. Rows are stored in order of arrival and read through an index, so that a matrix in a file is read exactly as
//! one in memory, and sorting moves four bytes a row. Bytes stay bytes: an image takes a quarter of its size as `f32`.

use std::fs::File;
use std::io::{BufWriter, Write};

use arrow::array::RecordBatch;
use arrow::buffer::ScalarBuffer;
use datafusion::common::stats::Precision;
use memmap2::{Advice, Mmap};

use crate::engine::ScratchFolder;
use crate::error::{Error, Result};
use crate::frame::memory::reservation::grown_bytes;

/// The type of one number as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberType {
    /// A byte, 0 to 255: pixels.
    Byte,
    /// An `f32`, in the byte order of the machine.
    F32,
}

impl NumberType {
    pub(super) fn size(self) -> usize {
        match self {
            Self::Byte => 1,
            Self::F32 => 4,
        }
    }
}

/// The memory limit of a matrix, and the location of its scratch file.
#[derive(Debug, Clone, Default)]
pub struct Scratch {
    /// Bytes that may stay in memory; `None` for no limit.
    pub budget: Option<usize>,
    /// The folder of scratch files.
    pub folder: ScratchFolder,
    /// How many rows will arrive.
    pub rows: Precision<usize>,
}

impl Scratch {
    /// Whether rows of so many bytes go to the file from the first one, because all of them will not fit in memory.
    fn begins_in_file(&self, row: usize) -> bool {
        let (budget, rows) = (self.budget, self.rows.get_value());
        budget.zip(rows).is_some_and(|(budget, rows)| rows.saturating_mul(row) > budget)
    }

    /// The number of rows of so many bytes for which memory is allocated before the first of them arrives. It is 0 where
    /// their number is an estimate, or they go to the file.
    pub(super) fn rows_at_once(&self, row: usize) -> usize {
        match self.rows {
            Precision::Exact(rows) if self.budget.is_some() && !self.begins_in_file(row) => rows,
            _ => 0,
        }
    }

    /// Bytes in memory after the first batch, of `rows` rows of so many bytes.
    pub(super) fn bytes_after_first(&self, rows: usize, row: usize) -> usize {
        let own = rows.saturating_mul(row);
        if self.begins_in_file(row) || self.budget.is_some_and(|budget| own > budget) {
            return 0;
        }
        own.max(self.rows_at_once(row).saturating_mul(row))
    }
}

enum Storage {
    Memory(Vec<u8>),
    Mapped(Mmap),
}

/// A matrix of features, one row per id.
pub struct Matrix {
    width: usize,
    shape: Vec<usize>,
    cell: NumberType,
    bytes: Storage,
    /// The position of each row among the stored rows.
    positions: Vec<u32>,
}

impl Matrix {
    /// A matrix in memory; `values` holds row after row.
    #[must_use]
    pub fn from_rows(width: usize, values: &[f32]) -> Self {
        Self {
            width,
            shape: vec![width],
            cell: NumberType::F32,
            bytes: Storage::Memory(values.iter().flat_map(|v| v.to_ne_bytes()).collect()),
            positions: (0..(values.len() / width.max(1)) as u32).collect(),
        }
    }

    /// How many rows there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.positions.len()
    }

    /// Whether the matrix has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// Numbers in a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// The axes of a row: its width, or those of an image tensor.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Copies row `row` into `out`, as long as a row.
    pub fn read(&self, row: usize, out: &mut [f32]) {
        let bytes: &[u8] = match &self.bytes {
            Storage::Memory(bytes) => bytes,
            Storage::Mapped(map) => map,
        };
        let size = self.width * self.cell.size();
        let start = self.positions[row] as usize * size;
        let bytes = &bytes[start..start + size];
        match self.cell {
            NumberType::Byte => out.iter_mut().zip(bytes).for_each(|(v, b)| *v = f32::from(*b)),
            NumberType::F32 => {
                let words = bytes.as_chunks::<4>().0;
                out.iter_mut().zip(words).for_each(|(v, w)| *v = f32::from_ne_bytes(*w));
            }
        }
    }
}

/// Builds a matrix from rows as they arrive.
pub struct MatrixWriter {
    width: usize,
    shape: Vec<usize>,
    cell: NumberType,
    scratch: Scratch,
    memory: Vec<u8>,
    file: Option<BufWriter<File>>,
}

impl MatrixWriter {
    /// No rows yet.
    #[must_use]
    pub fn new(shape: Vec<usize>, cell: NumberType, mut scratch: Scratch) -> Self {
        let width: usize = shape.iter().product();
        let row = width * cell.size();
        if scratch.begins_in_file(row) {
            scratch.budget = Some(0);
        }
        // A vector that grows is copied each time, and held twice meanwhile.
        let memory = Vec::with_capacity(scratch.rows_at_once(row) * row);
        Self { width, shape, cell, scratch, memory, file: None }
    }

    /// Numbers in a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// The number of rows for which memory was allocated before the first of them arrived; 0 once they are in the file.
    pub(super) fn rows_at_once(&self) -> usize {
        let row = self.width * self.cell.size();
        if self.file.is_some() { 0 } else { self.scratch.rows_at_once(row) }
    }

    /// Bytes in memory after the numbers of a further batch.
    pub(super) fn bytes_after(&self, batch: &RecordBatch) -> usize {
        let more = batch.num_rows().saturating_mul(self.width).saturating_mul(self.cell.size());
        let grown = self.memory.len().saturating_add(more);
        if self.file.is_some() || self.scratch.budget.is_some_and(|budget| grown > budget) {
            return 0;
        }
        grown_bytes(&self.memory, more)
    }

    /// Appends whole rows of f32 values.
    ///
    /// # Errors
    /// When the scratch file cannot be written.
    pub fn push_f32s(&mut self, values: &ScalarBuffer<f32>) -> Result<()> {
        self.push_bytes(values.inner())
    }

    /// Appends whole rows as they are stored.
    ///
    /// # Errors
    /// When the scratch file cannot be written.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        let full = self.scratch.budget.is_some_and(|b| self.memory.len() + bytes.len() > b);
        if full && self.file.is_none() {
            let file = self.scratch.folder.file().map_err(|e| self.failed(&e))?;
            let mut file = BufWriter::with_capacity(1 << 20, file);
            file.write_all(&self.memory).map_err(|e| self.failed(&e))?;
            self.memory = Vec::new();
            self.file = Some(file);
        }
        if let Some(file) = &mut self.file {
            return file.write_all(bytes).map_err(|e| self.failed(&e));
        }
        self.memory.extend_from_slice(bytes);
        Ok(())
    }

    /// The matrix whose row `n` is the one that arrived as number `positions[n]`.
    ///
    /// # Errors
    /// When the scratch file cannot be mapped.
    pub fn finish(mut self, positions: Vec<u32>) -> Result<Matrix> {
        let bytes = match self.file.take() {
            None => Storage::Memory(std::mem::take(&mut self.memory)),
            Some(file) => {
                let file = file.into_inner().map_err(|e| self.failed(e.error()))?;
                Storage::Mapped(map(&file).map_err(|e| self.failed(&e))?)
            }
        };
        Ok(Matrix { width: self.width, shape: self.shape, cell: self.cell, bytes, positions })
    }

    fn failed(&self, e: &std::io::Error) -> Error {
        self.scratch.folder.failed(e, "features larger than half of the memory limit")
    }
}

/// Maps a file whose rows will be read in a shuffled order.
#[allow(unsafe_code)]
fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the file has no name, so no other process can open it, and this process no longer writes to it: the
    // mapped bytes never change.
    let map = unsafe { Mmap::map(file)? };
    map.advise(Advice::Random)?;
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(budget: Option<usize>) -> Matrix {
        let scratch = Scratch { budget, ..Scratch::default() };
        let mut writer = MatrixWriter::new(vec![2], NumberType::F32, scratch);
        for row in 0..100_u8 {
            writer.push_f32s(&ScalarBuffer::from(vec![f32::from(row), -0.5])).unwrap();
        }
        writer.finish((0..100).rev().collect()).unwrap()
    }

    #[test]
    fn a_file_reads_as_memory_does() {
        let (memory, file) = (matrix(None), matrix(Some(64)));
        let is_mapped = |matrix: &Matrix| matches!(matrix.bytes, Storage::Mapped(_));
        assert!(!is_mapped(&memory) && is_mapped(&file));
        let (mut a, mut b) = ([0.0; 2], [0.0; 2]);
        for row in 0..100 {
            memory.read(row, &mut a);
            file.read(row, &mut b);
            assert_eq!(a, b);
            assert_eq!(a, [99.0 - row as f32, -0.5]);
        }
    }

    /// A writer with room for 100 rows, and one row, where so many will arrive.
    fn begun(rows: Precision<usize>) -> MatrixWriter {
        let scratch = Scratch { budget: Some(800), rows, ..Scratch::default() };
        let mut writer = MatrixWriter::new(vec![2], NumberType::F32, scratch);
        writer.push_f32s(&ScalarBuffer::from(vec![1.0, -0.5])).unwrap();
        writer
    }

    #[test]
    fn rows_that_will_not_fit_go_to_the_file_at_once() {
        for rows in [Precision::Absent, Precision::Inexact(100), Precision::Exact(100)] {
            assert!(begun(rows).file.is_none(), "{rows:?}");
        }
        for rows in [Precision::Inexact(101), Precision::Exact(101)] {
            assert!(begun(rows).file.is_some(), "{rows:?}");
        }
    }

    #[test]
    fn memory_for_a_known_number_of_rows_is_allocated_once_and_none_for_an_estimate() {
        let capacity = |rows| begun(rows).memory.capacity();
        assert!(capacity(Precision::Exact(100)) >= 800);
        assert!(capacity(Precision::Inexact(100)) < 800);
    }

    #[test]
    fn bytes_become_numbers() {
        let mut writer = MatrixWriter::new(vec![1, 1, 3], NumberType::Byte, Scratch::default());
        writer.push_bytes(&[0, 128, 255]).unwrap();
        let matrix = writer.finish(vec![0]).unwrap();
        let mut row = [0.0; 3];
        matrix.read(0, &mut row);
        assert_eq!((row, matrix.shape()), ([0.0, 128.0, 255.0], &[1, 1, 3][..]));
    }
}
