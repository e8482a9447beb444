//! `instance_parameters`: one row an instance and name, the numbers that only some models have.

use std::ops::Range;

use datafusion::arrow::array::ArrayRef;

use super::{Answer, Column, Kind, Outcome, REAL, TEXT, Table, column};
use crate::error::Result;

pub(super) struct InstanceParameters;

impl Table for InstanceParameters {
    fn name(&self) -> &'static str {
        "instance_parameters"
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            column("instance_id", Kind::Instance, "the instance"),
            column("name", TEXT, "what it is; the model's description says more"),
            column("value", REAL, "how much of it"),
        ];
        COLUMNS
    }

    fn units(&self, answer: &Answer) -> usize {
        let named = !answer.fitted.report.instance_parameters.is_empty();
        if named { answer.frame.instances.len() } else { 0 }
    }

    fn rows_per_unit(&self, answer: &Answer) -> usize {
        answer.fitted.report.instance_parameters.len()
    }

    fn rows(
        &self,
        outcome: &Outcome,
        question: usize,
        units: Range<usize>,
    ) -> Result<Vec<ArrayRef>> {
        let Answer { frame, fitted, .. } = &outcome.answers[question];
        super::named_rows(&frame.instances, &fitted.report.instance_parameters, units)
    }
}
