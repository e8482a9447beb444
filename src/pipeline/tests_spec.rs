//! `[[test]]` blocks of a pipeline file: input rows, and rows that the output tables must have.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Problem, did_you_mean};
use crate::model::{FeatureUse, ModelKind};
use crate::source::{InlineRows, Scalar};
use crate::spec::Problems;
use crate::tables::{OutcomeTable, find_table};

/// One test of the pipeline.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TestSpec {
    /// The test's name.
    pub name: String,
    /// The rows that replace the sources.
    pub given: GivenSpec,
    /// Rows that must be in the output tables, by table: every named column must have the given value. A list is
    /// expected as text, such as "[a, b]"; a null cannot be expected.
    pub expect: BTreeMap<String, Vec<BTreeMap<String, Scalar>>>,
}

impl TestSpec {
    /// Adds a problem where the test expects no row, or a row without cells, and could not fail; and one for each table
    /// and column that no run writes or no test has, and one where the model learns from features and the test gives
    /// none. `key` is the key of the test.
    pub(super) fn check(&self, key: &str, kind: Option<&ModelKind>, problems: &mut Problems) {
        if let Some(kind) = kind.filter(|kind| kind.capabilities.features == FeatureUse::Needed)
            && self.given.features.is_none()
            && !(kind.capabilities.predictions.are_read() && self.given.predictions.is_some())
        {
            problems.push(
                Problem::new(format!("`{}` learns from features, and the test gives none", kind.kind))
                    .at(format!("{key}.given.features"))
                    .help("give rows of an instance and its numbers, such as given.features = [[\"i1\", 0.5, 2.0]]"),
            );
        }
        if self.expect.is_empty() {
            problems.push(expects_nothing("no row", format!("{key}.expect")));
        }
        for (name, rows) in &self.expect {
            let location = format!("{key}.expect.{name}");
            if rows.is_empty() {
                problems.push(expects_nothing("no row", location.clone()));
            }
            match find_table(name) {
                Ok(table) => check_rows(table, rows, &location, problems),
                Err(problem) => problems.push(problem.at(location)),
            }
        }
    }
}

fn expects_nothing(what: &str, location: String) -> Problem {
    Problem::new(format!("the test expects {what}, and would pass whatever comes out"))
        .at(location)
        .help("list rows that a table must have, such as expect.labels = [{ instance_id = \"i1\", label = \"yes\" }]")
}

/// The columns of the table `run` that describe the published run and its input files. A test has neither.
const COLUMNS_WITHOUT_VALUE: [&str; 6] =
    ["run_id", "spec", "inputs", "seconds_reading", "seconds_fitting", "peak_memory_bytes"];

fn check_rows(
    table: &OutcomeTable,
    rows: &[BTreeMap<String, Scalar>],
    location: &str,
    problems: &mut Problems,
) {
    let question = (!table.is_about_the_run).then_some("question");
    let columns = table.columns.iter().map(|column| column.name).chain(question);
    for (n, row) in rows.iter().enumerate() {
        let location = format!("{location}[{n}]");
        if row.is_empty() {
            problems.push(expects_nothing("a row without cells", location.clone()));
        }
        for name in row.keys().filter(|name| !columns.clone().any(|column| column == *name)) {
            let one_of = || format!("one of {}", columns.clone().collect::<Vec<_>>().join(", "));
            let help = did_you_mean(name, columns.clone(), one_of);
            let what = format!("the table `{}` has no column `{name}`", table.name);
            problems.push(Problem::new(what).at(location.as_str()).help(help));
        }
        let has_no_value = |name: &&String| COLUMNS_WITHOUT_VALUE.contains(&name.as_str());
        for name in row.keys().filter(|name| table.is_about_the_run && has_no_value(name)) {
            problems.push(
                Problem::new(format!("a test has no `{name}`, which describes a published run"))
                    .at(format!("{location}.{name}"))
                    .help("expect other columns of `run`, such as rows_used or converged"),
            );
        }
    }
}

/// Rows that replace the sources.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GivenSpec {
    /// Each row: [instance, annotator, label], optionally followed by weight, annotated_at, question.
    pub annotations: InlineRows,
    /// Each row: [instance, class], optionally followed by role, question.
    pub gold: Option<InlineRows>,
    /// Each row: the instance, then its numbers.
    pub features: Option<InlineRows>,
    /// Each row: the annotator, then its numbers.
    pub annotator_features: Option<InlineRows>,
    /// Each row: [instance, class, probability], optionally followed by question.
    pub predictions: Option<InlineRows>,
    /// Each row: [annotator, class, label, probability], optionally followed by question.
    pub confusion: Option<InlineRows>,
}
