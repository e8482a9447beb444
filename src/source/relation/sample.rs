//! What the first rows of a table show about its columns, for the proposal of a mapping.

use std::collections::HashSet;

use arrow::array::RecordBatch;
use arrow::util::display::array_value_to_string;
use datafusion::prelude::DataFrame;

/// How many rows are looked at.
const ROWS: usize = 1000;

/// In fewer rows, columns differ by chance.
const FEW_ROWS: usize = 8;

/// The most columns that are looked at: a table with more has one for each feature.
const MAX_COLUMNS: usize = 100;

/// Words for the state of a row, in columns that say whether it counts.
const STATES: [&str; 21] = [
    "accept",
    "accepted",
    "reject",
    "rejected",
    "ignore",
    "ignored",
    "skip",
    "skipped",
    "submitted",
    "submit",
    "pending",
    "approved",
    "approve",
    "done",
    "draft",
    "discarded",
    "completed",
    "complete",
    "open",
    "closed",
    "in_progress",
];

/// The columns whose values say something about their meaning.
#[derive(Debug, Clone, Default)]
pub(in crate::source) struct Sample {
    /// Columns in which nearly every value is another one.
    pub(super) keys: Vec<String>,
    /// Columns with one value, and those that hold the state of a row.
    pub(super) no_labels: Vec<String>,
    /// Whether there were enough rows to tell.
    pub(super) is_known: bool,
}

impl Sample {
    /// Looks at the first rows; rows that cannot be read show nothing.
    pub(super) async fn read(frame: DataFrame) -> Self {
        if frame.schema().fields().len() > MAX_COLUMNS {
            return Self::default();
        }
        let names: Vec<String> = frame.schema().fields().iter().map(|f| f.name().clone()).collect();
        let first = async { frame.limit(0, Some(ROWS))?.collect().await };
        let Ok(batches) = first.await else { return Self::default() };
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let mut sample = Self { is_known: rows >= FEW_ROWS, ..Self::default() };
        if !sample.is_known {
            return sample;
        }
        for (k, name) in names.into_iter().enumerate() {
            let (mut values, mut n) = (HashSet::new(), 0);
            for column in batches.iter().map(|batch| batch.column(k)) {
                for row in (0..column.len()).filter(|row| column.is_valid(*row)) {
                    values.insert(array_value_to_string(column, row).unwrap_or_default());
                    n += 1;
                }
            }
            let is_state = |value: &String| STATES.contains(&value.to_lowercase().as_str());
            if n >= FEW_ROWS && values.len() * 10 >= n * 9 {
                sample.keys.push(name);
            } else if values.len() < 2 || values.iter().all(is_state) {
                sample.no_labels.push(name);
            }
        }
        sample
    }

    /// Whether nearly every value of a column is another one.
    pub(super) fn is_key(&self, name: &str) -> bool {
        self.keys.iter().any(|key| key == name)
    }

    /// Whether a column can hold labels.
    pub(super) fn may_be_label(&self, name: &str) -> bool {
        !self.is_key(name) && !self.no_labels.iter().any(|other| other == name)
    }
}
