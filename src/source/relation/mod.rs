//! A relation of the contract as a DataFusion query: the user's columns under the contract's names.

pub(super) mod by_column;
pub(super) mod chosen_columns;
pub(super) mod contract;
pub(super) mod known_columns;
pub(super) mod missing_column;
pub(super) mod sample;
pub(super) mod synonyms;

use std::collections::HashMap;

use arrow::datatypes::FieldRef;
use datafusion::common::Column;
use datafusion::common::metadata::FieldMetadata;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, LogicalPlan, Volatility};
use datafusion::prelude::{DataFrame, SessionContext};

use super::listing::format::{STAYS_TEXT, UNTYPED};
use crate::error::{Error, Result, Stage, offenders};
use crate::regular_file;
use crate::source::spec::{ColumnsSpec, SqlSpec};
use crate::sql;
use contract::{Origin, Relation, contract_columns, name_in};
use missing_column::FoundColumns;
use sample::Sample;

/// A query of `[source.sql]`, written inline or in a file.
#[derive(Debug, Clone)]
pub struct Query {
    /// The relation that the query provides.
    pub relation: &'static str,
    /// The `.sql` file that holds the query; `None` for an inline query.
    pub file: Option<String>,
    /// The SQL text.
    pub text: String,
}

impl Query {
    /// All queries of the section, and an error for each that cannot be read from its file.
    pub(super) fn all(spec: &SqlSpec) -> (Vec<Self>, Vec<Error>) {
        let SqlSpec {
            annotations,
            gold,
            features,
            annotator_features,
            predictions,
            confusion,
            pairs,
        } = spec;
        let queries = [
            ("annotations", annotations),
            ("gold", gold),
            ("features", features),
            ("annotator_features", annotator_features),
            ("predictions", predictions),
            ("confusion", confusion),
            ("pairs", pairs),
        ];
        let given = queries.into_iter().filter_map(|(r, sql)| Some((r, sql.as_deref()?)));
        let (mut read, mut errors) = (Vec::new(), Vec::new());
        for (relation, sql) in given {
            match Self::read(relation, sql) {
                Ok(query) => read.push(query),
                Err(e) => errors.push(e),
            }
        }
        (read, errors)
    }

    /// Takes `sql` as the query itself, or reads the `.sql` file that it names.
    fn read(relation: &'static str, sql: &str) -> Result<Self> {
        let path = std::path::Path::new(sql);
        let is_file = path.extension().is_some_and(|e| e == "sql")
            && (path.is_file() || !sql.trim().contains(char::is_whitespace));
        if !is_file {
            return Ok(Self { relation, file: None, text: sql.to_owned() });
        }
        let text = regular_file::read_text(path).map_err(|e| {
            let unread = Error::spec(format!("cannot read the query: {e}"))
                .at(format!("source.sql.{relation}"))
                .found(format!("`{sql}`"))
                .help("the path is taken from the working folder");
            Error::of_io(&e, unread)
        })?;
        Ok(Self { relation, file: Some(sql.to_owned()), text })
    }
}

/// Plans the relation: the user's SQL, or the table itself, then the columns by the contract's names.
pub(super) async fn query(
    ctx: &SessionContext,
    relation: Relation,
    sql: Option<&Query>,
    columns: &ColumnsSpec,
) -> Result<DataFrame> {
    let origin = if sql.is_some() { Origin::Query } else { Origin::Table };
    let frame = table_or_sql(ctx, relation.table(), sql).await?;
    match select(frame.clone(), (relation, origin), columns) {
        Err(e) if e.stage == Stage::Data => {
            let sample = Sample::read(frame.clone()).await;
            select_with(frame, (relation, origin), columns, &sample)
        }
        selected => selected,
    }
}

