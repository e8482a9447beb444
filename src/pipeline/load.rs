//! Reads a pipeline file into its spec.

use super::schema::schema;
use super::spec::PipelineSpec;
use crate::error::Result;
use crate::spec::{self, Overrides, Problems};

/// Reads a pipeline from its text.
///
/// # Errors
/// Every problem of syntax, names, types and ranges at once, with `location` (the file) and its key path.
pub fn load(text: &str, location: &str, overrides: &Overrides) -> Result<PipelineSpec> {
    from_table(spec::parse(text, location)?, location, overrides)
}

/// Builds a pipeline from a TOML table, as `labelmill aggregate` does.
///
/// # Errors
/// As [`load`].
pub fn from_table(
    table: toml::Table,
    location: &str,
    overrides: &Overrides,
) -> Result<PipelineSpec> {
    let spec: PipelineSpec = spec::from_table(table, location, overrides, schema())?;
    let mut problems = Problems::default();
    spec.check(location, &mut problems);
    problems.into_result()?;
    Ok(spec)
}
