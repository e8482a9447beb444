//! A declared table with the rows of a run, cut into parts.

use std::ops::Range;

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::SchemaRef;

use super::cut::{BlockRows, Chunk, RowBytes, SAMPLE_ROWS, cut, sampled};
use crate::error::Result;
use crate::tables::{ColumnType, Outcome, OutcomeTable, TABLES, Table, schema_of};

/// A declared table together with the outcome that its rows come from.
pub struct FilledTable<'a> {
    table: &'static OutcomeTable,
    outcome: &'a Outcome,
    schema: SchemaRef,
    /// The rows of the blocks of each question.
    rows: Vec<BlockRows<'a>>,
    parts: Vec<Vec<Chunk>>,
    batch_rows: usize,
}

impl<'a> FilledTable<'a> {
    /// The table, filled with the rows of this outcome.
    #[must_use]
    pub fn new(table: &'static OutcomeTable, outcome: &'a Outcome) -> Self {
        Self::with_row_bytes(table, outcome, RowBytes::from_outcome(outcome))
    }

    pub(crate) fn with_row_bytes(
        table: &'static OutcomeTable,
        outcome: &'a Outcome,
        row_bytes: RowBytes,
    ) -> Self {
        let rows: Vec<BlockRows<'a>> =
            outcome.results.iter().map(|result| BlockRows::new(table, result)).collect();
        let parts = cut(table, outcome, &rows, row_bytes.rows_of_part());
        let (schema, batch_rows) = (schema_of(table, outcome), row_bytes.rows_of_batch());
        Self { table, outcome, schema, rows, parts, batch_rows }
    }

    /// Every table of a run whose name is wanted.
    #[must_use]
    pub fn all(outcome: &'a Outcome, wanted: impl Fn(&str) -> bool) -> Vec<Self> {
        let tables = TABLES.iter().filter(|table| wanted(table.name));
        let row_bytes = RowBytes::from_outcome(outcome);
        tables.map(|table| Self::with_row_bytes(table, outcome, row_bytes)).collect()
    }

    /// The blocks of each batch of a part, with their chunk.
    fn blocks_of_batches(&self, part: usize) -> impl Iterator<Item = (&Chunk, Range<usize>)> {
        self.parts[part].iter().flat_map(move |chunk| {
            let rows = &self.rows[chunk.question];
            let mut next = chunk.blocks.start;
            std::iter::from_fn(move || {
                let blocks = (next < chunk.blocks.end)
                    .then(|| next..rows.fitting(next..chunk.blocks.end, self.batch_rows).0)?;
                next = blocks.end;
                Some((chunk, blocks))
            })
        })
    }

    fn batch(&self, chunk: &Chunk, blocks: Range<usize>) -> Result<RecordBatch> {
        let mut arrays = (self.table.rows)(self.outcome, chunk.question, blocks.clone())?;
        let result = &self.outcome.results[chunk.question];
        if let (Some(own), false) = (&result.frame.question, self.table.is_about_the_run) {
            let rows = arrays.first().map_or(0, Array::len);
            let questions = match (self.table.questions)(result, blocks)? {
                Some(questions) => questions,
                None => own.rows(std::iter::repeat_n(Some(0), rows))?,
            };
            arrays.insert(0, questions);
        }
        Ok(RecordBatch::try_new(SchemaRef::clone(&self.schema), arrays)?)
    }
}

impl Table for FilledTable<'_> {
    fn name(&self) -> &str {
        self.table.name
    }

    fn schema(&self) -> SchemaRef {
        SchemaRef::clone(&self.schema)
    }

    fn n_parts(&self) -> usize {
        self.parts.len()
    }

    fn batches(&self, part: usize) -> Box<dyn Iterator<Item = Result<RecordBatch>> + '_> {
        Box::new(self.blocks_of_batches(part).map(|(chunk, blocks)| self.batch(chunk, blocks)))
    }

    fn sample(&self, part: usize) -> Box<dyn Iterator<Item = Result<RecordBatch>> + '_> {
        let batches = sampled(self.blocks_of_batches(part).collect());
        Box::new(batches.map(|(chunk, blocks)| {
            let start = blocks.start;
            let (end, _) = self.rows[chunk.question].fitting(blocks, SAMPLE_ROWS);
            self.batch(chunk, start..end)
        }))
    }

    fn is_distinct(&self, column: &str) -> bool {
        let one_row_each =
            || self.outcome.results.iter().all(|result| (self.table.rows_per_block)(result) == 1);
        self.table.columns.iter().any(|c| {
            c.name == column
                && match c.kind {
                    ColumnType::Instance => true,
                    ColumnType::Annotator => one_row_each(),
                    ColumnType::Label | ColumnType::Texts | ColumnType::Fixed(_) => false,
                }
        })
    }
}
