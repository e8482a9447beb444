//! `annotators`: one row per annotator, with their number of annotations and their skill.

pub(super) mod annotator_pairs;
pub(super) mod pair_competence;

use std::sync::Arc;

use arrow::array::{Float64Array, Int64Array};

use super::{COUNT, ColumnType, OutcomeTable, QuestionResult, REAL, column, nullable};

const SKILL: &str = "skill from 0 to 1, as the model defines it: agreement with the labels, accuracy, the mean probability that an annotation is right, or the mean diagonal of a confusion matrix";

pub(super) static ANNOTATORS: OutcomeTable = OutcomeTable {
    name: "annotators",
    columns: &[
        column("annotator_id", ColumnType::Annotator, "the annotator"),
        column("n_annotations", COUNT, "number of annotations used; repeated ones count each"),
        column("skill", REAL, SKILL),
        nullable("skill_low", REAL, "lower end of the skill's interval, where the model has one"),
        nullable("skill_high", REAL, "upper end of the skill's interval"),
    ],
    blocks: |result| result.frame.annotators.len(),
    rows: |outcome, question, blocks| {
        let QuestionResult { frame, fitted, .. } = &outcome.results[question];
        let report = &fitted.report;
        let n_annotations =
            blocks.clone().map(|r| i64::from(frame.annotations.rows_of_annotator(r)));
        let end = |of: fn(&(f64, f64)) -> f64| match &report.skill_interval {
            Some(all) => Float64Array::from_iter_values(all[blocks.clone()].iter().map(of)),
            None => Float64Array::new_null(blocks.len()),
        };
        Ok(vec![
            frame.annotators.range(blocks.clone()),
            Arc::new(Int64Array::from_iter_values(n_annotations)),
            Arc::new(Float64Array::from(report.skill[blocks.clone()].to_vec())),
            Arc::new(end(|interval| interval.0)),
            Arc::new(end(|interval| interval.1)),
        ])
    },
    ..OutcomeTable::OF_QUESTIONS
};
