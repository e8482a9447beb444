//! Runs the queries and hands their batches to one [`Collector`] a question. Async stops here.

use std::collections::HashMap;
use std::collections::btree_map::{BTreeMap, Entry};
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::{cast, take_record_batch};
use arrow::datatypes::{DataType, FieldRef, Schema, SchemaRef};
use datafusion::common::stats::Precision;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{
    ExecutionPlan, SendableRecordBatchStream, execute_stream_partitioned,
};
use datafusion::prelude::DataFrame;
use futures::StreamExt;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::budget::Budget;
use super::collector::{Collector, Held};
use super::evidence::Described;
use super::features::{Features, Reader, Scratch};
use super::gold::{Gold, GoldRows};
use super::ids::{Ids, Interner, NULL};
use super::rejects::{Reason, Rejects};
use super::{Duplicates, Frame, FrameSpec};
use crate::error::{Error, Result};
use crate::run::Run;
use crate::sql::unbroken;

/// Batches that wait between decoding and interning; a few are enough to keep both busy.
const BATCHES_IN_FLIGHT: usize = 4;

/// The queries that a frame is made of.
pub struct Relations {
    /// The annotations.
    pub annotations: DataFrame,
    /// Trusted classes.
    pub gold: Option<DataFrame>,
    /// The features of instances, and where they may go.
    pub features: Option<(DataFrame, Scratch)>,
    /// The features of annotators.
    pub annotator_features: Option<DataFrame>,
}

/// Reads the relations, and gives one frame for each question, sorted by question.
///
/// # Errors
/// When a file cannot be read, a column has an unusable type, gold contradicts itself, repeated answers are an error,
/// a row of features is not usable, or no usable annotation is left.
pub async fn collect(relations: Relations, spec: &FrameSpec, run: &Run) -> Result<Vec<Frame>> {
    let Relations { annotations, gold, features, annotator_features } = relations;
    let gold_budget = Budget::new(&annotations.task_ctx(), "gold");
    let gold = match gold {
        Some(query) => Some(unbroken(GoldRows::read(query, &gold_budget)).await?),
        None => None,
    };
    let schema: SchemaRef = annotations.schema().inner().clone();
    let mut questions = Questions::new(&schema, spec)?;
    // Only the newest answer asks when; for the others the column is not even read.
    let annotations = match spec.duplicates {
        Duplicates::Last => annotations,
        _ => annotations.drop_columns(&["annotated_at"])?,
    };
    let context = Arc::new(annotations.task_ctx());
    let budget = Budget::new(&context, "annotations");
    let plan = unbroken(async { Ok(annotations.create_physical_plan().await?) }).await?;
    let rows = rows_in(&plan);
    // An estimate of what a filter leaves may be wrong; what files promise is not.
    let exact = exact_rows(&plan);
    exact.map_or(Ok(()), |rows| budget.expect(rows))?;
    questions.expect(exact);
    run.progress.begin("reading", rows);
    let mut batches = spawn(execute_stream_partitioned(plan, context)?);
    let pool = run.pool();
    let (mut read, mut largest) = (0_u64, 0);
    while let Some(batch) = batches.next().await {
        run.cancel.check()?;
        let batch = batch?;
        read += batch.num_rows() as u64;
        // The others on their way are taken to be as large as the largest so far.
        largest = batch.get_array_memory_size().max(largest);
        let in_flight = largest.saturating_mul(batches.at_once);
        let bytes = questions.bytes(batch.num_rows()).saturating_add(in_flight);
        budget.hold(bytes, || format!("the ids and numbers of the first {read} annotations"))?;
        tokio::task::block_in_place(|| pool.install(|| questions.push(&batch, &budget)))?;
        run.progress.at(read, "");
    }
    let mut frames = tokio::task::block_in_place(|| {
        pool.install(|| questions.finish(gold.as_ref(), spec, &budget))
    })?;
    run.progress.end();
    let Some((features, scratch)) = features else { return Ok(frames) };
    // Held until all relations are read, as they are.
    let (features, _held) = read_within(features, scratch, "source.features", run).await?;
    let annotators = match annotator_features {
        Some(query) => {
            let place = "source.annotator_features";
            Some(read_within(query, Scratch::default(), place, run).await?)
        }
        None => None,
    };
    let (annotators, _held_too) = annotators.unzip();
    for frame in &mut frames {
        let (described, unknown) = describe(frame, &features, annotators.as_ref(), gold.as_ref())?;
        frame.described = Some(described);
        frame.unknown_gold.of_feature_rows = unknown;
    }
    Ok(frames)
}

