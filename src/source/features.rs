//! Features as a DataFusion query: the id under the contract's name, then the numbers.

use arrow::datatypes::{DataType, Field};
use datafusion::common::Column;
use datafusion::logical_expr::Expr;
use datafusion::prelude::{DataFrame, SessionContext};

use super::ColumnsSpec;
use super::format::{INTEGERS, MIXED};
use super::relation::{Query, table_or_sql};
use super::synonyms::synonym;
use crate::error::{Error, Result, nearest, offenders};
use crate::run::Run;

/// Plans a relation of features: its id under the contract's name, then one column of lists, or every numeric column
/// whose name is not one of an id or a label, in file order. Where no column of lists is named, the columns that a model
/// has `learned` from come before both, in their order there, if all of them are there.
pub(super) async fn query(
    ctx: &SessionContext,
    table: &str,
    sql: Option<&Query>,
    (id, mapped_id): (&'static str, Option<&str>),
    (columns, learned): (&ColumnsSpec, &[String]),
    run: &mut Run,
) -> Result<DataFrame> {
    let frame = table_or_sql(ctx, table, sql).await?;
    let fields: Vec<Field> = frame.schema().fields().iter().map(|f| f.as_ref().clone()).collect();
    let find = |name: &str| fields.iter().find(|f| f.name() == name);
    let wanted_id = mapped_id.filter(|name| find(name).is_some()).unwrap_or(id);
    let ids = columns.ids();
    let is_own = |field: &&Field| field.name() != wanted_id && !ids.contains(field.name());
    let list = columns.features.as_deref();
    let is_number = |name: &String| {
        fields.iter().filter(is_own).any(|f| f.name() == name && f.data_type().is_numeric())
    };
    let has_learned = list.is_none() && !learned.is_empty() && learned.iter().all(is_number);
    let list_by_default = find("features").filter(|_| !has_learned).map(|_| "features");
    let numbers: Vec<&str> = if let Some(name) = list.or(list_by_default) {
        let chosen = find(name).ok_or_else(|| missing((table, sql), "features", name, &fields))?;
        if list.is_none() {
            let others = fields.iter().filter(is_own).filter(|f| f.name() != name);
            let others = others.filter(|f| holds_numbers(f.data_type()));
            warn_of_ignored(table, others, "the column `features` is", run);
        }
        vec![chosen.name()]
    } else {
        let numbers = fields.iter().filter(|f| f.data_type().is_numeric());
        let numbers = numbers.map(|f| f.name().as_str()).filter(|name| *name != wanted_id);
        let (kept, left): (Vec<&str>, Vec<&str>) =
            numbers.partition(|name| !ids.iter().any(|id| id == name));
        // Labels and classes as features would leak the target to the model.
        if !left.is_empty() {
            run.warn(format!(
                "columns of `{table}` that have the names of ids and labels are not features (under other names they are): {}",
                offenders(left)
            ));
        }
        if has_learned {
            learned.iter().map(String::as_str).collect()
        } else {
            let others = fields.iter().filter(is_own).filter(|f| !f.data_type().is_numeric());
            refuse_mixed(table, others.clone())?;
            if !kept.is_empty() {
                // A query may select other columns for a reason; of a file nobody may have seen that one holds no numbers.
                let could_be = |field: &&Field| {
                    holds_numbers(field.data_type())
                        || (sql.is_none() && !columns.has(field.name()))
                };
                warn_of_ignored(table, others.filter(could_be), "columns of numbers are", run);
            }
            kept
        }
    };
    if find(wanted_id).is_none() {
        return Err(missing((table, sql), id, wanted_id, &fields));
    }
    if numbers.is_empty() {
        return Err(Error::data("no column holds features")
            .at(format!("source.{table}"))
            .found(offenders(fields.iter().map(|f| format!("{}: {}", f.name(), f.data_type()))))
            .help(
                "name the column of lists in source.columns.features (in `predict`, --features-column), or give columns of \
                 numbers",
            ));
    }
    if let [only] = numbers[..]
        && let Some(field) = find(only).filter(|f| !holds_numbers(f.data_type()))
    {
        return Err(Error::data(format!("the column `{only}` does not hold numbers"))
            .at(format!("source.{table}"))
            .found(field.data_type().to_string())
            .help("features are lists of numbers: write them as such; in a pipeline, source.sql can cast them"));
    }
    if let [only] = numbers[..]
        && let Some(DataType::FixedSizeList(_, ..=0)) = find(only).map(Field::data_type)
    {
        return Err(Error::data(format!(
            "the lists of the column `{only}` have no room for a number"
        ))
        .at(format!("source.{table}"))
        .found("lists of the fixed length 0")
        .help("write lists of at least one number"));
    }
    let plain = |name: &str| Expr::Column(Column::new_unqualified(name));
    let chosen = std::iter::once(plain(wanted_id).alias(id)).chain(numbers.into_iter().map(plain));
    Ok(frame.select(chosen.collect::<Vec<_>>())?)
}

/// Refuses columns of text in which some values are numbers.
fn refuse_mixed<'a>(table: &str, columns: impl Iterator<Item = &'a Field>) -> Result<()> {
    let is_mixed = |f: &&Field| f.data_type().is_string() && f.metadata().contains_key(MIXED);
    let mixed: Vec<&String> = columns.filter(is_mixed).map(Field::name).collect();
    if mixed.is_empty() {
        return Ok(());
    }
    Err(Error::data("columns of features hold numbers, and other values among them")
        .at(format!("source.{table}"))
        .found(offenders(mixed))
        .help("write numbers alone; or name the other columns alone in source.sql, where these are no features"))
}

