//! `labelmill check`: whether a run could start. No rows are read but the first thousand of each text file, from which
//! the types of its columns are inferred.

use crate::error::{Error, Result};
use crate::frame::check_columns;
use crate::model::model_kind;
use crate::pipeline::PipelineSpec;
use crate::run::Run;
use crate::sink::{ParquetSink, RunTables};
use crate::source::{InferenceScope, Source};

/// Opens every source of a pipeline, plans every relation that a run would read, and opens the sink.
///
/// # Errors
/// Every problem at once: a file or a column that is missing, a column of ids that holds something else, SQL that does
/// not plan, a sink that cannot be opened. A relation is not planned without its sources.
pub async fn check(spec: &PipelineSpec, run: &mut Run) -> Result<()> {
    let ctx = spec.engine.session()?;
    let (source, mut errors) = Source::list_each(&spec.source, &spec.store, &RunTables, run).await;
    errors.extend(source.open_each(&ctx, InferenceScope::First).await);
    // A query may read any source.
    let all_open = errors.is_empty();
    let is_there = |table: &str, sql: Option<&String>| {
        all_open || sql.is_none() && ctx.table_exist(table).unwrap_or(false)
    };
    let sql = &spec.source.sql;
    if is_there("annotations", sql.annotations.as_ref()) {
        let checked = match source.annotations(&ctx).await {
            Ok(query) => check_columns(query.schema().as_arrow(), &spec.frame),
            Err(e) => Err(e),
        };
        errors.extend(checked.err());
    }
    if is_there("gold", sql.gold.as_ref()) {
        errors.extend(source.gold(&ctx).await.err());
    }
    if model_kind(&spec.model.kind)?.needs_features {
        if is_there("features", sql.features.as_ref()) {
            errors.extend(source.features(&ctx, run).await.err());
        }
        if is_there("annotator_features", sql.annotator_features.as_ref()) {
            errors.extend(source.annotator_features(&ctx, run).await.err());
        }
    }
    errors.extend(ParquetSink::open(&spec.sink, &spec.store).err());
    Error::all(errors)
}
