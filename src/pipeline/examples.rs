//! `[[test]]` blocks of a pipeline file: input rows, and rows that the output tables must have.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Problem;
use crate::source::{InlineRows, Scalar};
use crate::spec::Problems;

/// One test of the pipeline.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TestSpec {
    /// The test's name.
    pub name: String,
    /// The rows that replace the sources.
    pub given: GivenSpec,
    /// Rows that must be in the output tables, by table: every named column must have the given value.
    pub expect: BTreeMap<String, Vec<BTreeMap<String, Scalar>>>,
}

impl TestSpec {
    /// Adds a problem where the test expects no row, and could not fail. `key` is the key of the test.
    pub(super) fn check(&self, key: &str, problems: &mut Problems) {
        let lists = self.expect.iter().filter(|(_, rows)| rows.is_empty());
        let empty: Vec<String> = if self.expect.is_empty() {
            vec![format!("{key}.expect")]
        } else {
            lists.map(|(table, _)| format!("{key}.expect.{table}")).collect()
        };
        for place in empty {
            let problem =
                Problem::new("the test expects no row, and would pass whatever comes out");
            problems.push(problem.at(place).help(
                "list rows that a table must have, such as expect.labels = [{ instance_id = \"i1\", label = \"yes\" }]",
            ));
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
}
