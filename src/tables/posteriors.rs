//! `posteriors`: one row an instance and class, P(class given everything observed).

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Array};

use super::{Answer, Column, Kind, Outcome, REAL, Table, column};
use crate::error::Result;

pub(super) struct Posteriors;

impl Table for Posteriors {
    fn name(&self) -> &'static str {
        "posteriors"
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            column("instance_id", Kind::Instance, "the instance; one without evidence has no rows"),
            column("class", Kind::Label, "the class"),
            column("probability", REAL, "its posterior; an instance's rows sum to 1"),
        ];
        COLUMNS
    }

    fn units(&self, answer: &Answer) -> usize {
        answer.frame.instances.len()
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
        let n_classes = fitted.posterior.n_classes() as u32;
        let known: Vec<u32> =
            units.filter(|i| frame.annotations.has_evidence(*i)).map(|i| i as u32).collect();
        let instances =
            known.iter().flat_map(|i| std::iter::repeat_n(Some(*i), n_classes as usize));
        let classes = known.iter().flat_map(|_| (0..n_classes).map(Some));
        let values = known.iter().flat_map(|i| fitted.posterior.row(*i as usize).iter().copied());
        Ok(vec![
            frame.instances.rows(instances)?,
            frame.labels.rows(classes)?,
            Arc::new(Float64Array::from_iter_values(values)),
        ])
    }
}
