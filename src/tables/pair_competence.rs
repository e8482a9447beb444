//! `pair_competence`: how likely annotators are right on the instances that they labelled, and on those that
//! `source.pairs` asks about.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Float64Array};
use arrow::datatypes::DataType;

use super::{Column, ColumnType, Outcome, OutcomeTable, QuestionResult, REAL, column};
use crate::error::Result;
use crate::model::fitted::PairCompetence;

pub(super) struct PairCompetenceTable;

impl OutcomeTable for PairCompetenceTable {
    fn name(&self) -> &'static str {
        "pair_competence"
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            column("instance_id", ColumnType::Instance, "the instance"),
            column("annotator_id", ColumnType::Annotator, "the annotator"),
            column(
                "competence",
                REAL,
                "probability that the annotator's label of the instance is right",
            ),
            column(
                "annotated",
                ColumnType::Fixed(DataType::Boolean),
                "whether the annotator labelled the instance; otherwise source.pairs asks about the pair",
            ),
        ];
        COLUMNS
    }

    fn blocks(&self, result: &QuestionResult) -> usize {
        result.fitted.report.pair_competence.pairs.len()
    }

    fn rows(
        &self,
        outcome: &Outcome,
        question: usize,
        blocks: Range<usize>,
    ) -> Result<Vec<ArrayRef>> {
        let QuestionResult { frame, fitted, .. } = &outcome.results[question];
        let PairCompetence { pairs, competence } = &fitted.report.pair_competence;
        let (pairs, competence) = (&pairs[blocks.clone()], &competence[blocks]);
        let annotated: BooleanArray = pairs.iter().map(|pair| Some(pair.is_annotated)).collect();
        Ok(vec![
            frame.instances.rows(pairs.iter().map(|pair| Some(pair.instance)))?,
            frame.annotators.rows(pairs.iter().map(|pair| Some(pair.annotator)))?,
            Arc::new(Float64Array::from_iter_values(competence.iter().copied())),
            Arc::new(annotated),
        ])
    }
}
