//! The only place that prints: results to stdout, all else to stderr.
//!
//! What is meant for people is escaped, so that data cannot command a terminal, and nothing of a URL's user part or
//! query reaches stderr, whoever wrote the message. What is meant for programs is exact.

use std::io::{IsTerminal, Write};

use comfy_table::Table;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use tracing_subscriber::fmt::MakeWriter;

use crate::error::Result;
use crate::escape;
use crate::store::redacted;

/// A line to the person watching.
pub(super) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", escape::lines(&redacted(text)));
}

/// A result for people; a closed pipe is no error.
pub(super) fn answer(text: &str) {
    answer_exact(&escape::lines(text));
}

/// A result for programs.
pub(super) fn answer_exact(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Rows in a frame, as Arrow draws them. `one_line` escapes line ends in a cell, which could pass for rows.
pub(super) fn framed(batches: &[RecordBatch], one_line: bool) -> Result<String> {
    let mut table = Table::new();
    table.load_preset("||--+-++|    ++++++");
    let shown = |text: &str| if one_line { escape::line(text) } else { escape::lines(text) };
    if let Some(first) = batches.first() {
        table.set_header(first.schema().fields().iter().map(|field| shown(field.name())));
    }
    let options = FormatOptions::default().with_display_error(true);
    for batch in batches {
        let columns = batch.columns().iter().map(|c| ArrayFormatter::try_new(c.as_ref(), &options));
        let columns: Vec<_> = columns.collect::<std::result::Result<_, _>>()?;
        for row in 0..batch.num_rows() {
            table.add_row(columns.iter().map(|column| shown(&column.value(row).to_string())));
        }
    }
    Ok(table.to_string())
}

/// Where log lines go.
#[derive(Debug, Clone, Copy)]
pub(super) struct Log {
    /// Whether lines are JSON, which escapes for itself.
    pub(super) is_json: bool,
}

impl Log {
    pub(super) fn has_colour() -> bool {
        std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none()
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        *self
    }
}

/// A log line comes in one piece.
impl Write for Log {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let text = redacted(&String::from_utf8_lossy(line));
        let text = if self.is_json { text } else { coloured(&text) };
        std::io::stderr().write_all(text.as_bytes()).map(|()| line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

/// Escapes all but line ends and the colours that log lines have by themselves.
fn coloured(text: &str) -> String {
    let mut pieces = text.split("\u{1b}[");
    let mut out = escape::lines(pieces.next().unwrap_or_default());
    for piece in pieces {
        let digits = piece.find(|c: char| !c.is_ascii_digit() && c != ';').unwrap_or(piece.len());
        let is_colour = piece[digits..].starts_with('m');
        out.push_str(if is_colour { "\u{1b}[" } else { "\\u{1b}[" });
        out.push_str(&escape::lines(piece));
    }
    out
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{ArrayRef, Int64Array, StringArray};
    use datafusion::arrow::util::pretty::pretty_format_batches;

    use super::*;

    fn batch(text: &str) -> RecordBatch {
        let columns: [(&str, ArrayRef); 2] = [
            ("instance_id", Arc::new(StringArray::from(vec![Some(text), None]))),
            ("n", Arc::new(Int64Array::from(vec![1, 20]))),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    #[test]
    fn rows_are_framed_as_arrow_does() {
        for batches in [vec![], vec![batch("plain"), batch("語")]] {
            let want = pretty_format_batches(&batches).unwrap().to_string();
            assert_eq!(framed(&batches, true).unwrap(), want);
        }
    }

    #[test]
    fn a_cell_stays_in_its_row() {
        let text = framed(&[batch("a\n| b\u{1b}[31m")], true).unwrap();
        assert_eq!(text.lines().count(), 6, "{text}");
        assert!(text.contains("a\\n| b\\u{1b}[31m"), "{text}");
    }

    #[test]
    fn log_lines_keep_their_colours_alone() {
        assert_eq!(coloured("\u{1b}[32mINFO\u{1b}[0m x\n"), "\u{1b}[32mINFO\u{1b}[0m x\n");
        assert_eq!(coloured("\u{1b}[2J\u{1b}]0;t\u{7}"), "\\u{1b}[2J\\u{1b}]0;t\\u{7}");
    }
}
