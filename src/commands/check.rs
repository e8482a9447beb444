//! `labelmill check`: whether a run could start. No rows are read.

use crate::error::Result;
use crate::pipeline::PipelineSpec;
use crate::run::Run;
use crate::sink::{ParquetSink, RunTables};
use crate::source::{InferenceScope, Source};

/// Plans every relation of a pipeline, and opens its sink.
///
/// # Errors
/// When a file or a column is missing, SQL does not plan, or the sink cannot be opened.
pub async fn check(spec: &PipelineSpec, run: &mut Run) -> Result<()> {
    let ctx = spec.engine.session()?;
    let source = Source::list(&spec.source, &spec.store, &RunTables, run).await?;
    source.open(&ctx, InferenceScope::First).await?;
    source.annotations(&ctx).await?;
    source.gold(&ctx).await?;
    source.features(&ctx, run).await?;
    source.annotator_features(&ctx, run).await?;
    ParquetSink::open(&spec.sink, &spec.store)?;
    Ok(())
}
