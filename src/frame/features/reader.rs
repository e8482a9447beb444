//! Reads the rows of features batch by batch.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::buffer::ScalarBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float32Type, Schema, UInt8Type};
use arrow::util::display::array_value_to_string;

use super::matrix::{MatrixWriter, NumberType, Scratch};
use super::row_bytes::row_bytes;
use super::tensor::tensor_shape;
use super::{Features, number_columns};
use crate::error::{Error, Result, SHOWN_OFFENDERS, offenders};
use crate::frame::ids::shown_column::ShownColumn;
use crate::frame::ids::{Interner, NULL, in_plain_form};

/// Collects features batch by batch.
pub(in crate::frame) struct FeatureReader {
    /// What a query of a pipeline can do about rows that no model can read. `predict` has no queries of its own.
    query: String,
    ids: Interner,
    /// Whether the annotated ids are integers.
    are_integers: bool,
    columns: Vec<String>,
    scratch: Option<Scratch>,
    shape: Option<Vec<usize>>,
    writer: Option<MatrixWriter>,
    unusable: Unusable,
}

/// Numbers that no model can read, by kind and position in the row.
#[derive(Default)]
struct Unusable(BTreeMap<(UnusableKind, usize), IdsOf>);

/// Why a number cannot be read, in the order in which the kinds are reported.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum UnusableKind {
    /// A number, or the whole list.
    Missing,
    /// Some number of a list.
    MissingItem,
    NotFinite,
    TooLarge,
}

/// The first ids with such a number, and how many there are.
#[derive(Default)]
struct IdsOf {
    /// The first value and where it stands, in words.
    first: String,
    shown: Vec<String>,
    count: usize,
}

impl Unusable {
    /// Notes a value of the row of an id; `words` name it and its column.
    fn add(
        &mut self,
        (kind, position): (UnusableKind, usize),
        words: impl FnOnce() -> String,
        id: impl FnOnce() -> String,
    ) {
        let ids = self.0.entry((kind, position)).or_default();
        if ids.count == 0 {
            ids.first = words();
        }
        ids.count += 1;
        if ids.shown.len() < SHOWN_OFFENDERS {
            ids.shown.push(id());
        }
    }

    /// The error for all of them.
    fn error(&self) -> Option<Error> {
        let ((kind, _), _) = self.0.first_key_value()?;
        let what = match kind {
            UnusableKind::Missing | UnusableKind::MissingItem => {
                "a row of features is missing, in whole or in part"
            }
            UnusableKind::NotFinite => "a feature is not a finite number",
            UnusableKind::TooLarge => "a feature is too large for 32 bits",
        };
        let of = |(_, ids): (&(UnusableKind, usize), &IdsOf)| {
            let at = &ids.first;
            let shown: Vec<String> = ids.shown.iter().map(|id| format!("`{id}`")).collect();
            match ids.count {
                1 => format!("{at} `{}`", ids.shown[0]),
                n => format!(
                    "{at} {n} rows: {}{}",
                    shown.join(", "),
                    if n > shown.len() { " and others" } else { "" }
                ),
            }
        };
        let mut found: Vec<String> = self.0.iter().take(SHOWN_OFFENDERS).map(of).collect();
        if self.0.len() > found.len() {
            found.push(format!("and in {} more columns", self.0.len() - found.len()));
        }
        Some(Error::data(what).found(found.join("; ")))
    }
}

/// The numbers of one batch, row after row.
enum BatchNumbers {
    Bytes(ScalarBuffer<u8>),
    F32s(ScalarBuffer<f32>),
}

impl FeatureReader {
    /// The number of ids so far.
    pub(in crate::frame) fn len(&self) -> usize {
        self.ids.len()
    }

