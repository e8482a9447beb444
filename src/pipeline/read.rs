//! `source -> frame`: the relations of the source become one frame for each question.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use datafusion::prelude::SessionContext;

use super::PipelineSpec;
use super::warnings::{
    warn_of_rows, warn_of_unread_features, warn_of_unread_gold, warn_of_unread_tables,
};
use crate::error::Result;
use crate::frame::{Frame, MemoryEstimate, QuestionSizes, Relations, Scratch, collect};
use crate::job_context::JobContext;
use crate::model::model_kind;
use crate::source::Source;

/// Reads the relations into one frame for each question, and warns of rows that cannot be used.
///
/// # Errors
/// When a query does not plan, a file cannot be read or changes, or no usable row is left.
pub async fn read(
    spec: &PipelineSpec,
    ctx: &SessionContext,
    source: &Source,
    job: &mut JobContext,
) -> Result<Vec<Frame>> {
    let frames = read_relations(spec, ctx, source, job).await;
    // A change of a file explains the errors that its rows caused.
    source.check_unchanged().await?;
    let frames = frames.map_err(|e| source.at_query(e))?;
    warn_of_rows(&frames, job);
    warn_of_unread_gold(spec, &frames, job);
    Ok(frames)
}

async fn read_relations(
    spec: &PipelineSpec,
    ctx: &SessionContext,
    source: &Source,
    job: &mut JobContext,
) -> Result<Vec<Frame>> {
    let kind = model_kind(&spec.model.kind)?;
    let (calibration, of_one_start) = (spec.calibration.clone(), kind.memory_estimate);
    let starts_again = spec.model.load()?.model.restarts() > 0;
    let of_model = move |sizes: &QuestionSizes| {
        let bytes = of_one_start(sizes)?;
        if starts_again { bytes.of_several_starts() } else { Some(bytes) }
    };
    let (are_together, of_others) =
        (kind.capabilities.fits_questions_together, AtomicUsize::new(0));
    let fit_memory = move |sizes: &QuestionSizes| {
        let own = calibration.memory_estimate(of_model, sizes)?;
        let before = if are_together { of_others.fetch_add(own.working, Relaxed) } else { 0 };
        Some(MemoryEstimate { working: own.working.checked_add(before)?, ..own })
    };
    let mut relations = Relations {
        annotations: source.annotations(ctx).await?,
        gold: source.gold(ctx).await?,
        features: None,
        annotator_features: None,
        given: Vec::new(),
        fit_memory: Box::new(fit_memory),
        scratch: spec.engine.scratch_folder(),
    };
    for relation in kind.capabilities.given() {
        if let Some(query) = source.relation(ctx, relation).await? {
            relations.given.push((relation, query));
        }
    }
    warn_of_unread_tables(spec, job);
    if kind.capabilities.features.are_read() {
        let features = source.features(ctx, job).await?;
        relations.features = features.map(|query| (query, Scratch::from_engine(&spec.engine)));
        relations.annotator_features = source.annotator_features(ctx, job).await?;
    } else {
        warn_of_unread_features(spec, job);
    }
    let spec = spec.frame.normalised(&spec.source.cleaning());
    let frames = collect(relations, &spec, job).await;
    frames.map_err(|e| e.or_at("source.annotations"))
}
