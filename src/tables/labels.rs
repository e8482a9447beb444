//! `labels`: one row per instance, with the chosen class and its confidence.

use std::sync::Arc;

use arrow::array::{Float64Array, Int64Array, StringArray};

use super::{COUNT, ColumnType, OutcomeTable, QuestionResult, REAL, TEXT, column, nullable};

pub(super) static LABELS: OutcomeTable = OutcomeTable {
    name: "labels",
    columns: &[
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
    ],
    blocks: |result| result.frame.instances.len(),
    rows: |outcome, question, blocks| {
        let QuestionResult { frame, fitted, tie_seed, .. } = &outcome.results[question];
        let a = &frame.annotations;
        let decided = outcome.decide.decide_all(a, fitted, *tie_seed, blocks.clone());
        let n_annotations = blocks.clone().map(|i| i64::from(a.rows_of_instance(i)));
        Ok(vec![
            frame.instances.range(blocks.clone()),
            frame.labels.rows(decided.iter().map(|d| d.class))?,
            Arc::new(decided.iter().map(|d| d.confidence).collect::<Float64Array>()),
            Arc::new(decided.iter().map(|d| d.margin).collect::<Float64Array>()),
            Arc::new(n_annotations.collect::<Int64Array>()),
            Arc::new(StringArray::from_iter_values(decided.iter().map(|d| d.decision.word()))),
        ])
    },
    ..OutcomeTable::OF_QUESTIONS
};