/// Reads a relation whose first column is the id and whose others are numbers, or one list of numbers.
///
/// # Errors
/// When a row has no id, an id has two rows, rows differ in length, or a number is missing or not finite; the error
/// names the rows.
pub async fn read_features(
    query: DataFrame,
    scratch: Scratch,
    place: &str,
    run: &Run,
) -> Result<Features> {
    Ok(read_within(query, scratch, place, run).await?.0)
}

/// The same, with what holds their memory.
async fn read_within(
    query: DataFrame,
    scratch: Scratch,
    place: &str,
    run: &Run,
) -> Result<(Features, Budget)> {
    let schema = SchemaRef::clone(query.schema().inner());
    let context = Arc::new(query.task_ctx());
    let plan = unbroken(async { Ok(query.create_physical_plan().await?) }).await?;
    let rows = rows_in(&plan);
    let mut reader = Reader::new(&schema, Scratch { rows, ..scratch });
    let budget = Budget::new(&context, "features");
    run.progress.begin("features", rows);
    let mut batches = spawn(execute_stream_partitioned(plan, context)?);
    let mut largest = 0;
    while let Some(batch) = batches.next().await {
        run.cancel.check()?;
        let batch = batch.map_err(|e| e.or_at(place))?;
        largest = batch.get_array_memory_size().max(largest);
        let in_flight = largest.saturating_mul(batches.at_once);
        let bytes = reader.bytes(&batch).saturating_add(in_flight);
        budget
            .hold(bytes, || format!("the features of {} ids", reader.len() + batch.num_rows()))?;
        tokio::task::block_in_place(|| reader.push(&batch)).map_err(|e| e.or_at(place))?;
        run.progress.at(reader.len() as u64, "");
    }
    run.progress.end();
    let features = tokio::task::block_in_place(|| reader.finish()).map_err(|e| e.or_at(place))?;
    Ok((features, budget))
}

/// How features belong to the instances and annotators of one question; and the gold rows of classes that it does not
/// know.
fn describe(
    frame: &Frame,
    features: &Features,
    annotators: Option<&Features>,
    gold: Option<&GoldRows>,
) -> Result<(Described, Vec<Gold>)> {
    let row_of_instance =
        features.rows_of(&frame.instances).map_err(|e| e.or_at("source.features"))?;
    if row_of_instance.iter().all(Option::is_none) {
        return Err(Error::data("no annotated instance has features")
            .at("source.features")
            .found(format!(
                "{} annotated instances such as `{}`, {} rows of features such as `{}`",
                frame.instances.len(),
                frame.instances.text(0),
                features.ids.len(),
                features.ids.text(0)
            ))
            .help("the ids must be the same in both relations"));
    }
    let annotators = annotators
        .map(|features| {
            let rows = features.rows_of(&frame.annotators);
            Ok::<_, Error>((
                features.clone(),
                rows.map_err(|e| e.or_at("source.annotator_features"))?,
            ))
        })
        .transpose()?;
    let (gold, unknown) = match gold {
        Some(rows) => {
            let rows = match &frame.question {
                Some(question) => rows.of_question(question)?,
                None => rows.clone(),
            };
            rows.by_feature_row(&features.ids, &frame.labels, frame.annotations.dims().classes)?
        }
        None => (Vec::new(), Vec::new()),
    };
    Ok((Described { features: features.clone(), row_of_instance, gold, annotators }, unknown))
}

/// Rows that the plan will give, where the files' metadata states it.
#[must_use]
pub fn rows_in(plan: &Arc<dyn ExecutionPlan>) -> Option<u64> {
    let statistics =
        StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new()).ok()?;
    statistics.num_rows.get_value().map(|n| *n as u64)
}

/// Rows that the plan will give, where that is certain.
fn exact_rows(plan: &Arc<dyn ExecutionPlan>) -> Option<u64> {
    let statistics =
        StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new()).ok()?;
    match statistics.num_rows {
        Precision::Exact(rows) => Some(rows as u64),
        _ => None,
    }
}

/// The batches of all partitions, in any order.
struct Batches {
    receiver: mpsc::Receiver<Result<RecordBatch>>,
    tasks: JoinSet<()>,
    /// How many there are in memory at most.
    at_once: usize,
}

