//! Runs `[[test]]` blocks: input rows, and rows that the output tables must have.

use std::collections::BTreeMap;

use arrow::array::{Array, RecordBatch};
use arrow::util::display::array_value_to_string;

use crate::calibration::{CalibrationSpec, FitOn};
use crate::error::{Error, Result, nearest};
use crate::pipeline::{Checkpoints, PipelineSpec, TestSpec, fit, read};
use crate::run::Run;
use crate::sink::RunTables;
use crate::source::{Location, Scalar, Source, SourceSpec};
use crate::tables::{FilledTable, Outcome, OutcomeTable, TABLES, Table};

/// Two numbers that differ by no more than this are equal.
const TOLERANCE: f64 = 1e-6;

/// The result of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The test's name.
    pub name: String,
    /// Each expected row that the tables lack; empty when the test passed.
    pub failures: Vec<String>,
    /// The warnings about its rows and its fit.
    pub warnings: Vec<String>,
}

/// Runs every test of a pipeline, without reading its sources or writing anything.
///
/// # Errors
/// When a test names a table that does not exist, or its rows cannot be fitted.
pub async fn run_tests(spec: &PipelineSpec) -> Result<Vec<Verdict>> {
    let mut verdicts = Vec::with_capacity(spec.test.len());
    for (n, test) in spec.test.iter().enumerate() {
        let name = if test.name.is_empty() { format!("test {}", n + 1) } else { test.name.clone() };
        let mut run = Run::new(spec.seed);
        let outcome =
            outcome(spec, test, &mut run).await.map_err(|e| e.or_at(&format!("test[{n}]")))?;
        let mut failures = Vec::new();
        for (table, expected) in &test.expect {
            let found = rows_of(find(table)?, &outcome)?;
            failures.extend(
                expected
                    .iter()
                    .filter(|row| !found.iter().any(|f| matches(f, row)))
                    .map(|row| format!("{table}: no row has {}", describe(row))),
            );
        }
        verdicts.push(Verdict { name, failures, warnings: run.warnings().to_vec() });
    }
    Ok(verdicts)
}

async fn outcome(spec: &PipelineSpec, test: &TestSpec, run: &mut Run) -> Result<Outcome> {
    let source = SourceSpec {
        annotations: Some(Location::Rows(test.given.annotations.clone())),
        gold: test.given.gold.clone().map(Location::Rows),
        ..SourceSpec::default()
    };
    let spec = PipelineSpec { source, calibration: calibration(spec, test), ..spec.clone() };
    let ctx = spec.engine.session()?;
    let source = Source::register(&ctx, &spec.source, &spec.store, &RunTables, run).await?;
    let frames = read(&spec, &ctx, &source, run).await?;
    tokio::task::block_in_place(|| fit(&spec, frames, &mut Checkpoints::default(), run))
}

/// The few rows of a test are calibrated on the gold that the test gives for it, or not at all.
fn calibration(spec: &PipelineSpec, test: &TestSpec) -> CalibrationSpec {
    let fit_on = match spec.calibration.fit_on {
        FitOn::Valid => FitOn::Valid,
        _ => FitOn::Gold,
    };
    let cells = test.given.gold.iter().flat_map(|rows| rows.0.iter().flatten());
    let is_role = |cell: String| fit_on.roles().iter().any(|role| role.word() == cell);
    if cells.map(ToString::to_string).any(is_role) {
        CalibrationSpec { fit_on, ..spec.calibration.clone() }
    } else {
        CalibrationSpec::default()
    }
}

fn find(name: &str) -> Result<&'static dyn OutcomeTable> {
    TABLES.iter().copied().find(|t| t.name() == name).ok_or_else(|| {
        let near = nearest(name, TABLES.iter().map(|t| t.name()));
        let error = Error::spec(format!("there is no table `{name}`"));
        match near {
            Some(near) => error.help(format!("did you mean `{near}`?")),
            None => error,
        }
    })
}

/// Every row of a table, as text by column.
fn rows_of(
    table: &'static dyn OutcomeTable,
    outcome: &Outcome,
) -> Result<Vec<BTreeMap<String, Option<String>>>> {
    let table = FilledTable::new(table, outcome);
    let mut rows = Vec::new();
    for batch in (0..table.n_parts()).flat_map(|part| table.batches(part)) {
        let batch = batch?;
        rows.extend((0..batch.num_rows()).map(|row| as_text(&batch, row)));
    }
    Ok(rows)
}

fn as_text(batch: &RecordBatch, row: usize) -> BTreeMap<String, Option<String>> {
    let schema = batch.schema();
    let cells = schema.fields().iter().zip(batch.columns());
    cells
        .map(|(field, array)| {
            let text =
                array.is_valid(row).then(|| array_value_to_string(array, row).unwrap_or_default());
            (field.name().clone(), text)
        })
        .collect()
}

fn matches(found: &BTreeMap<String, Option<String>>, expected: &BTreeMap<String, Scalar>) -> bool {
    expected.iter().all(|(column, value)| {
        let Some(Some(found)) = found.get(column) else { return false };
        let wanted = value.to_string();
        match (found.parse::<f64>(), wanted.parse::<f64>()) {
            (Ok(found), Ok(wanted)) => (found - wanted).abs() <= TOLERANCE,
            _ => *found == wanted,
        }
    })
}

fn describe(row: &BTreeMap<String, Scalar>) -> String {
    let cells = row.iter().map(|(column, value)| format!("{column} = {value}"));
    cells.collect::<Vec<_>>().join(", ")
}
