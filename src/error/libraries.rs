//! Converts the errors of libraries into labelmill's own.

use std::sync::Arc;

use arrow::error::ArrowError;
use datafusion::common::SchemaError;
use datafusion::error::DataFusionError;
use parquet::errors::ParquetError;
use tokio::task::JoinError;

use super::chain::first_line;
use super::queries::{SQL_HELP, no_column, not_sql};
use super::{Error, Problem, Stage, find_in_chain, is_not_implemented};

impl From<DataFusionError> for Error {
    fn from(error: DataFusionError) -> Self {
        let made = if let Some(Self { stage, problems, .. }) = find_in_chain::<Self>(&error) {
            Self::several(*stage, problems.clone())
        } else if let DataFusionError::ResourcesExhausted(text) = error.find_root() {
            // The location is what was read, which the caller knows.
            Self::spec("a query needs more memory than the run may take")
                .found(first_line(text))
                .help(QUERY_MEMORY_HELP)
        } else {
            converted(&error)
        };
        Self { source: Some(Box::new(error)), ..made }
    }
}

/// The error for one of a library.
fn converted(error: &DataFusionError) -> Error {
    if let Some(message) = panic_of_task(error) {
        let broke_off = || Error::query_broke_off().found(format!("a panic: {message}"));
        return Error::if_exhausted(&message).unwrap_or_else(broke_off);
    }
    let root = error.find_root();
    let text = root.strip_backtrace();
    let of_system = find_in_chain::<std::io::Error>(error);
    let store = find_in_chain::<object_store::Error>(error);
    let of_this_process = match store {
        // A server's answer may be about the server.
        Some(store) if !is_local(store) => of_system.map(ToString::to_string),
        _ => (!quotes_input(root)).then(|| text.clone()),
    };
    if let Some(exhausted) = of_this_process.and_then(|text| Error::if_exhausted(&text)) {
        return exhausted.found(first_line(&text));
    }
    match store {
        Some(store) => store_error(store),
        None if of_system.is_some_and(|e| e.raw_os_error().is_some()) => {
            Error::store(first_line(&text)).help(DISK_HELP)
        }
        None => query_error(root),
    }
}

/// The message of the panic that ended a task of a query.
fn panic_of_task(error: &DataFusionError) -> Option<String> {
    // DataFusion shares the error of a task that several others read from.
    let shared = || find_in_chain::<Arc<JoinError>>(error).map(Arc::as_ref);
    let ended = find_in_chain::<JoinError>(error).or_else(shared)?;
    let text = ended.to_string();
    let message = text.split_once("panicked with message ").map_or("", |(_, message)| message);
    ended.is_panic().then(|| first_line(message.trim_matches('"')))
}

impl Error {
    /// The error of a query in which a kernel or a decoder panicked.
    pub(crate) fn query_broke_off() -> Self {
        Self::data("the query broke off").help(
            "a value became too large (2 GB is the most that one column of a batch may hold), or a file is damaged",
        )
    }

    /// The error of a store that this error was made from, where there is one.
    pub(crate) fn cause_in_store(&self) -> Option<&object_store::Error> {
        find_in_chain(self)
    }
}

impl From<object_store::Error> for Error {
    fn from(error: object_store::Error) -> Self {
        DataFusionError::ObjectStore(Box::new(error)).into()
    }
}

impl From<ArrowError> for Error {
    fn from(error: ArrowError) -> Self {
        DataFusionError::from(error).into()
    }
}

impl From<ParquetError> for Error {
    fn from(error: ParquetError) -> Self {
        DataFusionError::from(error).into()
    }
}

/// The help line for a query that needs more memory than its limit.
pub const QUERY_MEMORY_HELP: &str = "raise engine.memory_limit, or set a smaller engine.threads";

/// The help line for a name that no object store takes.
pub const NAME_HELP: &str = "rename the file: no object store takes a control character in a name";

/// The help line for a file that cannot be read as what it is.
pub const DAMAGED_HELP: &str =
    "the file is damaged, cut short, or not what its name says: write it again";

const DISK_HELP: &str =
    "check the path, its rights and the room on the disk, then run the job again";

const STORE_HELP: &str =
    "check the URL, the endpoint and the credentials in the environment, then run the job again";

