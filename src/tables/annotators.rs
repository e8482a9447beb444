//! `annotators`: one row an annotator, how much they did and how well.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array};

use super::{Answer, COUNT, Column, Kind, Outcome, REAL, Table, column, nullable};
use crate::error::Result;

pub(super) struct Annotators;

impl Table for Annotators {
    fn name(&self) -> &'static str {
        "annotators"
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            column("annotator_id", Kind::Annotator, "the annotator"),
            column(
                "n_annotations",
                COUNT,
                "annotations that were used, repeated ones counted each",
            ),
            column(
                "skill",
                REAL,
                "from 0 to 1; majority vote: agreement, confusion models: mean diagonal",
            ),
            nullable(
                "skill_low",
                REAL,
                "lower end of the skill's interval, where the model has one",
            ),
            nullable("skill_high", REAL, "upper end of it"),
        ];
        COLUMNS
    }

    fn units(&self, answer: &Answer) -> usize {
        answer.frame.annotators.len()
    }

    fn rows(
        &self,
        outcome: &Outcome,
        question: usize,
        units: Range<usize>,
    ) -> Result<Vec<ArrayRef>> {
        let Answer { frame, fitted, .. } = &outcome.answers[question];
        let report = &fitted.report;
        let n_annotations =
            units.clone().map(|r| i64::from(frame.annotations.rows_of_annotator(r)));
        let interval = |r: usize| report.skill_interval.as_ref().map(|all| all[r]);
        Ok(vec![
            frame.annotators.range(units.clone()),
            Arc::new(n_annotations.collect::<Int64Array>()),
            Arc::new(Float64Array::from(report.skill[units.clone()].to_vec())),
            Arc::new(units.clone().map(|r| Some(interval(r)?.0)).collect::<Float64Array>()),
            Arc::new(units.map(|r| Some(interval(r)?.1)).collect::<Float64Array>()),
        ])
    }
}
