//! A table whose rows a function computes: for commands that publish something else than the outcome of a fit.

use std::ops::Range;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use super::cut::{BATCH_ROWS, PART_ROWS, RowBytes, SAMPLE_ROWS, sampled};
use crate::error::Result;
use crate::tables::Table;

/// Computes the rows of a range of blocks.
type Compute<'a> = Box<dyn Fn(Range<usize>) -> Result<RecordBatch> + Send + Sync + 'a>;

/// A table whose rows a function computes, some blocks (instances, cells of a matrix) at a time.
pub struct ComputedTable<'a> {
    name: &'static str,
    schema: SchemaRef,
    blocks: usize,
    rows_per_block: usize,
    batch_rows: usize,
    part_rows: usize,
    compute: Compute<'a>,
}

impl<'a> ComputedTable<'a> {
    /// A table of `blocks` blocks, each of which has at most `rows_per_block` rows.
    pub fn new(
        name: &'static str,
        schema: SchemaRef,
        (blocks, rows_per_block): (usize, usize),
        compute: impl Fn(Range<usize>) -> Result<RecordBatch> + Send + Sync + 'a,
    ) -> Self {
        Self {
            name,
            schema,
            blocks,
            rows_per_block: rows_per_block.max(1),
            batch_rows: BATCH_ROWS,
            part_rows: PART_ROWS,
            compute: Box::new(compute),
        }
    }

    /// The same table with batches and parts for rows of these bytes.
    pub(crate) fn with_row_bytes(self, bytes: RowBytes) -> Self {
        Self { batch_rows: bytes.rows_of_batch(), part_rows: bytes.rows_of_part(), ..self }
    }

    fn blocks_per_part(&self) -> usize {
        (self.part_rows / self.rows_per_block).max(1)
    }

    fn blocks_of_batches(&self, part: usize) -> impl Iterator<Item = Range<usize>> {
        let start = part * self.blocks_per_part();
        let end = (start + self.blocks_per_part()).min(self.blocks);
        let step = (self.batch_rows / self.rows_per_block).max(1);
        (start..end).step_by(step).map(move |start| start..(start + step).min(end))
    }
}

