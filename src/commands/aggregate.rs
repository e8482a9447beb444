//! `labelmill aggregate`: a job without a pipeline file.

use crate::error::Result;
use crate::pipeline::{PipelineSpec, from_table};
use crate::spec::Overrides;

/// The arguments of `labelmill aggregate`.
#[derive(Debug, Clone)]
pub struct Aggregation {
    /// The annotations.
    pub annotations: String,
    /// Features of the instances.
    pub features: Option<String>,
    /// Trusted classes.
    pub gold: Option<String>,
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
        let Self { annotations, features, gold, model, output, set } = self;
        let urls = [("annotations", Some(annotations)), ("features", features), ("gold", gold)];
        let given = urls.into_iter().filter_map(|(key, url)| Some((key.to_owned(), url?.into())));
        let section =
            |key: &str, value: String| toml::Table::from_iter([(key.to_owned(), value.into())]);
        let table = toml::Table::from_iter([
            ("source".to_owned(), given.collect::<toml::Table>().into()),
            ("model".to_owned(), section("kind", model).into()),
            ("sink".to_owned(), section("url", output).into()),
        ]);
        from_table(table, "command line", &Overrides { set, var: Vec::new() })
    }
}
