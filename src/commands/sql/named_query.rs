//! The session of `labelmill sql --query`: the tables of a run, and the annotations and gold that it was made of.
//!
//! # Why
//! A query has to hold for runs with and without questions. So every table gets a column `question`, which is empty where
//! the run has none; it is left out of the result then.

use datafusion::common::ScalarValue;
use datafusion::logical_expr::lit;
use datafusion::prelude::{DataFrame, SessionContext, cast, col};
use serde_json::Value;

use super::values_of_run::as_in_run;
use crate::commands::run_source::{has_column, source_of_run};
use crate::commands::table_with_url;
use crate::error::{Error, Result, did_you_mean, offenders};
use crate::job_context::JobContext;
use crate::sink::RunTables;
use crate::source::{Location, Source, SourceSpec};
use crate::sql::NamedQuery;
use crate::store::StoreSpec;
use crate::tables::TABLES;

const QUESTION: &str = "question";

/// The relations of the sources that queries read.
const RELATIONS: [&str; 2] = ["annotations", "gold"];

/// A query of a run that is registered.
pub(super) struct RunQuery<'a> {
    pub(super) query: NamedQuery,
    pub(super) params: &'a [String],
    /// Where the run's sources are now, as `name=URL`; those of the run's own spec otherwise.
    pub(super) tables: &'a [String],
}

impl RunQuery<'_> {
    /// Prepares the tables that the query reads; returns its SQL, and whether its column `question` is left out.
    ///
    /// # Errors
    /// When the run lacks a table, a source cannot be read, or a parameter is invalid.
    pub(super) async fn open(
        &self,
        ctx: &SessionContext,
        stores: &StoreSpec,
        job: &mut JobContext,
    ) -> Result<(String, bool)> {
        let locations = locations(self.tables, &source_of_run(ctx).await?)?;
        let mut has_questions = false;
        for table in TABLES.iter().map(|table| table.name).filter(|name| self.query.reads(name)) {
            if !ctx.table_exist(table)? {
                return Err(Error::spec(format!("the run has no table `{table}`"))
                    .at("--run")
                    .help("it was left out by sink.tables, or an older version made the run: run the job again"));
            }
            let frame = ctx.table(table).await?;
            if has_column(&frame, QUESTION) {
                has_questions = true;
            } else {
                replace(ctx, table, frame.with_column(QUESTION, lit(""))?)?;
            }
        }
        let needed: Vec<&str> =
            RELATIONS.into_iter().filter(|relation| self.query.reads(relation)).collect();
        if !needed.is_empty() {
            let source = source_at(ctx, &needed, locations).await?;
            let source = Source::register(ctx, &source, stores, &RunTables, job).await?;
            for relation in needed {
                let frame = match relation {
                    "gold" => source.gold(ctx).await?.ok_or_else(|| missing_source(relation))?,
                    _ => source.annotations(ctx).await?,
                };
                self.add_relation(ctx, relation, frame, has_questions).await?;
            }
        }
        let classes = if self.query.has_classes() { classes(ctx).await? } else { Vec::new() };
        Ok((self.query.sql(self.params, &classes)?, !has_questions))
    }

    /// Registers a relation with the optional columns that queries name, and with ids and labels as the run has them.
    async fn add_relation(
        &self,
        ctx: &SessionContext,
        relation: &str,
        mut frame: DataFrame,
        has_questions: bool,
    ) -> Result<()> {
        if !has_column(&frame, QUESTION) {
            frame = if has_questions {
                // Rows without a question hold for each.
                let questions =
                    ctx.table("labels").await?.select_columns(&[QUESTION])?.distinct()?;
                frame.join(questions, datafusion::common::JoinType::Inner, &[], &[], None)?
            } else {
                frame.with_column(QUESTION, lit(""))?
            };
        }
        if relation == "gold" && !has_column(&frame, "role") {
            frame = frame.with_column("role", lit(ScalarValue::Utf8(None)))?;
        }
        let reads_time = relation == "annotations" && self.query.names("annotated_at");
        if reads_time && !has_column(&frame, "annotated_at") {
            return Err(Error::data("the annotations have no column `annotated_at`")
                .at("source.annotations")
                .help("set source.columns.annotated_at to the name of the time of an annotation"));
        }
        replace(ctx, relation, as_in_run(ctx, frame, has_questions).await?)
    }
}