    /// The number of ids whose features have memory after this batch: those so far, or all, where memory is allocated for
    /// all at once.
    pub(in crate::frame) fn ids_after(&self, batch: &RecordBatch) -> usize {
        let at_once = match (&self.writer, &self.scratch) {
            (Some(writer), _) => writer.rows_at_once(),
            (None, Some(scratch)) => scratch.rows_at_once(row_bytes(&batch.columns()[1..])),
            (None, None) => 0,
        };
        at_once.max(self.ids.len() + batch.num_rows())
    }

    /// Bytes that are held in memory after this batch.
    pub(in crate::frame) fn bytes(&self, batch: &RecordBatch) -> usize {
        let written = match (&self.writer, &self.scratch) {
            (Some(writer), _) => writer.bytes_after(batch),
            (None, Some(scratch)) => {
                scratch.bytes_after_first(batch.num_rows(), row_bytes(&batch.columns()[1..]))
            }
            (None, None) => 0,
        };
        self.ids.bytes(batch.num_rows()) + written
    }

    pub(in crate::frame) fn new(schema: &Schema, scratch: Scratch) -> Self {
        let id = schema.field(0);
        let table = if id.name() == "annotator_id" { "annotator_features" } else { "features" };
        Self {
            query: format!("in a pipeline, source.sql.{table} can"),
            ids: Interner::new(id),
            are_integers: false,
            columns: number_columns(schema),
            scratch: Some(scratch),
            shape: schema.fields().get(1).and_then(|f| tensor_shape(f)),
            writer: None,
            unusable: Unusable::default(),
        }
    }

    /// The reader, for features of ids that are integers where they are annotated: text such as "1.0" of a format without
    /// types is read as the integer that it is.
    pub(in crate::frame) fn of_integers(mut self, are_integers: bool) -> Self {
        self.are_integers = are_integers;
        self
    }

    pub(in crate::frame) fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let mut next = self.ids.len();
        let ids = batch.column(0);
        let plain = self.are_integers.then(|| in_plain_form(batch.schema_ref().field(0), ids));
        let ids = &plain.transpose()?.unwrap_or_else(|| Arc::clone(ids));
        let mut numbers = Vec::new();
        self.ids.intern(ids, &mut numbers)?;
        let name = |row: usize| array_value_to_string(ids, row).unwrap_or_default();
        if let Some(row) = numbers.iter().position(|n| *n == NULL) {
            return Err(without_id(ids, &numbers, row)?.help(self.help()));
        }
        let mut is_new = |n: u32| {
            let is_next = n as usize == next;
            next += usize::from(is_next);
            is_next
        };
        let again = numbers.iter().enumerate().filter(|(_, n)| !is_new(**n));
        let again: Vec<String> = again.map(|(row, _)| name(row)).collect();
        if !again.is_empty() {
            return Err(Error::data("an id has several rows of features")
                .found(offenders(again))
                .help(format!("keep one row an id; {}", self.query)));
        }
        // Reading goes on, so that the error can count them.
        if note_missing(&batch.columns()[1..], &self.columns, &name, &mut self.unusable) {
            return Ok(());
        }
        let (width, numbers) = flatten(&batch.columns()[1..], &name)?;
        if let BatchNumbers::F32s(values) = &numbers {
            for (at, _) in values.iter().enumerate().filter(|(_, v)| !v.is_finite()) {
                let (row, k) = (at / width, at % width);
                let text = number_text(&batch.columns()[1..], row, k)?;
                let kind = if text.parse().is_ok_and(f64::is_finite) {
                    UnusableKind::TooLarge
                } else {
                    UnusableKind::NotFinite
                };
                let words = || format!("{text} in {} of", shown_position(&self.columns, k));
                self.unusable.add((kind, k), words, || name(row));
            }
        }
        let writer = self.writer(width, &numbers);
        if writer.width() != width {
            return Err(Error::data("rows of features differ in length").found(format!(
                "{width} numbers for `{}`, {} before",
                name(0),
                writer.width()
            )));
        }
        match numbers {
            BatchNumbers::Bytes(bytes) => writer.push_bytes(&bytes),
            BatchNumbers::F32s(values) => writer.push_f32s(&values),
        }
    }

    fn help(&self) -> String {
        format!("replace such values, or leave out their rows; {}", self.query)
    }

    fn writer(&mut self, width: usize, numbers: &BatchNumbers) -> &mut MatrixWriter {
        let (shape, scratch) = (&mut self.shape, &mut self.scratch);
        self.writer.get_or_insert_with(|| {
            let shape = shape.take().filter(|s| {
                s.iter().try_fold(1_usize, |n, side| n.checked_mul(*side)) == Some(width)
            });
            let cell = match numbers {
                BatchNumbers::Bytes(_) => NumberType::Byte,
                BatchNumbers::F32s(_) => NumberType::F32,
            };
            MatrixWriter::new(
                shape.unwrap_or_else(|| vec![width]),
                cell,
                scratch.take().unwrap_or_default(),
            )
        })
    }

    pub(in crate::frame) fn finish(self) -> Result<Features> {
        if let Some(error) = self.unusable.error() {
            return Err(error.help(self.help()));
        }
        let Some(writer) = self.writer else {
            return Err(Error::no_input("there are no features").help("check the path"));
        };
        let (ids, rank) = self.ids.finish(|_| true)?;
        let mut positions = vec![0; rank.len()];
        rank.iter().zip(0..).for_each(|(n, arrival)| positions[*n as usize] = arrival);
        Ok(Features { ids, columns: self.columns, matrix: Arc::new(writer.finish(positions)?) })
    }
}

