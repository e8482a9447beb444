//! A declared table with the rows of a run, cut into parts.

use std::ops::Range;

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::SchemaRef;

use super::cut::{Chunk, RowBytes, SAMPLE_ROWS, UnitRows, cut, sampled};
use crate::error::Result;
use crate::tables::{ColumnType, Outcome, OutcomeTable, TABLES, Table, schema_of};

/// A declared table together with the outcome that its rows come from.
pub struct FilledTable<'a> {
    table: &'static dyn OutcomeTable,
    outcome: &'a Outcome,
    schema: SchemaRef,
    /// The rows of the units of each question.
    rows: Vec<UnitRows<'a>>,
    /// The chunks of each part.
    parts: Vec<Vec<Chunk>>,
    batch_rows: usize,
}

impl<'a> FilledTable<'a> {
    /// The table, filled with the rows of this outcome.
    #[must_use]
    pub fn new(table: &'static dyn OutcomeTable, outcome: &'a Outcome) -> Self {
        Self::with_row_bytes(table, outcome, RowBytes::of(outcome))
    }

    pub(crate) fn with_row_bytes(
        table: &'static dyn OutcomeTable,
        outcome: &'a Outcome,
        row_bytes: RowBytes,
    ) -> Self {
        let rows: Vec<UnitRows<'a>> =
            outcome.results.iter().map(|result| UnitRows::of(table, result)).collect();
        let parts = cut(table, outcome, &rows, row_bytes.rows_of_part());
        let (schema, batch_rows) = (schema_of(table, outcome), row_bytes.rows_of_batch());
        Self { table, outcome, schema, rows, parts, batch_rows }
    }

    /// Every table of a run whose name is wanted.
    #[must_use]
    pub fn all(outcome: &'a Outcome, wanted: impl Fn(&str) -> bool) -> Vec<Self> {
        let tables = TABLES.iter().filter(|table| wanted(table.name()));
        let row_bytes = RowBytes::of(outcome);
        tables.map(|table| Self::with_row_bytes(*table, outcome, row_bytes)).collect()
    }

    /// The units of each batch of a part, with their chunk.
    fn units_of_batches(&self, part: usize) -> impl Iterator<Item = (&Chunk, Range<usize>)> {
        self.parts[part].iter().flat_map(move |chunk| {
            let rows = &self.rows[chunk.question];
            let mut next = chunk.units.start;
            std::iter::from_fn(move || {
                let units = (next < chunk.units.end)
                    .then(|| next..rows.fitting(next..chunk.units.end, self.batch_rows).0)?;
                next = units.end;
                Some((chunk, units))
            })
        })
    }

    fn batch(&self, chunk: &Chunk, units: Range<usize>) -> Result<RecordBatch> {
        let mut arrays = self.table.rows(self.outcome, chunk.question, units.clone())?;
        let result = &self.outcome.results[chunk.question];
        if let (Some(own), false) = (&result.frame.question, self.table.is_about_the_run()) {
            let rows = arrays.first().map_or(0, Array::len);
            let questions = match self.table.questions(result, units)? {
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
        self.table.name()
    }

    fn schema(&self) -> SchemaRef {
        SchemaRef::clone(&self.schema)
    }

    fn n_parts(&self) -> usize {
        self.parts.len()
    }

    fn batches(&self, part: usize) -> Box<dyn Iterator<Item = Result<RecordBatch>> + '_> {
        Box::new(self.units_of_batches(part).map(|(chunk, units)| self.batch(chunk, units)))
    }

    fn sample(&self, part: usize) -> Box<dyn Iterator<Item = Result<RecordBatch>> + '_> {
        let batches = sampled(self.units_of_batches(part).collect());
        Box::new(batches.map(|(chunk, units)| {
            let start = units.start;
            let (end, _) = self.rows[chunk.question].fitting(units, SAMPLE_ROWS);
            self.batch(chunk, start..end)
        }))
    }

    fn is_distinct(&self, column: &str) -> bool {
        let one_row_each =
            || self.outcome.results.iter().all(|result| self.table.rows_per_unit(result) == 1);
        self.table.columns().iter().any(|c| {
            c.name == column
                && match c.kind {
                    ColumnType::Instance => true,
                    ColumnType::Annotator => one_row_each(),
                    ColumnType::Label | ColumnType::Fixed(_) => false,
                }
        })
    }
}
