//! `labelmill aggregate`: a job without a pipeline file.

use crate::error::Result;
use crate::pipeline::{PipelineSpec, from_table};
use crate::spec::{COMMAND_LINE, Overrides};

/// The arguments of `labelmill aggregate`.
#[derive(Debug, Clone)]
pub struct Aggregation {
    /// The annotations.
    pub annotations: String,
    /// Features of the instances.
    pub features: Option<String>,
    /// Trusted classes.
    pub gold: Option<String>,
    /// Pairs of an instance and an annotator whose competence is asked for.
    pub pairs: Option<String>,
    /// The kind of the model.
    pub model: String,
    /// The folder for the tables.
    pub output: String,
    /// Further keys of a pipeline file, as `key.path=value`.
    pub set: Vec<String>,
}

impl Aggregation {
    /// The pipeline of the job.
    ///
    /// # Errors
    /// When a key does not exist, or a value does not fit.
    pub fn pipeline(self) -> Result<PipelineSpec> {
        let Self { annotations, features, gold, pairs, model, output, set } = self;
        // The command takes no variables: in a pipeline file, `$${` stands for a plain `${`.
        let plain = |text: String| toml::Value::from(text.replace("${", "$${"));
        let urls = [
            ("annotations", Some(annotations)),
            ("features", features),
            ("gold", gold),
            ("pairs", pairs),
        ];
        let given = urls.into_iter().filter_map(|(key, url)| Some((key.to_owned(), plain(url?))));
        let section =
            |key: &str, value: String| toml::Table::from_iter([(key.to_owned(), plain(value))]);
        let table = toml::Table::from_iter([
            ("source".to_owned(), given.collect::<toml::Table>().into()),
            ("model".to_owned(), section("kind", model).into()),
            ("sink".to_owned(), section("url", output).into()),
        ]);
        from_table(table, COMMAND_LINE, &Overrides { set, ..Overrides::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Location;

    #[test]
    fn what_is_a_variable_in_a_file_is_text_on_the_command_line() {
        for url in ["s3://b/${ds}/a.csv", "s3://b/$${ds}/a.csv", "s3://b/${"] {
            let what = Aggregation {
                annotations: url.to_owned(),
                features: None,
                gold: None,
                pairs: None,
                model: "majority_vote".to_owned(),
                output: "out/${ds}".to_owned(),
                set: Vec::new(),
            };
            let spec = what.pipeline().unwrap();
            assert_eq!(spec.source.annotations, Some(Location::Url(url.to_owned())));
            assert_eq!(spec.sink.url, "out/${ds}");
        }
    }
}
