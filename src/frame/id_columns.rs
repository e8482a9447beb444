//! The columns of ids and labels: which types they may have.

use arrow::datatypes::{DataType, Field, Schema};

use crate::error::{Error, Problem, Result, Stage};

/// The columns of instances, annotators and labels.
///
/// # Errors
/// Every one of them whose type cannot be that of an id, at once.
pub(super) fn id_columns(schema: &Schema) -> Result<[&Field; 3]> {
    let [instance, annotator, label] =
        ["instance_id", "annotator_id", "label"].map(|name| schema.field_with_name(name));
    let columns = [instance?, annotator?, label?];
    let problems: Vec<Problem> = columns.iter().filter_map(|field| problem(field)).collect();
    if problems.is_empty() { Ok(columns) } else { Err(Error::several(Stage::Data, problems)) }
}

/// The column of labels, where its type can be that of an id.
pub(super) fn label_column(schema: &Schema) -> Option<&Field> {
    schema.field_with_name("label").ok().filter(|field| problem(field).is_none())
}

fn problem(field: &Field) -> Option<Problem> {
    let (name, data_type) = (field.name(), field.data_type());
    let problem = if data_type.is_null() {
        Problem::new(format!("the column `{name}` holds nothing but nulls"))
            .help("its type is unknown; is it the right column?")
    } else if data_type.is_nested() {
        Problem::new(format!("the column `{name}` does not hold single values"))
            .found(data_type.to_string())
            .help("unnest it in source.sql.annotations, or map another column")
    } else if matches!(data_type, DataType::Interval(_) | DataType::Duration(_)) {
        Problem::new(format!("the column `{name}` holds lengths of time"))
            .found(data_type.to_string())
            .help("no Parquet file holds them: cast them to text or numbers in source.sql.annotations")
    } else {
        return None;
    };
    Some(problem.at("source.annotations"))
}
