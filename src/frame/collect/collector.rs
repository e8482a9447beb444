//! Collects the rows of one question by provisional numbers, then assigns final numbers and builds the sparse views.

use std::fmt;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::Schema;

use super::annotation_columns::AnnotationColumns;
use super::finished::{Finished, Unlabelled, instances_that_stay};
use super::optional_columns::OptionalColumns;
use super::overlaps::GoldValues;
use super::shape::Shape;
use super::spellings::{ColumnValues, DataWarning, looking_bytes, replace};
use crate::engine::ScratchFolder;
use crate::error::{Error, Result, offenders};
use crate::frame::annotations::{Dims, Duplicates, Repeated, rows_at_once};
use crate::frame::classes::{LabelAxis, MAX_LABELS, intern_listed, no_class, too_many_labels};
use crate::frame::frame_spec::FrameSpec;
use crate::frame::gold::{Gold, GoldNumber, GoldRows, UnknownGold, replace_values};
use crate::frame::ids::id_columns::id_columns;
use crate::frame::ids::shown_column::ShownColumn;
use crate::frame::ids::{Ids, Interner, NULL};
use crate::frame::memory::estimate::QuestionSizes;
use crate::frame::memory::reservation::{
    BYTES_PER_ANNOTATION, BYTES_PER_TIME, BYTES_PER_WEIGHT, QuestionReservation, grown_bytes,
};
use crate::frame::question_frame::Frame;
use crate::frame::rejects::{Reason, Rejects};

/// The rows of one question, from which [`Collector::finish`] makes a [`Frame`].
pub(super) struct Collector {
    instances: Interner,
    annotators: Interner,
    labels: Interner,
    rows: AnnotationColumns,
    rejects: Rejects,
    read: u64,
}

impl Collector {
    pub(super) fn new(schema: &Schema) -> Result<Self> {
        let [instances, annotators, labels] = id_columns(schema)?.map(Interner::new);
        Ok(Self {
            instances,
            annotators,
            labels,
            rows: AnnotationColumns::default(),
            rejects: Rejects::default(),
            read: 0,
        })
    }

    /// Allocates room for the number of rows that metadata states, but for no more than 2^28.
    pub(super) fn reserve(&mut self, rows: u64) {
        let rows = usize::try_from(rows).unwrap_or(usize::MAX).min(1 << 28);
        if !self.rows.is_spilled() {
            self.rows.instance.memory().reserve(rows);
            self.rows.annotator.memory().reserve(rows);
            self.rows.label.memory().reserve(rows);
        }
    }

    /// Bytes that are held after a further batch of `rows` rows.
    pub(super) fn bytes(&self, rows: usize) -> usize {
        let AnnotationColumns { instance, annotator, label, weight, annotated_at, .. } = &self.rows;
        let numbers = [instance, annotator, label].into_iter();
        let numbers: usize = numbers.map(|numbers| numbers.bytes(rows)).sum();
        let optional = grown_bytes(weight, rows) + grown_bytes(annotated_at, rows);
        let ids = [&self.instances, &self.annotators, &self.labels].into_iter();
        numbers + optional + ids.map(|ids| ids.bytes(rows)).sum::<usize>()
    }

    /// The number of usable annotations so far.
    pub(super) fn rows(&self) -> usize {
        self.rows.instance.n()
    }

