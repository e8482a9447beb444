//! Runs the queries and hands their batches to one collector per question. Async stops here.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::stats::Precision;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{
    ExecutionPlan, SendableRecordBatchStream, execute_stream_partitioned,
};
use datafusion::prelude::DataFrame;
use futures::StreamExt;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::given_tables::add_given;
use super::overlaps::{check_gold, warn_of_unlisted_labels};
use super::questions::Questions;
use super::with_features::{Indexed, match_features};
use crate::engine::{ScratchFolder, bytes_in_words};
use crate::error::{Error, Overlap, Result};
use crate::frame::annotations::Duplicates;
use crate::frame::features::{FeatureReader, Features, Scratch, refuse_permuted};
use crate::frame::frame_spec::FrameSpec;
use crate::frame::gold::GoldRows;
use crate::frame::ids::Ids;
use crate::frame::memory::batch_bytes::BytesInFlight;
use crate::frame::memory::estimate::EstimateOfJob;
use crate::frame::memory::read_all::read_all_within;
use crate::frame::memory::reservation::{QuestionReservation, Reservation};
use crate::frame::question_frame::Frame;
use crate::job_context::JobContext;
use crate::source::{BATCHES_IN_FLIGHT, Relation, batches_at_once};
use crate::sql::catch_panics;

/// The queries that a frame is made of.
pub struct Relations {
    /// The annotations.
    pub annotations: DataFrame,
    /// Trusted classes.
    pub gold: Option<DataFrame>,
    /// The features of instances, and the scratch space for them.
    pub features: Option<(DataFrame, Scratch)>,
    /// The features of annotators.
    pub annotator_features: Option<DataFrame>,
    /// Tables of probabilities.
    pub given: Vec<(Relation, DataFrame)>,
    /// The memory of the model's fit, which is reserved before the model is fitted.
    pub fit_memory: EstimateOfJob,
    /// Where annotations go that do not fit into memory.
    pub scratch: ScratchFolder,
}

/// Reads the relations into one frame for each question, sorted by question.
///
/// # Errors
/// When a file cannot be read, a column has an unusable type, gold contradicts itself, repeated answers are an error,
/// a row of features is not usable, or no usable annotation is left.
pub async fn collect(
    relations: Relations,
    spec: &FrameSpec,
    job: &mut JobContext,
) -> Result<Vec<Frame>> {
    let Relations { annotations, gold, features, annotator_features, given, fit_memory, scratch } =
        relations;
    let gold_budget = Reservation::new(&annotations.task_ctx(), "gold");
    let gold = match gold {
        Some(query) => Some(catch_panics(GoldRows::read(query, &gold_budget, job)).await?),
        None => None,
    };
    let schema: SchemaRef = annotations.schema().inner().clone();
    let mut questions = Questions::new(&schema, spec, scratch)?;
    if let (Some(gold), Err(_)) = (&gold, schema.index_of("question")) {
        gold.refuse_several_questions()?;
    }
    // Only `last`, which keeps the newest answer, needs times; otherwise the column is not read.
    let annotations = match spec.duplicates {
        Duplicates::Last => annotations,
        _ => annotations.drop_columns(&["annotated_at"])?,
    };
    let budget = Reservation::new(&annotations.task_ctx(), "annotations");
    read_annotations(annotations, (&mut questions, spec), &budget, job).await?;
    let held = QuestionReservation::new(&budget, fit_memory, questions.rows());
    let pool = job.pool();
    let frames = tokio::task::block_in_place(|| {
        pool.install(|| questions.finish(gold.as_ref(), spec, held, job))
    })?;
    job.progress.end();
    let (mut frames, gold): (Vec<Frame>, Vec<Option<GoldRows>>) = frames.into_iter().unzip();
    match features {
        Some((query, scratch)) => {
            add_features(&mut frames, &gold, (query, scratch), annotator_features, job).await?;
        }
        None => check_gold(&frames, &gold, job)?,
    }
    frames.iter_mut().for_each(|frame| frame.unread_gold = Vec::new());
    for (relation, query) in given {
        let table = relation.table();
        let budget = Reservation::new(&query.task_ctx(), table);
        let rows = format!("rows of {table}");
        let read = catch_panics(read_all_within(query, &rows, &budget)).await;
        let added = read.and_then(|batch| add_given(&mut frames, (relation, batch), job));
        added.map_err(|e| e.or_at(&format!("source.{table}")))?;
    }
    warn_of_unlisted_labels(&frames, job);
    Ok(frames)
}