/// The error of the first row of a batch that has no id. Of partitions that are read in parallel no row has a number:
/// the nearest id shows where the row is.
fn without_id(ids: &ArrayRef, numbers: &[u32], row: usize) -> Result<Error> {
    let shown = ShownColumn::new(ids)?;
    let position = match (row.checked_sub(1), numbers.iter().position(|n| *n != NULL)) {
        (Some(before), _) => format!("after the row of `{}`", shown.value(before)),
        (None, Some(next)) => format!("before the row of `{}`", shown.value(next)),
        (None, None) => format!("in each of {} rows that were read together", numbers.len()),
    };
    Ok(Error::data("a row of features has no id").found(format!("{} {position}", shown.value(row))))
}

/// The `k`-th number of a row in the words of the table.
fn shown_position(columns: &[String], k: usize) -> String {
    columns.get(k).map_or_else(|| format!("number {k}"), |column| format!("column `{column}`"))
}

/// Notes the rows in which a number, or the whole list, is null; returns whether there are any.
fn note_missing(
    columns: &[ArrayRef],
    names: &[String],
    id: &dyn Fn(usize) -> String,
    unusable: &mut Unusable,
) -> bool {
    let mut has_any = false;
    let mut add = |kind: UnusableKind, k: usize, row: usize| {
        has_any = true;
        let words = || match (kind, names.get(k)) {
            (UnusableKind::MissingItem, _) => "null among the numbers of".to_owned(),
            (_, Some(name)) => format!("null in column `{name}` of"),
            (_, None) => "null for".to_owned(),
        };
        unusable.add((kind, k), words, || id(row));
    };
    for (k, column) in columns.iter().enumerate().filter(|(_, c)| c.logical_null_count() > 0) {
        let nulls = column.logical_nulls();
        for row in (0..column.len()).filter(|row| nulls.as_ref().is_some_and(|n| n.is_null(*row))) {
            add(UnusableKind::Missing, k, row);
        }
    }
    let [list] = columns else { return has_any };
    let item = |row: usize| match list.data_type() {
        DataType::FixedSizeList(..) => Some(list.as_fixed_size_list().value(row)),
        DataType::List(_) => Some(list.as_list::<i32>().value(row)),
        DataType::LargeList(_) => Some(list.as_list::<i64>().value(row)),
        _ => None,
    };
    let has_null_items = match list.data_type() {
        DataType::FixedSizeList(..) => list.as_fixed_size_list().values().null_count() > 0,
        DataType::List(_) => list.as_list::<i32>().values().null_count() > 0,
        DataType::LargeList(_) => list.as_list::<i64>().values().null_count() > 0,
        _ => false,
    };
    for row in (0..list.len()).filter(|row| has_null_items && list.is_valid(*row)) {
        if item(row).is_some_and(|numbers| numbers.null_count() > 0) {
            add(UnusableKind::MissingItem, 0, row);
        }
    }
    has_any
}

