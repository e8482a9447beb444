//! Runs `[[test]]` blocks: input rows, and rows that the output tables must have.

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::{Array, RecordBatch};
use arrow::util::display::array_value_to_string;

use crate::error::{Error, Result, Stage};
use crate::job_context::JobContext;
use crate::model::calibration::{CalibrationSpec, FitOn};
use crate::pipeline::{Checkpoints, PipelineSpec, TestSpec, fit, read};
use crate::sink::RunTables;
use crate::source::{Location, Scalar, Source, SourceSpec};
use crate::tables::{FilledTable, Outcome, OutcomeTable, Table, find_table};

/// Two numbers that differ by no more than this are equal.
const TOLERANCE: f64 = 1e-6;

/// The result of a test.
#[derive(Debug)]
pub struct Verdict {
    /// The test's name.
    pub name: String,
    /// Each expected row that the tables lack, and then the rows most like it; or the error that ended the test, such as
    /// that of rows that cannot be fitted.
    pub result: Result<Vec<String>>,
    /// The warnings about its rows, its fit and the machine.
    pub warnings: Vec<String>,
}

impl Verdict {
    /// Whether the tables have every expected row.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.result.as_ref().is_ok_and(Vec::is_empty)
    }
}

/// Runs every test of a pipeline, without reading its sources or writing anything.
pub async fn run_tests(spec: &PipelineSpec) -> Vec<Verdict> {
    let mut verdicts = Vec::with_capacity(spec.test.len());
    for (n, test) in spec.test.iter().enumerate() {
        let name = if test.name.is_empty() { format!("test {}", n + 1) } else { test.name.clone() };
        let mut job = JobContext::new(spec.seed).with_memory(spec.engine.memory_bytes());
        let result = find_missing_rows(spec, test, &mut job).await;
        let result = result.map_err(|e| at_test(e, n));
        verdicts.push(Verdict { name, result, warnings: job.warnings().to_vec() });
    }
    verdicts
}

/// The error of a test: its rows are those of the sources that they replace.
fn at_test(error: Error, n: usize) -> Error {
    let relations =
        ["annotations", "gold", "features", "annotator_features", "predictions", "confusion"]
            .into_iter();
    let moved = relations.fold(error, |error, relation| {
        error.moved(&format!("source.{relation}"), &format!("test[{n}].given.{relation}"))
    });
    moved.or_at(&format!("test[{n}]"))
}

/// The exit code of these tests: 0 if all passed, and that of a failed test otherwise. If every test that did not pass
/// ended with an error, it is the code of the first error.
#[must_use]
pub fn exit_code(verdicts: &[Verdict]) -> u8 {
    let failed = verdicts.iter().filter(|verdict| !verdict.passed());
    let errors: Option<Vec<&Error>> = failed.map(|verdict| verdict.result.as_ref().err()).collect();
    match errors.as_deref() {
        None => Stage::Gate.exit_code(),
        Some([]) => 0,
        Some([first, ..]) => first.exit_code(),
    }
}

/// Each expected row that the tables of a test lack, and then the rows most like it.
async fn find_missing_rows(
    spec: &PipelineSpec,
    test: &TestSpec,
    job: &mut JobContext,
) -> Result<Vec<String>> {
    let outcome = outcome(spec, test, job).await?;
    let mut missing = Vec::new();
    for (table, expected) in &test.expect {
        let table = find_table(table).map_err(|problem| Error::spec_problems(vec![problem]))?;
        let found = rows_of(table, &outcome)?;
        for row in expected.iter().filter(|row| !found.iter().any(|f| matches(f, row))) {
            missing.push(format!("{}: no row has {}", table.name, describe(row)));
            missing.extend(most_like(row, &found).map(|row| format!("  found: {row}")));
        }
    }
    Ok(missing)
}

