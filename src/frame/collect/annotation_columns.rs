//! The used rows of one question, by provisional numbers.

use rayon::prelude::*;

use crate::engine::ScratchFolder;
use crate::error::Result;
use crate::frame::annotations::blocks::ITEMS_PER_BLOCK;
use crate::frame::annotations::offsets::{Cursors, count, prefix_sum, split_by};
use crate::frame::annotations::{
    AnnotationRows, Annotations, Dims, Duplicates, MappedRows, Repeated,
};
use crate::frame::classes::LabelAxis;
use crate::frame::ids::NULL;
use crate::frame::memory::numbers::Numbers;
use crate::frame::rejects::{Reason, Rejects};

/// Used rows, by provisional numbers; the optional columns are as long as the others or empty.
#[derive(Default)]
pub(super) struct AnnotationColumns {
    pub(super) instance: Numbers,
    pub(super) annotator: Numbers,
    pub(super) label: Numbers,
    pub(super) weight: Vec<f64>,
    pub(super) annotated_at: Vec<i128>,
}

impl AnnotationColumns {
    /// Rejects the rows whose label is unknown; `used` says which labels have rows.
    pub(super) fn reject_unknown(
        &mut self,
        classes: &LabelAxis,
        used: &[bool],
        rejects: &mut Rejects,
    ) {
        let unknown = |label: u32| classes.rank[label as usize] == NULL;
        if (0..).zip(used).any(|(label, used)| *used && unknown(label)) {
            let mut rows = vec![0; classes.rank.len()];
            self.label.iter().for_each(|label| rows[*label as usize] += 1);
            // Once for each label: the text of one that millions of rows have may be large.
            for (label, rows) in
                (0..).zip(rows).filter(|(label, rows)| *rows > 0 && unknown(*label))
            {
                rejects.add(Reason::UnknownClass, rows, classes.text(label));
            }
            let keep: Vec<bool> = self.label.iter().map(|l| !unknown(*l)).collect();
            self.retain(&keep);
        }
    }

    /// Keeps the rows with the newest time of each (instance, annotator); returns the number of removed rows.
    ///
    /// # Why
    /// A sort of all rows would wait for memory at every comparison. Rows are grouped by instance in two passes, and the
    /// few rows of each instance are sorted.
    pub(super) fn keep_newest(&mut self) -> u64 {
        let instances = self.instance.iter().max().map_or(0, |last| *last as usize + 1);
        let mut cursors = Cursors(prefix_sum(&count(&self.instance, instances)));
        let mut rows = vec![0; self.instance.len()];
        self.instance.iter().enumerate().for_each(|(row, i)| rows[cursors.next(*i)] = row);
        let offsets = cursors.offsets();
        let superseded: Vec<usize> = split_by(&mut rows, &offsets, 1, ITEMS_PER_BLOCK)
            .into_par_iter()
            .flat_map_iter(|(instances, rows)| {
                let first = offsets[instances.start];
                let mut superseded = Vec::new();
                for i in instances {
                    let rows = &mut rows[offsets[i] - first..offsets[i + 1] - first];
                    self.add_superseded(rows, &mut superseded);
                }
                superseded
            })
            .collect();
        let mut keep = vec![true; self.instance.len()];
        superseded.iter().for_each(|row| keep[*row] = false);
        self.retain(&keep);
        superseded.len() as u64
    }

    /// Adds those rows of one instance of which the annotator has a newer row there.
    fn add_superseded(&self, rows: &mut [usize], superseded: &mut Vec<usize>) {
        let key = |row: usize| (self.annotator[row], self.annotated_at[row]);
        rows.sort_unstable_by_key(|row| key(*row));
        for own in rows.chunk_by(|a, b| self.annotator[*a] == self.annotator[*b]) {
            let newest = own.last().map(|row| key(*row));
            superseded.extend(own.iter().filter(|row| Some(key(**row)) != newest));
        }
    }

    fn retain(&mut self, keep: &[bool]) {
        fn filter<T>(values: &mut Vec<T>, keep: &[bool]) {
            let mut row = 0;
            values.retain(|_| {
                row += 1;
                keep[row - 1]
            });
        }
        for numbers in [&mut self.instance, &mut self.annotator, &mut self.label] {
            let mut kept = 0;
            for (row, _) in keep.iter().enumerate().filter(|(_, keep)| **keep) {
                numbers[kept] = numbers[row];
                kept += 1;
            }
            numbers.truncate(kept);
            numbers.release();
        }
        filter(&mut self.weight, keep);
        filter(&mut self.annotated_at, keep);
    }

    /// The views of the rows, given the final numbers.
    ///
    /// # Errors
    /// When a scratch file cannot be written or read; inside, the repeated pairs, where the policy is an error.
    pub(super) fn into_annotations(
        mut self,
        dims: Dims,
        [instance, annotator, label]: [&[u32]; 3],
        policy: Duplicates,
        folder: &ScratchFolder,
    ) -> Result<std::result::Result<Annotations, Repeated>> {
        let map = |numbers: &mut Numbers, rank: &[u32]| {
            let all = numbers.par_iter_mut().with_min_len(ITEMS_PER_BLOCK);
            all.for_each(|n| *n = rank[*n as usize]);
            numbers.release();
        };
        map(&mut self.instance, instance);
        map(&mut self.annotator, annotator);
        map(&mut self.label, label);
        let is_spilled = self.is_spilled();
        let Self { instance, annotator, label, weight, .. } = self;
        if is_spilled {
            let rows = MappedRows { instance, annotator, label, weight };
            return Annotations::build_mapped(dims, rows, policy, folder);
        }
        let [instance, annotator, label] = [instance, annotator, label].map(Numbers::into_memory);
        let rows = AnnotationRows { instance, annotator, label, weight };
        Ok(Annotations::build(dims, rows, policy))
    }

    /// The numbers of the rows.
    fn numbers(&mut self) -> [&mut Numbers; 3] {
        [&mut self.instance, &mut self.annotator, &mut self.label]
    }

    /// Whether the numbers are in scratch files.
    pub(super) fn is_spilled(&self) -> bool {
        self.instance.is_in_file()
    }

    /// Moves the rows to scratch files, to which further ones go too.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(super) fn spill(&mut self, folder: &ScratchFolder) -> Result<()> {
        self.numbers().into_iter().try_for_each(|numbers| numbers.spill(folder))
    }

    /// Writes rows that have arrived to the files, if there are any.
    pub(super) fn flush(&mut self, folder: &ScratchFolder) -> Result<()> {
        self.numbers().into_iter().try_for_each(|numbers| numbers.flush(folder))
    }

    /// Makes all rows readable, once they have arrived.
    pub(super) fn map(&mut self, folder: &ScratchFolder) -> Result<()> {
        self.numbers().into_iter().try_for_each(|numbers| numbers.map(folder))
    }
}
