//! The errors of queries that cannot be parsed, or read a column that does not exist.

use datafusion::common::Column;
use datafusion::sql::sqlparser::parser::ParserError;

use super::chain::first_line;
use super::{Error, did_you_mean, offenders};

/// The help line for a query that is not understood.
pub(super) const SQL_HELP: &str = "write the SQL of DataFusion; in `labelmill sql`, `show tables` lists the tables, `describe NAME` the \
                        columns of one, and `show functions` the functions";

/// The error of a query that reads a column that is none of those there are.
pub(super) fn no_column(field: &Column, valid: &[Column]) -> Error {
    let error = Error::spec(format!("there is no column `{}`", field.flat_name()));
    if valid.is_empty() {
        return error.found("no columns").help("name a table after `from`");
    }
    let names: Vec<&str> = valid.iter().map(Column::name).collect();
    let nearest = || {
        "name one of them; \"double quotes\" keep upper case, 'single quotes' make text".to_owned()
    };
    let help = did_you_mean(field.name(), names.iter().copied(), nearest);
    error
        .found(format!("the columns {}", offenders(valid.iter().map(Column::flat_name))))
        .help(help)
}

/// What is wrong with a text that is no SQL.
pub(super) fn not_sql(error: &ParserError) -> String {
    let text = match error {
        ParserError::ParserError(text) | ParserError::TokenizerError(text) => first_line(text),
        ParserError::RecursionLimitExceeded => "it is too deep".to_owned(),
    };
    format!("the SQL cannot be parsed: {text}")
}
