//! Passes the rows of each batch to the collector of their question.

use std::collections::btree_map::{BTreeMap, Entry};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{FieldRef, Fields, Schema, SchemaRef};

use super::by_question::by_question;
use super::collector::Collector;
use super::finished::{Finished, Unlabelled};
use super::optional_columns::OptionalColumns;
use super::spellings::{ColumnValues, DataWarning};
use crate::engine::ScratchFolder;
use crate::error::{Error, Overlap, Result, offenders};
use crate::frame::annotations::Duplicates;
use crate::frame::classes::check_lists;
use crate::frame::frame_spec::FrameSpec;
use crate::frame::gold::GoldRows;
use crate::frame::ids::id_columns::{id_columns, label_column};
use crate::frame::ids::shown_column::ShownColumn;
use crate::frame::ids::{Ids, Interner, NULL, as_text};
use crate::frame::memory::reservation::{QuestionReservation, Reservation};
use crate::frame::question_frame::{Frame, QuestionLeftOut, subject_of};
use crate::frame::rejects::{Reason, Rejects};
use crate::job_context::JobContext;

/// One collector per question; without a question column there is one, with the number 0.
pub(super) struct Questions {
    schema: SchemaRef,
    ids: Option<Interner>,
    collectors: BTreeMap<u32, Collector>,
    rejects: Rejects,
    /// Where rows go that do not fit into memory.
    folder: ScratchFolder,
}

impl Questions {
    pub(super) fn new(schema: &SchemaRef, spec: &FrameSpec, folder: ScratchFolder) -> Result<Self> {
        // A column of the wrong type is found before any row is read, with a question column too.
        let listed = check_listed_labels(schema, spec);
        Error::all(check_columns(schema, spec).err().into_iter().chain(listed.err()))?;
        let ids = schema.field_with_name("question").ok().map(Interner::new);
        let schema = if ids.is_some() { untyped_as_text(schema) } else { SchemaRef::clone(schema) };
        let collectors = match ids {
            Some(_) => BTreeMap::new(),
            None => BTreeMap::from([(0, Collector::new(&schema)?)]),
        };
        Ok(Self { schema, ids, collectors, rejects: Rejects::default(), folder })
    }

    /// Allocates room for the rows, where their number is known and there is only one question.
    pub(super) fn expect(&mut self, rows: Option<u64>) {
        if let (None, Some(rows), Some(collector)) = (&self.ids, rows, self.collectors.get_mut(&0))
        {
            collector.reserve(rows);
        }
    }