/// Adds the rows of the annotations to their questions.
async fn read_annotations(
    annotations: DataFrame,
    (questions, spec): (&mut Questions, &FrameSpec),
    budget: &Reservation,
    job: &mut JobContext,
) -> Result<()> {
    let context = Arc::new(annotations.task_ctx());
    let plan = catch_panics(async { Ok(annotations.create_physical_plan().await?) }).await?;
    let rows = precise_rows_in(&plan);
    // An estimate of the rows after a filter may be wrong: only exact statistics are checked.
    let exact = match rows {
        Precision::Exact(rows) => Some(rows as u64),
        _ => None,
    };
    let mut is_spilled = false;
    if let Err(e) = exact.map_or(Ok(()), |rows| budget.expect(rows)) {
        is_spilled = questions.spill(spec)?;
        if !is_spilled {
            return Err(e);
        }
    }
    questions.expect(exact);
    job.progress.begin("reading", rows.get_value().map(|rows| *rows as u64));
    let mut batches = spawn(execute_stream_partitioned(plan, context)?, BATCHES_IN_FLIGHT);
    let pool = job.pool();
    let (mut read, mut in_flight) = (0_u64, BytesInFlight::new(batches.at_once));
    while let Some(first) = batches.next().await {
        job.cancel.check()?;
        let mut together = vec![first?];
        while together.len() < BATCHES_IN_FLIGHT
            && let Some(batch) = batches.waiting()
        {
            together.push(batch?);
        }
        let rows = together.iter().map(RecordBatch::num_rows).sum();
        read += rows as u64;
        let of_batches = in_flight.with(&together);
        let bytes = questions.bytes(rows).saturating_add(of_batches);
        let what = || {
            let of_batches = bytes_in_words(of_batches as u64);
            format!(
                "the ids and numbers of the first {read} annotations, and the batches of rows in flight ({of_batches}),"
            )
        };
        if let Err(e) = budget.hold(bytes, what) {
            if is_spilled || !questions.spill(spec)? {
                return Err(e);
            }
            is_spilled = true;
            budget.hold(questions.bytes(rows).saturating_add(of_batches), what)?;
        }
        tokio::task::block_in_place(|| pool.install(|| questions.push(&together, budget)))?;
        job.progress.at(read, "");
    }
    Ok(())
}

/// Reads the features and matches them to the frames; `gold` has the rows of each frame.
async fn add_features(
    frames: &mut [Frame],
    gold: &[Option<GoldRows>],
    (features, scratch): (DataFrame, Scratch),
    annotator_features: Option<DataFrame>,
    job: &mut JobContext,
) -> Result<()> {
    // The budget lives until all relations are read, as the features do.
    let are_integers = |ids: fn(&Frame) -> &Ids| {
        frames.first().is_some_and(|frame| ids(frame).values().data_type().is_integer())
    };
    let of_instances = are_integers(|frame| &frame.instances);
    let of_annotators = are_integers(|frame| &frame.annotators);
    let features = (features, of_instances);
    let (features, _held) = read_within(features, scratch, "source.features", job).await?;
    let annotators = match annotator_features {
        Some(query) => {
            let location = "source.annotator_features";
            let query = (query, of_annotators);
            Some(read_within(query, Scratch::default(), location, job).await?)
        }
        None => None,
    };
    let (annotators, _held_too) = annotators.unzip();
    let features = Indexed::new(features, "instance_id")?;
    let annotators = annotators.map(|a| Indexed::new(a, "annotator_id")).transpose()?;
    for (frame, gold) in frames.iter_mut().zip(gold) {
        let with_features = match_features(frame, &features, annotators.as_ref(), gold.as_ref());
        let (with_features, unknown) = with_features.map_err(|e| e.about_some(frame.subject()))?;
        frame.with_features = Some(with_features);
        frame.unknown_gold.of_feature_rows = unknown;
        // Gold may be of instances with features that nobody annotated.
        if let Some(gold) = gold {
            let rows = std::mem::take(&mut frame.unread_gold);
            let unknown = gold.without_features(rows, &features.index)?;
            let of_instances = |o: &Overlap| o.is_of("instance");
            let all = std::mem::take(&mut frame.gold_overlaps).into_iter();
            let all =
                all.map(|o| if of_instances(&o) { o.with_unknown(unknown.clone()) } else { o });
            frame.gold_overlaps = all.collect();
        }
    }
    check_gold(frames, gold, job)?;
    if let Some(frame) = frames.first() {
        features.expect_in(&frame.instances).map_err(|e| e.or_at("source.features"))?;
    }
    Ok(())
}

