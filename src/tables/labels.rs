//! `labels`: one row per instance, with the chosen class and its confidence.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray};

use super::{
    COUNT, Column, ColumnType, Outcome, OutcomeTable, QuestionResult, REAL, TEXT, column, nullable,
};
use crate::error::Result;

pub(super) struct LabelsTable;

impl OutcomeTable for LabelsTable {
    fn name(&self) -> &'static str {
        "labels"
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            column("instance_id", ColumnType::Instance, "the instance"),
            nullable(
                "label",
                ColumnType::Label,
                "the chosen class; null where the decision is `abstained`",
            ),
            nullable("confidence", REAL, "the posterior of the best class; null without evidence"),
            nullable("margin", REAL, "the best posterior minus the second best; 0 for a tie"),
            column("n_annotations", COUNT, "number of annotations used; repeated ones count each"),
            column("decision", TEXT, "`decided`, `tied`, `gold` or `abstained`"),
        ];
        COLUMNS
    }

    fn blocks(&self, result: &QuestionResult) -> usize {
        result.frame.instances.len()
    }

    fn rows(
        &self,
        outcome: &Outcome,
        question: usize,
        blocks: Range<usize>,
    ) -> Result<Vec<ArrayRef>> {
        let QuestionResult { frame, fitted, tie_seed, .. } = &outcome.results[question];
        let a = &frame.annotations;
        let decided: Vec<_> =
            blocks.clone().map(|i| outcome.decide.decide(a, fitted, *tie_seed, i)).collect();
        let n_annotations = blocks.clone().map(|i| i64::from(a.rows_of_instance(i)));
        Ok(vec![
            frame.instances.range(blocks.clone()),
            frame.labels.rows(decided.iter().map(|d| d.class))?,
            Arc::new(decided.iter().map(|d| d.confidence).collect::<Float64Array>()),
            Arc::new(decided.iter().map(|d| d.margin).collect::<Float64Array>()),
            Arc::new(n_annotations.collect::<Int64Array>()),
            Arc::new(StringArray::from_iter_values(decided.iter().map(|d| d.decision.word()))),
        ])
    }
}
