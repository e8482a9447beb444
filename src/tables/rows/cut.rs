//! Cuts the blocks of a table into parts and batches of about as many rows each.

use std::ops::Range;

use crate::frame::{Frame, Ids};
use crate::tables::{Outcome, OutcomeTable, QuestionResult};

/// About the most rows of a part file, which is encoded in memory.
pub(super) const PART_ROWS: usize = 1 << 20;

/// The most rows of a record batch, unless a single span of blocks has more.
pub(crate) const BATCH_ROWS: usize = 1 << 13;

/// The most positions of a part that a sample of its rows is from.
const SAMPLE_PLACES: usize = 16;

/// The most rows of a sample from one location, unless a single span of blocks has more.
pub(super) const SAMPLE_ROWS: usize = 256;

/// At most [`SAMPLE_PLACES`] of these batches, evenly spaced.
pub(super) fn sampled<T>(batches: Vec<T>) -> impl Iterator<Item = T> {
    let every = batches.len().div_ceil(SAMPLE_PLACES).max(1);
    batches.into_iter().step_by(every)
}

/// The most bytes of ids and labels in a record batch, unless a single span of blocks has more.
pub(super) const BATCH_BYTES: usize = 32 << 20;

/// About the most bytes of ids and labels in a part file: [`PART_ROWS`] rows of 512 bytes.
pub(crate) const PART_BYTES: usize = 512 << 20;

/// The bytes of ids and labels in a row of a table.
///
/// # Why
/// A batch must fit in memory even if all of its rows are the longest. If parts were cut for the longest rows too, one
/// long id among a million would make tens of thousands of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowBytes {
    /// The bytes of a row with the longest value of each column.
    pub(crate) longest: usize,
    /// The bytes of the mean row.
    pub(crate) mean: usize,
}

/// Adjacent blocks that are not cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitSpan {
    /// The number of blocks.
    pub blocks: usize,
    /// The most rows that they have together.
    pub rows: usize,
}

/// Gives the span that begins at a block. Spans begin at block 0 and where another span ends.
pub type BlockSpans<'a> = Box<dyn Fn(usize) -> UnitSpan + Send + Sync + 'a>;

/// A range of blocks of one question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) question: usize,
    pub(super) blocks: Range<usize>,
}

/// Bounds on the rows of a question's blocks.
pub(super) struct BlockRows<'a> {
    most: usize,
    spans: Option<BlockSpans<'a>>,
}

impl<'a> BlockRows<'a> {
    pub(super) fn new(table: &OutcomeTable, result: &'a QuestionResult) -> Self {
        Self { most: (table.rows_per_block)(result).max(1), spans: (table.block_spans)(result) }
    }

    /// The rows of the span that begins at a block.
    fn of_span(&self, block: usize) -> usize {
        self.spans.as_ref().map_or(self.most, |spans| spans(block).rows)
    }

    /// The end of as many spans from the start as have at most `room` rows together, but at least one span; and the
    /// number of those rows.
    pub(super) fn fitting(&self, blocks: Range<usize>, room: usize) -> (usize, usize) {
        let Some(spans) = &self.spans else {
            let n = (room / self.most).clamp(1, blocks.len());
            return (blocks.start + n, n.saturating_mul(self.most));
        };
        let (mut end, mut rows) = (blocks.start, 0_usize);
        while end < blocks.end {
            let span = spans(end);
            if end > blocks.start && rows.saturating_add(span.rows) > room {
                break;
            }
            rows = rows.saturating_add(span.rows);
            end += span.blocks;
        }
        (end, rows)
    }
}

impl RowBytes {
    /// The bytes of a row in the tables of all questions.
    pub(super) fn from_outcome(outcome: &Outcome) -> Self {
        Self::of_frames(outcome.results.iter().map(|result| &result.frame))
    }

    fn of_frames<'a>(frames: impl Iterator<Item = &'a Frame> + Clone) -> Self {
        let longest = frames.clone().map(longest_row).max().unwrap_or_default();
        // A question counts as often as it has instances: one with few of them has few rows in the common parts.
        let n = frames.clone().map(|frame| frame.instances.len()).sum::<usize>();
        let total = frames
            .map(|frame| frame.instances.len().saturating_mul(bytes_of(frame, Ids::mean_bytes)))
            .fold(0, usize::saturating_add);
        Self { longest, mean: total.div_ceil(n.max(1)) }
    }

    /// The number of rows of a batch.
    pub(super) fn rows_of_batch(self) -> usize {
        rows_of_batch(self.longest)
    }

    /// The number of rows of a part.
    pub(super) fn rows_of_part(self) -> usize {
        (PART_BYTES / self.mean.max(1)).clamp(1, PART_ROWS)
    }
}

/// The most bytes of ids and labels in a row of a question.
pub(crate) fn longest_row(frame: &Frame) -> usize {
    bytes_of(frame, Ids::longest)
}

