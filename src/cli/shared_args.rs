//! Arguments that several commands take.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use crate::engine::check_limit;
use crate::error::{Error, Result};
use crate::regular_file;
use crate::store::StoreSpec;

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// A pipeline file, and the settings and variables that the command line adds.
#[derive(Debug, clap::Args)]
pub struct FileArgs {
    /// The pipeline file
    pub file: PathBuf,
    /// Override a key of the file, such as model.stop.max_iter=20
    #[arg(long, value_name = "KEY.PATH=VALUE")]
    pub set: Vec<String>,
    /// Give a variable of the file, ${name}, its value
    #[arg(long, value_name = "NAME=VALUE")]
    pub var: Vec<String>,
}

/// How a job runs.
#[derive(Debug, clap::Args)]
pub struct JobArgs {
    /// Run the job again even if it is already committed, under a run id of its own
    #[arg(long)]
    pub force: bool,
    /// Print the summary as JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// What becomes of a run that a gate refuses.
#[derive(Debug, clap::Args)]
pub struct GateArgs {
    /// Publish a run that a gate refuses under rejected/ of the sink, never as latest; the exit code stays 6
    #[arg(long)]
    pub keep_rejected: bool,
}

/// The memory and the store of a command that runs queries.
#[derive(Debug, clap::Args)]
pub struct QueryArgs {
    /// Memory limit, such as 512MiB or 16GB: queries spill to disk beyond it; left out, 4GiB, or three quarters of the
    /// machine's memory if that is less
    #[arg(long, value_name = "AMOUNT", value_parser = amount)]
    pub memory_limit: Option<String>,
    /// Endpoint of an S3-compatible store
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
}

impl QueryArgs {
    pub(super) fn stores(&self) -> StoreSpec {
        store(self.endpoint.as_deref())
    }
}

/// An amount of memory, as `[engine] memory_limit` takes it.
pub(super) fn amount(text: &str) -> Result<String, String> {
    match check_limit(text) {
        Ok(()) => Ok(text.to_owned()),
        Err((what, help)) => Err(format!("{what}: {help}")),
    }
}

/// The stores of a command without a pipeline file.
pub(super) fn store(endpoint: Option<&str>) -> StoreSpec {
    StoreSpec { endpoint: endpoint.map(str::to_owned), ..StoreSpec::default() }
}

/// The text of a file that an argument names.
pub(super) fn read_text(path: &Path) -> Result<String> {
    regular_file::read_text(path).map_err(|e| {
        let help = match e.kind() {
            ErrorKind::InvalidData => "write the file in UTF-8",
            ErrorKind::InvalidInput => "save the text to a file of its own, and name that one",
            _ => "the path is taken from the working folder",
        };
        let failed = Error::spec(format!("cannot read the file: {e}"));
        Error::of_io(&e, failed.at(path.display().to_string()).help(help))
    })
}