impl Batches {
    /// The next batch; the end only where every partition has come to its own.
    async fn next(&mut self) -> Option<Result<RecordBatch>> {
        if let Some(batch) = self.receiver.recv().await {
            return Some(batch);
        }
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(failure) = ended {
                // A decoder that gives up on damaged bytes must not pass for the end of the rows.
                let error = Error::data("the rows cannot be decoded")
                    .found(failure.to_string().lines().next().unwrap_or_default())
                    .help(
                        "a file is damaged: write it again; or a query of source.sql makes a value that is too large",
                    );
                return Some(Err(error));
            }
        }
        None
    }
}

/// Polls every partition on its own task.
fn spawn(streams: Vec<SendableRecordBatchStream>) -> Batches {
    let (sender, receiver) = mpsc::channel(BATCHES_IN_FLIGHT);
    // Beside those that wait and the one at hand, each partition sends one and decodes another.
    let at_once = BATCHES_IN_FLIGHT + 1 + 2 * streams.len();
    let mut tasks = JoinSet::new();
    for mut stream in streams {
        let sender = sender.clone();
        tasks.spawn(async move {
            while let Some(batch) = stream.next().await {
                if sender.send(batch.map_err(Error::from)).await.is_err() {
                    break;
                }
            }
        });
    }
    Batches { receiver, tasks, at_once }
}

/// One collector a question; without a question column there is one, of number 0.
struct Questions {
    schema: SchemaRef,
    ids: Option<Interner>,
    collectors: BTreeMap<u32, Collector>,
    rejects: Rejects,
}

impl Questions {
    fn new(schema: &SchemaRef, spec: &FrameSpec) -> Result<Self> {
        if spec.duplicates == Duplicates::Last && schema.field_with_name("annotated_at").is_err() {
            return Err(Error::data("the newest answer cannot be found without `annotated_at`")
                .at("frame.duplicates")
                .help("set source.columns.annotated_at, or choose \"share\""));
        }
        let ids = schema.field_with_name("question").ok().map(Interner::new);
        let schema = if ids.is_some() { typed(schema) } else { SchemaRef::clone(schema) };
        // Made even where questions will come, so that a column of the wrong type is found before any row is read.
        let first = Collector::new(&schema)?;
        let collectors = if ids.is_some() { BTreeMap::new() } else { BTreeMap::from([(0, first)]) };
        Ok(Self { schema, ids, collectors, rejects: Rejects::default() })
    }

    /// Makes room for so many rows, where it is known whose they are.
    fn expect(&mut self, rows: Option<u64>) {
        if let (None, Some(rows), Some(collector)) = (&self.ids, rows, self.collectors.get_mut(&0))
        {
            collector.reserve(rows);
        }
    }

    /// Bytes that are held once a batch of so many rows has come; which question they belong to is not known before.
    fn bytes(&self, rows: usize) -> usize {
        let more = |n: usize| if n == 0 { rows } else { 0 };
        let collectors = self.collectors.values().enumerate();
        let rows: usize = collectors.map(|(n, collector)| collector.bytes(more(n))).sum();
        rows.saturating_add(self.ids.as_ref().map_or(0, |ids| ids.len() * BYTES_PER_QUESTION))
    }

    fn push(&mut self, batch: &RecordBatch, budget: &Budget) -> Result<()> {
        let Some(ids) = &mut self.ids else {
            return self.collectors.values_mut().try_for_each(|collector| collector.push(batch));
        };
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
                self.rejects.add_rows(Reason::NullQuestion, rows.num_rows() as u64);
                continue;
            }
            match self.collectors.entry(question) {
                Entry::Occupied(entry) => entry.into_mut().push(&rows)?,
                Entry::Vacant(entry) => entry.insert(Collector::new(&self.schema)?).push(&rows)?,
            }
        }
        Ok(())
    }

    fn finish(
        self,
        gold: Option<&GoldRows>,
        spec: &FrameSpec,
        budget: &Budget,
    ) -> Result<Vec<Frame>> {
        let Some(ids) = self.ids else {
            let only = self.collectors.into_values();
            return only
                .map(|c| {
                    let rows = c.rows();
                    c.finish(gold, spec, &Held { budget, beside: 0, rows })
                })
                .collect();
        };
        let (ids, rank) = ids.finish(|_| true)?;
        let mut frames = BTreeMap::new();
        // Frames that are finished are held beside the rows of those that are not.
        let beside: usize =
            self.collectors.values().map(|c| c.building() + BYTES_PER_QUESTION).sum();
        let rows = self.collectors.values().map(Collector::rows).sum();
        let held = Held { budget, beside, rows };
        for (provisional, collector) in self.collectors {
            let number = rank[provisional as usize];
            let question = Ids::in_order(ids.rows(std::iter::once(Some(number)))?);
            let gold = gold.map(|g| g.of_question(&question)).transpose()?;
            let frame = collector
                .finish(gold.as_ref(), spec, &held)
                .map_err(|e| e.or_at(&format!("question {}", ids.text(number as usize))))?;
            frames.insert(number, Frame { question: Some(question), ..frame });
        }
        let mut frames: Vec<Frame> = frames.into_values().collect();
        // Rows without a question belong to none; the first frame's account carries them.
        match frames.first_mut() {
            Some(first) => {
                first.rows_read += self.rejects.total();
                first.rejects.merge(&self.rejects);
                Ok(frames)
            }
            None => Err(super::collector::nothing_left(self.rejects.total(), &self.rejects)),
        }
    }
}

