//! Converts the errors of libraries into labelmill's own.

use datafusion::error::DataFusionError;
use datafusion::sql::sqlparser::parser::ParserError;

use super::exhausted::is_exhausted;
use super::{Error, Problem, Stage};

impl From<DataFusionError> for Error {
    fn from(error: DataFusionError) -> Self {
        if let Some(own) = own_error(&error) {
            let Self { stage, problems, .. } = own;
            return Self {
                stage: *stage,
                problems: problems.clone(),
                source: Some(Box::new(error)),
            };
        }
        if let DataFusionError::ResourcesExhausted(text) = error.find_root() {
            let problem = Problem::new("a query needs more memory than engine.memory_limit allows")
                .found(first_line(text))
                .help("raise engine.memory_limit, or set a smaller engine.threads");
            return Self { source: Some(Box::new(error)), ..Self::new(Stage::Spec, problem) };
        }
        let text = error.find_root().strip_backtrace();
        if is_exhausted(&text) {
            return Self { source: Some(Box::new(error)), ..Self::exhausted(first_line(&text)) };
        }
        let stage = stage_of(error.find_root());
        let what = match error.find_root() {
            DataFusionError::SQL(error, _) => not_sql(error),
            root if is_of_a_name(root) => root.strip_backtrace().replace('\n', "\\n"),
            root => first_line(&root.strip_backtrace()),
        };
        let mut problem = Problem::new(what);
        problem.help = match (stage, error.find_root()) {
            (Stage::Store, root) if is_of_a_disk(root) => Some(DISK_HELP.to_owned()),
            (Stage::Store, _) => Some(STORE_HELP.to_owned()),
            (_, root) if is_of_a_name(root) => Some(NAME_HELP.to_owned()),
            (_, DataFusionError::ParquetError(_)) => Some(DAMAGED_HELP.to_owned()),
            _ => None,
        };
        Self { source: Some(Box::new(error)), ..Self::new(stage, problem) }
    }
}

/// An error of labelmill's own that passed through a library.
fn own_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(own) = error.downcast_ref() {
            return Some(own);
        }
        next = match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

impl From<object_store::Error> for Error {
    fn from(error: object_store::Error) -> Self {
        DataFusionError::ObjectStore(Box::new(error)).into()
    }
}

impl From<arrow::error::ArrowError> for Error {
    fn from(error: arrow::error::ArrowError) -> Self {
        DataFusionError::from(error).into()
    }
}

impl From<parquet::errors::ParquetError> for Error {
    fn from(error: parquet::errors::ParquetError) -> Self {
        DataFusionError::from(error).into()
    }
}

/// Whether a store on local disk failed.
fn is_of_a_disk(root: &DataFusionError) -> bool {
    let DataFusionError::ObjectStore(e) = root else { return false };
    matches!(**e, object_store::Error::Generic { store: "LocalFileSystem" | "local disk", .. })
}

/// Whether a name holds characters that no object store takes.
fn is_of_a_name(root: &DataFusionError) -> bool {
    let DataFusionError::ObjectStore(e) = root else { return false };
    matches!(**e, object_store::Error::InvalidPath { .. })
}

/// The help line for a name that no object store takes.
pub const NAME_HELP: &str = "rename the file: no object store takes a control character in a name";

const DISK_HELP: &str =
    "check the path, its rights and the room on the disk, then run the job again";

const STORE_HELP: &str =
    "check the URL, the endpoint and the credentials in the environment, then run the job again";

const DAMAGED_HELP: &str =
    "the file is damaged, cut short, or not what its name says: write it again";

fn stage_of(root: &DataFusionError) -> Stage {
    match root {
        DataFusionError::ObjectStore(e) => match **e {
            object_store::Error::NotFound { .. } | object_store::Error::InvalidPath { .. } => {
                Stage::Data
            }
            _ => Stage::Store,
        },
        DataFusionError::SQL(..)
        | DataFusionError::Plan(_)
        | DataFusionError::SchemaError(..)
        | DataFusionError::Configuration(_)
        | DataFusionError::NotImplemented(_) => Stage::Spec,
        DataFusionError::Internal(_) => Stage::Bug,
        DataFusionError::External(e) if e.is::<object_store::Error>() => Stage::Store,
        _ => Stage::Data,
    }
}

fn not_sql(error: &ParserError) -> String {
    let text = match error {
        ParserError::ParserError(text) | ParserError::TokenizerError(text) => first_line(text),
        ParserError::RecursionLimitExceeded => "it is too deep".to_owned(),
    };
    format!("the SQL cannot be parsed: {text}")
}

fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().replacen("Parquet error: ", "", 1)
}
