//! Cuts the units of a table into parts and batches of about as many rows each.

use std::ops::Range;

use super::{Outcome, OutcomeTable, QuestionResult};
use crate::frame::{Frame, Ids};

/// About the most rows of a part file, which is encoded in memory.
pub(super) const PART_ROWS: usize = 1 << 20;

/// The most rows of a record batch, unless a single span of units has more.
pub(super) const BATCH_ROWS: usize = 1 << 13;

/// The most bytes of ids and labels in a record batch, unless a single span of units has more.
pub(super) const BATCH_BYTES: usize = 32 << 20;

/// About the most bytes of ids and labels in a part file: [`PART_ROWS`] rows of 512 bytes.
pub(super) const PART_BYTES: usize = 512 << 20;

/// Adjacent units that are not cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitSpan {
    /// The number of units.
    pub units: usize,
    /// The most rows that they have together.
    pub rows: usize,
}

/// Gives the span that begins at a unit. Spans begin at unit 0 and where another span ends.
pub type UnitSpans<'a> = Box<dyn Fn(usize) -> UnitSpan + Send + Sync + 'a>;

/// A range of units of one question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) question: usize,
    pub(super) units: Range<usize>,
}

/// Bounds on the rows of a question's units.
pub(super) struct UnitRows<'a> {
    most: usize,
    spans: Option<UnitSpans<'a>>,
}

impl<'a> UnitRows<'a> {
    pub(super) fn of(table: &dyn OutcomeTable, answer: &'a QuestionResult) -> Self {
        Self { most: table.rows_per_unit(answer).max(1), spans: table.unit_spans(answer) }
    }

    /// The rows of the span that begins at a unit.
    fn of_span(&self, unit: usize) -> usize {
        self.spans.as_ref().map_or(self.most, |spans| spans(unit).rows)
    }

    /// The end of as many spans from the start as have at most `room` rows together, but at least one span; and the
    /// number of those rows.
    pub(super) fn fitting(&self, units: Range<usize>, room: usize) -> (usize, usize) {
        let Some(spans) = &self.spans else {
            let n = (room / self.most).clamp(1, units.len());
            return (units.start + n, n.saturating_mul(self.most));
        };
        let (mut end, mut rows) = (units.start, 0_usize);
        while end < units.end {
            let span = spans(end);
            if end > units.start && rows.saturating_add(span.rows) > room {
                break;
            }
            rows = rows.saturating_add(span.rows);
            end += span.units;
        }
        (end, rows)
    }
}

/// The most bytes of ids and labels in a row of any question: those of the longest.
pub(super) fn row_bytes(outcome: &Outcome) -> usize {
    outcome.answers.iter().map(|answer| row_bytes_of(&answer.frame)).max().unwrap_or_default()
}

/// As [`row_bytes`], for one question.
pub(super) fn row_bytes_of(frame: &Frame) -> usize {
    let ids = [&frame.instances, &frame.annotators, &frame.labels].into_iter();
    let ids = ids.chain(&frame.question).map(Ids::longest).sum::<usize>();
    let described = frame.described.as_ref();
    ids + described.map_or(0, |described| described.features.ids.longest())
}

/// The number of rows of a batch if each row has `bytes` bytes.
pub(super) fn rows_of_batch(bytes: usize) -> usize {
    (BATCH_BYTES / bytes.max(1)).clamp(1, BATCH_ROWS)
}

/// The number of rows of a part if each row has `bytes` bytes.
pub(super) fn rows_of_part(bytes: usize) -> usize {
    (PART_BYTES / bytes.max(1)).clamp(1, PART_ROWS)
}

/// Cuts a table into parts of about `part_rows` rows; `rows` has those of each question. Questions with few rows share
/// a part: thousands of questions do not become thousands of files.
pub(super) fn cut(
    table: &dyn OutcomeTable,
    outcome: &Outcome,
    rows: &[UnitRows<'_>],
    part_rows: usize,
) -> Vec<Vec<Chunk>> {
    let questions = if table.is_about_the_run() { 1 } else { outcome.answers.len() };
    let (mut parts, mut open, mut room) = (Vec::new(), Vec::new(), part_rows);
    for (question, rows) in rows.iter().enumerate().take(questions) {
        let units = table.units(&outcome.answers[question]);
        let mut start = 0;
        while start < units {
            if room < rows.of_span(start) && !open.is_empty() {
                parts.push(std::mem::take(&mut open));
                room = part_rows;
            }
            let (end, taken) = rows.fitting(start..units, room);
            open.push(Chunk { question, units: start..end });
            room = room.saturating_sub(taken);
            start = end;
        }
    }
    if !open.is_empty() || parts.is_empty() {
        parts.push(open);
    }
    parts
}
