//! `labelmill check`: whether a run could start. No rows are read but the first thousand of each text file, from which
//! the types of its columns are inferred.

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::prelude::DataFrame;

use crate::error::{Error, Result};
use crate::frame::{
    FrameSpec, check_columns, check_listed_labels, check_type_of_features, check_types_of,
};
use crate::job_context::JobContext;
use crate::model::{Capabilities, model_kind};
use crate::pipeline::{PipelineSpec, warn_of_unread_features, warn_of_unread_tables};
use crate::sink::{self, RunTables};
use crate::source::files::Format;
use crate::source::{InferenceScope, Relation, Source};

/// Opens every source of a pipeline, plans every relation that a run would read, and opens the sink.
///
/// # Errors
/// Every problem at once: a file or a column that is missing, a column that holds something else than ids, weights or
/// times, ids or classes of another type than the annotations have, a listed label that cannot be one or is listed twice,
/// SQL that does not plan, a sink that cannot be opened. A relation is not planned without its sources.
pub async fn check(spec: &PipelineSpec, job: &mut JobContext) -> Result<()> {
    let ctx = spec.engine.session()?;
    let (source, mut errors) = Source::list_each(&spec.source, &spec.store, &RunTables, job).await;
    errors.extend(source.open_each(&ctx, InferenceScope::First).await);
    let mut planned = Vec::new();
    // A query may read any source.
    let all_open = errors.is_empty();
    let is_there = |table: &str, sql: Option<&String>| {
        all_open || sql.is_none() && ctx.table_exist(table).unwrap_or(false)
    };
    let sql = &spec.source.sql;
    let frame = spec.frame.normalised(&spec.source.cleaning());
    // Ids and labels of this schema; `None` where later rows may change a type.
    let mut annotated = None;
    let query = if is_there("annotations", sql.annotations.as_ref()) {
        Some(source.annotations(&ctx).await)
    } else {
        None
    };
    match query {
        Some(Ok(query)) => {
            planned.extend(check_annotations(&query, &frame, &source).err());
            annotated = Some(query).filter(|_| are_types_certain(&source));
        }
        not_planned => {
            // A value that is listed twice as text is so in every type. The first error decides the exit code.
            let text = Schema::new(vec![Field::new("label", DataType::Utf8, true)]);
            if let Err(listed) = check_listed_labels(&text, &frame) {
                errors.insert(0, listed);
            }
            planned.extend(not_planned.and_then(Result::err));
        }
    }
    let annotated = annotated.as_ref().map(|query| query.schema().as_arrow());
    let mut expect = |planned_query: Result<Option<DataFrame>>,
                      check: &dyn Fn(&Schema, &Schema) -> Result<()>| {
        let checked = planned_query.and_then(|query| match (annotated, query) {
            (Some(annotated), Some(query)) => check(annotated, query.schema().as_arrow()),
            _ => Ok(()),
        });
        planned.extend(checked.err());
    };
    if is_there("gold", sql.gold.as_ref()) {
        expect(source.gold(&ctx).await, &|annotated, gold| {
            check_types_of(Relation::Gold, annotated, gold)
        });
    }
    let capabilities = model_kind(&spec.model.kind)?.capabilities;
    for relation in capabilities.given().filter(|relation| relation.is_in(&spec.source)) {
        if is_there(relation.table(), source.sql(relation.table()).map(|query| &query.text)) {
            expect(source.relation(&ctx, relation).await, &|annotated, given| {
                check_types_of(relation, annotated, given)
            });
        }
    }
    warn_of_unread_tables(spec, job);
    warn_of_limits(spec, capabilities, job);
    if capabilities.features.are_read() {
        if is_there("features", sql.features.as_ref()) {
            expect(source.features(&ctx, job).await, &|annotated, features| {
                check_type_of_features(annotated, features, "features", "instance_id")
            });
        }
        if is_there("annotator_features", sql.annotator_features.as_ref()) {
            expect(source.annotator_features(&ctx, job).await, &|annotated, features| {
                check_type_of_features(annotated, features, "annotator_features", "annotator_id")
            });
        }
    } else {
        warn_of_unread_features(spec, job);
    }
    errors.extend(planned.into_iter().map(|e| source.at_query(e)));
    errors.extend(sink::open(&spec.sink, &spec.store).err());
    Error::all(errors)
}

/// Warns of what the spec gives and the kind of model cannot make use of.
fn warn_of_limits(spec: &PipelineSpec, capabilities: Capabilities, job: &mut JobContext) {
    let kind = &spec.model.kind;
    if spec.source.has_gold() && !capabilities.gold {
        job.warn(format!(
            "`{kind}` learns nothing from trusted classes: gold of the role `train` is the label of its own instances alone"
        ));
    }
    let listed = spec.frame.classes.as_ref().map_or(0, Vec::len);
    if let Some(max) = capabilities.max_classes.filter(|max| listed > *max as usize) {
        job.warn(format!(
            "`{kind}` fits at most {max} classes in its own way, and frame.classes lists {listed}: see `labelmill models {kind}`"
        ));
    }
}

/// Checks the columns of the annotations and the labels that the spec lists.
///
/// # Errors
/// Every problem at once.
pub(super) fn check_annotations(
    annotations: &DataFrame,
    spec: &FrameSpec,
    source: &Source,
) -> Result<()> {
    let schema = annotations.schema().as_arrow();
    let columns = check_columns(schema, spec);
    // A value that is listed twice as text is so in every type.
    let is_text = schema.field_with_name("label").is_ok_and(|label| label.data_type().is_string());
    let labels = if is_text || are_types_certain(source) {
        check_listed_labels(schema, spec)
    } else {
        Ok(())
    };
    Error::all(columns.err().into_iter().chain(labels.err()))
}

/// Whether a run finds the same types: later lines of NDJSON may make integers decimals or text.
fn are_types_certain(source: &Source) -> bool {
    source.files.iter().all(|(_, files)| files.format != Format::Ndjson)
}
