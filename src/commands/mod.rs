//! The commands, one file or folder each; they return values, and `cli` prints them.

pub mod aggregate;
pub mod agreement;
pub mod check;
pub mod evaluate;
pub mod explain;
pub mod models;
pub mod predict;
pub mod run;
mod run_source;
pub mod schema;
pub mod simulate;
pub mod sql;
pub mod test;

use crate::error::{Error, QUERY_MEMORY_HELP, Result};

/// The key of the memory limit, which is the location of an error of too little memory, except for a query's.
const MEMORY_LIMIT: &str = "engine.memory_limit";

/// Replaces a key of a pipeline file in the places of an error by the option that gives its value to the command. A
/// command without an option for the memory limit has the default one, which follows from the machine.
pub(crate) fn at_options<K, O>(mut error: Error, options: &[(K, O)]) -> Error
where
    K: AsRef<str>,
    O: AsRef<str>,
{
    let option_of = |location: &str| {
        options.iter().find_map(|(key, option)| {
            let option = option.as_ref();
            match location.strip_prefix(key.as_ref())? {
                "" => Some(option.to_owned()),
                // The URL or the folder.
                rest => Some(format!("{option} {}", rest.strip_prefix(": ")?)),
            }
        })
    };
    for problem in &mut error.problems {
        let is_at_limit = problem.location.as_deref() == Some(MEMORY_LIMIT);
        if is_at_limit || problem.help.as_deref() == Some(QUERY_MEMORY_HELP) {
            let raise =
                option_of(MEMORY_LIMIT).map_or(String::new(), |option| format!("raise {option}, "));
            problem.help = Some(format!(
                "{raise}run on a machine, or in a container, with more memory, or give fewer rows"
            ));
        }
        let named = problem.location.as_deref().and_then(option_of);
        if is_at_limit || named.is_some() {
            problem.location = named;
        }
    }
    error
}

/// The name and the URL of `--table name=URL`.
///
/// # Errors
/// When there is no name.
fn table_with_url(table: &str) -> Result<(&str, &str)> {
    table.split_once('=').ok_or_else(|| {
        Error::spec("a table needs a name")
            .at("--table")
            .found(format!("`{table}`"))
            .help("write --table name=URL")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_takes_the_place_of_its_key_and_of_no_other() {
        for (location, expected) in [
            ("source.features", "--features"),
            ("source.features: s3://b/f, in f.csv", "--features s3://b/f, in f.csv"),
            ("source.features_of", "source.features_of"),
            ("--model", "--model"),
        ] {
            let error =
                at_options(Error::data("x").at(location), &[("source.features", "--features")]);
            assert_eq!(error.problems[0].location.as_deref(), Some(expected));
        }
    }

    #[test]
    fn too_little_memory_names_no_key_that_a_command_does_not_have() {
        let error = || Error::spec("x").at(MEMORY_LIMIT).help("set engine.memory_limit");
        let help = "run on a machine, or in a container, with more memory, or give fewer rows";
        let without = at_options::<&str, &str>(error(), &[]);
        assert_eq!(without.to_string(), format!("error: x\n  help: {help}"));
        let with = at_options(error(), &[(MEMORY_LIMIT, "--memory-limit")]);
        let expected =
            format!("error: x\n  where: --memory-limit\n  help: raise --memory-limit, {help}");
        assert_eq!(with.to_string(), expected);
        let query = || Error::spec("x").at("source.features").help(QUERY_MEMORY_HELP);
        let options = [("source.features", "--features"), (MEMORY_LIMIT, "--memory-limit")];
        let with = at_options(query(), &options);
        let expected =
            format!("error: x\n  where: --features\n  help: raise --memory-limit, {help}");
        assert_eq!(with.to_string(), expected);
        let without = at_options(query(), &options[..1]);
        assert_eq!(without.to_string(), format!("error: x\n  where: --features\n  help: {help}"));
    }
}