const WRITE_HELP: &str =
    "check the path or the URL, its rights and the room there; `stored as parquet` names the cause";

const NO_PARQUET_HELP: &str =
    "cast the column, for example with cast(x as text), or use another format than Parquet";

const TRY_CAST: &str = "in a query, write try_cast for cast, which makes such a value null, or leave such rows out with `where`";

/// An error of a store, whether a query met it or a reader of files passed it on.
fn store_error(error: &object_store::Error) -> Error {
    use object_store::Error as StoreError;
    let text = error.to_string();
    match error {
        StoreError::InvalidPath { .. } => Error::data(text.replace('\n', "\\n")).help(NAME_HELP),
        StoreError::NotFound { .. } => Error::data(first_line(&text)),
        _ if is_local(error) => match find_in_chain::<std::io::Error>(error) {
            Some(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                Error::spec("this user may not read or write it").found(first_line(&text))
            }
            _ => Error::store(first_line(&text)),
        }
        .help(DISK_HELP),
        _ if is_not_implemented(error) => {
            Error::spec("the store does not know a request that this job needs")
                .found(first_line(&text))
                .help("trying again does not help: use another store, or a local folder")
        }
        _ => Error::store(first_line(&text)).help(STORE_HELP),
    }
}

fn is_local(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::Generic { store: "LocalFileSystem" | "local disk", .. })
}

/// Whether an error quotes a query or a value.
fn quotes_input(root: &DataFusionError) -> bool {
    match root {
        DataFusionError::SQL(..)
        | DataFusionError::Plan(_)
        | DataFusionError::SchemaError(..)
        | DataFusionError::Configuration(_)
        | DataFusionError::NotImplemented(_) => true,
        DataFusionError::Execution(text) => text.starts_with("Cannot cast "),
        DataFusionError::ArrowError(error, _) => !matches!(
            error.as_ref(),
            ArrowError::ExternalError(_)
                | ArrowError::IoError(..)
                | ArrowError::IpcError(_)
                | ArrowError::MemoryError(_)
                | ArrowError::ParquetError(_)
        ),
        _ => false,
    }
}

/// The beginnings of the errors of DataFusion's writers of CSV and JSON when a store fails.
const UNFINISHED_WRITE: &str = "Error encountered while finalizing writes";
const FAILED_WRITE: &str = "Error writing to object store";

/// An error of a query in whose chain there is no error of a store.
fn query_error(root: &DataFusionError) -> Error {
    let text = first_line(&root.strip_backtrace());
    match root {
        DataFusionError::SQL(error, _) => Error::spec(not_sql(error)).help(SQL_HELP),
        DataFusionError::SchemaError(error, _) => match error.as_ref() {
            SchemaError::FieldNotFound { field, valid_fields } => no_column(field, valid_fields),
            _ => Error::spec(text),
        },
        DataFusionError::Plan(_)
        | DataFusionError::Configuration(_)
        | DataFusionError::NotImplemented(_) => Error::spec(text).help(SQL_HELP),
        // The writers of text files lose the store's error, or keep no more than its words.
        DataFusionError::Internal(text) if text.starts_with(UNFINISHED_WRITE) => {
            Error::store("a file cannot be written to the end; a part of it may be there")
                .help(WRITE_HELP)
        }
        DataFusionError::Execution(text) if text.starts_with(FAILED_WRITE) => {
            Error::store(first_line(text)).help(WRITE_HELP)
        }
        DataFusionError::Internal(_) => Error::new(Stage::Bug, Problem::new(text)),
        DataFusionError::ParquetError(error) => match error.as_ref() {
            ParquetError::NYI(what) => Error::data(first_line(what)).help(NO_PARQUET_HELP),
            _ => Error::data(text).help(DAMAGED_HELP),
        },
        DataFusionError::ArrowError(error, _) => match error.as_ref() {
            ArrowError::ParquetError(what) => Error::data(first_line(what)).help(DAMAGED_HELP),
            ArrowError::IpcError(_) => Error::data(text).help(DAMAGED_HELP),
            ArrowError::IoError(_, error) if is_of_content(error.kind()) => {
                Error::data(text).help(DAMAGED_HELP)
            }
            error => value_error(error).unwrap_or_else(|| Error::data(text)),
        },
        // A time that the finer unit of another file, or of a query, cannot hold.
        DataFusionError::Execution(text) if text.starts_with("Cannot cast ") => {
            not_cast(text).help(format!("write times with one unit in every file; {TRY_CAST}"))
        }
        _ => Error::data(text),
    }
}

