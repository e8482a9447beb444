//! `annotator_parameters` and `instance_parameters`: one row per id and name, for parameters that only some models
//! have.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, StringArray};

use super::{Column, ColumnType, Outcome, OutcomeTable, QuestionResult, REAL, TEXT, column};
use crate::error::Result;
use crate::frame::{Frame, Ids};
use crate::model::fitted::Report;

/// A parameter's name, and its value for each unit.
type NamedValues = (String, Vec<f64>);

/// The parameters of annotators, or of instances.
pub(super) struct ParametersTable {
    name: &'static str,
    columns: &'static [Column],
    ids: fn(&Frame) -> &Ids,
    named: fn(&Report) -> &[NamedValues],
}

const NAME: Column = column("name", TEXT, "name of the parameter, as in the model's description");
const VALUE: Column = column("value", REAL, "value of the parameter");

pub(super) static OF_ANNOTATORS: ParametersTable = ParametersTable {
    name: "annotator_parameters",
    columns: &[column("annotator_id", ColumnType::Annotator, "the annotator"), NAME, VALUE],
    ids: |frame| &frame.annotators,
    named: |report| &report.annotator_parameters,
};

pub(super) static OF_INSTANCES: ParametersTable = ParametersTable {
    name: "instance_parameters",
    columns: &[column("instance_id", ColumnType::Instance, "the instance"), NAME, VALUE],
    ids: |frame| &frame.instances,
    named: |report| &report.instance_parameters,
};

impl OutcomeTable for ParametersTable {
    fn name(&self) -> &'static str {
        self.name
    }

    fn columns(&self) -> &'static [Column] {
        self.columns
    }

    fn units(&self, result: &QuestionResult) -> usize {
        let any = !(self.named)(&result.fitted.report).is_empty();
        if any { (self.ids)(&result.frame).len() } else { 0 }
    }

    fn rows_per_unit(&self, result: &QuestionResult) -> usize {
        (self.named)(&result.fitted.report).len()
    }

    /// A unit whose value is NaN does not have the parameter, and gets no row.
    fn rows(
        &self,
        outcome: &Outcome,
        question: usize,
        units: Range<usize>,
    ) -> Result<Vec<ArrayRef>> {
        let QuestionResult { frame, fitted, .. } = &outcome.results[question];
        let named = (self.named)(&fitted.report);
        let of_unit = |unit: usize| named.iter().map(move |(name, v)| (unit, name, v[unit]));
        let known = || units.clone().flat_map(of_unit).filter(|(.., value)| !value.is_nan());
        Ok(vec![
            (self.ids)(frame).rows(known().map(|(unit, ..)| Some(unit as u32)))?,
            Arc::new(known().map(|(_, name, _)| Some(name)).collect::<StringArray>()),
            Arc::new(known().map(|(.., value)| value).collect::<Float64Array>()),
        ])
    }
}