/// The table of that name, or the user's query in its place.
pub(super) async fn table_or_sql(
    ctx: &SessionContext,
    table: &str,
    sql: Option<&Query>,
) -> Result<DataFrame> {
    let Some(query) = sql else { return Ok(ctx.table(table).await?) };
    let key = format!("source.sql.{table}");
    // `parse` checks the depth of the query and the size of its plan before it is planned.
    sql::parse(ctx, &query.text).map_err(|e| e.or_at(&key))?;
    // Queries only: a statement that changes something would run on `check` already.
    let planned = ctx.sql_with_options(&query.text, sql::options(false)).await;
    let planned = planned.map_err(|e| sql::with_known_tables(ctx, e.into()).or_at(&key))?;
    refuse_what_changes(planned.logical_plan()).map_err(|e| e.or_at(&key))?;
    with_casts_to_text(planned)
}

/// Keeps text that the query casts to text: the values of a format without types would become integers all the same, since
/// the cast changes no type.
fn with_casts_to_text(planned: DataFrame) -> Result<DataFrame> {
    let LogicalPlan::Projection(projection) = planned.logical_plan() else { return Ok(planned) };
    let is_cast = |e: &Expr| matches!(e.clone().unalias(), Expr::Cast(_) | Expr::TryCast(_));
    let fields = projection.schema.fields().iter().zip(&projection.expr);
    let kept = |(field, expression): (&FieldRef, &Expr)| {
        let column = Expr::Column(Column::new_unqualified(field.name()));
        if !field.metadata().contains_key(UNTYPED) || !is_cast(expression) {
            return column;
        }
        let mark = HashMap::from([(UNTYPED.to_owned(), STAYS_TEXT.to_owned())]);
        column.alias_with_metadata(field.name(), Some(FieldMetadata::from(mark)))
    };
    let kept: Vec<Expr> = fields.map(kept).collect();
    let is_any = kept.iter().any(|e| matches!(e, Expr::Alias(_)));
    Ok(if is_any { planned.select(kept)? } else { planned })
}

/// Refuses functions of the clock or of chance. A job is identified by its inputs: the same inputs must give the same
/// rows.
fn refuse_what_changes(plan: &LogicalPlan) -> Result<()> {
    const CLOCKS: [&str; 3] = ["now", "current_date", "current_time"];
    let mut found = Vec::new();
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expression| {
            expression.apply(|part| {
                if let Expr::ScalarFunction(call) = part {
                    let is_chance = call.func.signature().volatility == Volatility::Volatile;
                    if is_chance || CLOCKS.contains(&call.func.name()) {
                        found.push(format!("{}()", call.func.name()));
                    }
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    if found.is_empty() {
        return Ok(());
    }
    Err(Error::spec("the query gives other rows each time, though its inputs are the same")
        .found(offenders(found))
        .help("give a time as a variable, such as '${today}' with --var today=2026-01-31; for chance, order by a digest of the ids"))
}

/// The columns of a table or query by the contract's names.
///
/// # Errors
/// Every required one that is missing; the nearest name is suggested.
pub fn select(
    frame: DataFrame,
    (relation, origin): (Relation, Origin),
    columns: &ColumnsSpec,
) -> Result<DataFrame> {
    select_with(frame, (relation, origin), columns, &Sample::default())
}

/// As [`select`]; the error for a missing column proposes what fits the values of a `sample`.
fn select_with(
    frame: DataFrame,
    (relation, origin): (Relation, Origin),
    columns: &ColumnsSpec,
    sample: &Sample,
) -> Result<DataFrame> {
    let names: Vec<String> = frame.schema().fields().iter().map(|f| f.name().clone()).collect();
    let found = FoundColumns { relation, origin, columns, names: &names, sample };
    let (mut chosen, mut missing) = (Vec::new(), Vec::new());
    for column in contract_columns(relation) {
        match name_in((relation, origin), column, columns, &names) {
            Some(name) => {
                chosen.push(Expr::Column(Column::new_unqualified(name)).alias(column.name));
            }
            // A table without a question applies to every question.
            None if column.name == "question" && relation != Relation::Annotations => {}
            None if column.required || columns.mapped(column.name).is_some() => {
                missing.push(found.missing(column.name));
            }
            None => {}
        }
    }
    Error::all(missing)?;
    Ok(frame.select(chosen)?)
}