    /// Moves the rows to scratch files, where there is only one question; whether it has.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(super) fn spill(&mut self, spec: &FrameSpec) -> Result<bool> {
        // The newest of several answers are found among all rows in memory.
        let can_spill = self.ids.is_none() && spec.duplicates != Duplicates::Last;
        match self.collectors.get_mut(&0) {
            Some(collector) if can_spill => collector.spill(&self.folder).map(|()| true),
            _ => Ok(false),
        }
    }

    /// Bytes that are held after a further batch of `rows` rows, as if all were of the first question: their questions
    /// are not known in advance.
    pub(super) fn bytes(&self, rows: usize) -> usize {
        let more = |n: usize| if n == 0 { rows } else { 0 };
        let collectors = self.collectors.values().enumerate();
        let rows: usize = collectors.map(|(n, collector)| collector.bytes(more(n))).sum();
        rows.saturating_add(self.ids.as_ref().map_or(0, |ids| ids.len() * BYTES_PER_QUESTION))
    }

    /// Adds the rows of batches.
    pub(super) fn push(&mut self, batches: &[RecordBatch], budget: &Reservation) -> Result<()> {
        if self.ids.is_none() {
            let mut collectors = self.collectors.values_mut();
            return collectors.try_for_each(|collector| collector.push(batches, &self.folder));
        }
        batches.iter().try_for_each(|batch| self.push_by_question(batch, budget))
    }

    fn push_by_question(&mut self, batch: &RecordBatch, budget: &Reservation) -> Result<()> {
        let Some(ids) = &mut self.ids else { return Ok(()) };
        let column = batch
            .column_by_name("question")
            .ok_or_else(|| Error::bug("a batch lacks the question column of its schema"))?;
        let (known, mut numbers) = (ids.len(), Vec::new());
        ids.intern(column, &mut numbers)?;
        let n = ids.len();
        budget.add((n - known) * BYTES_PER_QUESTION).map_err(|()| too_many_questions(n))?;
        let (sorted, questions) = by_question(batch, &numbers)?;
        for (question, rows) in questions {
            let rows = sorted.slice(rows.start, rows.len());
            if question == NULL {
                self.rejects.merge(&without_question(&rows)?);
                continue;
            }
            match self.collectors.entry(question) {
                Entry::Occupied(entry) => entry.into_mut().push(&[rows], &self.folder)?,
                Entry::Vacant(entry) => {
                    entry.insert(Collector::new(&self.schema)?).push(&[rows], &self.folder)?;
                }
            }
        }
        Ok(())
    }

    /// The number of usable annotations so far.
    pub(super) fn rows(&self) -> usize {
        self.collectors.values().map(Collector::rows).sum()
    }

    /// One frame for each question, sorted by question, with the gold rows that apply to it.
    pub(super) fn finish(
        self,
        gold: Option<&GoldRows>,
        spec: &FrameSpec,
        mut held: QuestionReservation<'_>,
        job: &mut JobContext,
    ) -> Result<Vec<(Frame, Option<GoldRows>)>> {
        let Some(ids) = self.ids else {
            let only = self.collectors.into_values();
            return only
                .map(|collector| match collector.finish(gold, spec, &mut held, &self.folder)? {
                    Finished::Frame(frame) => Ok((*frame, gold.cloned())),
                    Finished::Nothing(found) => {
                        Err(nothing_left(&found.rejects, found.listed.as_ref()))
                    }
                })
                .collect();
        };
        // Finished frames and the rows of unfinished questions are in memory at the same time.
        held.add_beside(self.collectors.values().map(|c| c.building() + BYTES_PER_QUESTION).sum());
        let doubts = doubtful_spellings(&ids, &self.collectors);
        doubts.iter().for_each(|(code, text)| job.warn_code(*code, text));
        let (ids, rank) = ids.finish(|_| true)?;
        let by_rank = self.collectors.into_iter().map(|(n, c)| (rank[n as usize], c));
        let gold = gold.map(|gold| gold.by_question(&ids, job)).transpose()?;
        let (mut frames, mut left_out, mut unlisted) = (Vec::new(), Vec::new(), None);
        for (number, collector) in by_rank.collect::<BTreeMap<_, _>>() {
            let question = Ids::in_order(ids.rows(std::iter::once(Some(number)))?);
            let gold = gold.as_ref().and_then(|gold| gold.get(number as usize));
            let finished = collector.finish(gold, spec, &mut held, &self.folder);
            // A question that is the only one tells nothing about an error.
            let subject = (ids.len() > 1).then(|| subject_of(&question));
            match finished.map_err(|e| e.about_some(subject))? {
                Finished::Frame(frame) => {
                    held.keep_result();
                    frames.push((Frame { question: Some(question), ..*frame }, gold.cloned()));
                }
                Finished::Nothing(Unlabelled { rejects, instances, n_holdout, listed }) => {
                    unlisted = unlisted.or(listed);
                    left_out.push(QuestionLeftOut { question, rejects, instances, n_holdout });
                }
            }
        }
        let mut all = self.rejects.clone();
        left_out.iter().for_each(|question| all.merge(&question.rejects));
        Ids::widen_together(frames.iter_mut().map(|(frame, _)| &mut frame.instances))?;
        Ids::widen_together(frames.iter_mut().map(|(frame, _)| &mut frame.annotators))?;
        Ids::widen_together(frames.iter_mut().map(|(frame, _)| &mut frame.labels))?;
        // Rows without a question and questions left out have no frame of their own: the first frame includes them.
        let Some((first, _)) = frames.first_mut() else {
            return Err(nothing_left(&all, unlisted.as_ref()));
        };
        first.rows_read += all.total();
        first.rejects.merge(&self.rejects);
        first.left_out = left_out;
        Ok(frames)
    }
}

/// The warnings of one question in several spellings: each has a model of its own.
fn doubtful_spellings(ids: &Interner, collectors: &BTreeMap<u32, Collector>) -> Vec<DataWarning> {
    let rows = |n: u32| collectors.get(&n).map_or(0, |collector| collector.rows() as u64);
    let counted: Vec<u64> = (0..ids.len() as u32).map(rows).collect();
    let used = Some(counted.iter().map(|n| *n > 0).collect());
    let (values, of_rows, rows, listed) = (ids, ids.len(), &[][..], Some(&[][..]));
    let counted = Some(&counted[..]);
    let column = ColumnValues { what: "questions", values, of_rows, rows, used, listed, counted };
    column.look().warnings
}

