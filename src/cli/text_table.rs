//! Draws the rows of a query as a text table while they arrive.
//!
//! # Why
//! The width of a column is known only after its last value, and a query may return more rows than fit into memory. So
//! the first rows decide the widths; a longer value in a later row widens that row only.

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use unicode_width::UnicodeWidthStr;

use crate::error::Result;
use crate::escape;

/// The rows that decide the widths of the columns, unless they take more than [`FIRST_BYTES`].
const FIRST_ROWS: usize = 10_000;

/// The most bytes of rows that are held before they are drawn.
const FIRST_BYTES: usize = 16 << 20;

/// The greatest width of a column in characters. A column without an alias is named by its whole expression, which
/// would otherwise make every row as wide as the query is long.
const MAX_COLUMN_WIDTH: usize = 200;

type TextRow = Vec<String>;

/// Draws the rows of one query.
pub(super) struct DrawnTable {
    header: TextRow,
    /// Whether line ends in a cell are escaped: they could be mistaken for rows.
    one_line: bool,
    /// Rows that are not drawn yet, and their bytes.
    rows: Vec<TextRow>,
    bytes: usize,
    /// The width of each column, known once the first rows are drawn.
    widths: Option<Vec<usize>>,
}

impl DrawnTable {
    pub(super) fn new(schema: &Schema, one_line: bool) -> Self {
        let mut frame =
            Self { header: TextRow::new(), one_line, rows: Vec::new(), bytes: 0, widths: None };
        frame.header = schema.fields().iter().map(|field| frame.shown(field.name())).collect();
        frame
    }

    fn shown(&self, text: &str) -> String {
        if self.one_line { escape::line(text) } else { escape::lines(text) }
    }

    /// Adds rows, and returns the lines that can be drawn by now.
    pub(super) fn push(&mut self, batch: &RecordBatch) -> Result<String> {
        let options = FormatOptions::default().with_display_error(true);
        let columns = batch.columns().iter().map(|c| ArrayFormatter::try_new(c.as_ref(), &options));
        let columns: Vec<_> = columns.collect::<std::result::Result<_, _>>()?;
        let mut out = String::new();
        for row in 0..batch.num_rows() {
            let cells = columns.iter().map(|column| self.shown(&column.value(row).to_string()));
            let cells: TextRow = cells.collect();
            self.bytes += cells.iter().map(String::len).sum::<usize>();
            self.rows.push(cells);
            if self.rows.len() >= FIRST_ROWS || self.bytes >= FIRST_BYTES {
                self.draw(&mut out);
            }
        }
        if self.widths.is_some() {
            self.draw(&mut out);
        }
        Ok(out)
    }

    /// Returns the remaining rows and the table's lower edge.
    pub(super) fn finish(mut self) -> String {
        let mut out = String::new();
        self.draw(&mut out);
        self.edge(&mut out);
        out
    }

    fn draw(&mut self, out: &mut String) {
        if self.widths.is_none() {
            let rows = std::iter::once(&self.header).chain(&self.rows);
            let mut widths = vec![0; self.header.len()];
            for row in rows {
                for (width, cell) in widths.iter_mut().zip(row) {
                    *width = cell.split('\n').map(UnicodeWidthStr::width).fold(*width, usize::max);
                }
            }
            widths.iter_mut().for_each(|width| *width = (*width).min(MAX_COLUMN_WIDTH));
            self.widths = Some(widths);
            self.edge(out);
            if !self.header.is_empty() {
                self.row(out, &self.header);
                self.edge(out);
            }
        }
        for row in std::mem::take(&mut self.rows) {
            self.row(out, &row);
        }
        self.bytes = 0;
    }

    fn edge(&self, out: &mut String) {
        let widths = self.widths.iter().flatten();
        widths.for_each(|width| out.extend(["+", &"-".repeat(width + 2)]));
        // Without columns the edge consists of two corners.
        out.push_str(if self.header.is_empty() { "++\n" } else { "+\n" });
    }

    fn row(&self, out: &mut String, row: &TextRow) {
        let height = row.iter().map(|cell| cell.split('\n').count()).max().unwrap_or(1);
        for line in 0..height {
            for (cell, width) in row.iter().zip(self.widths.iter().flatten()) {
                let text = cell.split('\n').nth(line).unwrap_or_default();
                let blank = width.saturating_sub(text.width()) + 1;
                out.extend(["| ", text, &" ".repeat(blank)]);
            }
            out.push_str("|\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, StringArray};
    use arrow::util::pretty::pretty_format_batches;

    use super::*;

    fn batch(text: &str) -> RecordBatch {
        let columns: [(&str, ArrayRef); 2] = [
            ("instance_id", Arc::new(StringArray::from(vec![Some(text), None]))),
            ("n", Arc::new(Int64Array::from(vec![1, 20]))),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    fn framed(batches: &[RecordBatch], one_line: bool) -> String {
        let mut frame = DrawnTable::new(&batch("").schema(), one_line);
        let drawn: String = batches.iter().map(|batch| frame.push(batch).unwrap()).collect();
        drawn + &frame.finish()
    }

    #[test]
    fn rows_are_framed_as_arrow_does() {
        let batches = [batch("plain"), batch("語"), batch("two\nlines")];
        let want = pretty_format_batches(&batches).unwrap().to_string();
        assert_eq!(framed(&batches, false).trim_end(), want);
        assert_eq!(DrawnTable::new(&Schema::empty(), true).finish(), "++\n++\n");
    }

    #[test]
    fn a_cell_stays_in_its_row() {
        let text = framed(&[batch("a\n| b\u{1b}[31m")], true);
        assert_eq!(text.lines().count(), 6, "{text}");
        assert!(text.contains("a\\n| b\\u{1b}[31m"), "{text}");
    }

    #[test]
    fn a_long_name_does_not_widen_every_row() {
        let column = Arc::new(Int64Array::from(vec![1; 10])) as ArrayRef;
        let batch = RecordBatch::try_from_iter([("x".repeat(100_000), column)]).unwrap();
        let mut frame = DrawnTable::new(&batch.schema(), true);
        let text = frame.push(&batch).unwrap() + &frame.finish();
        assert_eq!(text.lines().count(), 14);
        assert!(text.len() < 110_000, "{}", text.len());
    }

    #[test]
    fn rows_are_drawn_before_the_last_one_came() {
        let mut frame = DrawnTable::new(&batch("").schema(), true);
        let mut lines = 0;
        for _ in 0..FIRST_ROWS {
            lines += frame.push(&batch("x")).unwrap().lines().count();
            assert!(frame.rows.len() < FIRST_ROWS);
        }
        assert_eq!(lines, 2 * FIRST_ROWS + 3);
        let long = frame.push(&batch("far longer than the first ones")).unwrap();
        assert!(long.contains("| far longer than the first ones | 1  |"), "{long}");
        assert_eq!(frame.finish(), "+-------------+----+\n");
    }
}