/// The `k`-th number of a row as it stands in the file, before it becomes 32 bits.
fn number_text(columns: &[ArrayRef], row: usize, k: usize) -> Result<String> {
    let numbers = match columns {
        [list] => match list.data_type() {
            DataType::FixedSizeList(..) => Some(list.as_fixed_size_list().value(row)),
            DataType::List(_) => Some(list.as_list::<i32>().value(row)),
            DataType::LargeList(_) => Some(list.as_list::<i64>().value(row)),
            _ => None,
        },
        _ => None,
    };
    Ok(match numbers {
        Some(numbers) => array_value_to_string(&numbers, k)?,
        None => array_value_to_string(&columns[k], row)?,
    })
}

/// How many numbers a row has, and the numbers of all rows, one row after the other.
fn flatten(columns: &[ArrayRef], name: &dyn Fn(usize) -> String) -> Result<(usize, BatchNumbers)> {
    let [list] = columns else { return interleave(columns) };
    let rows = list.len();
    let values = match list.data_type() {
        DataType::FixedSizeList(..) => {
            let list = list.as_fixed_size_list();
            let width = list.value_length().unsigned_abs() as usize;
            list.values().slice(list.offset() * width, rows * width)
        }
        DataType::LargeList(item) => {
            let narrow = DataType::List(Arc::clone(item));
            return flatten(&[cast(list, &narrow)?], name);
        }
        DataType::List(_) => {
            let offsets = list.as_list::<i32>().value_offsets();
            let length = |row: usize| offsets[row + 1] - offsets[row];
            if let Some(row) = (0..rows).find(|row| length(*row) != length(0)) {
                return Err(Error::data("rows of features differ in length").found(format!(
                    "{} numbers for `{}`, {} for `{}`",
                    length(row),
                    name(row),
                    length(0),
                    name(0)
                )));
            }
            let first = offsets[0].unsigned_abs() as usize;
            let all = (offsets[rows] - offsets[0]).unsigned_abs() as usize;
            list.as_list::<i32>().values().slice(first, all)
        }
        _ => return interleave(columns),
    };
    let width = values.len() / rows;
    if width == 0 {
        return Err(
            Error::data("rows of features are empty").found(format!("no number for `{}`", name(0)))
        );
    }
    if values.data_type() == &DataType::UInt8 {
        return Ok((
            width,
            BatchNumbers::Bytes(values.as_primitive::<UInt8Type>().values().clone()),
        ));
    }
    let f32s = cast(&values, &DataType::Float32)?;
    Ok((width, BatchNumbers::F32s(f32s.as_primitive::<Float32Type>().values().clone())))
}

fn interleave(columns: &[ArrayRef]) -> Result<(usize, BatchNumbers)> {
    let (width, rows) = (columns.len(), columns.first().map_or(0, Array::len));
    let mut out = vec![0.0; rows * width];
    for (k, column) in columns.iter().enumerate() {
        let f32s = cast(column, &DataType::Float32)?;
        let values = f32s.as_primitive::<Float32Type>().values();
        values.iter().enumerate().for_each(|(row, v)| out[row * width + k] = *v);
    }
    Ok((width, BatchNumbers::F32s(out.into())))
}

#[cfg(test)]
mod tests;
