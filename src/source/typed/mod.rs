//! Parquet and Arrow files as one table: the type of a column is one that holds the values of every file exactly.

pub(super) mod arrow_file;
pub(super) mod batch_rows;
pub(super) mod header;
pub(super) mod sized_parquet;
pub(super) mod typed_file;
pub mod views;

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Field, FieldRef, Int64Type, Schema, SchemaRef, TimeUnit, UInt64Type,
};
use datafusion::catalog::TableProvider;
use datafusion::common::{Column, ScalarValue};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::arrow::ArrowFormat;
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarUDF, Volatility, cast as cast_to, create_udf,
};
use datafusion::prelude::{DataFrame, SessionContext};
use object_store::{ObjectMeta, ObjectStore};
use url::Url;

use super::listing::format::Format;
use super::relation::known_columns::KnownColumns;
use crate::error::{Error, Result};
use crate::store::shown;
use typed_file::{TENSOR_SHAPE, TypedFile, parquet_format};

/// The table of these objects, which `store` serves under `root`; `location` is their location in messages.
///
/// Files of one kind with the same columns in the same order are one scan. Several such groups are united by column
/// name, and a column that a file lacks is null in its rows.
pub(super) async fn table(
    ctx: &SessionContext,
    (root, store): (&Url, &Arc<dyn ObjectStore>),
    location: &Url,
    (objects, format): (&[ObjectMeta], Format),
    columns: &KnownColumns,
) -> Result<Arc<dyn TableProvider>> {
    let named = |object: &ObjectMeta| shown(location, &object.location);
    let mut format: Arc<dyn FileFormat> = match format {
        Format::Arrow => Arc::new(ArrowFormat),
        _ => Arc::new(parquet_format(&[])),
    };
    let filled: Vec<&ObjectMeta> = objects.iter().filter(|o| o.size > 0).collect();
    let files = TypedFile::open_all(&format, ctx, (store, location), &filled, columns).await?;
    if files.iter().any(|file| file.rows.is_some()) {
        format = Arc::new(parquet_format(&files));
    }
    let needs_views =
        !self::batch_rows::limit_batch_size(ctx, files.iter().filter_map(|file| file.rows));
    let are_streams: Vec<bool> = files.iter().map(|file| file.is_stream).collect();
    let schemas = files.into_iter().map(|file| file.schema);
    let schemas: Vec<(String, SchemaRef)> = filled.iter().map(|o| named(o)).zip(schemas).collect();
    columns.refuse_missing_in_some(&schemas)?;
    let merged = views::as_views(&merge(&schemas)?, needs_views);
    let schemas: Vec<SchemaRef> =
        schemas.iter().map(|(_, schema)| Arc::new(views::as_in(&merged, schema))).collect();
    let mut scans = scans(root, &format, (&filled, &are_streams), &schemas)?;
    if let [(schema, _)] = scans.as_slice()
        && same_columns(schema, &merged)
    {
        return Ok(scans.remove(0).1);
    }
    let file_with = |column: &str, is: fn(&DataType) -> bool| {
        let has = |s: &SchemaRef| s.field_with_name(column).is_ok_and(|f| is(f.data_type()));
        let file = filled.iter().zip(&schemas).find(|(_, schema)| has(schema));
        file.map(|(object, _)| named(object)).unwrap_or_default()
    };
    let mut all: Option<DataFrame> = None;
    for (schema, scan) in scans {
        let rows = ctx.read_table(scan)?.select(selection(&schema, &merged, &file_with))?;
        all = Some(match all {
            Some(all) => all.union(rows)?,
            None => rows,
        });
    }
    all.map(DataFrame::into_view).ok_or_else(super::listing::unread::empty)
}

/// A scan with its columns.
type Scan = (SchemaRef, Arc<ListingTable>);

/// A scan for each group of objects with the same columns in the same order. Streams of Arrow messages are scans of
/// their own: DataFusion chooses the reader of all files of a scan by the first one.
fn scans(
    root: &Url,
    format: &Arc<dyn FileFormat>,
    (objects, are_streams): (&[&ObjectMeta], &[bool]),
    schemas: &[SchemaRef],
) -> Result<Vec<Scan>> {
    let mut groups: Vec<((bool, &SchemaRef), Vec<ListingTableUrl>)> = Vec::new();
    for ((object, is_stream), schema) in objects.iter().zip(are_streams).zip(schemas) {
        let url = location(root, object)?;
        let is_same =
            |(kind, known): (bool, &SchemaRef)| kind == *is_stream && same_columns(known, schema);
        match groups.iter_mut().find(|(group, _)| is_same(*group)) {
            Some((_, urls)) => urls.push(url),
            None => groups.push(((*is_stream, schema), vec![url])),
        }
    }
    let scan = |((_, schema), urls): ((bool, &SchemaRef), Vec<ListingTableUrl>)| {
        let config = ListingTableConfig::new_with_multi_paths(urls)
            .with_listing_options(ListingOptions::new(Arc::clone(format)).with_file_extension(""))
            .with_schema(Arc::clone(schema));
        Ok::<_, Error>((Arc::clone(schema), Arc::new(ListingTable::try_new(config)?)))
    };
    groups.into_iter().map(scan).collect()
}

