//! Features as a DataFusion query: the id under the contract's name, then the numbers.

pub(super) mod row_numbers;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use datafusion::common::Column;
use datafusion::logical_expr::{Expr, cast};
use datafusion::prelude::{DataFrame, SessionContext};

use super::listing::format::{INTEGERS, MIXED};
use super::relation::chosen_columns::ChosenColumns;
use super::relation::contract::Origin;
use super::relation::sample::Sample;
use super::relation::synonyms::synonym;
use super::relation::{Query, table_or_sql};
use super::typed::views::value_type;
use crate::error::{Error, Result, nearest, offenders};
use crate::job_context::{JobContext, WarningCode};
use crate::source::spec::ColumnsSpec;

/// Plans a relation of features: its id under the contract's name, then one column of lists, or every numeric column
/// whose name is not one of an id or a label, in file order. Where no column of lists is named, the columns that a model
/// has `learned` from come before both, in their order there, if all of them are there.
pub(super) async fn query(
    ctx: &SessionContext,
    (table, origin): (&str, Origin),
    sql: Option<&Query>,
    (id, mapped_id): (&'static str, Option<&str>),
    (columns, learned): (&ColumnsSpec, &[String]),
    job: &mut JobContext,
) -> Result<DataFrame> {
    let frame = table_or_sql(ctx, table, sql).await?;
    let fields: Vec<Field> = frame.schema().fields().iter().map(|f| f.as_ref().clone()).collect();
    let is_there = |name: &str| fields.iter().any(|f| f.name() == name);
    let is_wanted = |name: &&str| origin == Origin::OnlyTable || is_there(name);
    let wanted_id = mapped_id.filter(is_wanted).unwrap_or(id);
    let row_numbers = row_numbers::numbering(&frame, wanted_id).await;
    let relation = FeatureTable {
        table,
        row_numbers: &row_numbers,
        sql,
        fields: &fields,
        id: wanted_id,
        columns,
        reserved: columns.ids(),
    };
    let numbers = relation.numbers(learned, job)?;
    if !is_there(wanted_id) {
        return Err(missing((table, sql), id, wanted_id, &fields));
    }
    relation.check(&numbers)?;
    if sql.is_none() {
        let at: HashMap<&str, usize> =
            fields.iter().enumerate().map(|(n, field)| (field.name().as_str(), n)).collect();
        let chosen = std::iter::once(wanted_id).chain(numbers.iter().copied());
        let chosen: Option<Vec<usize>> = chosen.map(|name| at.get(name).copied()).collect();
        let is_plain =
            |n: &usize| !is_number(fields[*n].data_type()) || fields[*n].data_type().is_numeric();
        if let Some(chosen) = chosen.filter(|chosen| chosen[1..].iter().all(is_plain)) {
            let table = ctx.table_provider(table).await?;
            return Ok(ctx.read_table(Arc::new(ChosenColumns::new(table, &chosen, id)))?);
        }
    }
    let plain = |name: &str| Expr::Column(Column::new_unqualified(name));
    let decoded = |name: &str| match relation.field(name).map(Field::data_type) {
        Some(encoded) if !encoded.is_numeric() && is_number(encoded) => {
            cast(plain(name), value_type(encoded).clone()).alias(name)
        }
        _ => plain(name),
    };
    let chosen =
        std::iter::once(plain(wanted_id).alias(id)).chain(numbers.into_iter().map(decoded));
    Ok(frame.select(chosen.collect::<Vec<_>>())?)
}

/// A table, or a query in its place, of which columns are chosen as features.
struct FeatureTable<'a> {
    table: &'a str,
    sql: Option<&'a Query>,
    fields: &'a [Field],
    /// The column of ids.
    id: &'a str,
    columns: &'a ColumnsSpec,
    /// The columns that number the rows.
    row_numbers: &'a [String],
    /// The names of ids and labels, which are no features.
    reserved: Vec<&'a str>,
}

