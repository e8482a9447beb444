//! `annotator_pairs`: the pairs of annotators that agree most beyond what their matrices explain.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array};

use crate::diagnose::AnnotatorPair;
use crate::tables::{COUNT, ColumnType, OutcomeTable, QuestionResult, REAL, column, nullable};

pub(in crate::tables) static ANNOTATOR_PAIRS: OutcomeTable = OutcomeTable {
    name: "annotator_pairs",
    columns: &[
        column(
            "annotator_id",
            ColumnType::Annotator,
            "the annotator; at most 10 000 pairs: near-copies, then the most significant excess, first",
        ),
        column("other_id", ColumnType::Annotator, "the other annotator of the pair"),
        column(
            "n",
            COUNT,
            "number of common instances that were compared; of large data sets a sample is",
        ),
        column("agreement", REAL, "share of these instances with equal labels"),
        nullable("kappa", REAL, "Cohen's kappa; null where both gave one label alone"),
        column(
            "excess",
            REAL,
            "agreement beyond what the annotators' confusion matrices explain; about 0 for independent annotators",
        ),
    ],
    blocks: |result| result.diagnosis.dependence.pairs.len(),
    rows: |outcome, question, blocks| {
        let QuestionResult { frame, diagnosis, .. } = &outcome.results[question];
        let pairs = &diagnosis.dependence.pairs[blocks];
        let ids = |of: fn(&AnnotatorPair) -> u32| {
            frame.annotators.rows(pairs.iter().map(|pair| Some(of(pair))))
        };
        let reals = |of: fn(&AnnotatorPair) -> f64| -> ArrayRef {
            Arc::new(Float64Array::from_iter_values(pairs.iter().map(of)))
        };
        Ok(vec![
            ids(|pair| pair.annotator)?,
            ids(|pair| pair.other)?,
            Arc::new(Int64Array::from_iter_values(pairs.iter().map(|pair| i64::from(pair.n)))),
            reals(|pair| pair.agreement),
            Arc::new(pairs.iter().map(|pair| pair.kappa).collect::<Float64Array>()),
            reals(|pair| pair.excess),
        ])
    },
    ..OutcomeTable::OF_QUESTIONS
};