impl Table for ComputedTable<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn schema(&self) -> SchemaRef {
        SchemaRef::clone(&self.schema)
    }

    fn n_parts(&self) -> usize {
        self.blocks.div_ceil(self.blocks_per_part()).max(1)
    }

    fn batches(&self, part: usize) -> Box<dyn Iterator<Item = Result<RecordBatch>> + '_> {
        Box::new(self.blocks_of_batches(part).map(|blocks| (self.compute)(blocks)))
    }

    fn sample(&self, part: usize) -> Box<dyn Iterator<Item = Result<RecordBatch>> + '_> {
        let most = (SAMPLE_ROWS / self.rows_per_block).max(1);
        let batches = sampled(self.blocks_of_batches(part).collect());
        Box::new(
            batches.map(move |blocks| {
                (self.compute)(blocks.start..blocks.end.min(blocks.start + most))
            }),
        )
    }

    fn is_distinct(&self, column: &str) -> bool {
        column == "instance_id"
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use arrow::datatypes::Schema;

    use super::*;
    use crate::tables::rows::cut::{BATCH_BYTES, PART_BYTES};

    /// Rows of so many bytes each.
    fn alike(bytes: usize) -> RowBytes {
        RowBytes { longest: bytes, mean: bytes }
    }

    /// The ranges of blocks that each part asks for.
    fn ranges(blocks: usize, rows_per_block: usize) -> Vec<Vec<Range<usize>>> {
        ranges_of_rows(blocks, rows_per_block, alike(1))
    }

    fn ranges_of_rows(
        blocks: usize,
        rows_per_block: usize,
        row_bytes: RowBytes,
    ) -> Vec<Vec<Range<usize>>> {
        asked(blocks, rows_per_block, row_bytes, |table, part| table.batches(part))
    }

    /// Reads batches of rows of one part.
    type Read = for<'a> fn(
        &'a ComputedTable<'a>,
        usize,
    ) -> Box<dyn Iterator<Item = Result<RecordBatch>> + 'a>;

    /// The ranges of blocks that reading each part asks for.
    fn asked(
        blocks: usize,
        rows_per_block: usize,
        row_bytes: RowBytes,
        read: Read,
    ) -> Vec<Vec<Range<usize>>> {
        let asked = Mutex::new(Vec::new());
        let schema = Arc::new(Schema::empty());
        let empty = RecordBatch::new_empty(Arc::clone(&schema));
        let table = ComputedTable::new("labels", schema, (blocks, rows_per_block), |range| {
            asked.lock().unwrap().push(range);
            Ok(empty.clone())
        });
        let table = table.with_row_bytes(row_bytes);
        let of_part = |part| {
            read(&table, part).for_each(|batch| drop(batch.unwrap()));
            std::mem::take(&mut *asked.lock().unwrap())
        };
        (0..table.n_parts()).map(of_part).collect()
    }

    #[test]
    fn parts_and_batches_cover_every_block_once_and_in_order() {
        for (blocks, rows_per_block) in [
            (1, 1),
            (BATCH_ROWS + 1, 1),
            (PART_ROWS, 1),
            (PART_ROWS + 1, 1),
            (1_000, PART_ROWS / 300),
            (5, 3 * PART_ROWS),
        ] {
            let parts = ranges(blocks, rows_per_block);
            let all: Vec<Range<usize>> = parts.iter().flatten().cloned().collect();
            let ends: Vec<usize> = all.iter().map(|range| range.end).collect();
            let starts: Vec<usize> = all.iter().map(|range| range.start).collect();
            assert_eq!(
                starts,
                [&[0], &ends[..ends.len() - 1]].concat(),
                "{blocks} {rows_per_block}"
            );
            assert_eq!(ends.last(), Some(&blocks));
            for range in &all {
                let rows = range.len() * rows_per_block;
                assert!(range.len() == 1 || (1..=BATCH_ROWS).contains(&rows), "{range:?}");
            }
            for part in &parts {
                let rows: usize = part.iter().map(|range| range.len() * rows_per_block).sum();
                assert!(part.len() == 1 || rows <= PART_ROWS, "{rows} rows in a part");
            }
        }
    }

    #[test]
    fn a_sample_is_of_the_first_rows_of_evenly_spaced_batches() {
        let sample = |blocks, rows_per_block| {
            asked(blocks, rows_per_block, alike(1), |table, part| table.sample(part))
        };
        let every = PART_ROWS / 16;
        let positions: Vec<Range<usize>> = (0..16).map(|n| n * every..n * every + 256).collect();
        let last = PART_ROWS..PART_ROWS + 5;
        assert_eq!(sample(PART_ROWS + 5, 1), [positions, vec![last]]);
        let few = [0..51, BATCH_ROWS / 5..BATCH_ROWS / 5 + 51];
        assert_eq!(sample(2 * (BATCH_ROWS / 5), 5), [few]);
        assert_eq!(sample(2, 3 * PART_ROWS).concat(), [0..1, 1..2]);
        assert_eq!(sample(0, 1), vec![Vec::<Range<usize>>::new()]);
    }

    #[test]
    fn a_table_without_blocks_has_one_part_and_no_batch() {
        for rows_per_block in [0, 3] {
            assert_eq!(ranges(0, rows_per_block), vec![Vec::<Range<usize>>::new()]);
        }
    }

    #[test]
    fn as_many_blocks_as_fit_make_a_part_and_a_batch() {
        assert_eq!(ranges(PART_ROWS, 1).len(), 1);
        assert_eq!(ranges(PART_ROWS + 1, 1).len(), 2);
        assert_eq!(ranges(2 * BATCH_ROWS, 1), [[0..BATCH_ROWS, BATCH_ROWS..2 * BATCH_ROWS]]);
        assert_eq!(ranges(4, PART_ROWS / 2).len(), 2);
    }

    #[test]
    fn rows_of_many_bytes_make_small_batches_and_parts() {
        assert_eq!(ranges_of_rows(5, 2, alike(BATCH_BYTES / 4)), [[0..2, 2..4, 4..5]]);
        assert_eq!(ranges_of_rows(2, 3, alike(2 * BATCH_BYTES)), [[0..1, 1..2]]);
        assert_eq!(ranges_of_rows(4, 2, alike(PART_BYTES / 4)), [[0..1, 1..2], [2..3, 3..4]]);
        assert_eq!(ranges_of_rows(2, 3, alike(2 * PART_BYTES)).len(), 2);
        // Rows of 512 bytes are cut by their number alone.
        assert_eq!(ranges_of_rows(PART_ROWS, 1, alike(512)).len(), 1);
        assert_eq!(ranges_of_rows(PART_ROWS, 1, alike(513)).len(), 2);
        // One long row among short ones makes small batches alone.
        let one_long = RowBytes { longest: PART_BYTES, mean: 512 };
        assert_eq!(ranges_of_rows(3, 1, one_long), [[0..1, 1..2, 2..3]]);
    }
}
