//! SQL functions whose result may be larger than anything that was read: a call is refused before it is made where its
//! result would be.
//!
//! # Why
//! `repeat('x', 2000000000)` is one short line. The memory pool counts what operators hold, and not what a function
//! returns, so that such a line would take all memory and end the process. The size of the result follows from the
//! arguments: it is calculated first.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::compute::kernels::length::length;
use datafusion::arrow::datatypes::{
    DataType, FieldRef, Int64Type, IntervalMonthDayNanoType, IntervalUnit,
};
use datafusion::common::{ExprSchema, Result as DataFusionResult, ScalarValue};
use datafusion::config::ConfigOptions;
use datafusion::error::DataFusionError;
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::interval_arithmetic::Interval;
use datafusion::logical_expr::preimage::PreimageResult;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, Expr, ExpressionPlacement, ReturnFieldArgs, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature, StructFieldMapping,
};
use datafusion::prelude::SessionContext;

use crate::error::{Error, Result};

/// The most bytes of one value that a function makes: as many as a record of a text file may have.
const VALUE_BYTES: u64 = 64 << 20;

/// The most bytes that one call makes, of all rows of a batch together.
const CALL_BYTES: u64 = 512 << 20;

/// What a call may make however little memory there is.
const NEGLIGIBLE: u64 = 16 << 20;

/// Functions whose result grows faster than their arguments.
const FUNCTIONS: [&str; 10] = [
    "array_repeat",
    "array_resize",
    "concat",
    "concat_ws",
    "generate_series",
    "lpad",
    "range",
    "repeat",
    "replace",
    "rpad",
];

/// Puts a bounded function in the place of each of [`FUNCTIONS`]; a call takes at most a quarter of `memory`.
///
/// # Errors
/// When a function is not there.
pub(super) fn register(ctx: &SessionContext, memory: usize) -> Result<()> {
    let share = (memory as u64 / 4).max(NEGLIGIBLE);
    for name in FUNCTIONS {
        let inner = ctx.udf(name)?;
        let (value_bytes, call_bytes) = (VALUE_BYTES.min(share), CALL_BYTES.min(share));
        ctx.register_udf(ScalarUDF::from(Bounded { inner, value_bytes, call_bytes }));
    }
    Ok(())
}

/// A function that looks at its arguments before it is called.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Bounded {
    inner: Arc<ScalarUDF>,
    value_bytes: u64,
    call_bytes: u64,
}

impl Bounded {
    fn check(&self, args: &ScalarFunctionArgs) -> DataFusionResult<()> {
        let is_scalar = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_scalar { 1 } else { args.number_rows };
        let bytes = result_bytes(self.inner.name(), &args.args)?;
        let mut call = 0_u64;
        for row in 0..rows {
            let value = u64::try_from(bytes(row).max(0)).unwrap_or(u64::MAX);
            call = call.saturating_add(value);
            if value > self.value_bytes {
                return Err(self.refused("a value", value, self.value_bytes));
            }
        }
        if call > self.call_bytes {
            return Err(self.refused(&format!("{rows} values"), call, self.call_bytes));
        }
        Ok(())
    }

    fn refused(&self, what: &str, bytes: u64, limit: u64) -> DataFusionError {
        let error = Error::spec(format!("`{}` would make too much at once", self.inner.name()))
            .found(format!("{what} of {bytes} bytes, {limit} at most"))
            .help(
                "let it repeat, pad or count less; rows by the million come from a file or a join",
            );
        DataFusionError::External(Box::new(error))
    }
}

/// What gives the bytes of the result in a row.
type Bytes = Box<dyn Fn(usize) -> i128>;

fn result_bytes(function: &str, args: &[ColumnarValue]) -> DataFusionResult<Bytes> {
    let all_bytes = || args.iter().map(bytes_of).collect::<DataFusionResult<Vec<_>>>();
    Ok(match (function, args) {
        ("repeat" | "array_repeat", [value, count, ..]) => {
            let (value, count) = (bytes_of(value)?, integers(count)?);
            Box::new(move |row| value.at(row).saturating_mul(count.at(row)))
        }
        ("lpad" | "rpad", [value, length, ..]) => {
            // A character takes four bytes at most.
            let (value, length) = (bytes_of(value)?, integers(length)?);
            Box::new(move |row| value.at(row).max(length.at(row).saturating_mul(4)))
        }
        ("array_resize", [list, length, rest @ ..]) => {
            let (list, length) = (bytes_of(list)?, integers(length)?);
            let fill = rest.first().map_or(Ok(Numbers::One(0)), bytes_of)?;
            let added = move |row| length.at(row).saturating_mul(fill.at(row).max(8));
            Box::new(move |row| list.at(row).saturating_add(added(row)))
        }
        ("range" | "generate_series", _) => series_bytes(args)?,
        ("replace", [value, from, to]) => {
            let texts = [value, from, to].map(Texts::of);
            let [Ok(value), Ok(from), Ok(to)] = texts else { return Ok(Box::new(|_| 0)) };
            Box::new(move |row| replaced_bytes(value.at(row), from.at(row), to.at(row)))
        }
        _ => {
            // The first of `concat_ws` stands between all others.
            let (all, times) = (all_bytes()?, args.len() as i128);
            let first = if function == "concat_ws" { times } else { 1 };
            Box::new(move |row| {
                let rest: i128 = all.iter().skip(1).map(|n| n.at(row)).sum();
                all.first().map_or(0, |n| n.at(row).saturating_mul(first)).saturating_add(rest)
            })
        }
    })
}

