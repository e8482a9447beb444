//! Columns of features that number the rows: they show the order of the file to a model, and often that is the order of the
//! classes.

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Field, Float64Type};
use datafusion::common::Column;
use datafusion::functions_aggregate::expr_fn::{count, count_distinct, max, min, sum};
use datafusion::logical_expr::{Expr, cast};
use datafusion::prelude::DataFrame;

use crate::source::typed::views::value_type;

/// Names that pandas (`reset_index`), R and others give to the numbers of rows, in lower case.
const NAMES: [&str; 13] = [
    "index",
    "level_0",
    "x",
    "id",
    "row",
    "row_id",
    "row_nr",
    "row_number",
    "rowid",
    "rowname",
    "rownames",
    "rn",
    "nr",
];

/// In fewer rows, a feature is a sequence by chance.
const FEW_ROWS: f64 = 8.0;

/// Whether the name alone says so: pandas gives it to nothing else.
pub(super) fn is_row_number(name: &str) -> bool {
    let is_number =
        |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.');
    let level = name.strip_prefix("__index_level_").and_then(|rest| rest.strip_suffix("__"));
    name.is_empty() || level.or_else(|| name.strip_prefix("Unnamed: ")).is_some_and(is_number)
}

/// Whether a column of this name may number the rows: tibbles of R call one without a name `...1`.
fn may_number(name: &str) -> bool {
    let is_unnamed = name.strip_prefix("...").is_some_and(|n| n.parse::<u32>().is_ok());
    is_unnamed || NAMES.contains(&name.to_lowercase().as_str())
}

/// The columns with such a name that hold 0 to n - 1, or 1 to n, each once; none where there are no other numbers than
/// these and the `id`.
pub(super) async fn numbering(frame: &DataFrame, id: &str) -> Vec<String> {
    let is_number = |f: &&Field| value_type(f.data_type()).is_numeric() && f.name() != id;
    let numbers = frame.schema().fields().iter().map(AsRef::as_ref).filter(is_number);
    let numbers: Vec<String> = numbers.map(|f| f.name().clone()).collect();
    let names: Vec<String> = numbers.iter().filter(|name| may_number(name)).cloned().collect();
    if names.is_empty() || names.len() == numbers.len() {
        return Vec::new();
    }
    let facts = |name: &String| {
        let column = cast(Expr::Column(Column::new_unqualified(name)), DataType::Float64);
        let facts: [fn(Expr) -> Expr; 5] = [count, count_distinct, min, max, sum];
        facts.map(|fact| cast(fact(column.clone()), DataType::Float64))
    };
    let facts = names.iter().flat_map(facts).enumerate();
    let facts: Vec<Expr> = facts.map(|(n, fact)| fact.alias(format!("{n}"))).collect();
    let aggregated = async { frame.clone().aggregate(Vec::new(), facts)?.collect().await };
    // Rows that cannot be read have an error of their own.
    let Ok(batches) = aggregated.await else { return Vec::new() };
    let Some(row) = batches.first().filter(|batch| batch.num_rows() == 1) else {
        return Vec::new();
    };
    let fact = |k: usize, n: usize| row.column(5 * k + n).as_primitive::<Float64Type>();
    let is_sequence = |k: usize| {
        let values: Option<Vec<f64>> =
            (0..5).map(|n| fact(k, n).is_valid(0).then(|| fact(k, n).value(0))).collect();
        let Some([n, distinct, min, max, sum]) = values.as_deref() else { return false };
        let begins = *min == 0.0 || *min == 1.0;
        begins
            && *n >= FEW_ROWS
            && n == distinct
            && max - min == n - 1.0
            && *sum == n * (min + max) / 2.0
    };
    let is_sequence: Vec<bool> = (0..names.len()).map(is_sequence).collect();
    names.into_iter().zip(is_sequence).filter(|(_, is_one)| *is_one).map(|(name, _)| name).collect()
}
