//! `predictions`: one row a row of features and class, what the classifier says of it.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Array};
use datafusion::arrow::compute::cast;

use super::{Answer, Column, Kind, Outcome, REAL, Table, column};
use crate::error::Result;
use crate::model::fitted::Posterior;

pub(super) struct Predictions;

impl Table for Predictions {
    fn name(&self) -> &'static str {
        "predictions"
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            column("instance_id", Kind::Instance, "the instance, annotated or not"),
            column("class", Kind::Label, "the class"),
            column("probability", REAL, "P(class given features); an instance's rows sum to 1"),
        ];
        COLUMNS
    }

    fn units(&self, answer: &Answer) -> usize {
        answer.fitted.predictions.as_ref().map_or(0, Posterior::len)
    }

    fn rows_per_unit(&self, answer: &Answer) -> usize {
        answer.fitted.posterior.n_classes()
    }

    fn rows(
        &self,
        outcome: &Outcome,
        question: usize,
        units: Range<usize>,
    ) -> Result<Vec<ArrayRef>> {
        let Answer { frame, fitted, .. } = &outcome.answers[question];
        let (Some(predictions), Some(described)) = (&fitted.predictions, &frame.described) else {
            return Ok(super::no_rows(self, outcome));
        };
        let n_classes = predictions.n_classes() as u32;
        let rows = || units.clone().map(|row| row as u32);
        let instances = rows().flat_map(|row| std::iter::repeat_n(Some(row), n_classes as usize));
        let classes = rows().flat_map(|_| (0..n_classes).map(Some));
        let values = units.clone().flat_map(|row| predictions.row(row).iter().copied());
        let instances = described.features.ids.rows(instances)?;
        Ok(vec![
            cast(&instances, frame.instances.values().data_type())?,
            frame.labels.rows(classes)?,
            Arc::new(Float64Array::from_iter_values(values)),
        ])
    }
}
