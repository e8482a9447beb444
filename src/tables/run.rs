//! `run`: one row about the run itself.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use serde::Serialize;

use super::{COUNT, ColumnType, ComputedTable, IdTypes, OutcomeTable, REAL, TEXT, column, fields};

/// One file that was read.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InputRecord {
    /// The source's name.
    pub source: String,
    /// The file's URL, or its path on local disk.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// A value that changes with the file: the store's entity tag, or else the time of the last change.
    pub version: String,
}

/// Facts about the run itself.
#[derive(Debug, Clone, Default)]
pub struct RunRecord {
    /// The run's id.
    pub run_id: String,
    /// The whole spec with defaults, as JSON.
    pub spec: String,
    /// The seed of every random stream.
    pub seed: u64,
    /// The files that were read.
    pub inputs: Vec<InputRecord>,
    /// Rows that were read.
    pub rows_read: u64,
    /// Rows that were used.
    pub rows_used: u64,
    /// Rows that were rejected.
    pub rows_rejected: u64,
    /// Where the fits were computed.
    pub device: String,
    /// Whether every question's fit met its stop rule.
    pub converged: bool,
    /// Wall time of reading.
    pub seconds_reading: f64,
    /// Wall time of fitting.
    pub seconds_fitting: f64,
    /// The most memory the process held until the tables were written.
    pub peak_memory_bytes: u64,
    /// The warnings about the data, the fit and the machine, as they were shown. Those of the store are in the log alone.
    pub warnings: Vec<String>,
}

pub(super) static RUN: OutcomeTable = OutcomeTable {
    name: "run",
    columns: &[
        column("run_id", TEXT, "the run's id: by default a digest of spec and inputs"),
        column("spec", TEXT, "the spec with every default filled in, as JSON"),
        column("seed", COUNT, "the seed of every random stream"),
        column("version", TEXT, "the version of labelmill"),
        column("schema_version", COUNT, "the version of these schemas"),
        column("inputs", TEXT, "source, path, bytes and version of each file, as JSON"),
        column("rows_read", COUNT, "number of rows read"),
        column("rows_used", COUNT, "number of rows used"),
        column("rows_rejected", COUNT, "number of rows rejected; see the table `rejects`"),
        column(
            "converged",
            ColumnType::Fixed(DataType::Boolean),
            "whether the fit met its stop rule; false where `tol = 0` asked for all iterations",
        ),
        column("device", TEXT, "device of the fit, such as `cpu` or `cuda:0`"),
        column("seconds_reading", REAL, "wall time of reading"),
        column("seconds_fitting", REAL, "wall time of fitting"),
        column("peak_memory_bytes", COUNT, "the most memory held until the tables were written"),
        column("warnings", TEXT, "the warnings about the data, the fit and the machine, as JSON"),
    ],
    blocks: |_| 1,
    is_about_the_run: true,
    rows: |outcome, _, blocks| Ok(arrays(&outcome.run, blocks.len())),
    ..OutcomeTable::OF_QUESTIONS
};

/// The record's columns, with the same row `rows` times.
fn arrays(run: &RunRecord, rows: usize) -> Vec<ArrayRef> {
    let text = |value: &str| Arc::new(StringArray::from(vec![value; rows])) as ArrayRef;
    let count = |value: u64| {
        Arc::new(Int64Array::from(vec![i64::try_from(value).unwrap_or(i64::MAX); rows])) as ArrayRef
    };
    let real = |value: f64| Arc::new(Float64Array::from(vec![value; rows])) as ArrayRef;
    vec![
        text(&run.run_id),
        text(&run.spec),
        count(run.seed),
        text(env!("CARGO_PKG_VERSION")),
        count(u64::from(super::SCHEMA_VERSION)),
        text(&serde_json::json!(run.inputs).to_string()),
        count(run.rows_read),
        count(run.rows_used),
        count(run.rows_rejected),
        Arc::new(BooleanArray::from(vec![run.converged; rows])),
        text(&run.device),
        real(run.seconds_reading),
        real(run.seconds_fitting),
        count(run.peak_memory_bytes),
        text(&serde_json::json!(run.warnings).to_string()),
    ]
}

/// The table `run` of a command that fits nothing.
pub(crate) fn run(record: &RunRecord) -> ComputedTable<'_> {
    let text = &DataType::Utf8;
    let types = IdTypes { instance: text, annotator: text, label: text };
    let schema = Arc::new(Schema::new(fields(RUN.columns, &types).collect::<Vec<_>>()));
    ComputedTable::new(RUN.name, SchemaRef::clone(&schema), (1, 1), move |rows| {
        Ok(RecordBatch::try_new(SchemaRef::clone(&schema), arrays(record, rows.len()))?)
    })
}
