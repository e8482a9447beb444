//! The names of a file's columns.

use crate::error::{Error, Result, offenders};

/// Refuses duplicate column names, which would be ambiguous.
///
/// # Errors
/// When a name occurs more than once; the error lists such names.
pub(in crate::source) fn refuse_doubles<'a>(
    names: impl IntoIterator<Item = &'a String>,
) -> Result<()> {
    let mut names: Vec<&String> = names.into_iter().collect();
    names.sort();
    let mut twice: Vec<&String> =
        names.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    twice.dedup();
    if twice.is_empty() {
        return Ok(());
    }
    Err(Error::data("the header names a column twice")
        .found(offenders(twice))
        .help("give every column a name of its own"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_stands_twice_is_named_once() {
        let names = |all: &[&str]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(refuse_doubles(&names(&["b", "a", "c"])).is_ok());
        let error = refuse_doubles(&names(&["b", "a", "b", "b"])).unwrap_err().to_string();
        assert!(error.contains("names a column twice\n  found: `b`\n"), "{error}");
    }
}