/// The bytes of a row with one id of each column, whose ids take `of_ids` bytes each.
fn bytes_of(frame: &Frame, of_ids: impl Fn(&Ids) -> usize) -> usize {
    let with_features =
        frame.with_features.as_ref().map(|with_features| &with_features.features.ids);
    // No table has annotated instances beside those with features.
    let instances = [&frame.instances].into_iter().chain(with_features).map(&of_ids).max();
    let others = [&frame.annotators, &frame.labels].into_iter().chain(&frame.question);
    instances.unwrap_or_default() + others.map(&of_ids).sum::<usize>()
}

/// The number of rows of a batch if each row has `bytes` bytes.
pub(crate) fn rows_of_batch(bytes: usize) -> usize {
    (BATCH_BYTES / bytes.max(1)).clamp(1, BATCH_ROWS)
}

/// Cuts a table into parts of about `part_rows` rows; `rows` has those of each question. Questions with few rows share
/// a part: thousands of questions do not become thousands of files.
pub(super) fn cut(
    table: &OutcomeTable,
    outcome: &Outcome,
    rows: &[BlockRows<'_>],
    part_rows: usize,
) -> Vec<Vec<Chunk>> {
    let questions = if table.is_about_the_run { 1 } else { outcome.results.len() };
    let (mut parts, mut open, mut room) = (Vec::new(), Vec::new(), part_rows);
    for (question, rows) in rows.iter().enumerate().take(questions) {
        let blocks = (table.blocks)(&outcome.results[question]);
        let mut start = 0;
        while start < blocks {
            if room < rows.of_span(start) && !open.is_empty() {
                parts.push(std::mem::take(&mut open));
                room = part_rows;
            }
            let (end, taken) = rows.fitting(start..blocks, room);
            open.push(Chunk { question, blocks: start..end });
            room = room.saturating_sub(taken);
            start = end;
        }
    }
    if !open.is_empty() || parts.is_empty() {
        parts.push(open);
    }
    parts
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::StringArray;

    use super::*;
    use crate::frame::{Features, Matrix, QuestionFeatures};
    use crate::testing::{frame_of, tiny};

    fn ids(lengths: impl Iterator<Item = usize>) -> Ids {
        Ids::in_order(Arc::new(lengths.map(|n| Some("x".repeat(n))).collect::<StringArray>()))
    }

    /// Instances with ids of these lengths, one annotator with an id of 10 bytes, and labels of 3 and 5 bytes.
    fn frame(instances: impl Iterator<Item = usize>) -> Frame {
        let ids = [ids(instances), ids([10].into_iter()), ids([3, 5].into_iter())];
        frame_of(ids, tiny(2, &[(0, 0, 0)]))
    }

    #[test]
    fn one_long_id_decides_the_size_of_batches_and_not_of_parts() {
        let one_long = frame(std::iter::once(1 << 20).chain((0..9_999).map(|_| 20)));
        let bytes = RowBytes::of_frames([&one_long].into_iter());
        // (2^20 + 9999 * 20) / 10 000 = 124.9, rounded up, and 10 and 4 for the annotator and the label.
        assert_eq!(bytes, RowBytes { longest: (1 << 20) + 10 + 5, mean: 125 + 10 + 4 });
        assert_eq!((bytes.rows_of_batch(), bytes.rows_of_part()), (31, PART_ROWS));
        let all_long = RowBytes { longest: 1 << 20, mean: 1 << 20 };
        assert_eq!((all_long.rows_of_batch(), all_long.rows_of_part()), (32, 512));
    }

    #[test]
    fn a_question_counts_as_often_as_it_has_instances() {
        let (few, many) = (frame([1 << 20].into_iter()), frame((0..1_023).map(|_| 20)));
        let bytes = RowBytes::of_frames([&few, &many].into_iter());
        // ((2^20 + 14) + 1023 * 34) / 1024 = 1057.98
        assert_eq!(bytes, RowBytes { longest: (1 << 20) + 15, mean: 1_058 });
    }

    #[test]
    fn a_row_has_the_id_of_one_instance() {
        let mut frame = frame([40, 20].into_iter());
        let features = |lengths: [usize; 2]| Features {
            ids: ids(lengths.into_iter()),
            columns: Vec::new(),
            matrix: Arc::new(Matrix::from_rows(1, &[0.0, 1.0])),
        };
        for (lengths, longest, mean) in [([20, 30], 55, 44), ([20, 60], 75, 54)] {
            frame.with_features = Some(QuestionFeatures {
                features: features(lengths),
                row_of_instance: vec![None; 2],
                gold: Vec::new(),
                annotators: None,
            });
            assert_eq!(RowBytes::of_frames([&frame].into_iter()), RowBytes { longest, mean });
        }
    }
}