/// Whether an error of reading is about the bytes that were read: decompressors report damage by these kinds.
fn is_of_content(kind: std::io::ErrorKind) -> bool {
    use std::io::ErrorKind::{InvalidData, InvalidInput, Other, UnexpectedEof};
    matches!(kind, InvalidData | InvalidInput | Other | UnexpectedEof)
}

/// The error of a computation or a cast that has no result, in a query or of labelmill's own.
fn value_error(error: &ArrowError) -> Option<Error> {
    Some(match error {
        ArrowError::DivideByZero => Error::data("a query divides by zero").help(
            "write nullif(divisor, 0) for the divisor, which makes the quotient null, or leave such rows out with `where`",
        ),
        ArrowError::ArithmeticOverflow(text) => {
            let numbers = text.strip_prefix("Overflow happened on: ").unwrap_or(text);
            let what = format!("a number is too large for its type: {numbers}");
            Error::data(first_line(&what)).help(
                "in a query, cast to a wider type before computing, such as cast(x as double)",
            )
        }
        ArrowError::CastError(text) => not_cast(text).help(TRY_CAST),
        ArrowError::InvalidArgumentError(text) => Error::data(first_line(text))
            .help("a file is damaged: write it again; or a query has a value that is not allowed there"),
        _ => return None,
    })
}

