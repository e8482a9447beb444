//! The commands other than `run` and `schema`, one file or folder each; they return values, and `cli` prints them.

pub mod aggregate;
pub mod check;
pub mod evaluate;
pub mod explain;
pub mod models;
pub mod predict;
pub mod simulate;
pub mod sql;
pub mod test;

use crate::error::Error;

/// Replaces a key of a pipeline file in the places of an error by the option that gives its value to the command.
fn at_options(mut error: Error, options: &[(&str, &str)]) -> Error {
    for place in error.problems.iter_mut().filter_map(|problem| problem.place.as_mut()) {
        let named = options.iter().find_map(|(key, option)| match place.strip_prefix(key)? {
            "" => Some((*option).to_owned()),
            // The URL or the folder.
            rest => Some(format!("{option} {}", rest.strip_prefix(": ")?)),
        });
        if let Some(named) = named {
            *place = named;
        }
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_takes_the_place_of_its_key_and_of_no_other() {
        for (place, expected) in [
            ("source.features", "--features"),
            ("source.features: s3://b/f, in f.csv", "--features s3://b/f, in f.csv"),
            ("source.features_of", "source.features_of"),
            ("--model", "--model"),
        ] {
            let error =
                at_options(Error::data("x").at(place), &[("source.features", "--features")]);
            assert_eq!(error.problems[0].place.as_deref(), Some(expected));
        }
    }
}