/// The schema without the mark of text that may stand for integers: all questions must agree on the types.
fn typed(schema: &SchemaRef) -> SchemaRef {
    let plain = |field: &FieldRef| field.as_ref().clone().with_metadata(HashMap::new());
    SchemaRef::new(Schema::new(schema.fields().iter().map(plain).collect::<Vec<_>>()))
}

/// Bytes that a question takes however few rows it has: its collector, its frame, and what a model returns of it.
/// (131 072 questions of an annotation each took 1.0 GB in all.)
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

/// The batch sorted by question, and the rows of each there.
fn by_question(
    batch: &RecordBatch,
    numbers: &[u32],
) -> Result<(RecordBatch, Vec<(u32, Range<usize>)>)> {
    let mut order: Vec<u32> = (0..numbers.len() as u32).collect();
    order.sort_by_key(|row| numbers[*row as usize]);
    let mut questions: Vec<(u32, Range<usize>)> = Vec::new();
    for (at, row) in order.iter().enumerate() {
        let question = numbers[*row as usize];
        match questions.last_mut() {
            Some((last, rows)) if *last == question => rows.end = at + 1,
            _ => questions.push((question, at..at + 1)),
        }
    }
    let plain = if questions.len() > 1 { without_dictionaries(batch)? } else { batch.clone() };
    Ok((take_record_batch(&plain, &UInt32Array::from(order))?, questions))
}

/// The batch with the values that its dictionaries stand for: a part of a batch would still hold each dictionary whole.
fn without_dictionaries(batch: &RecordBatch) -> Result<RecordBatch> {
    let plain = |column: &ArrayRef| match column.data_type() {
        DataType::Dictionary(_, values) => cast(column, values),
        _ => Ok(Arc::clone(column)),
    };
    let columns = batch.columns().iter().map(plain).collect::<Result<Vec<_>, _>>()?;
    let schema = batch.schema();
    let fields = schema.fields().iter().zip(&columns);
    let fields = fields
        .map(|(field, column)| field.as_ref().clone().with_data_type(column.data_type().clone()));
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields.collect::<Vec<_>>())), columns)?)
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, DictionaryArray, Int64Array};
    use arrow::datatypes::{Int32Type, Int64Type};

    use super::*;

    #[test]
    fn a_batch_is_cut_by_question_and_its_rows_keep_their_order() {
        let labels: DictionaryArray<Int32Type> =
            vec!["x", "y", "x", "z", "y"].into_iter().collect();
        let rows = Int64Array::from(vec![0, 1, 2, 3, 4]);
        let batch = RecordBatch::try_from_iter([
            ("row", Arc::new(rows) as ArrayRef),
            ("label", Arc::new(labels) as ArrayRef),
        ])
        .unwrap();
        let (sorted, questions) = by_question(&batch, &[7, NULL, 2, 7, 2]).unwrap();
        assert_eq!(questions, [(2, 0..2), (7, 2..4), (NULL, 4..5)]);
        assert_eq!(sorted.column(0).as_primitive::<Int64Type>().values(), &[2, 4, 0, 3, 1]);
        let labels: Vec<_> = sorted.column(1).as_string::<i32>().iter().flatten().collect();
        assert_eq!(labels, ["x", "y", "x", "z", "y"]);
    }
}