/// The object's URL below the root; a name may hold any character.
fn location(root: &Url, object: &ObjectMeta) -> Result<ListingTableUrl> {
    let mut url = root.clone();
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.clear().extend(object.location.parts().map(|part| part.as_ref().to_owned()));
    }
    Ok(ListingTableUrl::try_new(url, None)?)
}

fn same_columns(a: &Schema, b: &Schema) -> bool {
    let same =
        |(a, b): (&FieldRef, &FieldRef)| a.name() == b.name() && a.data_type() == b.data_type();
    a.fields().len() == b.fields().len() && a.fields().iter().zip(b.fields()).all(same)
}

/// Merges the files' columns by name; each gets a type that can hold the values of every file.
fn merge(files: &[(String, SchemaRef)]) -> Result<Schema> {
    let mut fields: Vec<FieldRef> = Vec::new();
    let mut locations: HashMap<&str, (usize, &str)> = HashMap::new();
    for (file, schema) in files {
        for field in schema.fields() {
            let Some((at, first)) = locations.get(field.name().as_str()) else {
                locations.insert(field.name(), (fields.len(), file));
                fields.push(Arc::new(field.as_ref().clone().with_nullable(true)));
                continue;
            };
            let known = &mut fields[*at];
            let shape = |field: &Field| field.metadata().get(TENSOR_SHAPE).cloned();
            if let (Some(one), Some(other)) = (shape(known), shape(field))
                && one != other
            {
                return Err(Error::data(format!(
                    "the tensors of the column `{}` differ",
                    field.name()
                ))
                .found(format!("{one} in `{first}`, {other} in `{file}`"))
                .help("write them with one shape and one order of axes in every file"));
            }
            if known.data_type() == field.data_type() {
                continue;
            }
            let Some(both) = wider(known.data_type(), field.data_type()) else {
                return Err(Error::data(format!(
                    "the column `{}` has no one type in all files",
                    field.name()
                ))
                .found(format!(
                    "{} in `{first}`, {} in `{file}`",
                    known.data_type(),
                    field.data_type()
                ))
                .help("write it with one type in every file"));
            };
            *known = Arc::new(known.as_ref().clone().with_data_type(both));
        }
    }
    Ok(Schema::new(fields))
}

/// The narrowest type that holds every value of both. For 64-bit integers and floats it is `Float64`, and
/// [`exactly_as_double`] checks each value.
fn wider(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType::{
        Binary, BinaryView, Date32, FixedSizeList, Float16, Float32, Float64, Int8, Int16, Int32,
        Int64, LargeBinary, LargeList, LargeUtf8, List, Null, Timestamp, UInt8, UInt16, UInt32,
        UInt64, Utf8, Utf8View,
    };
    let unsigned = |t: &DataType| matches!(t, UInt8 | UInt16 | UInt32);
    let bits = |t: &DataType| t.primitive_width().unwrap_or(8);
    let item = |a: &FieldRef, b: &FieldRef| -> Option<FieldRef> {
        let both = wider_inside(a.data_type(), b.data_type())?;
        Some(Arc::new(Field::new(a.name(), both, true)))
    };
    let (one, other) = (a, b);
    Some(match (a, b) {
        _ if a == b => a.clone(),
        (Null, t) | (t, Null) => t.clone(),
        (DataType::Dictionary(_, a), b) => wider_inside(a, b)?,
        (a, DataType::Dictionary(_, b)) => wider_inside(a, b)?,
        (Utf8 | LargeUtf8 | Utf8View, Utf8 | LargeUtf8 | Utf8View) => {
            if *a == LargeUtf8 || *b == LargeUtf8 { LargeUtf8 } else { Utf8 }
        }
        (Binary | LargeBinary | BinaryView, Binary | LargeBinary | BinaryView) => {
            if *a == LargeBinary || *b == LargeBinary { LargeBinary } else { Binary }
        }
        (Int8 | Int16 | Int32 | Int64, Int8 | Int16 | Int32 | Int64)
        | (UInt8 | UInt16 | UInt32 | UInt64, UInt8 | UInt16 | UInt32 | UInt64) => {
            if bits(a) > bits(b) { a.clone() } else { b.clone() }
        }
        (a, b) if a.is_integer() && b.is_integer() && (unsigned(a) || unsigned(b)) => {
            if *a == UInt64 || *b == UInt64 {
                return None;
            }
            Int64
        }
        (Float16 | Float32, Float16 | Float32) => Float32,
        (a, b) if a.is_floating() && b.is_floating() => Float64,
        (a, b) if a.is_integer() && b.is_floating() || a.is_floating() && b.is_integer() => Float64,
        (Date32, Timestamp(unit, None)) | (Timestamp(unit, None), Date32) => Timestamp(*unit, None),
        (Timestamp(a, zone), Timestamp(b, other)) if zone == other => {
            Timestamp(finer(*a, *b), zone.clone())
        }
        (FixedSizeList(a, n), FixedSizeList(b, m)) if n == m => FixedSizeList(item(a, b)?, *n),
        (
            List(a) | LargeList(a) | FixedSizeList(a, _),
            List(b) | LargeList(b) | FixedSizeList(b, _),
        ) => {
            let is_large = [one, other].iter().any(|t| matches!(t, LargeList(_)));
            if is_large { LargeList(item(a, b)?) } else { List(item(a, b)?) }
        }
        _ => return None,
    })
}

