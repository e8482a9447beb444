//! The error of the run's confusion matrices against the true ones.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Float64Type};
use arrow::util::display::array_value_to_string;
use datafusion::common::ScalarValue;
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::prelude::{DataFrame, cast, col, lit};

use super::NamedScore;
use super::tables::{MAX_PROBABILITY, Tables, WRITE_AGAIN, check_columns, columns_of};
use crate::error::{Error, Result, offenders};
use crate::model::confusion::MIN_OBSERVED_COUNT;
use crate::sql;

/// The measures, in the order of the columns of `sql/confusion_error.sql`.
const MEASURES: [&str; 4] = [
    "confusion_error",
    "confusion_frobenius",
    "confusion_total_variation",
    "confusion_error_observed",
];

/// The columns that identify a cell of a matrix, in both tables.
const CELL: [&str; 3] = ["annotator_id", "class", "label"];

/// The measures of one question; `None` where no annotator has a matrix in both tables.
pub(super) async fn scores(tables: &Tables<'_>, n_classes: usize) -> Result<Vec<NamedScore>> {
    let named = |value: &dyn Fn(usize) -> Option<f64>| {
        MEASURES.iter().enumerate().map(|(n, name)| ((*name).to_owned(), value(n))).collect()
    };
    let (Some(estimated), Some(known)) =
        (tables.table("confusion_matrices").await?, tables.table("true_confusion").await?)
    else {
        return Ok(named(&|_| None));
    };
    let columns = [&CELL[..], &["scope", "probability", "expected_count"]].concat();
    check_columns(&estimated, "confusion_matrices", &columns)?;
    let estimated = estimated.filter(col("scope").eq(lit("annotator")))?;
    check_true_matrices(&known)?;
    let (estimated, known) = in_common_types(estimated, known)?;
    check_cells(&known, &TRUE_MATRICES).await?;
    check_cells(&estimated, &RUN_MATRICES).await?;
    for (name, frame) in [("estimated", estimated), ("known", known)] {
        tables.ctx.deregister_table(name)?;
        tables.ctx.register_table(name, frame.into_view())?;
    }
    let parameters = vec![
        ("classes", ScalarValue::from(n_classes as f64)),
        ("min_observed_count", ScalarValue::from(MIN_OBSERVED_COUNT)),
    ];
    let query = tables.ctx.sql(sql::CONFUSION_ERROR).await?.with_param_values(parameters)?;
    let columns = columns_of(query).await?;
    Ok(named(&|n| {
        let value = columns[n].as_primitive::<Float64Type>();
        value.is_valid(0).then(|| value.value(0))
    }))
}

/// What differs between the true matrices and those of a run: their name and place in errors, the largest cell, and the
/// help.
struct MatrixSource {
    matrix: &'static str,
    location: &'static str,
    max_probability: f64,
    help: &'static str,
}

const TRUE_MATRICES: MatrixSource = MatrixSource {
    matrix: "a true matrix",
    location: "--confusion",
    max_probability: 1.0,
    help: "write numbers from 0 to 1, and one row for each cell",
};

const RUN_MATRICES: MatrixSource = MatrixSource {
    matrix: "a matrix of the run",
    location: "confusion_matrices",
    max_probability: MAX_PROBABILITY,
    help: WRITE_AGAIN,
};

/// Checks that the table of true matrices has their columns, and numbers as probabilities.
fn check_true_matrices(known: &DataFrame) -> Result<()> {
    let refused = |what: &str, found: String, help: &str| {
        Err(Error::data(what).at(TRUE_MATRICES.location).found(found).help(help))
    };
    let fields = known.schema().fields();
    let is_absent = |name: &&str| !fields.iter().any(|field| field.name() == *name);
    if let Some(absent) = CELL.into_iter().chain(["probability"]).find(is_absent) {
        let names = fields.iter().map(|field| field.name().clone());
        let what = format!("the column `{absent}` is missing");
        let help = "name the columns annotator_id, class, label and probability";
        return refused(&what, offenders(names), help);
    }
    let probability = known.schema().field_with_unqualified_name("probability")?.data_type();
    if !probability.is_numeric() {
        let what = "the column `probability` holds no numbers";
        return refused(what, probability.to_string(), TRUE_MATRICES.help);
    }
    Ok(())
}

/// Checks that the cells of matrices are probabilities and that each is given once.
async fn check_cells(matrices: &DataFrame, source: &MatrixSource) -> Result<()> {
    let probability = || col("probability");
    // DataFusion orders NaN above all numbers.
    let is_too_large = probability().gt(lit(source.max_probability));
    let is_none = probability().is_null().or(probability().lt(lit(0.0))).or(is_too_large);
    let odd = matrices.clone().filter(is_none)?;
    let cell = || CELL.map(col).to_vec();
    let counted = matrices.clone().aggregate(cell(), vec![count(lit(1)).alias("n")])?;
    let twice = counted.filter(col("n").gt(lit(1)))?;
    for (what, rows) in
        [("holds a number that is no probability", odd), ("gives a cell twice", twice)]
    {
        let mut columns = cell();
        if rows.schema().has_column_with_unqualified_name("probability") {
            columns.push(probability());
        }
        let order = cell().into_iter().map(|column| column.sort(true, true)).collect();
        let found = columns_of(rows.select(columns)?.sort(order)?).await?;
        let n = found.first().map_or(0, Array::len);
        if n > 0 {
            let value =
                |column: &ArrayRef, row| array_value_to_string(column, row).unwrap_or_default();
            let row = |row: usize| {
                found.iter().map(|column| value(column, row)).collect::<Vec<_>>().join(", ")
            };
            let error = Error::data(format!("{} {what}", source.matrix)).at(source.location);
            return Err(error.found(offenders((0..n).map(row))).help(source.help));
        }
    }
    Ok(())
}

/// Selects the cells of both tables with comparable ids: where their types differ, both as text.
fn in_common_types(estimated: DataFrame, known: DataFrame) -> Result<(DataFrame, DataFrame)> {
    let (mut of_estimated, mut of_known) = (Vec::new(), Vec::new());
    for name in CELL {
        let data_type = |frame: &DataFrame| -> Result<DataType> {
            Ok(frame.schema().field_with_unqualified_name(name)?.data_type().clone())
        };
        let is_same = data_type(&estimated)? == data_type(&known)?;
        let id = || if is_same { col(name) } else { cast(col(name), DataType::Utf8).alias(name) };
        of_estimated.push(id());
        of_known.push(id());
    }
    let real = |name: &str| cast(col(name), DataType::Float64).alias(name);
    of_estimated.extend([real("probability"), real("expected_count")]);
    of_known.push(real("probability"));
    Ok((estimated.select(of_estimated)?, known.select(of_known)?))
}
