//! `[[test]]` blocks of a pipeline file: rows that are given, and rows of the output tables that are expected.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::source::{InlineRows, Scalar};

/// One example of what the pipeline does.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TestSpec {
    /// What it shows.
    pub name: String,
    /// The rows that stand for the sources.
    pub given: GivenSpec,
    /// Rows that must be in the output tables, by table: every named column must be as written.
    pub expect: BTreeMap<String, Vec<BTreeMap<String, Scalar>>>,
}

/// Rows that stand for the sources.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GivenSpec {
    /// [instance, annotator, label], and perhaps weight, annotated_at, question.
    pub annotations: InlineRows,
    /// [instance, class], and perhaps role, question.
    pub gold: Option<InlineRows>,
}
