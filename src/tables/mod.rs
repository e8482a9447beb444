//! The fourth stage: the output tables. Each file declares one table: its schema and its rows.
//!
//! Every run writes every table that `sink.tables` does not leave out, even an empty one, so that a query always finds
//! it. A table is cut into parts by its blocks (instances, annotators, rows of matrices), so that files do
//! not depend on threads. `sweep_statistics` is no table of a run: it is what processes that share a fit exchange.

mod agreement;
mod annotators;
mod classes;
mod confusion_matrices;
mod labels;
pub mod metrics;
mod parameters;
mod probabilities;
mod rejects;
mod rows;
mod run;
pub mod sweep_statistics;
mod trace;

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, new_empty_array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use crate::decide::{DecideSpec, Tally, TieSeed};
use crate::diagnose::Diagnosis;
use crate::error::{Problem, Result, did_you_mean};
use crate::frame::{Frame, Ids, Rejects};
use crate::model::fitted::Fitted;
pub(crate) use agreement::group_of;
pub(crate) use probabilities::predictions;
pub use rows::computed::ComputedTable;
pub use rows::cut::{BlockSpans, UnitSpan};
pub use rows::filled::FilledTable;
pub(crate) use run::run;
pub use run::{InputRecord, RunRecord};

/// The version of all schemas together: it increases when a column changes or is removed.
pub const SCHEMA_VERSION: u32 = 1;

/// A question's frame and the model that was fitted to it.
pub struct QuestionResult {
    /// The question's data.
    pub frame: Frame,
    /// The fitted model.
    pub fitted: Fitted,
    /// The seed by which random ties are broken.
    pub tie_seed: TieSeed,
    /// How many labels came from each kind of decision.
    pub tally: Tally,
    /// What the data cannot support.
    pub diagnosis: Diagnosis,
}

/// Everything that tables are computed from.
pub struct Outcome {
    /// One for each question.
    pub results: Vec<QuestionResult>,
    /// How posteriors become labels.
    pub decide: DecideSpec,
    /// Scores against gold: (question, metric).
    pub metrics: Vec<(usize, metrics::Metric)>,
    /// Facts about the run itself.
    pub run: RunRecord,
}

impl Outcome {
    /// The tally over all questions, without the counts of each class: the classes differ by question.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.results.iter().fold(Tally::default(), |all, result| all.and(&result.tally))
    }

    /// The rejected rows of all questions.
    #[must_use]
    pub fn rejects(&self) -> Rejects {
        let mut rejects = Rejects::default();
        let all = self.results.iter().flat_map(|result| result.frame.all_rejects());
        all.for_each(|more| rejects.merge(more));
        rejects
    }
}

/// The type of a column: fixed, or the type of the ids or labels that were read.
#[derive(Debug, Clone, PartialEq)]
pub enum ColumnType {
    /// The instances' own type.
    Instance,
    /// The annotators' own type.
    Annotator,
    /// The labels' own type.
    Label,
    /// Lists of texts.
    Texts,
    /// A fixed type.
    Fixed(DataType),
}

/// One declared column.
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: ColumnType,
    /// Whether it may be null.
    pub nullable: bool,
    /// The meaning of its values.
    pub meaning: &'static str,
}

const fn column(name: &'static str, kind: ColumnType, meaning: &'static str) -> Column {
    Column { name, kind, nullable: false, meaning }
}

const fn nullable(name: &'static str, kind: ColumnType, meaning: &'static str) -> Column {
    Column { name, kind, nullable: true, meaning }
}

const TEXT: ColumnType = ColumnType::Fixed(DataType::Utf8);
const REAL: ColumnType = ColumnType::Fixed(DataType::Float64);
const COUNT: ColumnType = ColumnType::Fixed(DataType::Int64);

/// A table that is ready to be written: its name, its schema, and its rows in parts, one file per part.
pub trait Table: Send + Sync {
    /// Its name: the folder it is written to, and the table in SQL.
    fn name(&self) -> &str;
    /// The columns.
    fn schema(&self) -> SchemaRef;
    /// How many parts there are: at least one, so that an empty table still has its schema.
    fn n_parts(&self) -> usize;
    /// The rows of one part.
    fn batches(&self, part: usize) -> Box<dyn Iterator<Item = Result<RecordBatch>> + '_>;
    /// A few thousand rows of one part, from evenly spaced positions; fewer of a part of few batches.
    fn sample(&self, part: usize) -> Box<dyn Iterator<Item = Result<RecordBatch>> + '_>;
    /// Whether almost every block has a value of its own in a column, in all of its rows, which are adjacent: a dictionary
    /// of the values would not pay.
    fn is_distinct(&self, column: &str) -> bool;
}