/// Checks the columns of the annotations before any row is read.
///
/// # Errors
/// Every column whose type cannot be that of an id, a weight or a time, and the lack of a column that the spec needs, at
/// once.
pub fn check_columns(schema: &Schema, spec: &FrameSpec) -> Result<()> {
    let needs_times = spec.duplicates == Duplicates::Last;
    let no_times = (needs_times && schema.field_with_name("annotated_at").is_err()).then(|| {
        Error::data("the newest answer cannot be found without `annotated_at`")
            .at("frame.duplicates")
            .help("set source.columns.annotated_at, or choose \"share\"")
    });
    // Only `last` reads times.
    let of_last = |field: &&FieldRef| needs_times || field.name() != "annotated_at";
    let fields: Fields = schema.fields().iter().filter(of_last).cloned().collect();
    let no_rows = RecordBatch::new_empty(Arc::new(Schema::new(fields)));
    let others = OptionalColumns::read(&no_rows).err();
    Error::all(no_times.into_iter().chain(id_columns(schema).err()).chain(others))
}

/// Checks the labels that the spec lists, given the type of the annotations' labels, before any row is read.
///
/// # Errors
/// Every listed label that cannot be one or is listed twice, at once.
pub fn check_listed_labels(schema: &Schema, spec: &FrameSpec) -> Result<()> {
    label_column(schema).map_or(Ok(()), |labels| check_lists(labels, spec))
}

/// The rejects of rows whose question is null, NaN or infinite.
fn without_question(rows: &RecordBatch) -> Result<Rejects> {
    let mut rejects = Rejects::default();
    let shown = |name: &str| {
        let column = rows.column_by_name(name);
        ShownColumn::new(column.ok_or_else(|| Error::bug(format!("a batch lacks `{name}`")))?)
    };
    let (column, instances) = (shown("question")?, shown("instance_id")?);
    for row in 0..rows.num_rows() {
        rejects.add(Reason::NullQuestion, 1, column.valid_or(row, &instances));
    }
    Ok(rejects)
}

