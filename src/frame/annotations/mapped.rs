//! Builds the sparse views of rows that are in scratch files, one range of instances after the other.
//!
//! ```text
//! rows, any order  --one pass-->  a file of (instance, pair) for each range of instances
//! each range       --in memory->  grouped, sorted, repeated answers resolved, as all rows at once are elsewhere
//! ```
//! The views are the same to the byte as those of [`Annotations::build`].

use std::fs::File;
use std::io::{BufWriter, Read as _, Seek as _, Write as _};
use std::sync::Arc;

use super::build::{SortedColumns, distinct_columns};
use super::duplicates::{ByInstance, Duplicates, Repeated, Resolved};
use super::group::{Grouped, UngroupedRows};
use super::offsets::{count, number};
use super::weights::Weights;
use super::{Annotations, Dims};
use crate::engine::ScratchFolder;
use crate::error::Result;
use crate::frame::given::GivenTables;
use crate::frame::memory::numbers::{Numbers, failed};

/// Rows that are grouped at once, of this many: each takes some 30 bytes meanwhile.
pub(in crate::frame) fn rows_at_once(rows: usize) -> usize {
    (rows / 16).clamp(1 << 16, 1 << 22)
}

/// Rows by final numbers, of which all but the weights are in files.
pub(in crate::frame) struct MappedRows {
    pub(in crate::frame) instance: Numbers,
    pub(in crate::frame) annotator: Numbers,
    pub(in crate::frame) label: Numbers,
    /// Empty if all weights are 1.
    pub(in crate::frame) weight: Vec<f64>,
}

impl Annotations {
    /// Builds the views from rows in any order.
    ///
    /// # Errors
    /// When a scratch file cannot be written or read; inside, the repeated pairs, where the policy is
    /// [`Duplicates::Error`].
    pub(in crate::frame) fn build_mapped(
        dims: Dims,
        rows: MappedRows,
        policy: Duplicates,
        folder: &ScratchFolder,
    ) -> Result<std::result::Result<Self, Repeated>> {
        let MappedRows { instance, annotator, label, weight } = rows;
        let sorted = distinct_columns(dims, &annotator, &label);
        let rows_of_annotator = count(&annotator, dims.annotators);
        let sorted = sorted.singletons_last(&rows_of_annotator);
        let annotators = sorted.owners();
        let mut pair = annotator;
        sorted.of_rows(&annotators, &mut pair, &label, dims.labels);
        label.release();
        drop(label);
        let rows_of_instance = count(&instance, dims.instances);
        instance.release();
        let ranges = Ranges::new(&rows_of_instance, rows_at_once(instance.len()));
        let files = ranges.files((&instance, &pair, &weight), folder);
        let files = files.map_err(|e| failed(folder, &e))?;
        drop((instance, pair));
        let mut views = Views::new(dims.instances, &weight);
        drop(weight);
        let mut repeated = Vec::new();
        for (range, file) in files.into_iter().enumerate() {
            let rows = file.read().map_err(|e| failed(folder, &e))?;
            let (first, end) = (ranges.bounds[range], ranges.bounds[range + 1]);
            let (view, _) = ByInstance::new(Grouped::new((end - first) as usize, rows));
            match view.resolve(&annotators, policy) {
                Ok(resolved) => views.append(resolved),
                Err(Repeated(pairs)) => {
                    repeated.extend(pairs.into_iter().map(|(i, r)| (i + first, r)));
                }
            }
        }
        if !repeated.is_empty() {
            return Ok(Err(Repeated(repeated)));
        }
        let SortedColumns { order, slots, by_slot, labels } = sorted;
        Ok(Ok(Self {
            dims,
            by_instance: Arc::new(views.offsets),
            pairs: Arc::new(views.pairs),
            weights: Arc::new(views.weights.into_weights()),
            slots: Arc::new(slots),
            in_slots: Arc::new(order),
            by_slot: Arc::new(by_slot),
            labels: Arc::new(labels),
            annotators: Arc::new(annotators),
            by_pair: Arc::default(),
            rows_of_instance: Arc::new(rows_of_instance),
            rows_of_annotator: Arc::new(rows_of_annotator),
            trusted: None,
            joint: None,
            given: GivenTables::default(),
        }))
    }
}

