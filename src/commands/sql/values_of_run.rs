//! Ids and labels of the run's sources as the run wrote them: equal numbers have one spelling, and one type.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, LargeStringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf, lit};
use datafusion::prelude::{DataFrame, Expr, SessionContext, cast as cast_to, col};

use crate::commands::run_source::has_column;
use crate::error::Result;
use crate::frame::{IdIndex, Ids};
use crate::source::{Decimal, as_plain_integer, value_type};

/// The columns of ids and labels, each with the table of the run that has its values, and their column there.
const COLUMNS: [(&str, &str, &str); 4] = [
    ("instance_id", "labels", "instance_id"),
    ("annotator_id", "annotators", "annotator_id"),
    ("label", "classes", "class"),
    ("class", "classes", "class"),
];

/// The relation, which has a column `question`, with its text of ids and labels as the run wrote it; `has_questions` tells
/// whether the run has any.
///
/// # Errors
/// When a table of the run cannot be read.
pub(super) async fn as_in_run(
    ctx: &SessionContext,
    relation: DataFrame,
    has_questions: bool,
) -> Result<DataFrame> {
    let mut columns = Vec::new();
    for field in relation.schema().as_arrow().fields() {
        let name = field.name().as_str();
        let found = COLUMNS.iter().find(|(own, ..)| *own == name);
        let in_run = match found.filter(|_| value_type(field.data_type()).is_string()) {
            Some((_, table, column)) if ctx.table_exist(*table)? => {
                value_in_run((ctx, has_questions), field, (table, column)).await?
            }
            _ => None,
        };
        columns.push(in_run.unwrap_or_else(|| col(name)));
    }
    Ok(relation.select(columns)?)
}

/// The column's value in the run; `None` where that is the value itself.
async fn value_in_run(
    (ctx, has_questions): (&SessionContext, bool),
    field: &Field,
    (table, column): (&str, &str),
) -> Result<Option<Expr>> {
    let frame = ctx.table(table).await?;
    let own = frame.schema().field_with_unqualified_name(column)?.data_type().clone();
    let texts = |name: &str| cast_to(col(name), DataType::LargeUtf8);
    let args = vec![texts(field.name()), texts("question")];
    let types = vec![DataType::LargeUtf8; 2];
    let name = format!("{}_in_run", field.name());
    if own.is_integer() {
        // Where the run's values are integers, all that it used are.
        let plain = create_udf(&name, types, DataType::LargeUtf8, Volatility::Immutable, {
            Arc::new(|args: &[ColumnarValue]| {
                let args = ColumnarValue::values_to_arrays(args)?;
                let texts = args[0].as_string::<i64>().iter();
                let plain: LargeStringArray =
                    texts.map(|text| text.and_then(as_plain_integer)).collect();
                Ok(ColumnarValue::Array(Arc::new(plain)))
            })
        });
        let value = datafusion::logical_expr::try_cast(plain.call(args), own);
        return Ok(Some(value.alias(field.name())));
    }
    if !value_type(&own).is_string() {
        return Ok(None);
    }
    let known = known_numbers(frame, column, has_questions).await?;
    if known.is_empty() {
        return Ok(None);
    }
    let of_field = Field::new(field.name(), DataType::LargeUtf8, true);
    let function = create_udf(&name, types, DataType::LargeUtf8, Volatility::Immutable, {
        Arc::new(move |args: &[ColumnarValue]| {
            let args = ColumnarValue::values_to_arrays(args)?;
            let found = known_values(&known, &of_field, &args[0], &args[1]);
            Ok(ColumnarValue::Array(found.map_err(|e| DataFusionError::External(Box::new(e)))?))
        })
    });
    Ok(Some(function.call(args).alias(field.name())))
}

/// The values of each question whose values are all numbers; of others no two were joined.
async fn known_numbers(
    frame: DataFrame,
    column: &str,
    has_questions: bool,
) -> Result<Vec<(String, Ids, IdIndex)>> {
    let question = if has_column(&frame, "question") { col("question") } else { lit("") };
    let texts = |value: Expr, name: &str| cast_to(value, DataType::LargeUtf8).alias(name);
    let frame = frame
        .select(vec![texts(question, "question"), texts(col(column), "value")])?
        .filter(col("value").is_not_null())?;
    if !has_questions && !first_is_number(frame.clone()).await? {
        return Ok(Vec::new());
    }
    let mut values: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for batch in frame.distinct()?.collect().await? {
        let [questions, texts] = [0, 1].map(|n| batch.column(n).as_string::<i64>());
        for (question, text) in questions.iter().zip(texts) {
            let of_question = values.entry(question.unwrap_or_default().to_owned()).or_default();
            of_question.extend(text.map(str::to_owned));
        }
    }
    values.retain(|_, texts| texts.iter().all(|text| Decimal::parse(text).is_some()));
    let index = |(question, mut texts): (String, Vec<String>)| {
        texts.sort_unstable();
        let ids = Ids::in_order(Arc::new(LargeStringArray::from(texts)));
        let index = ids.index(column)?;
        Ok((question, ids, index))
    };
    values.into_iter().map(index).collect()
}

/// Ids of a large run are not all read where the first is a word.
async fn first_is_number(frame: DataFrame) -> Result<bool> {
    let batches = frame.select_columns(&["value"])?.limit(0, Some(1))?.collect().await?;
    let first = batches.iter().find(|batch| batch.num_rows() > 0);
    Ok(first
        .is_some_and(|batch| Decimal::parse(batch.column(0).as_string::<i64>().value(0)).is_some()))
}

/// Each text, or the known value of its question that is the same number.
fn known_values(
    known: &[(String, Ids, IdIndex)],
    field: &Field,
    texts: &ArrayRef,
    questions: &ArrayRef,
) -> Result<ArrayRef> {
    let own = texts.as_string::<i64>();
    let mut values: Vec<Option<String>> = own.iter().map(|text| text.map(str::to_owned)).collect();
    let questions = cast(questions, &DataType::LargeUtf8)?;
    let questions = questions.as_string::<i64>();
    for (question, ids, index) in known {
        let found = index.lookup(field, texts)?;
        for (row, number) in found.into_iter().enumerate() {
            if let Some(number) = number.filter(|_| questions.value(row) == question.as_str()) {
                values[row] = Some(ids.text(number as usize));
            }
        }
    }
    Ok(Arc::new(LargeStringArray::from(values)))
}