    /// Moves the rows to scratch files.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(super) fn spill(&mut self, folder: &ScratchFolder) -> Result<()> {
        self.rows.spill(folder)
    }

    /// Bytes of the ids.
    fn ids(&self) -> usize {
        [&self.instances, &self.annotators, &self.labels].into_iter().map(|ids| ids.bytes(0)).sum()
    }

    /// Bytes that building the frame takes, with those of the ids.
    pub(super) fn building(&self) -> usize {
        let AnnotationColumns { instance, weight, annotated_at, .. } = &self.rows;
        let times = annotated_at.len() * (BYTES_PER_TIME + size_of::<i128>());
        let numbers = if self.rows.is_spilled() {
            // The views, and a range of rows while it is grouped.
            instance.n() * size_of::<u32>()
                + self.instances.len() * 12
                + 32 * rows_at_once(instance.n())
        } else {
            instance.n() * BYTES_PER_ANNOTATION as usize
        };
        self.ids() + numbers + weight.len() * BYTES_PER_WEIGHT + times
    }

    /// Adds the rows of batches.
    ///
    /// # Why
    /// Each column appends its numbers to its rows itself: the first write to memory, which the system clears then, is
    /// parallel too. Rows that need a closer look are taken out again.
    pub(super) fn push(&mut self, batches: &[RecordBatch], folder: &ScratchFolder) -> Result<()> {
        self.push_in_memory(batches)?;
        self.rows.flush(folder)
    }

    fn push_in_memory(&mut self, batches: &[RecordBatch]) -> Result<()> {
        let AnnotationColumns { instance, annotator, label, .. } = &mut self.rows;
        let (i, r, l) = (instance.memory(), annotator.memory(), label.memory());
        let (instances, annotators, labels) =
            (&mut self.instances, &mut self.annotators, &mut self.labels);
        let before = i.len();
        let (first, (second, third)) = rayon::join(
            || intern("instance_id", instances, batches, i),
            || {
                let annotators = || intern("annotator_id", annotators, batches, r);
                rayon::join(annotators, || intern("label", labels, batches, l))
            },
        );
        first.and(second).and(third)?;
        let is_complete = [&*i, r, l].iter().all(|numbers| !numbers[before..].contains(&NULL));
        if is_complete && !batches.iter().any(OptionalColumns::are_in) {
            self.read += (i.len() - before) as u64;
            return Ok(());
        }
        let [i, r, l] = [i, r, l].map(|numbers| numbers.split_off(before));
        let mut first = 0;
        for batch in batches {
            let rows = first..first + batch.num_rows();
            first = rows.end;
            self.push_checked(batch, (&i[rows.clone()], &r[rows.clone()], &l[rows]))?;
        }
        Ok(())
    }

    /// Adds the usable rows of a batch, given its provisional numbers.
    fn push_checked(
        &mut self,
        batch: &RecordBatch,
        (i, r, l): (&[u32], &[u32], &[u32]),
    ) -> Result<()> {
        let extras = OptionalColumns::read(batch)?;
        self.read += batch.num_rows() as u64;
        let mut without_id = Vec::new();
        for row in 0..batch.num_rows() {
            match (i[row], r[row], l[row], extras.weight(row)) {
                (NULL, ..) => without_id.push((row, Reason::NullInstance)),
                (_, NULL, ..) => without_id.push((row, Reason::NullAnnotator)),
                (_, _, NULL, _) => without_id.push((row, Reason::NullLabel)),
                (.., Err(found)) => self.rejects.add(Reason::BadWeight, 1, found),
                (instance, annotator, label, Ok(weight)) => {
                    self.rows.instance.memory().push(instance);
                    self.rows.annotator.memory().push(annotator);
                    self.rows.label.memory().push(label);
                    self.rows.weight.extend(weight);
                    self.rows.annotated_at.extend(extras.annotated_at(row));
                }
            }
        }
        if without_id.is_empty() { Ok(()) } else { self.reject(batch, &without_id) }
    }

    /// Rejects rows of a batch that lack an instance, an annotator or a label.
    fn reject(&mut self, batch: &RecordBatch, rows: &[(usize, Reason)]) -> Result<()> {
        let shown = |name| ShownColumn::new(column(batch, name)?);
        let (instances, annotators, labels) =
            (shown("instance_id")?, shown("annotator_id")?, shown("label")?);
        for (row, reason) in rows {
            // Without a number and yet not null, a value is NaN or infinite.
            let found = match reason {
                Reason::NullAnnotator => annotators.valid_or(*row, &instances),
                Reason::NullLabel => labels.valid_or(*row, &instances),
                _ => instances.value(*row),
            };
            self.rejects.add(*reason, 1, found);
        }
        Ok(())
    }

    /// Assigns the final numbers and builds the frame.
    pub(super) fn finish(
        mut self,
        gold: Option<&GoldRows>,
        spec: &FrameSpec,
        held: &mut QuestionReservation<'_>,
        folder: &ScratchFolder,
    ) -> Result<Finished> {
        let of_rows = [&self.instances, &self.annotators, &self.labels].map(Interner::len);
        let listed = intern_listed(&mut self.labels, spec)?;
        let mut gold_numbers = match gold {
            Some(rows) => rows.number(&mut self.instances, &mut self.labels)?,
            None => Vec::new(),
        };
        let n = self.labels.len();
        if spec.classes.is_none() && n > MAX_LABELS {
            return Err(too_many_labels(n));
        }
        self.make_room(spec, held, folder)?;
        let ids = self.ids();
        let (same, mut warnings) = self.join_equal_numbers(&of_rows, &listed);
        let [same_instances, same_annotators, same_labels] = same;
        let of_gold = [same_instances.as_ref(), same_labels.as_ref()];
        replace_values(&mut gold_numbers, of_gold, of_rows[0]);
        // A listed value may stand for those of the rows.
        let n = if same_labels.is_some() { n } else { of_rows[2] };
        let is_certain = same_labels.is_none() && self.rejects.total() == 0;
        let used_labels = used(&self.rows.label, n, is_certain);
        let (unread, unread_gold) =
            GoldValues::instances(&gold_numbers, &self.instances, of_rows[0])?;
        // A listed class that nobody gave is meant.
        let unused = match spec.classes {
            None => Some(GoldValues::classes(&gold_numbers, &self.labels, &used_labels)?),
            Some(_) => None,
        };
        let classes = LabelAxis::resolve(
            self.labels,
            spec,
            &used_labels,
            gold_numbers.iter().filter(|g| !g.role.only_scores()).map(|g| g.class),
        )?;
        let listed = spec.classes.is_some().then(|| classes.overlap(&used_labels));
        warnings.extend(classes.without_classes(&used_labels));
        self.rows.reject_unknown(&classes, &used_labels, &mut self.rejects);
        if classes.n == 0 && !self.rows.instance.is_empty() {
            return Err(no_class());
        }
        if spec.duplicates == Duplicates::Last {
            self.rejects.add_rows(Reason::Superseded, self.rows.keep_newest());
        }
        let same = same_instances.as_deref().unwrap_or_default();
        let stays = instances_that_stay(self.instances.len(), same, &gold_numbers);
        if self.rows.instance.is_empty() {
            let nothing = Unlabelled::new(self.rejects, &stays, &gold_numbers);
            return Ok(Finished::Nothing(Unlabelled { listed, ..nothing }));
        }
        tracing::debug!(rows = self.read, "read");
        let is_certain = self.rejects.total() == 0 && same_annotators.is_none();
        let used_annotators = used(&self.rows.annotator, of_rows[1], is_certain);
        let (instances, annotators) = rayon::join(
            || self.instances.finish(|n| stays[n as usize]),
            || self.annotators.finish(|n| used_annotators[n as usize]),
        );
        let ((instances, instance_rank), (annotators, annotator_rank)) = (instances?, annotators?);
        let dims = Dims {
            instances: instances.len(),
            annotators: annotators.len(),
            classes: classes.n,
            labels: classes.labels.len(),
        };
        tracing::debug!(instances = dims.instances, annotators = dims.annotators, "numbered");
        let ranks = [&instance_rank[..], &annotator_rank, &classes.rank];
        let mut annotations = self
            .rows
            .into_annotations(dims, ranks, spec.duplicates, folder)?
            .map_err(|repeated| answered_again(&repeated, &instances, &annotators))?;
        tracing::debug!(annotations = annotations.len(), "views built");
        let sizes = QuestionSizes::new(&annotations, GoldNumber::roles_of_read(&gold_numbers));
        // What built the views is gone.
        held.expect_fit(ids.saturating_add(annotations.bytes()), &sizes)?;
        let given_labels = used_labels.iter().filter(|used| **used).count();
        let shape = Shape {
            dims,
            annotations: annotations.len(),
            given_labels,
            is_one_each: !annotations.has_overlap(),
        };
        warnings.extend(shape.warnings());
        let axis = (&classes, spec.classes.is_some());
        let (gold, unknown) = Gold::resolve(gold_numbers, &instance_rank, axis, &instances)?;
        annotations.trusted = Gold::trusted(&gold, dims.instances);
        let read = &instance_rank[..of_rows[0]];
        let gold_overlaps = unread.overlaps(unused, read, (&instances, &annotators));
        Ok(Finished::Frame(Box::new(Frame {
            question: None,
            annotations,
            instances,
            annotators,
            labels: classes.labels,
            gold,
            unknown_gold: UnknownGold { of_instances: unknown, ..UnknownGold::default() },
            gold_overlaps,
            unread_gold,
            listed,
            with_features: None,
            rejects: self.rejects,
            left_out: Vec::new(),
            warnings,
            rows_read: self.read,
        })))
    }

    /// Reserves the bytes that building the frame takes, and makes all rows readable; in scratch files, if they do not fit
    /// into memory.
    fn make_room(
        &mut self,
        spec: &FrameSpec,
        held: &QuestionReservation<'_>,
        folder: &ScratchFolder,
    ) -> Result<()> {
        let looking = looking_bytes([&self.instances, &self.annotators, &self.labels]);
        let reserve =
            |rows: &Self| held.hold(rows.building().max(rows.bytes(0).saturating_add(looking)));
        if let Err(e) = reserve(self) {
            // The newest of several answers are found among all rows in memory.
            if self.rows.is_spilled() || spec.duplicates == Duplicates::Last {
                return Err(e);
            }
            self.rows.spill(folder)?;
            reserve(self)?;
        }
        self.rows.map(folder)
    }

    /// Joins the spellings of equal numbers in the rows. Returns, for instances, annotators and labels, the value that stands
    /// for each one where some were joined; and warnings of spellings.
    fn join_equal_numbers(
        &mut self,
        of_rows: &[usize; 3],
        listed: &[u32],
    ) -> ([Option<Vec<u32>>; 3], Vec<DataWarning>) {
        let rows = &mut self.rows;
        let columns = [
            ("instance ids", &self.instances, &mut rows.instance, None),
            ("annotator ids", &self.annotators, &mut rows.annotator, None),
            ("labels", &self.labels, &mut rows.label, Some(listed)),
        ];
        let mut warnings = Vec::new();
        let mut of_rows = of_rows.iter();
        let same = columns.map(|(what, values, rows, listed)| {
            let of_rows = of_rows.next().copied().unwrap_or_default();
            // Values that only rejected rows have are interned too.
            let used = (self.rejects.total() > 0).then(|| used(rows, of_rows, false));
            let column = ColumnValues { what, values, of_rows, rows, used, listed, counted: None };
            let found = column.look();
            replace(rows, found.same.as_ref());
            warnings.extend(found.warnings);
            found.same
        });
        (same, warnings)
    }
}

