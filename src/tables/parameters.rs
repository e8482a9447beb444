//! `annotator_parameters` and `instance_parameters`: one row per id and name, for parameters that only some models
//! have.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, StringArray};

use super::{Column, ColumnType, OutcomeTable, QuestionResult, REAL, TEXT, column};
use crate::error::Result;
use crate::frame::Ids;

/// A parameter's name, and its value for each block.
type NamedValues = (String, Vec<f64>);

const NAME: Column = column("name", TEXT, "name of the parameter, as in the model's description");
const VALUE: Column = column("value", REAL, "value of the parameter");

pub(super) static OF_ANNOTATORS: OutcomeTable = OutcomeTable {
    name: "annotator_parameters",
    columns: &[column("annotator_id", ColumnType::Annotator, "the annotator"), NAME, VALUE],
    blocks: |result| of_annotators(result).blocks(),
    rows_per_block: |result| of_annotators(result).named.len(),
    rows: |outcome, question, blocks| of_annotators(&outcome.results[question]).rows(&blocks),
    ..OutcomeTable::OF_QUESTIONS
};

pub(super) static OF_INSTANCES: OutcomeTable = OutcomeTable {
    name: "instance_parameters",
    columns: &[column("instance_id", ColumnType::Instance, "the instance"), NAME, VALUE],
    blocks: |result| of_instances(result).blocks(),
    rows_per_block: |result| of_instances(result).named.len(),
    rows: |outcome, question, blocks| of_instances(&outcome.results[question]).rows(&blocks),
    ..OutcomeTable::OF_QUESTIONS
};

/// The parameters of annotators, or of instances.
struct NamedParameters<'a> {
    ids: &'a Ids,
    named: &'a [NamedValues],
}

fn of_annotators(result: &QuestionResult) -> NamedParameters<'_> {
    let named = &result.fitted.report.annotator_parameters;
    NamedParameters { ids: &result.frame.annotators, named }
}

fn of_instances(result: &QuestionResult) -> NamedParameters<'_> {
    NamedParameters {
        ids: &result.frame.instances,
        named: &result.fitted.report.instance_parameters,
    }
}

impl NamedParameters<'_> {
    fn blocks(&self) -> usize {
        if self.named.is_empty() { 0 } else { self.ids.len() }
    }

    /// A block whose value is NaN does not have the parameter, and gets no row.
    fn rows(&self, blocks: &Range<usize>) -> Result<Vec<ArrayRef>> {
        let of_block =
            |block: usize| self.named.iter().map(move |(name, v)| (block, name, v[block]));
        let known = || blocks.clone().flat_map(of_block).filter(|(.., value)| !value.is_nan());
        Ok(vec![
            self.ids.rows(known().map(|(block, ..)| Some(block as u32)))?,
            Arc::new(known().map(|(_, name, _)| Some(name)).collect::<StringArray>()),
            Arc::new(known().map(|(.., value)| value).collect::<Float64Array>()),
        ])
    }
}