/// The schema in which untyped text always stays text: if it became integers where possible, the types of questions
/// could differ.
fn untyped_as_text(schema: &SchemaRef) -> SchemaRef {
    let fields = schema.fields().iter().map(|field| as_text(field));
    SchemaRef::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// Bytes that a question takes however few rows it has: its collector, its frame, and the result of its fit.
const BYTES_PER_QUESTION: usize = 8 << 10;

fn too_many_questions(n: usize) -> Error {
    Error::data(format!("{n} distinct questions in `question`: is this a question column?"))
        .at("source.annotations")
        .found("more than the memory that the run may take has room for, a model for each of them")
        .help(
            "map the column that names the question in source.columns.question, or leave it out where there is one \
             question; many questions need a larger engine.memory_limit",
        )
}

/// The error of an input in which no row can be used; `listed` are its labels, where classes are listed.
fn nothing_left(rejects: &Rejects, listed: Option<&Overlap>) -> Error {
    let is_unlisted = |(reason, ..): (Reason, u64, _)| reason == Reason::UnknownClass;
    if let Some(labels) = listed.filter(|labels| labels.is_empty())
        && rejects.iter().all(is_unlisted)
    {
        return labels.error().at("frame.classes");
    }
    let read = rejects.total();
    let reasons = rejects.iter().map(|(reason, count, _)| format!("{} {count}", reason.word()));
    let found =
        if rejects.total() == 0 { String::new() } else { format!(": {}", offenders(reasons)) };
    let rule = rejects.iter().max_by_key(|(_, count, _)| *count);
    let rule = rule.and_then(|(reason, ..)| reason.rule()).map(|rule| format!("{rule}; "));
    // A table without rows is no wrong data: there may be none yet.
    let make = if read == 0 { Error::no_input } else { Error::data };
    make("there is no annotation to learn from")
        .at("source.annotations")
        .found(format!("{read} rows, {read} of them rejected{found}"))
        .help(format!(
            "{}check the path and the column mapping; an empty result is never published",
            rule.unwrap_or_default()
        ))
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray};
    use arrow::compute::concat_batches;

    use super::*;
    use crate::engine::EngineSpec;
    use crate::frame::memory::estimate::dense_memory_estimate;
    use crate::frame::memory::reservation::{BYTES_PER_TIME, BYTES_PER_WEIGHT};

    /// Annotations, some of which cannot be used; `more` names the columns in addition to the ids.
    fn batch(from: i64, more: &[&str]) -> RecordBatch {
        let texts = |name: &str, n: i64| {
            let text = (0..20).map(|row| {
                (row % 7 != n).then(|| format!("{name} that is long {}", (from + row) % (3 + n)))
            });
            Arc::new(text.collect::<StringArray>()) as ArrayRef
        };
        let times: Int64Array = (0..20).map(|row| Some(row % 9)).collect();
        let weights = (0..20).map(|row| (row % 11 != 0).then_some(0.5 + (from + row) as f64));
        let weights: Float64Array = weights.collect();
        let all = [
            ("instance_id", texts("i", 4)),
            ("annotator_id", texts("a", 5)),
            ("label", texts("l", 6)),
            ("weight", Arc::new(weights)),
            ("annotated_at", Arc::new(times)),
        ];
        let columns = all.into_iter().enumerate();
        let columns = columns.filter(|(n, (name, _))| *n < 3 || more.contains(name));
        RecordBatch::try_from_iter(columns.map(|(_, column)| column)).unwrap()
    }

    fn questions(batches: &[RecordBatch], spec: &FrameSpec, budget: &Reservation) -> Questions {
        let mut questions =
            Questions::new(&batches[0].schema(), spec, ScratchFolder::default()).unwrap();
        questions.push(batches, budget).unwrap();
        questions
    }

    #[test]
    fn batches_that_come_together_are_the_rows_of_one() {
        let budget = Reservation::new(&EngineSpec::default().session().unwrap().task_ctx(), "test");
        for more in [&[][..], &["weight"], &["weight", "annotated_at"]] {
            let duplicates = if more.len() < 2 { Duplicates::default() } else { Duplicates::Last };
            let spec = FrameSpec { duplicates, ..FrameSpec::default() };
            let parts = [0, 20, 40].map(|from| batch(from, more));
            let whole = concat_batches(&parts[0].schema(), &parts).unwrap();
            let frame = |batches: &[RecordBatch]| {
                let questions = questions(batches, &spec, &budget);
                let held = QuestionReservation::new(
                    &budget,
                    Box::new(dense_memory_estimate),
                    questions.rows(),
                );
                questions.finish(None, &spec, held, &mut JobContext::new(0)).unwrap().remove(0).0
            };
            let (parts, whole) = (frame(&parts), frame(&[whole]));
            assert_eq!((parts.rows_read, parts.rows_used()), (60, whole.rows_used()));
            let rejects = |frame: &Frame| {
                let all = frame.rejects.iter().map(|(reason, n, found)| (reason, n, found.clone()));
                all.collect::<Vec<_>>()
            };
            assert_eq!(rejects(&parts), rejects(&whole));
            assert_eq!(rejects(&whole).len(), 3 + more.len());
            let triples = |frame: &Frame| {
                let instances = 0..frame.instances.len();
                let all =
                    instances.map(|i| frame.annotations.triples_of_instance(i).collect::<Vec<_>>());
                all.collect::<Vec<_>>()
            };
            assert_eq!(triples(&parts), triples(&whole));
            assert_eq!(parts.instances.values(), whole.instances.values());
            assert_eq!(parts.annotators.values(), whole.annotators.values());
        }
    }

    #[test]
    fn weights_and_times_count_while_views_are_built() {
        let budget = Reservation::new(&EngineSpec::default().session().unwrap().task_ctx(), "test");
        let bytes = |more: &[&str]| {
            let spec = FrameSpec::default();
            let all = questions(&[batch(0, more)], &spec, &budget);
            (all.collectors[&0].building(), all.collectors[&0].rows())
        };
        let (plain, with_nulls) = bytes(&[]);
        let (weighted, n) = bytes(&["weight"]);
        let (timed, _) = bytes(&["weight", "annotated_at"]);
        // A row without a weight is not used; its three numbers are not counted either.
        assert_eq!(n, with_nulls - 1);
        assert_eq!(weighted, plain - 44 + n * BYTES_PER_WEIGHT);
        assert_eq!(timed, weighted + n * (BYTES_PER_TIME + size_of::<i128>()));
    }
}