/// Warns of columns that could be features if the others were not chosen by default; `chosen` says which were.
fn warn_of_ignored<'a>(
    table: &str,
    columns: impl Iterator<Item = &'a Field>,
    chosen: &str,
    run: &mut Run,
) {
    let names: Vec<&String> = columns.map(Field::name).collect();
    if !names.is_empty() {
        run.warn(format!(
            "columns of `{table}` are not read as features, because {chosen}: {} (source.columns.features, in \
             `predict` --features-column, names the column of lists to read; in a pipeline, source.sql.{table} \
             can make columns numbers, or leave them out)",
            offenders(names)
        ));
    }
}

fn holds_numbers(data_type: &DataType) -> bool {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            item.data_type().is_numeric()
        }
        other => other.is_numeric(),
    }
}

/// The error for a missing column. The names of ids hold for all relations, so that a name of this table alone is given by
/// a query.
fn missing(
    (table, sql): (&str, Option<&Query>),
    contract: &str,
    wanted: &str,
    fields: &[Field],
) -> Error {
    let names: Vec<&String> = fields.iter().map(Field::name).collect();
    let name = nearest(wanted, names.iter().map(|name| name.as_str()))
        .or_else(|| synonym(contract, names.iter().copied()).map(String::as_str))
        .unwrap_or("<its name in your file>");
    let toml_text = |text: &str| toml::Value::String(text.to_owned());
    let quoted = format!("\"{}\"", name.replace('"', "\"\""));
    // Numbers of a CSV file are read as features, as doubles; ids that are whole numbers are integers in every table.
    let are_integers =
        fields.iter().any(|f| f.name() == name && f.metadata().contains_key(INTEGERS));
    let id = if are_integers { format!("cast({quoted} as bigint)") } else { quoted.clone() };
    let help = if contract == "features" {
        format!(
            "set source.columns.features = {} (in `predict`, --features-column)",
            toml_text(name)
        )
    } else if sql.is_some() {
        format!("give it this name in source.sql.{table}: `{id} as {contract}`")
    } else {
        let query = format!("select {id} as {contract}, * exclude ({quoted}) from {table}");
        let option =
            if contract == "instance_id" { " (in `predict`, --instance-column)" } else { "" };
        format!("write `source.sql.{table} = {}`{option}", toml_text(&query))
    };
    Error::data(format!("the column `{wanted}` is missing"))
        .at(format!("source.{table}"))
        .found(offenders(names))
        .help(help)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::RecordBatch;
    use arrow::datatypes::Schema;

    use super::*;

    /// A Parquet file of such lists has no row that can be read.
    #[tokio::test]
    async fn lists_without_room_for_a_number_are_refused_before_they_are_read() {
        let lists = DataType::new_fixed_size_list(DataType::Float32, 0, true);
        let id = Field::new("instance_id", DataType::Utf8, true);
        let schema = Schema::new(vec![id, Field::new("features", lists, true)]);
        let ctx = SessionContext::new();
        ctx.register_batch("features", RecordBatch::new_empty(Arc::new(schema))).unwrap();
        let columns = ColumnsSpec::default();
        let run = &mut Run::new(0);
        let found =
            query(&ctx, "features", None, ("instance_id", None), (&columns, &[]), run).await;
        let error = found.unwrap_err();
        assert_eq!(error.exit_code(), 3, "{error}");
        let error = error.to_string();
        for part in ["the lists of the column `features`", "source.features", "length 0"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
