//! A relation of the contract as a DataFusion query: the user's columns under the contract's names.

use datafusion::common::Column;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, LogicalPlan, Volatility};
use datafusion::prelude::{DataFrame, SessionContext};

use super::synonyms::{proposal, synonym};
use super::{ColumnsSpec, SqlSpec};
use crate::error::{Error, Result, nearest, offenders};
use crate::sql;

/// The input relations with one row per annotation or trusted class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// One row per annotation.
    Annotations,
    /// One row per trusted class.
    Gold,
}

/// One column of a relation's contract.
pub struct ContractColumn {
    /// Its name in the contract.
    pub name: &'static str,
    /// Whether the relation is unusable without it.
    pub required: bool,
    /// A second name that is accepted where the first is absent.
    pub fallback: Option<&'static str>,
}

const fn required(name: &'static str) -> ContractColumn {
    ContractColumn { name, required: true, fallback: None }
}

const fn optional(name: &'static str) -> ContractColumn {
    ContractColumn { name, required: false, fallback: None }
}

/// The columns of a relation, in the order that inline rows use.
#[must_use]
pub fn contract_columns(relation: Relation) -> &'static [ContractColumn] {
    const ANNOTATIONS: &[ContractColumn] = &[
        required("instance_id"),
        required("annotator_id"),
        required("label"),
        optional("weight"),
        optional("annotated_at"),
        optional("question"),
    ];
    const GOLD: &[ContractColumn] = &[
        required("instance_id"),
        // A truth table usually calls it `label`, as the labels table does.
        ContractColumn { name: "class", required: true, fallback: Some("label") },
        optional("role"),
        optional("question"),
    ];
    match relation {
        Relation::Annotations => ANNOTATIONS,
        Relation::Gold => GOLD,
    }
}

impl Relation {
    /// The relation that a table of this name provides by default.
    #[must_use]
    pub fn of_table(name: &str) -> Option<Self> {
        [Self::Annotations, Self::Gold].into_iter().find(|r| r.table() == name)
    }

    /// The table that provides this relation by default.
    #[must_use]
    pub fn table(self) -> &'static str {
        match self {
            Self::Annotations => "annotations",
            Self::Gold => "gold",
        }
    }
}

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
    /// All queries of the section; those in files are read.
    pub(super) fn all(spec: &SqlSpec) -> Result<Vec<Self>> {
        let SqlSpec { annotations, gold, features, annotator_features } = spec;
        let queries = [
            ("annotations", annotations),
            ("gold", gold),
            ("features", features),
            ("annotator_features", annotator_features),
        ];
        let given = queries.into_iter().filter_map(|(r, sql)| Some((r, sql.as_deref()?)));
        given.map(|(relation, sql)| Self::read(relation, sql)).collect()
    }

    /// Takes `sql` as the query itself, or reads the `.sql` file that it names.
    fn read(relation: &'static str, sql: &str) -> Result<Self> {
        let path = std::path::Path::new(sql);
        let is_file = path.extension().is_some_and(|e| e == "sql")
            && (path.is_file() || !sql.trim().contains(char::is_whitespace));
        if !is_file {
            return Ok(Self { relation, file: None, text: sql.to_owned() });
        }
        let text = std::fs::read_to_string(sql).map_err(|e| {
            Error::spec(format!("cannot read the query: {e}"))
                .at(format!("source.sql.{relation}"))
                .found(format!("`{sql}`"))
                .help("the path is taken from the working folder")
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
    select(table_or_sql(ctx, relation.table(), sql).await?, relation, columns)
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
    let planned = planned.map_err(|e| Error::from(e).or_at(&key))?;
    refuse_what_changes(planned.logical_plan()).map_err(|e| e.or_at(&key))?;
    Ok(planned)
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

/// The columns of a table by the contract's names.
///
/// # Errors
/// When a required one is missing; the nearest name is suggested.
pub fn select(frame: DataFrame, relation: Relation, columns: &ColumnsSpec) -> Result<DataFrame> {
    let names: Vec<String> = frame.schema().fields().iter().map(|f| f.name().clone()).collect();
    let mut chosen = Vec::new();
    for column in contract_columns(relation) {
        let mapped = columns.mapped(column.name);
        let wanted = mapped.unwrap_or(column.name);
        let has = |name: &&str| names.iter().any(|n| n == name);
        // One mapping serves all relations; tables other than the annotations may also have the contract's own names.
        let own = (relation != Relation::Annotations).then_some(column.name);
        let fallback = column.fallback.filter(|_| mapped.is_none());
        match [Some(wanted), own, fallback].into_iter().flatten().find(has) {
            Some(name) => {
                chosen.push(Expr::Column(Column::new_unqualified(name)).alias(column.name));
            }
            // Gold without a question applies to every question.
            None if column.name == "question" && relation == Relation::Gold => {}
            None if column.required || mapped.is_some() => {
                return Err(missing(relation, column.name, columns, &names));
            }
            None => {}
        }
    }
    Ok(frame.select(chosen)?)
}

fn missing(relation: Relation, contract: &str, columns: &ColumnsSpec, names: &[String]) -> Error {
    let wanted = columns.mapped(contract).unwrap_or(contract);
    let key = contract.trim_end_matches("_id");
    let help = || {
        if let [header] = names
            && let Some(other) = header.chars().find(|c| ";|\t".contains(*c))
        {
            return format!(
                "do `{}` separate the columns? Write the file with commas, or as .tsv with tabs",
                other.escape_default()
            );
        }
        let required = contract_columns(relation).iter().filter(|c| c.required);
        let required = required.map(|c| (c.name, c.fallback));
        if let Some(line) = proposal(required, columns, names) {
            return format!("write `{line}`");
        }
        let nearest = nearest(wanted, names.iter().map(String::as_str))
            .or_else(|| synonym(contract, names.iter()).map(String::as_str))
            .or_else(|| names.iter().map(String::as_str).find(|n| n.contains(key)));
        let set = |name: &str| format!("set source.columns.{key} = \"{name}\"");
        nearest.map_or_else(
            || set("<its name in your file>"),
            |n| format!("did you mean `{n}`? {}", set(n)),
        )
    };
    Error::data(format!("the column `{wanted}` is missing"))
        .at(format!("source.{}", relation.table()))
        .found(if names.is_empty() { "no columns".to_owned() } else { offenders(names) })
        .help(help())
}