fn replaced_bytes(value: &str, from: &str, to: &str) -> i128 {
    let (length, grown) = (value.len() as i128, to.len() as i128 - from.len() as i128);
    let most = length / from.len().max(1) as i128 + 1;
    // Matches are counted only where their greatest number would be too many.
    let matches = if grown <= 0 {
        0
    } else if most * grown <= 1 << 20 {
        most
    } else {
        value.matches(from).count() as i128
    };
    length + matches * grown.max(0)
}

/// Elements from start to stop by a step, of eight bytes each.
fn series_bytes(args: &[ColumnarValue]) -> DataFusionResult<Bytes> {
    let one = ColumnarValue::Scalar(ScalarValue::Int64(Some(1)));
    let zero = ColumnarValue::Scalar(ScalarValue::Int64(Some(0)));
    let (start, stop, step) = match args {
        [stop] => (&zero, stop, &one),
        [start, stop] => (start, stop, &one),
        [start, stop, step, ..] => (start, stop, step),
        [] => return Ok(Box::new(|_| 0)),
    };
    let (start, stop, step) = (nanoseconds(start)?, nanoseconds(stop)?, nanoseconds(step)?);
    Ok(Box::new(move |row| {
        let (start, stop, step) = (start.at(row), stop.at(row), step.at(row));
        // Towards the other side there is nothing, and a step of nothing is refused by the function itself.
        let is_empty = step == 0 || (stop > start) != (step > 0);
        if is_empty { 0 } else { ((stop - start) / step + 1).saturating_mul(8) }
    }))
}

/// A number for each row, or one for all; null is 0.
enum Numbers {
    One(i128),
    Each(Vec<i128>),
}

impl Numbers {
    fn at(&self, row: usize) -> i128 {
        match self {
            Self::One(number) => *number,
            Self::Each(numbers) => numbers.get(row).copied().unwrap_or(0),
        }
    }

    fn of(
        value: &ColumnarValue,
        numbers: impl Fn(&ArrayRef) -> DataFusionResult<Vec<i128>>,
    ) -> DataFusionResult<Self> {
        Ok(match value {
            ColumnarValue::Array(array) => Self::Each(numbers(array)?),
            ColumnarValue::Scalar(scalar) => {
                Self::One(numbers(&scalar.to_array()?)?.first().copied().unwrap_or(0))
            }
        })
    }
}

fn integers(value: &ColumnarValue) -> DataFusionResult<Numbers> {
    Numbers::of(value, int64s)
}

fn int64s(array: &ArrayRef) -> DataFusionResult<Vec<i128>> {
    let array = cast(array, &DataType::Int64)?;
    Ok(array.as_primitive::<Int64Type>().iter().map(|n| n.map_or(0, i128::from)).collect())
}

/// Bytes of each value.
fn bytes_of(value: &ColumnarValue) -> DataFusionResult<Numbers> {
    Numbers::of(value, |array| match array.data_type() {
        DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Utf8View
        | DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView => int64s(&length(array)?),
        other => match other.primitive_width() {
            Some(width) => Ok(vec![width as i128; array.len()]),
            None => (0..array.len())
                .map(|row| Ok(array.slice(row, 1).to_data().get_slice_memory_size()? as i128))
                .collect(),
        },
    })
}

