//! `pair_competence`: how likely annotators are right on the instances that they labelled, and on those that
//! `source.pairs` asks about.

use std::sync::Arc;

use arrow::array::{BooleanArray, Float64Array};
use arrow::datatypes::DataType;

use crate::model::fitted::PairCompetence;
use crate::tables::{ColumnType, OutcomeTable, QuestionResult, REAL, column};

pub(in crate::tables) static PAIR_COMPETENCE: OutcomeTable = OutcomeTable {
    name: "pair_competence",
    columns: &[
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
    ],
    blocks: |result| result.fitted.report.pair_competence.pairs.len(),
    rows: |outcome, question, blocks| {
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
    },
    ..OutcomeTable::OF_QUESTIONS
};
