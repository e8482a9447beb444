//! `[[test]]` blocks of a pipeline file: input rows, and rows that the output tables must have.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::source::{InlineRows, Scalar};

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

/// Rows that replace the sources.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GivenSpec {
    /// Each row: [instance, annotator, label], optionally followed by weight, annotated_at, question.
    pub annotations: InlineRows,
    /// Each row: [instance, class], optionally followed by role, question.
    pub gold: Option<InlineRows>,
}
