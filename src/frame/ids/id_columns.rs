//! The columns of ids and labels: which types they may have.

use arrow::array::new_empty_array;
use arrow::datatypes::{DataType, Field, Schema};

use super::Interner;
use crate::error::{Error, Problem, Result, Stage};
use crate::source::Relation;
use crate::source::typed::views::type_in_files;

/// The columns of instances, annotators and labels.
///
/// # Errors
/// Every one of them whose type cannot be that of an id, at once.
pub(in crate::frame) fn id_columns(schema: &Schema) -> Result<[&Field; 3]> {
    let [instance, annotator, label] =
        ["instance_id", "annotator_id", "label"].map(|name| schema.field_with_name(name));
    let columns = [instance?, annotator?, label?];
    let problems: Vec<Problem> = columns.iter().filter_map(|field| problem(field)).collect();
    if problems.is_empty() { Ok(columns) } else { Err(Error::several(Stage::Data, problems)) }
}

/// The column of labels, where its type can be that of an id.
pub(in crate::frame) fn label_column(schema: &Schema) -> Option<&Field> {
    id_field(schema, "label")
}

/// Checks, before any row is read, that a relation beside the annotations, such as gold, has ids and classes of the types
/// that the annotations have.
///
/// # Errors
/// Every column of another type, at once.
pub fn check_types_of(relation: Relation, annotations: &Schema, given: &Schema) -> Result<()> {
    let same = [
        ("instance_id", "instance_id"),
        ("annotator_id", "annotator_id"),
        ("label", "class"),
        ("label", "label"),
        ("question", "question"),
    ];
    let errors = same.into_iter().filter_map(|(own, other)| {
        let (own, other) = (id_field(annotations, own)?, given.field_with_name(other).ok()?);
        expect_type(own, other).err().map(|e| e.at(format!("source.{}", relation.table())))
    });
    Error::all(errors)
}

/// Checks, before any row is read, that features have ids of the type that the annotations have; `relation` is
/// `features` or `annotator_features`, and `id` the name of its column of ids.
///
/// # Errors
/// When they have another type.
pub fn check_type_of_features(
    annotations: &Schema,
    features: &Schema,
    relation: &str,
    id: &str,
) -> Result<()> {
    match (id_field(annotations, id), id_field(features, id)) {
        (Some(annotated), Some(own)) => {
            expect_type(own, annotated).map_err(|e| e.at(format!("source.{relation}")))
        }
        _ => Ok(()),
    }
}

/// The error that a value of `other` is among the values of `own`, as it is when rows are read.
fn expect_type(own: &Field, other: &Field) -> Result<()> {
    let none = new_empty_array(&type_in_files(other));
    Interner::new(own).intern_other(other, &none, &mut Vec::new())
}

/// The column of this name, where its type can be that of an id: one of another type has its own error.
fn id_field<'a>(schema: &'a Schema, name: &str) -> Option<&'a Field> {
    schema.field_with_name(name).ok().filter(|field| problem(field).is_none())
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
