//! The rows of a table beside the annotations, by the numbers of one question.

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::Float64Type;

use crate::error::{Error, Result, offenders};
use crate::frame::collect::optional_columns::numbers;
use crate::frame::collect::overlaps::without_features;
use crate::frame::ids::{Ids, Interner};
use crate::frame::question_frame::Frame;
use crate::source::Relation;

/// How far a sum of probabilities may be from 1: they may be rounded.
pub(super) const TOLERANCE: f64 = 5e-3;

/// A table beside the annotations as it was read.
pub(super) struct GivenTable {
    pub(super) relation: Relation,
    pub(super) batch: RecordBatch,
}

/// The cells of a table whose ids are known: `(id, the numbers of the other columns)`, and the probability.
pub(super) struct Cell {
    pub(super) id: u32,
    pub(super) class: usize,
    pub(super) label: usize,
    pub(super) probability: f64,
}

impl GivenTable {
    /// The rows of a frame's question; those of a table without questions hold for each.
    pub(super) fn of_question(&self, frame: &Frame) -> Result<Self> {
        let batch = match self.is_of_question(frame)? {
            Some(own) => filter_record_batch(&self.batch, &own)?,
            None => self.batch.clone(),
        };
        Ok(Self { relation: self.relation, batch })
    }

    /// Whether each row is of a frame's question; `None` for a table without questions.
    pub(super) fn is_of_question(&self, frame: &Frame) -> Result<Option<BooleanArray>> {
        let (Some(question), Some(column)) =
            (&frame.question, self.batch.column_by_name("question"))
        else {
            return Ok(None);
        };
        let name = format!("{}.question", self.relation.table());
        let found = question.lookup(&name, column)?;
        Ok(Some(found.into_iter().map(|q| Some(q.is_some())).collect()))
    }

    /// Whether no row is of the question.
    pub(super) fn is_empty(&self) -> bool {
        self.batch.num_rows() == 0
    }

    /// The cells of instances or annotators that the frame has, in the order of their ids, classes and labels. Other ids
    /// may be those of other batches; an annotator that is null is that of the matrix that all annotators of a run share.
    ///
    /// # Errors
    /// When no id is one of the annotations, a class or a label is not one of the run, a number is no probability, or a
    /// cell is given twice.
    pub(super) fn cells(&self, frame: &Frame) -> Result<Vec<Cell>> {
        let dims = frame.annotations.dims();
        let is_confusion = self.relation == Relation::Confusion;
        let (ids, id, what) = if is_confusion {
            (&frame.annotators, "annotator_id", "annotator")
        } else {
            (&frame.instances, "instance_id", "instance")
        };
        let own = self.look_up(ids, id)?;
        if own.iter().all(Option::is_none) {
            let given = self.values_of(id)?;
            let table = if is_confusion { "the confusion matrices" } else { "the predictions" };
            return Err(without_features((ids, &given, what), table).error());
        }
        let probability = numbers(self.column("probability")?).ok_or_else(|| {
            let found = self.batch.column_by_name("probability").map(|c| c.data_type().to_string());
            Error::data("the column `probability` cannot be read as numbers")
                .found(found.unwrap_or_default())
                .help(format!(
                    "cast it in source.sql.{}, or map another column",
                    self.relation.table()
                ))
        })?;
        let probability = probability.as_primitive::<Float64Type>();
        let classes = self.look_up(&frame.labels, "class")?;
        let labels = if is_confusion {
            self.look_up(&frame.labels, "label")?
        } else {
            vec![Some(0); own.len()]
        };
        let (mut cells, mut odd, mut unknown) = (Vec::new(), Vec::new(), [Vec::new(), Vec::new()]);
        for (row, id) in own.into_iter().enumerate() {
            let Some(id) = id else { continue };
            let p = if probability.is_null(row) { f64::NAN } else { probability.value(row) };
            if !(0.0..=1.0 + TOLERANCE).contains(&p) {
                odd.push(row);
                continue;
            }
            let class = classes[row].filter(|class| (*class as usize) < dims.classes);
            match (class, labels[row]) {
                (Some(class), Some(label)) => {
                    let (class, label) = (class as usize, label as usize);
                    cells.push(Cell { id, class, label, probability: p });
                }
                // Whatever is impossible need not be a class of the run.
                _ if p == 0.0 => {}
                (None, _) => unknown[0].push(row),
                (_, None) => unknown[1].push(row),
            }
        }
        let refused = |what: &str, rows: &[usize], help: &str| {
            let rows: Vec<String> =
                rows.iter().map(|row| self.shown(*row)).collect::<Result<_>>()?;
            Err(Error::data(what).found(offenders(rows)).help(help))
        };
        if !odd.is_empty() {
            return refused("a number is no probability", &odd, "write numbers from 0 to 1");
        }
        if !unknown[0].is_empty() {
            let help = "list all classes in frame.classes";
            return refused("a row has a class that is not one of the run", &unknown[0], help);
        }
        if !unknown[1].is_empty() {
            let help =
                "list all classes in frame.classes, and labels that are none in frame.extra_labels";
            return refused("a row has a label that is not one of the run", &unknown[1], help);
        }
        cells.sort_unstable_by_key(|cell| (cell.id, cell.class, cell.label));
        let position = |cell: &Cell| (cell.id, cell.class, cell.label);
        if let Some([one, _]) =
            cells.array_windows().find(|[one, next]| position(one) == position(next))
        {
            let Cell { id, class, label, .. } = one;
            let mut found = format!("{}, {}", ids.text(*id as usize), frame.labels.text(*class));
            if is_confusion {
                found = format!("{found}, {}", frame.labels.text(*label));
            }
            return Err(Error::data("the table gives a probability twice")
                .found(found)
                .help("keep one row for each"));
        }
        Ok(cells)
    }

    fn column(&self, name: &str) -> Result<&ArrayRef> {
        let column = self.batch.column_by_name(name);
        column.ok_or_else(|| Error::bug(format!("{} lacks `{name}`", self.relation.table())))
    }

    /// The number of each row's value among ids of the annotations.
    pub(super) fn look_up(&self, ids: &Ids, name: &str) -> Result<Vec<Option<u32>>> {
        let schema = self.batch.schema();
        ids.index(name)?.lookup(schema.field_with_name(name)?, self.column(name)?)
    }

    /// The distinct values of a column.
    fn values_of(&self, name: &str) -> Result<Ids> {
        let mut ids = Interner::new(self.batch.schema().field_with_name(name)?);
        ids.intern(self.column(name)?, &mut Vec::new())?;
        Ok(ids.finish(|_| true)?.0)
    }

    /// A row in errors.
    pub(super) fn shown(&self, row: usize) -> Result<String> {
        let columns = self.batch.columns().iter();
        let values =
            columns.map(|column| Ok(arrow::util::display::array_value_to_string(column, row)?));
        Ok(values.collect::<Result<Vec<_>>>()?.join(", "))
    }
}