/// Integers as they are; times, dates and intervals by their nanoseconds, months as short as they come.
fn nanoseconds(value: &ColumnarValue) -> DataFusionResult<Numbers> {
    const DAY: i128 = 86_400_000_000_000;
    Numbers::of(value, |array| match array.data_type() {
        DataType::Date32 | DataType::Date64 => {
            let days = int64s(&cast(&cast(array, &DataType::Date32)?, &DataType::Int32)?)?;
            Ok(days.into_iter().map(|n| n * DAY).collect())
        }
        DataType::Timestamp(_, zone) => {
            let unit = datafusion::arrow::datatypes::TimeUnit::Nanosecond;
            int64s(&cast(array, &DataType::Timestamp(unit, zone.clone()))?)
        }
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            let steps = array.as_primitive::<IntervalMonthDayNanoType>();
            let length = |step| {
                let (months, days, nanoseconds) = IntervalMonthDayNanoType::to_parts(step);
                (i128::from(months) * 28 + i128::from(days)) * DAY + i128::from(nanoseconds)
            };
            Ok(steps.iter().map(|step| step.map_or(0, length)).collect())
        }
        _ => int64s(array),
    })
}

/// A text for each row, or one for all; null is empty.
struct Texts(ArrayRef);

impl Texts {
    fn of(value: &ColumnarValue) -> DataFusionResult<Self> {
        let array = match value {
            ColumnarValue::Array(array) => Arc::clone(array),
            ColumnarValue::Scalar(scalar) => scalar.to_array()?,
        };
        Ok(Self(cast(&array, &DataType::Utf8View)?))
    }

    fn at(&self, row: usize) -> &str {
        let texts = self.0.as_string_view();
        let row = row.min(texts.len().saturating_sub(1));
        if texts.is_empty() || texts.is_null(row) { "" } else { texts.value(row) }
    }
}

#[deny(clippy::missing_trait_methods)]
impl ScalarUDFImpl for Bounded {
    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        self.check(&args)?;
        self.inner.inner().invoke_with_args(args)
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn display_name(&self, args: &[Expr]) -> DataFusionResult<String> {
        #[expect(deprecated)]
        self.inner.inner().display_name(args)
    }

    fn schema_name(&self, args: &[Expr]) -> DataFusionResult<String> {
        self.inner.schema_name(args)
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> DataFusionResult<DataType> {
        self.inner.return_type(types)
    }

    fn with_updated_config(&self, _config: &ConfigOptions) -> Option<ScalarUDF> {
        None
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> DataFusionResult<FieldRef> {
        self.inner.return_field_from_args(args)
    }

    fn is_nullable(&self, args: &[Expr], schema: &dyn ExprSchema) -> bool {
        #[expect(deprecated)]
        self.inner.inner().is_nullable(args, schema)
    }

    fn is_strict(&self) -> bool {
        self.inner.is_strict()
    }

    /// What a simplification puts in the place of the call would not be bounded.
    fn simplify(
        &self,
        args: Vec<Expr>,
        _info: &SimplifyContext,
    ) -> DataFusionResult<ExprSimplifyResult> {
        Ok(ExprSimplifyResult::Original(args))
    }

    fn preimage(
        &self,
        args: &[Expr],
        literal: &Expr,
        info: &SimplifyContext,
    ) -> DataFusionResult<PreimageResult> {
        self.inner.preimage(args, literal, info)
    }

    fn short_circuits(&self) -> bool {
        self.inner.short_circuits()
    }

    fn conditional_arguments<'a>(
        &self,
        args: &'a [Expr],
    ) -> Option<(Vec<&'a Expr>, Vec<&'a Expr>)> {
        self.inner.conditional_arguments(args)
    }

    fn evaluate_bounds(&self, inputs: &[&Interval]) -> DataFusionResult<Interval> {
        self.inner.evaluate_bounds(inputs)
    }

    fn propagate_constraints(
        &self,
        interval: &Interval,
        inputs: &[&Interval],
    ) -> DataFusionResult<Option<Vec<Interval>>> {
        self.inner.propagate_constraints(interval, inputs)
    }

    fn output_ordering(&self, inputs: &[ExprProperties]) -> DataFusionResult<SortProperties> {
        self.inner.output_ordering(inputs)
    }

    fn preserves_lex_ordering(&self, inputs: &[ExprProperties]) -> DataFusionResult<bool> {
        self.inner.preserves_lex_ordering(inputs)
    }

    fn strictly_order_preserving(&self, inputs: &[ExprProperties]) -> DataFusionResult<bool> {
        self.inner.strictly_order_preserving(inputs)
    }

    fn coerce_types(&self, types: &[DataType]) -> DataFusionResult<Vec<DataType>> {
        self.inner.coerce_types(types)
    }

    fn struct_field_mapping(&self, literals: &[Option<ScalarValue>]) -> Option<StructFieldMapping> {
        self.inner.struct_field_mapping(literals)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }

    fn placement(&self, args: &[ExpressionPlacement]) -> ExpressionPlacement {
        self.inner.placement(args)
    }
}