/// Ranges of adjacent instances.
struct Ranges {
    /// The first instance of each range, and one past the last.
    bounds: Vec<u32>,
}

impl Ranges {
    /// Ranges of so many rows, or of one instance that has more.
    fn new(rows_of_instance: &[u32], rows_at_once: usize) -> Self {
        let (mut bounds, mut rows) = (vec![0], 0);
        for (i, n) in rows_of_instance.iter().enumerate() {
            if rows > 0 && rows + *n as usize > rows_at_once {
                bounds.push(number(i));
                rows = 0;
            }
            rows += *n as usize;
        }
        bounds.push(number(rows_of_instance.len()));
        Self { bounds }
    }

    /// A file with the rows of each range, by numbers within the range.
    fn files(
        &self,
        (instance, pairs, weight): (&Numbers, &Numbers, &[f64]),
        folder: &ScratchFolder,
    ) -> std::io::Result<Vec<RangeFile>> {
        let mut files: Vec<RangeFile> = (1..self.bounds.len())
            .map(|_| RangeFile::new(folder, !weight.is_empty()))
            .collect::<Result<_, _>>()?;
        for (row, (i, pair)) in instance.iter().zip(pairs.iter()).enumerate() {
            let range = self.bounds.partition_point(|first| first <= i) - 1;
            let (file, local) = (&mut files[range], i - self.bounds[range]);
            file.rows.write_all(&local.to_ne_bytes())?;
            file.rows.write_all(&pair.to_ne_bytes())?;
            if let Some(weights) = &mut file.weights {
                weights.write_all(&weight[row].to_ne_bytes())?;
            }
            file.n += 1;
            if row.is_multiple_of(1 << 22) {
                // The pages of the rows before it are of no more use.
                instance.release();
                pairs.release();
            }
        }
        Ok(files)
    }
}

/// The rows of a range in a scratch file.
struct RangeFile {
    rows: BufWriter<File>,
    weights: Option<BufWriter<File>>,
    n: usize,
}

impl RangeFile {
    fn new(folder: &ScratchFolder, is_weighted: bool) -> std::io::Result<Self> {
        let file = || folder.file().map(|file| BufWriter::with_capacity(1 << 18, file));
        let weights = if is_weighted { Some(file()?) } else { None };
        Ok(Self { rows: file()?, weights, n: 0 })
    }

    fn read(self) -> std::io::Result<UngroupedRows> {
        let mut rows = UngroupedRows {
            instance: Vec::with_capacity(self.n),
            pair: Vec::with_capacity(self.n),
            weight: Vec::new(),
        };
        let bytes = bytes_of(self.rows)?;
        for numbers in bytes.as_chunks::<4>().0.as_chunks::<2>().0 {
            rows.instance.push(u32::from_ne_bytes(numbers[0]));
            rows.pair.push(u32::from_ne_bytes(numbers[1]));
        }
        drop(bytes);
        if let Some(weights) = self.weights {
            let bytes = bytes_of(weights)?;
            rows.weight.extend(bytes.as_chunks::<8>().0.iter().map(|w| f64::from_ne_bytes(*w)));
        }
        Ok(rows)
    }
}

