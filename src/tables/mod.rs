//! The fourth stage: what leaves. One file a table, each with its declared schema and its rows.
//!
//! Every run writes every table, empty ones too, so that a query over a run never misses one. Rows are made in units
//! (instances, annotators) of a fixed number a part, so that the files do not depend on threads.

mod annotators;
mod classes;
mod confusion_matrices;
mod labels;
pub mod metrics;
mod parameters;
mod probabilities;
mod rejects;
mod run;
mod trace;

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, RecordBatch, new_empty_array};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use crate::decide::{DecideSpec, Tally};
use crate::error::Result;
use crate::frame::Frame;
use crate::model::fitted::Fitted;
pub(crate) use confusion_matrices::MET;
pub use run::{InputRecord, RunRecord};

/// The version of all schemas together: it moves when a column changes or goes.
pub const SCHEMA_VERSION: u32 = 1;

/// Rows in a part file at most, about: what one thread encodes at a time.
const PART_ROWS: usize = 1 << 20;

/// Rows that are turned into arrays at once.
const BATCH_ROWS: usize = 1 << 13;

/// A question's frame and what was fitted to it.
pub struct Answer {
    /// What was read.
    pub frame: Frame,
    /// What was learned.
    pub fitted: Fitted,
    /// How its labels came about.
    pub tally: Tally,
}

/// All that tables are made of.
pub struct Outcome {
    /// One for each question.
    pub answers: Vec<Answer>,
    /// How posteriors become labels.
    pub decide: DecideSpec,
    /// Scores against gold: (question, metric).
    pub metrics: Vec<(usize, metrics::Metric)>,
    /// The run itself.
    pub run: RunRecord,
}

impl Outcome {
    /// How the labels of all questions came about; the classes differ by question and are left out.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.answers.iter().fold(Tally::default(), |all, answer| all.and(&answer.tally))
    }
}

/// The type of a column: fixed, or that of the ids that came in.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// The instances' own type.
    Instance,
    /// The annotators' own type.
    Annotator,
    /// The labels' own type.
    Label,
    /// A fixed type.
    Fixed(DataType),
}

/// One declared column.
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Whether it may be null.
    pub nullable: bool,
    /// What it holds.
    pub meaning: &'static str,
}

const fn column(name: &'static str, kind: Kind, meaning: &'static str) -> Column {
    Column { name, kind, nullable: false, meaning }
}

const fn nullable(name: &'static str, kind: Kind, meaning: &'static str) -> Column {
    Column { name, kind, nullable: true, meaning }
}

const TEXT: Kind = Kind::Fixed(DataType::Utf8);
const REAL: Kind = Kind::Fixed(DataType::Float64);
const COUNT: Kind = Kind::Fixed(DataType::Int64);

/// A table that every run writes.
pub trait Table: Sync {
    /// Its name: the folder it is written to, and the table in SQL.
    fn name(&self) -> &'static str;
    /// Its columns, without `question`.
    fn columns(&self) -> &'static [Column];
    /// From how many units (instances, annotators, rows) of a question its rows come.
    fn units(&self, answer: &Answer) -> usize;
    /// Rows that a unit gives at most.
    fn rows_per_unit(&self, _answer: &Answer) -> usize {
        1
    }
    /// The columns' arrays for the rows of some units.
    ///
    /// # Errors
    /// When ids cannot be turned into rows.
    fn rows(
        &self,
        outcome: &Outcome,
        question: usize,
        units: Range<usize>,
    ) -> Result<Vec<ArrayRef>>;
    /// Whether the rows are about the run and not about a question.
    fn is_about_the_run(&self) -> bool {
        false
    }
}

/// Every table, in the order that a reader would open them.
pub static TABLES: &[&dyn Table] = &[
    &labels::Labels,
    &probabilities::POSTERIORS,
    &annotators::Annotators,
    &confusion_matrices::ConfusionMatrices,
    &classes::Classes,
    &parameters::OF_ANNOTATORS,
    &parameters::OF_INSTANCES,
    &probabilities::PREDICTIONS,
    &trace::Trace,
    &metrics::Metrics,
    &rejects::RejectsTable,
    &run::RunTable,
];

/// Rows of a table that go into one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    question: usize,
    units: Range<usize>,
}

/// The files that a table is cut into: at least one, so that an empty table still has its schema.
#[must_use]
pub fn parts(table: &dyn Table, outcome: &Outcome) -> Vec<Part> {
    let questions = if table.is_about_the_run() { 1 } else { outcome.answers.len() };
    let mut parts = Vec::new();
    for question in 0..questions {
        let answer = &outcome.answers[question];
        let (units, step) =
            (table.units(answer), (PART_ROWS / table.rows_per_unit(answer).max(1)).max(1));
        parts.extend(
            (0..units)
                .step_by(step)
                .map(|start| Part { question, units: start..(start + step).min(units) }),
        );
    }
    if parts.is_empty() {
        parts.push(Part { question: 0, units: 0..0 });
    }
    parts
}

/// The table's schema for the types that came in.
#[must_use]
pub fn schema(table: &dyn Table, outcome: &Outcome) -> SchemaRef {
    let frame = &outcome.answers[0].frame;
    let data_type = |kind: &Kind| match kind {
        Kind::Instance => frame.instances.values().data_type().clone(),
        Kind::Annotator => frame.annotators.values().data_type().clone(),
        Kind::Label => frame.labels.values().data_type().clone(),
        Kind::Fixed(fixed) => fixed.clone(),
    };
    let mut fields: Vec<Field> = Vec::new();
    if let (Some(question), false) = (&frame.question, table.is_about_the_run()) {
        fields.push(Field::new("question", question.values().data_type().clone(), false));
    }
    fields
        .extend(table.columns().iter().map(|c| Field::new(c.name, data_type(&c.kind), c.nullable)));
    Arc::new(Schema::new(fields))
}

/// The batches of one part.
pub fn batches<'a>(
    table: &'a dyn Table,
    outcome: &'a Outcome,
    schema: &'a SchemaRef,
    part: &'a Part,
) -> impl Iterator<Item = Result<RecordBatch>> + 'a {
    let answer = &outcome.answers[part.question];
    let step = (BATCH_ROWS / table.rows_per_unit(answer).max(1)).max(1);
    part.units.clone().step_by(step).map(move |start| {
        let units = start..(start + step).min(part.units.end);
        let mut arrays = table.rows(outcome, part.question, units)?;
        if let (Some(question), false) = (&answer.frame.question, table.is_about_the_run()) {
            let rows = arrays.first().map_or(0, Array::len);
            arrays.insert(0, question.rows(std::iter::repeat_n(Some(0), rows))?);
        }
        Ok(RecordBatch::try_new(SchemaRef::clone(schema), arrays)?)
    })
}

/// The columns of a table without rows.
fn no_rows(table: &dyn Table, outcome: &Outcome) -> Vec<ArrayRef> {
    let schema = schema(table, outcome);
    let own = schema.fields().iter().filter(|f| table.columns().iter().any(|c| c.name == f.name()));
    own.map(|field| new_empty_array(field.data_type())).collect()
}