/// As [`wider`] for nested values, such as the items of lists, which nothing checks one by one: no integer may be
/// rounded.
fn wider_inside(a: &DataType, b: &DataType) -> Option<DataType> {
    let is_long = |t: &DataType| matches!(t, DataType::Int64 | DataType::UInt64);
    let rounds = is_long(a) && b.is_floating() || a.is_floating() && is_long(b);
    if rounds { None } else { wider(a, b) }
}

fn finer(a: TimeUnit, b: TimeUnit) -> TimeUnit {
    let order = [TimeUnit::Nanosecond, TimeUnit::Microsecond, TimeUnit::Millisecond];
    order.into_iter().find(|unit| *unit == a || *unit == b).unwrap_or(TimeUnit::Second)
}

/// Returns the name of the first file whose column of this name has such a type.
type FileWith<'a> = &'a dyn Fn(&str, fn(&DataType) -> bool) -> String;

/// Expressions for the columns of `merged`, from a scan with the columns of `own`.
fn selection(own: &Schema, merged: &Schema, file_with: FileWith<'_>) -> Vec<Expr> {
    let own: HashMap<&String, &FieldRef> = own.fields().iter().map(|f| (f.name(), f)).collect();
    let one = |field: &FieldRef| {
        let wanted = field.data_type();
        let Some(from) = own.get(field.name()) else {
            let null = ScalarValue::try_from(wanted).unwrap_or(ScalarValue::Null);
            return Expr::Literal(null, None).alias(field.name());
        };
        let column = Expr::Column(Column::new_unqualified(field.name()));
        match from.data_type() {
            own if own == wanted => column,
            own @ (DataType::Int64 | DataType::UInt64) if wanted.is_floating() => {
                exactly_as_double(own, field.name(), file_with)
                    .call(vec![column])
                    .alias(field.name())
            }
            _ => cast_to(column, wanted.clone()).alias(field.name()),
        }
    };
    merged.fields().iter().map(one).collect()
}

/// Converts integers to doubles; one that would be rounded is an error.
fn exactly_as_double(from: &DataType, column: &str, file_with: FileWith<'_>) -> ScalarUDF {
    let integers = file_with(column, DataType::is_integer);
    let decimals = file_with(column, DataType::is_floating);
    let named = column.to_owned();
    let convert = move |arguments: &[ColumnarValue]| {
        let arrays = ColumnarValue::values_to_arrays(arguments)?;
        let doubles = cast(&arrays[0], &DataType::Float64)?;
        match rounded(&arrays[0], doubles.as_primitive()) {
            None => Ok(ColumnarValue::Array(doubles)),
            Some(value) => {
                let error = Error::data(format!(
                    "the column `{named}` has no one type in all files"
                ))
                .found(format!(
                    "integers in `{integers}`, decimals in `{decimals}`, and {value}, which no double holds"
                ))
                .help("write it with one type in every file");
                Err(DataFusionError::External(Box::new(error)))
            }
        }
    };
    let types = vec![from.clone()];
    create_udf(
        "exactly_as_double",
        types,
        DataType::Float64,
        Volatility::Immutable,
        Arc::new(convert),
    )
}

