//! The numbers of a column of rows: in memory, or in a scratch file where the rows do not fit there.
//!
//! # Why
//! Rows arrive one after the other, and are afterwards read from the first to the last a few times. So a file is as good as
//! memory: it is written once, then mapped, and every pass gives its pages back to the system at its end. The file has no
//! name, so that the system frees it when the process ends, however it ends.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::ops::{Deref, DerefMut};

use memmap2::{MmapMut, UncheckedAdvice};

use super::reservation::grown_bytes;
use crate::engine::ScratchFolder;
use crate::error::{Error, Result};

/// Numbers in memory before they are written to the file.
const NUMBERS_AT_ONCE: usize = 1 << 16;

/// The numbers of a column. While rows arrive, those that are not in the file yet can be read and changed; after
/// [`Numbers::map`], all.
#[derive(Default)]
pub(in crate::frame) struct Numbers {
    memory: Vec<u32>,
    file: Option<BufWriter<File>>,
    map: Option<MmapMut>,
    /// How many are in the file.
    n_written: usize,
}

impl Numbers {
    /// Numbers in memory.
    #[cfg(test)]
    pub(in crate::frame) fn new(memory: Vec<u32>) -> Self {
        Self { memory, ..Self::default() }
    }

    /// How many there are.
    pub(in crate::frame) fn n(&self) -> usize {
        self.n_written + self.memory.len()
    }

    /// Whether they are in a scratch file, but for those that are not written yet.
    pub(in crate::frame) fn is_in_file(&self) -> bool {
        self.file.is_some() || self.map.is_some()
    }

    /// Those that are in memory, to which further ones are added.
    pub(in crate::frame) fn memory(&mut self) -> &mut Vec<u32> {
        &mut self.memory
    }

    /// The bytes of memory that they take after `more` numbers.
    pub(in crate::frame) fn bytes(&self, more: usize) -> usize {
        grown_bytes(&self.memory, more)
    }

    /// Moves all to a scratch file, to which further ones go too.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(in crate::frame) fn spill(&mut self, folder: &ScratchFolder) -> Result<()> {
        let file = folder.file().map_err(|e| failed(folder, &e))?;
        self.file = Some(BufWriter::with_capacity(1 << 20, file));
        self.write(folder)?;
        self.memory = Vec::new();
        Ok(())
    }

    /// Writes the numbers in memory to the file, if there is one and they are many.
    pub(in crate::frame) fn flush(&mut self, folder: &ScratchFolder) -> Result<()> {
        if self.file.is_some() && self.memory.len() >= NUMBERS_AT_ONCE {
            self.write(folder)?;
        }
        Ok(())
    }

    fn write(&mut self, folder: &ScratchFolder) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let mut write = |n: &u32| file.write_all(&n.to_ne_bytes());
        self.memory.iter().try_for_each(&mut write).map_err(|e| failed(folder, &e))?;
        self.n_written += self.memory.len();
        self.memory.clear();
        Ok(())
    }

    /// Maps the file, if there is one, once all numbers have arrived.
    pub(in crate::frame) fn map(&mut self, folder: &ScratchFolder) -> Result<()> {
        self.write(folder)?;
        if let Some(file) = self.file.take() {
            let file = file.into_inner().map_err(|e| failed(folder, e.error()))?;
            // A mapping of nothing is an error.
            if self.n_written > 0 {
                self.map = Some(map(&file).map_err(|e| failed(folder, &e))?);
            }
            self.memory = Vec::new();
        }
        Ok(())
    }

    /// Keeps the first numbers.
    pub(in crate::frame) fn truncate(&mut self, n: usize) {
        if self.map.is_some() {
            self.n_written = n;
        } else {
            self.memory.truncate(n);
        }
    }

    /// Gives the pages of the file, which a pass has read or changed, back to the system.
    pub(in crate::frame) fn release(&self) {
        if let Some(map) = &self.map {
            // SAFETY: the mapping is shared with the file, which keeps what was written; pages are read again when needed.
            #[allow(unsafe_code)]
            let released = unsafe { map.unchecked_advise(UncheckedAdvice::DontNeed) };
            // Without it the result is the same, in more memory.
            drop(released);
        }
    }

    /// The numbers as a vector of memory, for rows that are not in a file.
    pub(in crate::frame) fn into_memory(self) -> Vec<u32> {
        self.memory
    }
}

/// Maps a file of whole numbers.
#[allow(unsafe_code)]
fn map(file: &File) -> io::Result<MmapMut> {
    // SAFETY: the file has no name, so that no other process can open it, and this one no longer writes to it.
    unsafe { MmapMut::map_mut(file) }
}

impl Deref for Numbers {
    type Target = [u32];

    #[allow(unsafe_code)]
    fn deref(&self) -> &[u32] {
        match &self.map {
            // SAFETY: a mapping is aligned to a page, holds `n_written` numbers, and any bits are a number.
            Some(map) => unsafe { std::slice::from_raw_parts(map.as_ptr().cast(), self.n_written) },
            None => &self.memory,
        }
    }
}

impl DerefMut for Numbers {
    #[allow(unsafe_code)]
    fn deref_mut(&mut self) -> &mut [u32] {
        match &mut self.map {
            // SAFETY: as above, and the mapping is borrowed for as long as the slice.
            Some(map) => unsafe {
                std::slice::from_raw_parts_mut(map.as_mut_ptr().cast(), self.n_written)
            },
            None => &mut self.memory,
        }
    }
}

/// The error of a scratch file of annotations.
pub(in crate::frame) fn failed(folder: &ScratchFolder, e: &io::Error) -> Error {
    folder.failed(e, "annotations that do not fit into the memory limit")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_a_file_are_read_and_changed_as_those_in_memory() {
        let folder = ScratchFolder::default();
        let all: Vec<u32> = (0..5 * NUMBERS_AT_ONCE as u32 / 2).map(|n| n * 7 % 1001).collect();
        let mut numbers = Numbers::new(all[..10].to_vec());
        numbers.spill(&folder).unwrap();
        numbers.memory().extend(&all[10..NUMBERS_AT_ONCE + 10]);
        numbers.flush(&folder).unwrap();
        assert!(numbers.memory().is_empty());
        numbers.memory().extend(&all[NUMBERS_AT_ONCE + 10..2 * NUMBERS_AT_ONCE]);
        numbers.flush(&folder).unwrap();
        assert_eq!(
            (numbers.n(), numbers.memory().len()),
            (2 * NUMBERS_AT_ONCE, NUMBERS_AT_ONCE - 10)
        );
        numbers.memory().extend(&all[2 * NUMBERS_AT_ONCE..]);
        numbers.map(&folder).unwrap();
        assert!(*numbers == *all);
        numbers.iter_mut().for_each(|n| *n += 1);
        numbers.release();
        assert!(numbers.iter().zip(&all).all(|(got, n)| *got == n + 1));
        numbers.truncate(3);
        assert_eq!(*numbers, [1, 8, 15]);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let folder = ScratchFolder(Some(file.path().join("below")));
        let error = Numbers::default().spill(&folder).unwrap_err().to_string();
        assert!(error.contains("the scratch file fails") && error.contains("below"), "{error}");
    }
}
