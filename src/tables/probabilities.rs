//! `posteriors` and `predictions`: one row per block and class, with the probability of the class.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, RecordBatch};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Schema, SchemaRef};

use super::rows::cut::RowBytes;
use super::{
    Column, ColumnType, ComputedTable, IdTypes, Outcome, OutcomeTable, QuestionResult, REAL,
    column, fields,
};
use crate::error::Result;
use crate::frame::Ids;
use crate::model::posterior::Posterior;

/// P(class given everything observed) of instances, or P(class given features) of rows of features.
pub(super) struct ProbabilitiesTable {
    name: &'static str,
    columns: &'static [Column],
    /// The ids of the rows of probabilities, if the model has any.
    ids: fn(&QuestionResult) -> Option<&Ids>,
    /// Appends the probability of each class in a row.
    extend_with_row: fn(&QuestionResult, usize, &mut Vec<f64>),
    /// Whether a row is written: without evidence it would say nothing.
    is_known: fn(&QuestionResult, usize) -> bool,
}

const CLASS: Column = column("class", ColumnType::Label, "the class");

pub(super) static POSTERIORS: ProbabilitiesTable = ProbabilitiesTable {
    name: "posteriors",
    columns: &[
        column(
            "instance_id",
            ColumnType::Instance,
            "the instance; one without evidence has no rows",
        ),
        CLASS,
        column(
            "probability",
            REAL,
            "posterior probability of the class; an instance's rows sum to 1",
        ),
    ],
    ids: |result| Some(&result.frame.instances),
    extend_with_row: |result, i, values| result.fitted.posterior.extend_with_row(i, values),
    is_known: |result, i| result.frame.annotations.has_evidence(i),
};

pub(super) static PREDICTIONS: ProbabilitiesTable = ProbabilitiesTable {
    name: "predictions",
    columns: &[
        column("instance_id", ColumnType::Instance, "the instance, annotated or not"),
        CLASS,
        column("probability", REAL, "P(class given features); an instance's rows sum to 1"),
    ],
    ids: |result| {
        let with_features = result.frame.with_features.as_ref()?;
        result.fitted.predictions.as_ref().map(|_| &with_features.features.ids)
    },
    extend_with_row: |result, i, values| {
        if let Some(predictions) = &result.fitted.predictions {
            values.extend_from_slice(predictions.row(i));
        }
    },
    is_known: |_, _| true,
};

impl OutcomeTable for ProbabilitiesTable {
    fn name(&self) -> &'static str {
        self.name
    }

    fn columns(&self) -> &'static [Column] {
        self.columns
    }

    fn blocks(&self, result: &QuestionResult) -> usize {
        (self.ids)(result).map_or(0, Ids::len)
    }

    fn rows_per_block(&self, result: &QuestionResult) -> usize {
        result.fitted.posterior.n_classes()
    }

    fn rows(
        &self,
        outcome: &Outcome,
        question: usize,
        blocks: Range<usize>,
    ) -> Result<Vec<ArrayRef>> {
        let result = &outcome.results[question];
        let Some(ids) = (self.ids)(result) else {
            return Ok(super::no_rows(self, outcome));
        };
        let known: Vec<usize> = blocks.filter(|block| (self.is_known)(result, *block)).collect();
        let mut values = Vec::with_capacity(known.len() * result.fitted.posterior.n_classes());
        known.iter().for_each(|block| (self.extend_with_row)(result, *block, &mut values));
        let frame = &result.frame;
        let id_type = frame.instances.values().data_type();
        arrays(known.into_iter(), values, (ids, id_type), &frame.labels)
    }
}

/// Ids, classes and probabilities of some blocks, one table row for each class.
///
/// # Shapes
/// `values` is `[blocks, classes]`.
fn arrays(
    blocks: impl ExactSizeIterator<Item = usize>,
    values: Vec<f64>,
    (ids, id_type): (&Ids, &DataType),
    classes: &Ids,
) -> Result<Vec<ArrayRef>> {
    let n_classes = values.len().checked_div(blocks.len()).unwrap_or(0);
    let mut owners = Vec::with_capacity(values.len());
    let mut of_class = Vec::with_capacity(values.len());
    for block in blocks {
        owners.extend(std::iter::repeat_n(block as u32, n_classes));
        of_class.extend(0..n_classes as u32);
    }
    Ok(vec![
        as_type(&ids.take(owners)?, id_type)?,
        classes.take(of_class)?,
        Arc::new(Float64Array::from(values)),
    ])
}

/// Casts ids to another type; fails if one of them would be lost.
fn as_type(ids: &ArrayRef, id_type: &DataType) -> Result<ArrayRef> {
    let strict = CastOptions { safe: false, ..CastOptions::default() };
    Ok(cast_with_options(ids, id_type, &strict)?)
}

/// The table `predictions` of a classifier without a fit: P(class given features) of every row of features.
pub(crate) fn predictions<'a>(
    ids: &'a Ids,
    classes: &'a Ids,
    predicted: &'a Posterior,
) -> ComputedTable<'a> {
    let id_type = ids.values().data_type();
    let types =
        IdTypes { instance: id_type, annotator: id_type, label: classes.values().data_type() };
    let columns = fields(PREDICTIONS.columns, &types).collect::<Vec<_>>();
    let schema = Arc::new(Schema::new(columns));
    let size = (predicted.len(), predicted.n_classes());
    let row_bytes = RowBytes {
        longest: ids.longest() + classes.longest(),
        mean: ids.mean_bytes() + classes.mean_bytes(),
    };
    let table =
        ComputedTable::new(PREDICTIONS.name, SchemaRef::clone(&schema), size, move |blocks| {
            let n_classes = predicted.n_classes();
            let values = &predicted.values()[blocks.start * n_classes..blocks.end * n_classes];
            let arrays = arrays(blocks, values.to_vec(), (ids, id_type), classes)?;
            Ok(RecordBatch::try_new(SchemaRef::clone(&schema), arrays)?)
        });
    table.with_row_bytes(row_bytes)
}