/// What was written to a file.
fn bytes_of(file: BufWriter<File>) -> std::io::Result<Vec<u8>> {
    let mut file = file.into_inner()?;
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The views of the ranges so far.
struct Views {
    offsets: Vec<usize>,
    pairs: Vec<u32>,
    weights: RangeWeights,
}

/// The weights of the ranges so far.
enum RangeWeights {
    /// Those other than 1, where rows have none of their own.
    Few { positions: Vec<usize>, weights: Vec<f64>, n: usize },
    /// One for each annotation.
    All(Vec<f64>),
}

impl Views {
    fn new(instances: usize, weight: &[f64]) -> Self {
        let mut offsets = Vec::with_capacity(instances + 1);
        offsets.push(0);
        let weights = if weight.is_empty() {
            RangeWeights::Few { positions: Vec::new(), weights: Vec::new(), n: 0 }
        } else {
            RangeWeights::All(Vec::with_capacity(weight.len()))
        };
        Self { offsets, pairs: Vec::new(), weights }
    }

    fn append(&mut self, (offsets, pairs, weights): Resolved) {
        let base = self.pairs.len();
        self.offsets.extend(offsets[1..].iter().map(|end| base + end));
        let own = weights.slice(0..pairs.len()).iter().take(pairs.len());
        match &mut self.weights {
            RangeWeights::All(all) => all.extend(own),
            RangeWeights::Few { positions, weights, n } => {
                for (at, weight) in own.enumerate().filter(|(_, weight)| *weight != 1.0) {
                    positions.push(base + at);
                    weights.push(weight);
                }
                *n += pairs.len();
            }
        }
        self.pairs.extend(pairs);
    }
}

impl RangeWeights {
    fn into_weights(self) -> Weights {
        match self {
            Self::Few { positions, weights, n } => Weights::few(n, positions, weights),
            Self::All(all) => Weights::new(all),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::annotations::AnnotationRows;

    fn mapped(numbers: &[u32], folder: &ScratchFolder) -> Numbers {
        let mut mapped = Numbers::new(numbers.to_vec());
        mapped.spill(folder).unwrap();
        mapped.map(folder).unwrap();
        mapped
    }

    #[test]
    fn a_range_ends_before_it_has_too_many_rows() {
        let bounds = |rows: &[u32]| Ranges::new(rows, 10).bounds;
        assert_eq!(bounds(&[4, 6, 1, 30, 0, 2, 8]), [0, 2, 3, 4, 7]);
        assert_eq!(bounds(&[]), [0, 0]);
    }

    /// Some 200 000 rows, in four ranges; every 1000th is repeated with another label.
    #[test]
    fn views_of_ranges_are_those_of_all_rows_at_once() {
        let n = 200_000;
        let dims = Dims { instances: 40_001, annotators: 50, classes: 3, labels: 4 };
        let folder = ScratchFolder::default();
        for is_weighted in [false, true] {
            let row = |at: u32| {
                let of = if at % 1000 == 1 { at - 1 } else { at };
                ((of.wrapping_mul(2_654_435_761)) % 40_000, of % 50, (at ^ (at >> 3)) % 4)
            };
            let rows = AnnotationRows {
                instance: (0..n).map(|at| row(at).0).collect(),
                annotator: (0..n).map(|at| row(at).1).collect(),
                label: (0..n).map(|at| row(at).2).collect(),
                weight: if is_weighted {
                    (0..n).map(|at| f64::from(at % 5) / 4.0 + 0.25).collect()
                } else {
                    Vec::new()
                },
            };
            for policy in [Duplicates::Share, Duplicates::Keep, Duplicates::Error] {
                let mapped = MappedRows {
                    instance: mapped(&rows.instance, &folder),
                    annotator: mapped(&rows.annotator, &folder),
                    label: mapped(&rows.label, &folder),
                    weight: rows.weight.clone(),
                };
                let got = Annotations::build_mapped(dims, mapped, policy, &folder).unwrap();
                let want = Annotations::build(dims, rows.clone(), policy);
                let (got, want) = match (got, want) {
                    (Ok(got), Ok(want)) => (got, want),
                    (got, want) => {
                        assert!(
                            policy == Duplicates::Error && got.unwrap_err() == want.unwrap_err()
                        );
                        continue;
                    }
                };
                assert!(got.by_instance == want.by_instance && got.pairs == want.pairs);
                assert!(got.rows_of_instance == want.rows_of_instance);
                assert!(got.rows_of_annotator == want.rows_of_annotator);
                assert!(got.labels == want.labels && got.annotators == want.annotators);
                assert!(got.slots == want.slots && got.in_slots == want.in_slots);
                assert!(got.by_slot == want.by_slot);
                assert_eq!(format!("{:?}", got.weights), format!("{:?}", want.weights));
            }
        }
    }
}