async fn outcome(spec: &PipelineSpec, test: &TestSpec, job: &mut JobContext) -> Result<Outcome> {
    let source = SourceSpec {
        annotations: Some(Location::Rows(test.given.annotations.clone())),
        gold: test.given.gold.clone().map(Location::Rows),
        features: test.given.features.clone().map(Location::Rows),
        annotator_features: test.given.annotator_features.clone().map(Location::Rows),
        predictions: test.given.predictions.clone().map(Location::Rows),
        confusion: test.given.confusion.clone().map(Location::Rows),
        null_values: spec.source.null_values.clone(),
        normalise: spec.source.normalise.clone(),
        ..SourceSpec::default()
    };
    let spec = PipelineSpec { source, calibration: calibration(spec, test), ..spec.clone() };
    let ctx = spec.engine.session()?;
    let source = Source::register(&ctx, &spec.source, &spec.store, &RunTables, job).await?;
    let frames = read(&spec, &ctx, &source, job).await?;
    tokio::task::block_in_place(|| fit(&spec, frames, &mut Checkpoints::default(), job))
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

/// The cells of a row by column, without nulls.
type FoundRow = BTreeMap<String, FoundCell>;

/// The cells of an expected row by column.
type ExpectedRow = BTreeMap<String, Scalar>;

/// A cell of a table.
struct FoundCell {
    text: String,
    /// Whether its column is one of floats.
    is_float: bool,
}

impl FoundCell {
    /// Whether the texts are equal, or the numbers, where a column of floats is expected to have a number. Other values,
    /// such as the id `01`, are the same only as they are written.
    fn equals(&self, expected: &Scalar) -> bool {
        if self.text == expected.to_string() {
            return true;
        }
        let wanted = match expected {
            Scalar::Float(number) => *number,
            Scalar::Int(number) => *number as f64,
            Scalar::Bool(_) | Scalar::Text(_) => return false,
        };
        let found = self.text.parse::<f64>();
        self.is_float && found.is_ok_and(|found| (found - wanted).abs() <= TOLERANCE)
    }
}

/// Every row of a table.
fn rows_of(table: &'static OutcomeTable, outcome: &Outcome) -> Result<Vec<FoundRow>> {
    let table = FilledTable::new(table, outcome);
    let mut rows = Vec::new();
    for batch in (0..table.n_parts()).flat_map(|part| table.batches(part)) {
        let batch = batch?;
        rows.extend((0..batch.num_rows()).map(|row| row_of(&batch, row)));
    }
    Ok(rows)
}

fn row_of(batch: &RecordBatch, row: usize) -> FoundRow {
    let schema = batch.schema();
    let cells = schema.fields().iter().zip(batch.columns());
    let valid = cells.filter(|(_, array)| array.is_valid(row));
    valid
        .map(|(field, array)| {
            let text = array_value_to_string(array, row).unwrap_or_default();
            let is_float = array.data_type().is_floating();
            (field.name().clone(), FoundCell { text, is_float })
        })
        .collect()
}

/// The columns of an expected row with its value.
fn equal_columns<'a>(
    found: &'a FoundRow,
    expected: &'a ExpectedRow,
) -> impl Iterator<Item = &'a String> {
    let is_equal = |(column, value): &(&String, &Scalar)| {
        found.get(*column).is_some_and(|cell| cell.equals(value))
    };
    expected.iter().filter(is_equal).map(|(column, _)| column)
}

fn matches(found: &FoundRow, expected: &ExpectedRow) -> bool {
    equal_columns(found, expected).count() == expected.len()
}

fn describe(row: &ExpectedRow) -> String {
    let cells = row.iter().map(|(column, value)| format!("{column} = {value}"));
    cells.collect::<Vec<_>>().join(", ")
}

/// The most rows that are shown for one that is missing.
const MAX_SHOWN: usize = 3;

/// The expected columns of the rows that have the most of an expected row's ids, and of these the most of its other
/// values.
fn most_like(expected: &ExpectedRow, found: &[FoundRow]) -> impl Iterator<Item = String> {
    let is_id = |column: &&String| column.ends_with("_id") || *column == "question";
    let likeness = |row: &FoundRow| {
        let equal = || equal_columns(row, expected);
        (equal().filter(is_id).count(), equal().count())
    };
    let most = found.iter().map(likeness).max();
    let shown = |row: &FoundRow| {
        let cells = expected.keys().map(|column| match row.get(column) {
            Some(cell) => format!("{column} = {}", cell.text),
            None => format!("{column} = null, which no test can expect"),
        });
        cells.collect::<Vec<_>>().join(", ")
    };
    let all: BTreeSet<String> =
        found.iter().filter(|row| Some(likeness(row)) == most).map(shown).collect();
    all.into_iter().take(MAX_SHOWN)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray};

    use super::*;

    fn is_found(column: ArrayRef, expected: Scalar) -> bool {
        let batch = RecordBatch::try_from_iter([("column", column)]).unwrap();
        matches(&row_of(&batch, 0), &BTreeMap::from([("column".to_owned(), expected)]))
    }

    fn text(value: &str) -> Scalar {
        Scalar::Text(value.to_owned())
    }

    #[test]
    fn texts_and_ids_are_equal_only_as_they_are_written() {
        let label = |label: &str| -> ArrayRef { Arc::new(StringArray::from(vec![label])) };
        for equal in ["1", "nan", "inf"] {
            assert!(is_found(label(equal), text(equal)), "{equal}");
        }
        assert!(is_found(label("1"), Scalar::Int(1)));
        assert!(!is_found(label("01"), text("1")) && !is_found(label("01"), Scalar::Int(1)));
        assert!(!is_found(label("1.0"), Scalar::Float(1.0)));
        // Both are 2^53 as floats.
        let id = |id: i64| -> ArrayRef { Arc::new(Int64Array::from(vec![id])) };
        let large = 1 << 53;
        assert!(is_found(id(large + 1), Scalar::Int(large + 1)));
        assert!(!is_found(id(large + 1), Scalar::Int(large)));
        assert!(!is_found(id(large + 1), text("9007199254740992")));
    }

    #[test]
    fn floats_are_equal_within_the_tolerance() {
        let float = |value: Option<f64>| -> ArrayRef { Arc::new(Float64Array::from(vec![value])) };
        assert!(is_found(float(Some(0.3 + 4e-7)), Scalar::Float(0.3)));
        assert!(!is_found(float(Some(0.3 + 4e-6)), Scalar::Float(0.3)));
        assert!(is_found(float(Some(1.0 - 4e-7)), Scalar::Int(1)));
        assert!(is_found(float(Some(f64::INFINITY)), Scalar::Float(f64::INFINITY)));
        assert!(!is_found(float(Some(0.3)), text("0.30")));
        assert!(!is_found(float(None), Scalar::Float(0.0)));
    }
}
