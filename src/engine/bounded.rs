//! SQL functions whose result may be larger than their input: a call is refused before it runs if its result would be
//! too large.
//!
//! # Why
//! `repeat('x', 2000000000)` is a short query. The memory pool counts the memory of operators, but not the results of
//! functions, so the query would take all memory and end the process. The size of a result follows from the arguments,
//! so it is computed first.

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
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

use super::sizes::result_bytes;
use crate::error::{Error, Result};

/// The most bytes of one value that a function returns: the same limit as for a record of a text file.
const VALUE_BYTES: u64 = 64 << 20;

/// The most bytes that one call returns, over all rows of a batch.
const CALL_BYTES: u64 = 512 << 20;

/// The bytes that a call may always return, however low the memory limit is.
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

/// Replaces each of [`FUNCTIONS`] by a bounded function. A call returns at most a quarter of `memory`, or
/// [`NEGLIGIBLE`] bytes if that is more.
///
/// # Errors
/// When a function is not registered.
pub(super) fn register(ctx: &SessionContext, memory: usize) -> Result<()> {
    let share = (memory as u64 / 4).max(NEGLIGIBLE);
    for name in FUNCTIONS {
        let inner = ctx.udf(name)?;
        let (value_bytes, call_bytes) = (VALUE_BYTES.min(share), CALL_BYTES.min(share));
        ctx.register_udf(ScalarUDF::from(BoundedFunction { inner, value_bytes, call_bytes }));
    }
    Ok(())
}

/// A function that computes the size of its result before it runs.
#[derive(Debug, PartialEq, Eq, Hash)]
struct BoundedFunction {
    inner: Arc<ScalarUDF>,
    value_bytes: u64,
    call_bytes: u64,
}

impl BoundedFunction {
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

#[deny(clippy::missing_trait_methods)]
impl ScalarUDFImpl for BoundedFunction {
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

    /// Does not simplify: the expression that replaces the call would not be bounded.
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