/// The first integer that differs from its double.
fn rounded(integers: &ArrayRef, doubles: &Float64Array) -> Option<i128> {
    let is_rounded = |(value, double): &(i128, f64)| *double as i128 != *value;
    let pair = |(value, double): (Option<i128>, Option<f64>)| value.zip(double);
    if let Some(integers) = integers.as_primitive_opt::<Int64Type>() {
        let values = integers.iter().map(|v| v.map(i128::from));
        return values.zip(doubles).filter_map(pair).find(is_rounded).map(|(value, _)| value);
    }
    let integers = integers.as_primitive_opt::<UInt64Type>()?;
    let values = integers.iter().map(|v| v.map(i128::from));
    values.zip(doubles).filter_map(pair).find(is_rounded).map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use DataType::{Float32, Float64, Int16, Int32, Int64, LargeUtf8, UInt8, UInt32, UInt64, Utf8};

    #[test]
    fn a_wider_type_holds_every_value_of_both() {
        let both = |a: &DataType, b: &DataType| {
            assert_eq!(wider(a, b), wider(b, a), "{a} {b}");
            wider(a, b)
        };
        assert_eq!(both(&Int32, &Int64), Some(Int64));
        assert_eq!(both(&UInt32, &Int32), Some(Int64));
        assert_eq!(both(&UInt8, &Int16), Some(Int64));
        assert_eq!(both(&UInt8, &UInt32), Some(UInt32));
        assert_eq!(both(&UInt64, &Int64), None);
        assert_eq!(both(&Float32, &Float64), Some(Float64));
        assert_eq!(both(&Int32, &Float32), Some(Float64));
        assert_eq!(both(&Utf8, &LargeUtf8), Some(LargeUtf8));
        assert_eq!(both(&Utf8, &Int64), None);
        let list = |item: &DataType| DataType::new_list(item.clone(), true);
        assert_eq!(both(&list(&Float32), &list(&Float64)), Some(list(&Float64)));
        let fixed = |n: i32| DataType::new_fixed_size_list(Float32, n, true);
        assert_eq!(both(&fixed(3), &fixed(3)), Some(fixed(3)));
        assert_eq!(both(&fixed(3), &fixed(4)), Some(list(&Float32)));
        assert_eq!(both(&fixed(3), &list(&Float64)), Some(list(&Float64)));
        let large = DataType::new_large_list(Float32, true);
        assert_eq!(both(&fixed(3), &large), Some(large));
        assert_eq!(both(&DataType::Binary, &DataType::LargeBinary), Some(DataType::LargeBinary));
        assert_eq!(both(&DataType::Binary, &DataType::BinaryView), Some(DataType::Binary));
        assert_eq!(both(&DataType::Binary, &Utf8), None);
        // Integers in lists and dictionaries are not looked at one by one: none may be rounded.
        assert_eq!(both(&list(&Int32), &list(&Float64)), Some(list(&Float64)));
        assert_eq!(both(&list(&Int64), &list(&Float64)), None);
        assert_eq!(both(&list(&list(&UInt64)), &list(&list(&Float32))), None);
        let dictionary = DataType::Dictionary(Box::new(Int32), Box::new(Int64));
        assert_eq!(both(&dictionary, &Float64), None);
        assert_eq!(both(&dictionary, &Int32), Some(Int64));
    }

    #[test]
    fn tensors_of_two_shapes_are_no_one_column() {
        let file = |name: &str, shape: &str| {
            let metadata = [(TENSOR_SHAPE.to_owned(), format!("{{\"shape\":{shape}}}"))];
            let field = Field::new("image", DataType::new_fixed_size_list(UInt8, 12, true), true);
            let field = field.with_metadata(metadata.into());
            (name.to_owned(), Arc::new(Schema::new(vec![field])))
        };
        assert!(merge(&[file("a", "[3,2,2]"), file("b", "[3,2,2]")]).is_ok());
        let error = merge(&[file("a", "[3,2,2]"), file("b", "[2,2,3]")]).unwrap_err().to_string();
        assert!(error.contains("[3,2,2]} in `a`") && error.contains("[2,2,3]} in `b`"), "{error}");
    }

    #[test]
    fn an_integer_that_a_double_rounds_is_found() {
        let of =
            |values: Vec<i64>| -> ArrayRef { Arc::new(arrow::array::Int64Array::from(values)) };
        let found = |array: ArrayRef| {
            let doubles = cast(&array, &DataType::Float64).unwrap();
            rounded(&array, doubles.as_primitive())
        };
        assert_eq!(found(of(vec![1 << 53, -7, 0])), None);
        assert_eq!(found(of(vec![0, (1 << 53) + 1])), Some((1 << 53) + 1));
    }
}
