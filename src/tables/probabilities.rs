//! `posteriors` and `predictions`: one row per unit and class, with the probability of the class.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, RecordBatch};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Schema, SchemaRef};

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
    /// The probabilities and the ids of their rows, if the model has any.
    of: fn(&QuestionResult) -> Option<(&Posterior, &Ids)>,
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
    of: |answer| Some((&answer.fitted.posterior, &answer.frame.instances)),
    is_known: |answer, i| answer.frame.annotations.has_evidence(i),
};

pub(super) static PREDICTIONS: ProbabilitiesTable = ProbabilitiesTable {
    name: "predictions",
    columns: &[
        column("instance_id", ColumnType::Instance, "the instance, annotated or not"),
        CLASS,
        column("probability", REAL, "P(class given features); an instance's rows sum to 1"),
    ],
    of: |answer| {
        let described = answer.frame.described.as_ref()?;
        Some((answer.fitted.predictions.as_ref()?, &described.features.ids))
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

    fn units(&self, answer: &QuestionResult) -> usize {
        (self.of)(answer).map_or(0, |(rows, _)| rows.len())
    }

    fn rows_per_unit(&self, answer: &QuestionResult) -> usize {
        answer.fitted.posterior.n_classes()
    }

    fn rows(
        &self,
        outcome: &Outcome,
        question: usize,
        units: Range<usize>,
    ) -> Result<Vec<ArrayRef>> {
        let answer = &outcome.answers[question];
        let Some((rows, ids)) = (self.of)(answer) else {
            return Ok(super::no_rows(self, outcome));
        };
        let known = units.filter(|unit| (self.is_known)(answer, *unit));
        let frame = &answer.frame;
        arrays(rows, (ids, frame.instances.values().data_type()), &frame.labels, known)
    }
}

/// Ids, classes and probabilities of some rows of a posterior, one table row for each class.
fn arrays(
    posterior: &Posterior,
    (ids, id_type): (&Ids, &DataType),
    classes: &Ids,
    units: impl Iterator<Item = usize>,
) -> Result<Vec<ArrayRef>> {
    let n_classes = posterior.n_classes();
    let most = units.size_hint().1.unwrap_or_default() * n_classes;
    let (mut owners, mut of_class) = (Vec::with_capacity(most), Vec::with_capacity(most));
    let mut values = Vec::with_capacity(most);
    for unit in units {
        owners.extend(std::iter::repeat_n(unit as u32, n_classes));
        of_class.extend(0..n_classes as u32);
        values.extend_from_slice(posterior.row(unit));
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
    let row_bytes = ids.longest() + classes.longest();
    let table =
        ComputedTable::new(PREDICTIONS.name, SchemaRef::clone(&schema), size, move |units| {
            let arrays = arrays(predicted, (ids, id_type), classes, units)?;
            Ok(RecordBatch::try_new(SchemaRef::clone(&schema), arrays)?)
        });
    table.with_row_bytes(row_bytes)
}
