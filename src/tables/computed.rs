//! A table whose rows a function computes: for commands that publish something else than the outcome of a fit.

use std::ops::Range;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use super::{BATCH_ROWS, PART_ROWS, Table};
use crate::error::Result;

/// The rows of some neighbouring units.
type Compute<'a> = Box<dyn Fn(Range<usize>) -> Result<RecordBatch> + Send + Sync + 'a>;

/// A table whose rows a function computes, some units (instances, cells of a matrix) at a time.
pub struct ComputedTable<'a> {
    name: &'static str,
    schema: SchemaRef,
    units: usize,
    rows_per_unit: usize,
    compute: Compute<'a>,
}

impl<'a> ComputedTable<'a> {
    /// A table of so many units, each of which gives `rows_per_unit` rows at most.
    pub fn new(
        name: &'static str,
        schema: SchemaRef,
        (units, rows_per_unit): (usize, usize),
        compute: impl Fn(Range<usize>) -> Result<RecordBatch> + Send + Sync + 'a,
    ) -> Self {
        Self {
            name,
            schema,
            units,
            rows_per_unit: rows_per_unit.max(1),
            compute: Box::new(compute),
        }
    }

    fn units_per_part(&self) -> usize {
        (PART_ROWS / self.rows_per_unit).max(1)
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
        self.units.div_ceil(self.units_per_part()).max(1)
    }

    fn batches(&self, part: usize) -> Box<dyn Iterator<Item = Result<RecordBatch>> + '_> {
        let start = part * self.units_per_part();
        let end = (start + self.units_per_part()).min(self.units);
        let step = (BATCH_ROWS / self.rows_per_unit).max(1);
        let starts = (start..end).step_by(step);
        Box::new(starts.map(move |start| (self.compute)(start..(start + step).min(end))))
    }

    fn is_distinct(&self, column: &str) -> bool {
        column == "instance_id"
    }
}