fn column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef> {
    batch.column_by_name(name).ok_or_else(|| Error::bug(format!("a batch lacks `{name}`")))
}

/// Appends the provisional numbers of a column of all batches to `numbers`.
fn intern(
    name: &str,
    ids: &mut Interner,
    batches: &[RecordBatch],
    numbers: &mut Vec<u32>,
) -> Result<()> {
    let columns: Vec<&ArrayRef> =
        batches.iter().map(|batch| column(batch, name)).collect::<Result<_>>()?;
    ids.intern_all(&columns, numbers)
}

/// Whether each of the `n` provisional numbers of a column's values is in a row that is left: all are where `is_certain`,
/// because no row was rejected and no value stands for another.
fn used(numbers: &[u32], n: usize, is_certain: bool) -> Vec<bool> {
    if is_certain {
        return vec![true; n];
    }
    let mut used = vec![false; n];
    numbers.iter().for_each(|x| used[*x as usize] = true);
    used
}

fn answered_again(repeated: &Repeated, instances: &Ids, annotators: &Ids) -> Error {
    let pairs = repeated.0.iter().map(|(i, r)| {
        // Only those that are shown are written: there may be millions.
        fmt::from_fn(move |f| {
            write!(f, "{} / {}", instances.text(*i as usize), annotators.text(*r as usize))
        })
    });
    Error::data("annotators answered an instance more than once")
        .at("frame.duplicates")
        .found(offenders(pairs))
        .help("choose \"share\", \"last\" or \"keep\", or clean the input")
}
