//! `annotator_parameters` and `instance_parameters`: one row per id and name, for parameters that only some models
//! have.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, StringArray};

use super::{Column, ColumnType, Outcome, OutcomeTable, QuestionResult, REAL, TEXT, column};
use crate::error::Result;
use crate::frame::{Frame, Ids};
use crate::model::fitted::Report;

/// A parameter's name, and its value for each block.
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

    fn blocks(&self, result: &QuestionResult) -> usize {
        let any = !(self.named)(&result.fitted.report).is_empty();
        if any { (self.ids)(&result.frame).len() } else { 0 }
    }

    fn rows_per_block(&self, result: &QuestionResult) -> usize {
        (self.named)(&result.fitted.report).len()
    }

    /// A block whose value is NaN does not have the parameter, and gets no row.
    fn rows(
        &self,
        outcome: &Outcome,
        question: usize,
        blocks: Range<usize>,
    ) -> Result<Vec<ArrayRef>> {
        let QuestionResult { frame, fitted, .. } = &outcome.results[question];
        let named = (self.named)(&fitted.report);
        let of_block = |block: usize| named.iter().map(move |(name, v)| (block, name, v[block]));
        let known = || blocks.clone().flat_map(of_block).filter(|(.., value)| !value.is_nan());
        Ok(vec![
            (self.ids)(frame).rows(known().map(|(block, ..)| Some(block as u32)))?,
            Arc::new(known().map(|(_, name, _)| Some(name)).collect::<StringArray>()),
            Arc::new(known().map(|(.., value)| value).collect::<Float64Array>()),
        ])
    }
}
