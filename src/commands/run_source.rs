//! What a published run tells of its sources.

use arrow::util::display::array_value_to_string;
use datafusion::prelude::{DataFrame, SessionContext};
use serde_json::Value;

use crate::error::Result;

/// The `[source]` that the run was made with; null where the run does not tell.
pub(super) async fn source_of_run(ctx: &SessionContext) -> Result<Value> {
    if !ctx.table_exist("run")? {
        return Ok(Value::Null);
    }
    let rows = ctx.table("run").await?.select_columns(&["spec"])?.collect().await?;
    let spec = rows.first().filter(|batch| batch.num_rows() > 0);
    let spec = spec.map(|batch| array_value_to_string(batch.column(0), 0)).transpose()?;
    let spec: Value = serde_json::from_str(&spec.unwrap_or_default()).unwrap_or_default();
    Ok(spec["source"].clone())
}

pub(super) fn has_column(frame: &DataFrame, name: &str) -> bool {
    frame.schema().fields().iter().any(|field| field.name() == name)
}