/// Reads a relation whose first column is the id and whose others are numbers, or one list of numbers.
///
/// # Errors
/// When a row has no id, an id has two rows, rows differ in length, or a number is missing or not finite; the error
/// names the rows.
pub async fn read_features(
    query: DataFrame,
    scratch: Scratch,
    location: &str,
    job: &JobContext,
) -> Result<Features> {
    Ok(read_within((query, false), scratch, location, job).await?.0)
}

/// As [`read_features`], with the budget that reserves their memory; the ids may be known to be integers.
async fn read_within(
    (query, are_integers): (DataFrame, bool),
    scratch: Scratch,
    location: &str,
    job: &JobContext,
) -> Result<(Features, Reservation)> {
    let schema = SchemaRef::clone(query.schema().inner());
    let context = Arc::new(query.task_ctx());
    let plan = catch_panics(async { Ok(query.create_physical_plan().await?) }).await;
    let plan = plan.map_err(|e| e.or_at(location))?;
    let rows = precise_rows_in(&plan);
    refuse_permuted(&schema)?;
    let mut reader =
        FeatureReader::new(&schema, Scratch { rows, ..scratch }).of_integers(are_integers);
    let budget = Reservation::new(&context, "features");
    job.progress.begin("features", rows.get_value().map(|rows| *rows as u64));
    let mut batches = spawn(execute_stream_partitioned(plan, context)?, 1);
    let mut in_flight = BytesInFlight::new(batches.at_once);
    while let Some(batch) = batches.next().await {
        job.cancel.check()?;
        let batch = batch.map_err(|e| e.or_at(location))?;
        let of_batches = in_flight.with(std::slice::from_ref(&batch));
        let own = reader.bytes(&batch);
        let what = || {
            let ids = reader.ids_after(&batch);
            let [own, of_batches] = [own, of_batches].map(|bytes| bytes_in_words(bytes as u64));
            format!(
                "the features of {ids} ids ({own}) and the batches of rows in flight ({of_batches})"
            )
        };
        budget.hold(own.saturating_add(of_batches), what)?;
        tokio::task::block_in_place(|| reader.push(&batch)).map_err(|e| e.or_at(location))?;
        job.progress.at(reader.len() as u64, "");
    }
    job.progress.end();
    let features =
        tokio::task::block_in_place(|| reader.finish()).map_err(|e| e.or_at(location))?;
    Ok((features, budget))
}

/// The number of rows of the plan, exact or estimated, where statistics have it.
#[must_use]
pub fn rows_in(plan: &Arc<dyn ExecutionPlan>) -> Option<u64> {
    precise_rows_in(plan).get_value().map(|rows| *rows as u64)
}

/// The number of rows of the plan, and whether it is exact.
fn precise_rows_in(plan: &Arc<dyn ExecutionPlan>) -> Precision<usize> {
    let statistics = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new());
    statistics.map_or(Precision::Absent, |statistics| statistics.num_rows)
}

/// The batches of all partitions, in any order.
struct Batches {
    receiver: mpsc::Receiver<Result<RecordBatch>>,
    tasks: JoinSet<()>,
    /// The largest number of batches in memory.
    at_once: usize,
}

impl Batches {
    /// The next batch, if it has already arrived.
    fn waiting(&mut self) -> Option<Result<RecordBatch>> {
        self.receiver.try_recv().ok()
    }

    /// The next batch; `None` only after every partition has ended without a panic.
    async fn next(&mut self) -> Option<Result<RecordBatch>> {
        if let Some(batch) = self.receiver.recv().await {
            return Some(batch);
        }
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(failure) = ended {
                // A decoder that panics on damaged bytes must not look like the end of the rows.
                let error = Error::data("the rows cannot be decoded").help(
                    "a file is damaged: write it again; or a query of source.sql makes a value that is too large",
                );
                return Some(Err(match failure.try_into_panic() {
                    Ok(panic) => Error::of_panic(&*panic, error),
                    Err(failure) => error.found(failure.to_string()),
                }));
            }
        }
        None
    }
}

/// Polls every partition on its own task; the caller takes up to `at_hand` batches at once.
fn spawn(streams: Vec<SendableRecordBatchStream>, at_hand: usize) -> Batches {
    let (sender, receiver) = mpsc::channel(BATCHES_IN_FLIGHT);
    let at_once = batches_at_once(streams.len(), at_hand);
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
