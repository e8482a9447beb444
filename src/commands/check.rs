//! `labelmill check`: whether a run could start. No rows are read but the first thousand of each text file, from which
//! the types of its columns are inferred.

use arrow::datatypes::Schema;

use crate::error::{Error, Result};
use crate::frame::{check_columns, check_listed_labels};
use crate::model::model_kind;
use crate::pipeline::PipelineSpec;
use crate::run::Run;
use crate::sink::{ParquetSink, RunTables};
use crate::source::files::Format;
use crate::source::{InferenceScope, Source};

/// Opens every source of a pipeline, plans every relation that a run would read, and opens the sink.
///
/// # Errors
/// Every problem at once: a file or a column that is missing, a column of ids that holds something else, a listed label
/// that cannot be one or is listed twice, SQL that does not plan, a sink that cannot be opened. A relation is not planned
/// without its sources.
pub async fn check(spec: &PipelineSpec, run: &mut Run) -> Result<()> {
    let ctx = spec.engine.session()?;
    let (source, mut errors) = Source::list_each(&spec.source, &spec.store, &RunTables, run).await;
    errors.extend(source.open_each(&ctx, InferenceScope::First).await);
    let mut planned = Vec::new();
    // A query may read any source.
    let all_open = errors.is_empty();
    let is_there = |table: &str, sql: Option<&String>| {
        all_open || sql.is_none() && ctx.table_exist(table).unwrap_or(false)
    };
    let sql = &spec.source.sql;
    if is_there("annotations", sql.annotations.as_ref()) {
        match source.annotations(&ctx).await {
            Ok(query) => {
                let schema = query.schema().as_arrow();
                planned.extend(check_columns(schema, &spec.frame).err());
                if is_type_of_labels_certain(schema, &source) {
                    planned.extend(check_listed_labels(schema, &spec.frame).err());
                }
            }
            Err(e) => planned.push(e),
        }
    }
    if is_there("gold", sql.gold.as_ref()) {
        planned.extend(source.gold(&ctx).await.err());
    }
    if model_kind(&spec.model.kind)?.needs_features {
        if is_there("features", sql.features.as_ref()) {
            planned.extend(source.features(&ctx, run).await.err());
        }
        if is_there("annotator_features", sql.annotator_features.as_ref()) {
            planned.extend(source.annotator_features(&ctx, run).await.err());
        }
    }
    errors.extend(planned.into_iter().map(|e| source.at_query(e)));
    errors.extend(ParquetSink::open(&spec.sink, &spec.store).err());
    Error::all(errors)
}

/// Whether a run finds the same type of labels. Later lines of NDJSON may make integers decimals, and a value that is
/// listed twice as text is so in every type.
fn is_type_of_labels_certain(schema: &Schema, source: &Source) -> bool {
    let is_text = schema.field_with_name("label").is_ok_and(|label| label.data_type().is_string());
    is_text || source.files.iter().all(|(_, files)| files.format != Format::Ndjson)
}
