//! Names the tables that there are where a query reads another one.

use datafusion::prelude::SessionContext;

use crate::error::{Error, did_you_mean, offenders};

/// The error of a query, which names the session's tables and the nearest of them if the query reads a table that is none
/// of them.
#[must_use]
pub fn with_known_tables(ctx: &SessionContext, mut error: Error) -> Error {
    let options = ctx.state().config_options().catalog.clone();
    let schema =
        ctx.catalog(&options.default_catalog).and_then(|all| all.schema(&options.default_schema));
    let mut tables = schema.map(|schema| schema.table_names()).unwrap_or_default();
    tables.sort();
    let inside = format!("{}.{}.", options.default_catalog, options.default_schema);
    for problem in &mut error.problems {
        let what = problem.what.strip_prefix("Error during planning: ").unwrap_or(&problem.what);
        let name = what.strip_prefix("table '").and_then(|what| what.strip_suffix("' not found"));
        let Some(name) = name else { continue };
        let name = name.strip_prefix(&inside).unwrap_or(name).to_owned();
        let known = tables.iter().map(String::as_str);
        problem.help = Some(did_you_mean(&name, known, || {
            "register a table with --table name=URL, or those of a run with --run; in a pipeline, with source.tables"
                .to_owned()
        }));
        problem.found = Some(if tables.is_empty() {
            "no tables".to_owned()
        } else {
            format!("the tables {}", offenders(&tables))
        });
        problem.what = format!("there is no table `{name}`");
    }
    error
}