impl<'a> FeatureTable<'a> {
    /// The columns of features: one of lists, or any number of columns of numbers.
    fn numbers(&self, learned: &'a [String], job: &mut JobContext) -> Result<Vec<&'a str>> {
        // One mapping serves both relations; features of annotators need not have such a column.
        let mapped = self.columns.features.as_deref();
        let mapped = mapped.filter(|name| self.table == "features" || self.field(name).is_some());
        if let Some(name) = mapped {
            return match self.field(name) {
                Some(list) => Ok(vec![list.name()]),
                None => Err(missing((self.table, self.sql), "features", name, self.fields)),
            };
        }
        // A model of an older version may have learned from row numbers.
        let numbers = self.fields.iter().filter(|f| is_number(f.data_type()));
        let numbers = numbers.map(|f| f.name().as_str());
        let numbers = numbers.filter(|name| *name != self.id && !self.is_reserved(name));
        let numbers: HashSet<&str> = numbers.collect();
        let has_learned =
            !learned.is_empty() && learned.iter().all(|name| numbers.contains(name.as_str()));
        if !has_learned && let Some(list) = self.field("features") {
            let others = self.own().filter(|f| f.name() != list.name());
            let others = others.filter(|f| holds_numbers(f.data_type()));
            warn_of_ignored(self.table, others, "the column `features` is", job);
            return Ok(vec![list.name()]);
        }
        let all = self.all_numbers(job);
        if has_learned {
            return Ok(learned.iter().map(String::as_str).collect());
        }
        let others = self.own().filter(|f| !is_number(f.data_type()));
        refuse_mixed(self.table, others.clone())?;
        if !all.is_empty() {
            // A query may select other columns for a reason; of a file nobody may have seen that one holds no numbers.
            let could_be = |f: &&Field| {
                holds_numbers(f.data_type()) || (self.sql.is_none() && !self.columns.has(f.name()))
            };
            warn_of_ignored(self.table, others.filter(could_be), "the columns of numbers are", job);
        }
        Ok(all)
    }

    /// All columns of numbers without ids and labels. Labels and classes as features would leak the target to the model.
    fn all_numbers(&self, job: &mut JobContext) -> Vec<&'a str> {
        let numbers = self.fields.iter().filter(|f| is_number(f.data_type()));
        let numbers = numbers.map(|f| f.name().as_str()).filter(|name| *name != self.id);
        let (kept, left): (Vec<&str>, Vec<&str>) =
            numbers.partition(|name| !self.is_reserved(name));
        let (row_numbers, kept): (Vec<&str>, Vec<&str>) =
            kept.into_iter().partition(|name| self.is_row_number(name));
        if !row_numbers.is_empty() {
            job.warn_code(
                WarningCode::RowNumbers,
                format!(
                    "columns of `{}` are not read as features: {}; they number the rows, and the order of a file may \
                     be that of its classes (in pandas, write the table with index=False; under other names they are features)",
                    self.table,
                    offenders(row_numbers)
                ),
            );
        }
        if !left.is_empty() {
            job.warn(format!(
                "columns of `{}` that have the names of ids and labels are not features (under other names they are): {}",
                self.table,
                offenders(left)
            ));
        }
        kept
    }

    /// Checks that there are columns of features, and that they hold numbers or lists of them.
    fn check(&self, numbers: &[&str]) -> Result<()> {
        let error = |what: String, found: String, help: &str| {
            Err(Error::data(what).at(format!("source.{}", self.table)).found(found).help(help))
        };
        let Some(first) = numbers.first() else {
            let all = self.fields.iter().map(|f| format!("{}: {}", f.name(), f.data_type()));
            return error(
                "no column holds features".to_owned(),
                offenders(all),
                "name the column of lists in source.columns.features (in `predict`, --features-column), or give columns of \
                 numbers; the columns of a text file without rows count as text",
            );
        };
        match self.field(first).map(Field::data_type) {
            Some(other) if !holds_numbers(other) => error(
                format!("the column `{first}` does not hold numbers"),
                other.to_string(),
                "features are lists of numbers: write them as such; in a pipeline, source.sql can cast them",
            ),
            Some(DataType::FixedSizeList(_, ..=0)) => error(
                format!("the lists of the column `{first}` have no room for a number"),
                "lists of the fixed length 0".to_owned(),
                "write lists of at least one number",
            ),
            _ => Ok(()),
        }
    }

    fn field(&self, name: &str) -> Option<&'a Field> {
        self.fields.iter().find(|f| f.name() == name)
    }

    /// The columns without ids and labels, and without the numbers of rows.
    fn own(&self) -> impl Iterator<Item = &'a Field> + Clone {
        self.fields.iter().filter(|f| {
            *f.name() != self.id && !self.is_reserved(f.name()) && !self.is_row_number(f.name())
        })
    }

    fn is_row_number(&self, name: &str) -> bool {
        row_numbers::is_row_number(name) || self.row_numbers.iter().any(|other| other == name)
    }

    fn is_reserved(&self, name: &str) -> bool {
        self.reserved.contains(&name)
    }
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

/// Warns of columns that could be features if others were not chosen by default; `chosen` names those, with a verb.
fn warn_of_ignored<'a>(
    table: &str,
    columns: impl Iterator<Item = &'a Field>,
    chosen: &str,
    job: &mut JobContext,
) {
    let names: Vec<&String> = columns.map(Field::name).collect();
    if !names.is_empty() {
        job.warn(format!(
            "columns of `{table}` are not read as features: {}; only {chosen} (source.columns.features, in \
             `predict` --features-column, names the column of lists to read; in a pipeline, source.sql.{table} \
             can make columns numbers, or leave them out)",
            offenders(names)
        ));
    }
}

fn is_number(data_type: &DataType) -> bool {
    value_type(data_type).is_numeric()
}

fn holds_numbers(data_type: &DataType) -> bool {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            item.data_type().is_numeric()
        }
        other => is_number(other),
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
        .or_else(|| {
            synonym(contract, names.iter().copied(), &Sample::default()).map(String::as_str)
        })
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
mod tests;
