//! `labelmill schema`: prints the JSON Schema of a pipeline file.

use crate::cli::terminal::print_json;
use crate::commands::schema::schema;
use crate::error::Result;

pub(super) fn command() -> Result<()> {
    print_json(schema())
}