/// A table that every run writes: its declared columns, and how its rows are computed from an outcome.
pub struct OutcomeTable {
    /// Its name: the folder it is written to, and the table in SQL.
    pub name: &'static str,
    /// Its columns, without `question`.
    pub columns: &'static [Column],
    /// The number of blocks (instances, annotators, rows of matrices) of a question that its rows are computed from.
    blocks: fn(&QuestionResult) -> usize,
    /// The most rows of a block.
    rows_per_block: fn(&QuestionResult) -> usize,
    /// The spans of blocks that are not cut, where most blocks have far fewer rows than `rows_per_block`.
    block_spans: for<'a> fn(&'a QuestionResult) -> Option<BlockSpans<'a>>,
    /// The columns' arrays for the rows of some blocks of a question; an error where ids cannot be turned into rows.
    pub(crate) rows: fn(&Outcome, usize, Range<usize>) -> Result<Vec<ArrayRef>>,
    /// Whether the rows are about the run and not about a question.
    pub(crate) is_about_the_run: bool,
    /// The question of each row, if some of the rows are about other questions than the frame's own.
    questions: fn(&QuestionResult, Range<usize>) -> Result<Option<ArrayRef>>,
}

impl OutcomeTable {
    /// A table of rows about questions, one for each block.
    const OF_QUESTIONS: Self = Self {
        name: "",
        columns: &[],
        blocks: |_| 1,
        rows_per_block: |_| 1,
        block_spans: |_| None,
        rows: |_, _, _| Ok(Vec::new()),
        is_about_the_run: false,
        questions: |_, _| Ok(None),
    };
}

/// Every table of a run, in the order that a reader would open them.
pub static TABLES: &[&OutcomeTable] = &[
    &labels::LABELS,
    &probabilities::POSTERIORS,
    &annotators::ANNOTATORS,
    &annotators::annotator_pairs::ANNOTATOR_PAIRS,
    &agreement::AGREEMENT,
    &confusion_matrices::CONFUSION_MATRICES,
    &classes::CLASSES,
    &parameters::OF_ANNOTATORS,
    &parameters::OF_INSTANCES,
    &annotators::pair_competence::PAIR_COMPETENCE,
    &probabilities::PREDICTIONS,
    &trace::TRACE,
    &metrics::METRICS,
    &rejects::REJECTS,
    &run::RUN,
];

/// The table of this name.
///
/// # Errors
/// When no table has this name; the problem suggests the nearest name.
pub fn find_table(name: &str) -> std::result::Result<&'static OutcomeTable, Problem> {
    let names = TABLES.iter().map(|table| table.name);
    TABLES.iter().copied().find(|table| table.name == name).ok_or_else(|| {
        let all = names.clone();
        let one_of = || format!("one of {}", all.collect::<Vec<_>>().join(", "));
        let help = did_you_mean(name, names, one_of);
        Problem::new(format!("there is no table `{name}`")).help(help)
    })
}

/// The types of the ids and labels that were read.
pub(crate) struct IdTypes<'a> {
    pub(crate) instance: &'a DataType,
    pub(crate) annotator: &'a DataType,
    pub(crate) label: &'a DataType,
}

/// Declared columns as fields of a schema.
pub(crate) fn fields<'a>(
    columns: &'a [Column],
    types: &'a IdTypes<'a>,
) -> impl Iterator<Item = Field> + 'a {
    columns.iter().map(|column| {
        let data_type = match &column.kind {
            ColumnType::Instance => types.instance.clone(),
            ColumnType::Annotator => types.annotator.clone(),
            ColumnType::Label => types.label.clone(),
            ColumnType::Texts => DataType::new_list(DataType::Utf8, true),
            ColumnType::Fixed(fixed) => fixed.clone(),
        };
        Field::new(column.name, data_type, column.nullable)
    })
}

/// The table's schema for the types of ids and labels that were read.
fn schema_of(table: &OutcomeTable, outcome: &Outcome) -> SchemaRef {
    let frame = &outcome.results[0].frame;
    let types = IdTypes {
        instance: frame.instances.values().data_type(),
        annotator: frame.annotators.values().data_type(),
        label: frame.labels.values().data_type(),
    };
    let of_question = |q: &Ids| Field::new("question", q.values().data_type().clone(), false);
    let question = frame.question.as_ref().filter(|_| !table.is_about_the_run).map(of_question);
    let all = question.into_iter().chain(fields(table.columns, &types));
    Arc::new(Schema::new(all.collect::<Vec<_>>()))
}

/// The columns of a table without rows.
fn no_rows(table: &OutcomeTable, outcome: &Outcome) -> Vec<ArrayRef> {
    let schema = schema_of(table, outcome);
    let own = schema.fields().iter().filter(|f| table.columns.iter().any(|c| c.name == f.name()));
    own.map(|field| new_empty_array(field.data_type())).collect()
}
