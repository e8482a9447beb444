//! `posteriors` and `predictions`: one row per block and class, with the probability of the class.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, RecordBatch};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Schema, SchemaRef};

use super::rows::cut::RowBytes;
use super::{
    Column, ColumnType, ComputedTable, IdTypes, OutcomeTable, QuestionResult, REAL, column, fields,
};
use crate::error::Result;
use crate::frame::Ids;
use crate::model::posterior::Posterior;

const CLASS: Column = column("class", ColumnType::Label, "the class");

pub(super) static POSTERIORS: OutcomeTable = OutcomeTable {
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
    blocks: |result| result.frame.instances.len(),
    rows_per_block: |result| result.fitted.posterior.n_classes(),
    rows: |outcome, question, blocks| {
        let QuestionResult { frame, fitted, .. } = &outcome.results[question];
        // Without evidence a row would say nothing.
        let mut values = fitted.posterior.rows(blocks.clone()).into_owned();
        let (n, first) = (fitted.posterior.n_classes(), blocks.start);
        let known: Vec<usize> = blocks.filter(|i| frame.annotations.has_evidence(*i)).collect();
        for (to, i) in known.iter().enumerate() {
            values.copy_within((i - first) * n..(i - first + 1) * n, to * n);
        }
        values.truncate(known.len() * n);
        let ids = (&frame.instances, frame.instances.values().data_type());
        arrays(known.into_iter(), values, ids, &frame.labels)
    },
    ..OutcomeTable::OF_QUESTIONS
};

pub(super) static PREDICTIONS: OutcomeTable = OutcomeTable {
    name: "predictions",
    columns: &[
        column("instance_id", ColumnType::Instance, "the instance, annotated or not"),
        CLASS,
        column("probability", REAL, "P(class given features); an instance's rows sum to 1"),
    ],
    blocks: |result| predicted(result).map_or(0, |(ids, _)| ids.len()),
    rows_per_block: |result| result.fitted.posterior.n_classes(),
    rows: |outcome, question, blocks| {
        let result = &outcome.results[question];
        let Some((ids, predictions)) = predicted(result) else {
            return Ok(super::no_rows(&PREDICTIONS, outcome));
        };
        let values = rows_of(predictions, &blocks);
        let id_type = result.frame.instances.values().data_type();
        arrays(blocks, values, (ids, id_type), &result.frame.labels)
    },
    ..OutcomeTable::OF_QUESTIONS
};

/// The classifier's predictions, with the ids of their rows.
fn predicted(result: &QuestionResult) -> Option<(&Ids, &Posterior)> {
    let with_features = result.frame.with_features.as_ref()?;
    Some((&with_features.features.ids, result.fitted.predictions.as_ref()?))
}

/// The probabilities in these rows.
fn rows_of(posterior: &Posterior, rows: &Range<usize>) -> Vec<f64> {
    let n = posterior.n_classes();
    posterior.values()[rows.start * n..rows.end * n].to_vec()
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
            let values = rows_of(predicted, &blocks);
            let arrays = arrays(blocks, values, (ids, id_type), classes)?;
            Ok(RecordBatch::try_new(SchemaRef::clone(&schema), arrays)?)
        });
    table.with_row_bytes(row_bytes)
}
