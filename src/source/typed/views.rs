//! Text and binary columns as Arrow views, which share the bytes of repeated values, and the types of these columns in
//! the files.
//!
//! # Why
//! A Parquet file stores a repeated value once, but a batch of plain text stores it once a row. Where a file does not
//! state how large its values are, no number of rows is safe for plain text. Views are safe: they point at the decoded
//! pages.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema};

/// Metadata key of a field that is read as views: the type of its values in the files.
const TYPE_IN_FILES: &str = "labelmill.type";

/// Turns text and binary columns into views where `all` is set. Each column of views records its type in the files.
pub(super) fn as_views(schema: &Schema, all: bool) -> Schema {
    let one = |field: &FieldRef| {
        let own = field.data_type();
        let view = match own {
            DataType::Utf8 | DataType::LargeUtf8 if all => DataType::Utf8View,
            DataType::Binary | DataType::LargeBinary if all => DataType::BinaryView,
            DataType::Utf8View | DataType::BinaryView => own.clone(),
            _ => return Arc::clone(field),
        };
        let mut metadata = field.metadata().clone();
        metadata.insert(TYPE_IN_FILES.to_owned(), own.to_string());
        Arc::new(field.as_ref().clone().with_data_type(view).with_metadata(metadata))
    };
    Schema::new(schema.fields().iter().map(one).collect::<Vec<_>>())
}

/// The schema `own`, with views where `merged` has views.
pub(super) fn as_in(merged: &Schema, own: &Schema) -> Schema {
    let is_view = |field: &&FieldRef| field.metadata().contains_key(TYPE_IN_FILES);
    let views: HashMap<&String, &FieldRef> =
        merged.fields().iter().filter(is_view).map(|field| (field.name(), field)).collect();
    let one = |field: &FieldRef| {
        let view = views.get(field.name()).filter(|_| is_bytes(field.data_type()));
        Arc::clone(view.copied().unwrap_or(field))
    };
    Schema::new(own.fields().iter().map(one).collect::<Vec<_>>())
}

fn is_bytes(t: &DataType) -> bool {
    t.is_string() || t.is_binary()
}

/// The type of a column's values, also behind a dictionary or run ends.
pub(crate) fn value_type(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, values) => values,
        DataType::RunEndEncoded(_, values) => values.data_type(),
        own => own,
    }
}

/// The type that values of this column are written with: the type in the files, or plain text or binary for views that
/// a query made.
#[must_use]
pub fn type_in_files(field: &Field) -> DataType {
    let named = field.metadata().get(TYPE_IN_FILES).and_then(|name| name.parse().ok());
    match (field.data_type(), named) {
        (DataType::Utf8View | DataType::BinaryView, Some(named)) => named,
        (DataType::Utf8View, None) => DataType::Utf8,
        // polars writes categories as dictionaries of views, which no Parquet writer takes.
        (DataType::Dictionary(key, values), _)
            if matches!(**values, DataType::Utf8View | DataType::BinaryView) =>
        {
            let is_text = **values == DataType::Utf8View;
            let plain = if is_text { DataType::Utf8 } else { DataType::Binary };
            DataType::Dictionary(key.clone(), Box::new(plain))
        }
        (DataType::BinaryView, None) => DataType::Binary,
        (own, _) => own.clone(),
    }
}