fn not_cast(text: &str) -> Error {
    let what = text.strip_prefix("Cannot cast ").unwrap_or(text);
    Error::data(first_line(&format!("a value cannot be cast: {what}")))
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int8Array, StringArray};
    use arrow::compute::kernels::numeric::mul;
    use arrow::compute::{CastOptions, cast_with_options};
    use arrow::datatypes::{DataType, TimeUnit};
    use datafusion::scalar::ScalarValue;

    use super::*;

    fn code_and_text(error: impl Into<Error>) -> (u8, String) {
        let error = error.into();
        (error.exit_code(), error.to_string())
    }

    #[test]
    fn a_store_that_fails_while_a_file_is_decoded_is_worth_another_try() {
        let store = |store| object_store::Error::Generic { store, source: "broke off".into() };
        for (name, help) in [("LocalFileSystem", DISK_HELP), ("S3", STORE_HELP)] {
            let (code, text) = code_and_text(ParquetError::External(Box::new(store(name))));
            assert_eq!(code, 5, "{text}");
            assert!(text.contains("broke off") && text.contains(help), "{text}");
        }
        let damaged = code_and_text(ParquetError::General("bad page".to_owned()));
        assert!(damaged.0 == 3 && damaged.1.contains(DAMAGED_HELP), "{damaged:?}");
        let unwritten = code_and_text(ParquetError::NYI("an interval".to_owned()));
        assert_eq!(unwritten, (3, format!("error: an interval\n  help: {NO_PARQUET_HELP}")));
    }

    #[test]
    fn what_this_process_lacks_is_told_from_data_and_servers_that_say_so() {
        let lack = "Too many open files (os error 24)";
        let store = |store, source: Box<dyn std::error::Error + Send + Sync>| {
            code_and_text(object_store::Error::Generic { store, source }).0
        };
        let own = || Box::new(std::io::Error::from_raw_os_error(libc::EMFILE));
        assert_eq!(store("local disk", lack.into()), 2);
        assert_eq!(store("S3", own()), 2);
        assert_eq!(store("S3", lack.into()), 5);
        let zstd = std::io::Error::other("Allocation error : not enough memory");
        assert_eq!(code_and_text(ParquetError::External(Box::new(zstd))).0, 2);
        let cast = format!("Cannot cast string '{lack}' to value of Int64 type");
        assert_eq!(code_and_text(ArrowError::CastError(cast.clone())).0, 3);
        assert_eq!(code_and_text(DataFusionError::Execution(cast)).0, 3);
    }

    #[tokio::test]
    async fn a_task_of_a_query_that_panics_is_described_as_any_panic() {
        for (message, code, found) in [
            ("zstd returned null pointer when creating new context", 2, "found: zstd returned"),
            (
                "buffer not large enough",
                3,
                "found: a panic: buffer not large enough\n  help: a value",
            ),
        ] {
            let ended = tokio::spawn(async move { panic!("{message}") }).await.unwrap_err();
            let ended = Arc::new(ended);
            let (got, text) = code_and_text(DataFusionError::External(Box::new(ended)));
            assert!(got == code && text.contains(found), "{got}: {text}");
        }
    }

    #[test]
    fn an_error_keeps_that_of_the_store_which_it_was_made_from() {
        let denied = object_store::Error::PermissionDenied { path: "x".into(), source: "y".into() };
        let error = Error::from(denied).at("sink.url");
        let cause = error.cause_in_store();
        assert!(matches!(cause, Some(object_store::Error::PermissionDenied { .. })), "{cause:?}");
        assert!(Error::store("x").cause_in_store().is_none());
    }

    #[test]
    fn a_query_without_memory_names_what_it_reads_and_the_limit() {
        let error: Error = DataFusionError::ResourcesExhausted("1 MB".to_owned()).into();
        let (code, text) = code_and_text(error.or_at("source.gold"));
        assert_eq!(code, 2, "{text}");
        let lines = ["where: source.gold", "found: 1 MB", "help: raise engine.memory_limit"];
        for part in ["than the run may take"].into_iter().chain(lines) {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_text_file_that_cannot_be_written_is_worth_another_try() {
        let unfinished = DataFusionError::Internal(format!("{UNFINISHED_WRITE}! Partial results"));
        let failed = DataFusionError::Execution(format!("{FAILED_WRITE}: no room"));
        for (error, part) in [(unfinished, "cannot be written to the end"), (failed, "no room")] {
            let (code, text) = code_and_text(error);
            assert!(code == 5 && text.contains(part) && text.contains(WRITE_HELP), "{text}");
        }
        assert_eq!(code_and_text(DataFusionError::Internal("x".to_owned())).0, 70);
    }

    /// The system's own errors are of the disk; a file that ends too early is damaged.
    #[test]
    fn a_disk_that_fails_while_a_file_is_decoded_is_worth_another_try() {
        let arrow = |e: std::io::Error| ArrowError::IoError(e.to_string(), e);
        let (code, text) = code_and_text(arrow(std::io::Error::from_raw_os_error(5)));
        assert!(code == 5 && text.contains(DISK_HELP), "{text}");
        let (code, text) = code_and_text(arrow(std::io::ErrorKind::UnexpectedEof.into()));
        assert!(code == 3 && text.contains(DAMAGED_HELP), "{text}");
        let (_, text) = code_and_text(arrow(std::io::ErrorKind::WriteZero.into()));
        assert!(!text.contains("damaged"), "{text}");
    }

    #[test]
    fn the_error_of_what_has_no_value_says_what_to_do() {
        let large = Int8Array::new_scalar(100);
        let overflow = mul(&large, &large).unwrap_err();
        let strict = CastOptions { safe: false, ..CastOptions::default() };
        let text = StringArray::from(vec!["x"]);
        let cast = cast_with_options(&text, &DataType::Int8, &strict).unwrap_err();
        let far = ScalarValue::TimestampSecond(Some(10_i64.pow(15)), None);
        let time = far.cast_to(&DataType::Timestamp(TimeUnit::Nanosecond, None)).unwrap_err();
        let (code, text) = code_and_text(time);
        assert!(code == 3 && text.contains("a value cannot be cast: Timestamp(s) value"), "{text}");
        assert!(text.contains("write times with one unit in every file"), "{text}");
        for (error, what, help) in [
            (ArrowError::DivideByZero, "divides by zero", "nullif(divisor, 0)"),
            (overflow, "too large for its type: 100 * 100", "cast(x as double)"),
            (cast, "cannot be cast: string 'x' to value of Int8", "try_cast"),
        ] {
            let (code, text) = code_and_text(error);
            assert!(code == 3 && text.contains(what) && text.contains(help), "{text}");
        }
    }
}