/// The places of `--table name=URL`.
///
/// # Errors
/// When one is malformed, or the run was made with no such table.
fn locations(tables: &[String], source: &Value) -> Result<Vec<(String, Location)>> {
    let own: SourceSpec = serde_json::from_value(source.clone()).unwrap_or_default();
    let known: Vec<&str> =
        RELATIONS.into_iter().chain(own.tables.keys().map(String::as_str)).collect();
    let location = |table: &String| {
        let (name, url) = table_with_url(table)?;
        if !known.contains(&name) {
            let all = || format!("write one of {}", offenders(&known));
            return Err(Error::spec(format!("the run's sources have no table `{name}`"))
                .at(format!("--table {name}"))
                .help(did_you_mean(name, known.iter().copied(), all)));
        }
        Ok((name.to_owned(), Location::Url(url.to_owned())))
    };
    tables.iter().map(location).collect()
}

/// The run's own sources, as its spec describes them, at their places now.
async fn source_at(
    ctx: &SessionContext,
    needed: &[&str],
    locations: Vec<(String, Location)>,
) -> Result<SourceSpec> {
    let source = source_of_run(ctx).await?;
    let mut source: SourceSpec = serde_json::from_value(source).unwrap_or_default();
    for (name, location) in locations {
        match name.as_str() {
            "annotations" => source.annotations = Some(location),
            "gold" => source.gold = Some(location),
            _ => drop(source.tables.insert(name, location)),
        }
    }
    // A source that the query does not read need not be there any more.
    let has_sql = source.sql.annotations.is_some() || source.sql.gold.is_some();
    if !has_sql {
        source.tables.clear();
        source.features = None;
        source.annotator_features = None;
        source.predictions = None;
        source.confusion = None;
        source.pairs = None;
        if !needed.contains(&"gold") {
            source.gold = None;
        }
    }
    let lacks = |relation: &&&str| match **relation {
        "gold" => !source.has_gold(),
        _ => !source.has_annotations(),
    };
    match needed.iter().find(lacks) {
        Some(relation) => Err(missing_source(relation)),
        None => Ok(source),
    }
}

fn missing_source(relation: &str) -> Error {
    Error::spec(format!("the run names no source of {relation}"))
        .at("--run")
        .help(format!("give one with --table {relation}=URL, under the contract's column names"))
}

fn replace(ctx: &SessionContext, table: &str, frame: DataFrame) -> Result<()> {
    ctx.deregister_table(table)?;
    ctx.register_table(table, frame.into_view())?;
    Ok(())
}

/// The classes of all questions as text, each once, in the order of their indices.
async fn classes(ctx: &SessionContext) -> Result<Vec<String>> {
    if !ctx.table_exist("classes")? {
        return Err(Error::spec("the run has no table `classes`").at("--run"));
    }
    let frame = ctx.table("classes").await?.sort_by(vec![col("index")])?;
    let all = texts(frame.select(vec![cast(col("class"), arrow::datatypes::DataType::Utf8)])?);
    let mut classes: Vec<String> = Vec::new();
    for class in all.await? {
        if !classes.contains(&class) {
            classes.push(class);
        }
    }
    Ok(classes)
}

/// The values of the only column, as text.
async fn texts(frame: DataFrame) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    for batch in frame.collect().await? {
        for row in 0..batch.num_rows() {
            let value = ScalarValue::try_from_array(batch.column(0), row)?;
            texts.extend(value.try_as_str().flatten().map(str::to_owned));
        }
    }
    Ok(texts)
}
