//! The command-line arguments.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::{ArgAction, Parser, Subcommand, ValueEnum};

use crate::engine::check_limit;
use crate::error::{Error, Result};
use crate::regular_file;
use crate::source::Normalisation;
use crate::store::StoreSpec;

/// Turns many unreliable annotators' labels into labels you can train on.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// The format of messages, errors and log lines.
    #[arg(long, global = true, value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// Log more lines; -vv logs every iteration.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// Log errors only.
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The log format that the arguments ask for, for those that cannot be parsed as a whole.
pub(super) fn log_format_of(args: impl IntoIterator<Item = OsString>) -> LogFormat {
    let args: Vec<OsString> = args.into_iter().collect();
    let is_json = args.iter().any(|arg| arg == "--log-format=json")
        || args.array_windows().any(|[flag, value]| flag == "--log-format" && value == "json");
    if is_json { LogFormat::Json } else { LogFormat::Text }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a pipeline file
    Run(RunArgs),
    /// Run a job without a pipeline file
    Aggregate(AggregateArgs),
    /// Check a pipeline and its schemas; reads no rows but the first thousand of text files
    Check(FileArgs),
    /// Show what a run would do; writes nothing
    Explain(FileArgs),
    /// List the models, or the parameters of one
    Models(ModelsArgs),
    /// Print the JSON Schema of the pipeline file
    Schema,
    /// Run SQL over a run's tables and any other source
    Sql(SqlArgs),
    /// Score a run against true classes
    Evaluate(EvaluateArgs),
    /// Measure how far annotators agree beyond chance
    Agreement(AgreementArgs),
    /// Predict new features with a trained model
    Predict(PredictArgs),
    /// Make annotations for a table of true classes
    Simulate(SimulateArgs),
    /// Run the [[test]] blocks of a pipeline file
    Test(FileArgs),
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

#[derive(Debug, clap::Args)]
#[allow(missing_docs)]
pub struct RunArgs {
    #[command(flatten)]
    pub file: FileArgs,
    #[command(flatten)]
    pub job: JobArgs,
    #[command(flatten)]
    pub gate: GateArgs,
}

/// A job without a pipeline file.
#[derive(Debug, clap::Args)]
pub struct AggregateArgs {
    /// The annotations: a file, a folder or a glob on local disk or an object store
    #[arg(long, value_name = "URL")]
    pub annotations: String,
    /// Features of the instances
    #[arg(long, value_name = "URL")]
    pub features: Option<String>,
    /// Trusted classes
    #[arg(long, value_name = "URL")]
    pub gold: Option<String>,
    /// Pairs of an instance and an annotator whose competence is asked for (`lia`, `lia_multi`)
    #[arg(long, value_name = "URL")]
    pub pairs: Option<String>,
    /// One of the kinds that `labelmill models` lists
    #[arg(long, value_name = "KIND")]
    pub model: String,
    /// Set any key of a pipeline file, such as source.columns.instance=item
    #[arg(long, value_name = "KEY.PATH=VALUE")]
    pub set: Vec<String>,
    /// A folder for the tables, on local disk or an object store
    #[arg(long, value_name = "URL")]
    pub output: String,
    /// How the job runs.
    #[command(flatten)]
    pub job: JobArgs,
    /// What becomes of a run that a gate refuses.
    #[command(flatten)]
    pub gate: GateArgs,
}

#[derive(Debug, clap::Args)]
#[allow(missing_docs)]
pub struct ModelsArgs {
    /// One of the kinds
    pub kind: Option<String>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// SQL over tables.
#[derive(Debug, clap::Args)]
pub struct SqlArgs {
    /// The query
    #[arg(short, long, value_name = "QUERY", conflicts_with = "file", allow_hyphen_values = true)]
    pub command: Option<String>,
    /// A file with the query
    pub file: Option<PathBuf>,
    /// A published run, or the folder it was published to: its tables by name
    #[arg(long, value_name = "URL")]
    pub run: Option<String>,
    /// Run a query that ships with labelmill over the tables of --run
    #[arg(long, value_name = "NAME", conflicts_with_all = ["command", "file"], requires = "run")]
    pub query: Option<String>,
    /// Set a parameter of the named query, such as n=50
    #[arg(long, value_name = "NAME=VALUE", requires = "query")]
    pub param: Vec<String>,
    /// List the named queries with their parameters
    #[arg(long, conflicts_with_all = ["command", "file", "query"])]
    pub list: bool,
    /// Any other source as a table; of a named query, where annotations or gold are now
    #[arg(long, value_name = "NAME=URL")]
    pub table: Vec<String>,
    /// Let statements change or write something, such as COPY; without it only queries run
    #[arg(long)]
    pub write: bool,
    /// Print one JSON object a row
    #[arg(long)]
    pub json: bool,
    /// Memory limit, such as 512MiB or 16GB: queries spill to disk beyond it; left out, 4GiB, or three quarters of the
    /// machine's memory if that is less
    #[arg(long, value_name = "AMOUNT", value_parser = amount)]
    pub memory_limit: Option<String>,
    /// Endpoint of an S3-compatible store
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
}

/// The run to score, the true classes, and the options of the scores.
#[derive(Debug, clap::Args)]
pub struct EvaluateArgs {
    /// A published run, or the folder it was published to
    #[arg(long, value_name = "URL")]
    pub run: String,
    /// The true classes: instance_id, and class or label
    #[arg(long, value_name = "URL")]
    pub truth: String,
    /// The truth's name for instance_id
    #[arg(long, value_name = "NAME")]
    pub instance_column: Option<String>,
    /// The truth's name for class
    #[arg(long, value_name = "NAME")]
    pub class_column: Option<String>,
    /// True confusion matrices: annotator_id, class, label, probability
    #[arg(long, value_name = "URL")]
    pub confusion: Option<String>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
    /// Memory limit, such as 512MiB or 16GB: queries spill to disk beyond it; left out, 4GiB, or three quarters of the
    /// machine's memory if that is less
    #[arg(long, value_name = "AMOUNT", value_parser = amount)]
    pub memory_limit: Option<String>,
    /// Endpoint of an S3-compatible store
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
}

/// The annotations whose agreement is measured.
#[derive(Debug, clap::Args)]
pub struct AgreementArgs {
    /// The annotations: a file, a folder or a glob on local disk or an object store
    #[arg(long, value_name = "URL")]
    pub annotations: String,
    /// Measure each group of annotations too: those with one value in this column
    #[arg(long, value_name = "COLUMN")]
    pub by: Vec<String>,
    /// Set a key of a pipeline file, such as source.columns.instance=item
    #[arg(long, value_name = "KEY.PATH=VALUE")]
    pub set: Vec<String>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Predictions of a trained model.
#[derive(Debug, clap::Args)]
pub struct PredictArgs {
    /// A run of a model that learned from features, the folder it was published to, or a model folder
    #[arg(long, value_name = "URL")]
    pub model: String,
    /// Features of new instances: instance_id, and a column of lists or columns of numbers
    #[arg(long, value_name = "URL")]
    pub features: String,
    /// A folder for the predictions, on local disk or an object store
    #[arg(long, value_name = "URL")]
    pub output: String,
    /// The features' name for instance_id
    #[arg(long, value_name = "NAME")]
    pub instance_column: Option<String>,
    /// The column of lists
    #[arg(long, value_name = "NAME")]
    pub features_column: Option<String>,
    /// The device: auto, cpu or cuda:0
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Memory limit, such as 512MiB or 4GB: features beyond half of it go to a scratch file
    #[arg(long, value_name = "AMOUNT", value_parser = amount)]
    pub memory_limit: Option<String>,
    /// Folder for the scratch file, if not the system's temporary one
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<String>,
    /// Endpoint of an S3-compatible store
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// How the job runs.
    #[command(flatten)]
    pub job: JobArgs,
}

/// A crowd to draw.
#[derive(Debug, clap::Args)]
pub struct SimulateArgs {
    /// List the recipes with their parameters, and the types of annotators
    #[arg(long)]
    pub list: bool,
    /// The true classes: instance_id, and class or label
    #[arg(long, value_name = "URL")]
    pub truth: Option<String>,
    /// One of the names that --list shows
    #[arg(long, value_name = "NAME", required_unless_present = "list")]
    pub recipe: Option<String>,
    /// A folder for the tables, which does not exist yet
    #[arg(long, value_name = "URL", required_unless_present = "list")]
    pub output: Option<String>,
    /// The seed of every random stream
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Set a parameter of the recipe
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// The truth's and the annotations' name for instance_id
    #[arg(long, value_name = "NAME")]
    pub instance_column: Option<String>,
    /// The annotations' name for annotator_id
    #[arg(long, value_name = "NAME")]
    pub annotator_column: Option<String>,
    /// The annotations' name for label
    #[arg(long, value_name = "NAME")]
    pub label_column: Option<String>,
    /// The truth's name for class
    #[arg(long, value_name = "NAME")]
    pub class_column: Option<String>,
    /// Features of the instances, for recipes whose noise depends on them
    #[arg(long, value_name = "URL")]
    pub features: Option<String>,
    /// Annotations of the instances, for recipes that start from a given crowd
    #[arg(long, value_name = "URL")]
    pub annotations: Option<String>,
    /// A word that stands for a missing value in the files, such as NA; may be given several times
    #[arg(long, value_name = "WORD")]
    pub null_value: Vec<String>,
    /// What is done with ids, classes and labels of the files: trim removes outer spaces, lower makes letters lower case;
    /// may be given twice
    #[arg(long, value_name = "STEP", value_parser = step)]
    pub normalise: Vec<Normalisation>,
    /// Memory limit, such as 512MiB or 4GB: features beyond half of it go to a scratch file
    #[arg(long, value_name = "AMOUNT", value_parser = amount)]
    pub memory_limit: Option<String>,
    /// Endpoint of an S3-compatible store
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// Print the summary, or the list, as JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// An amount of memory, as `[engine] memory_limit` takes it.
fn amount(text: &str) -> Result<String, String> {
    match check_limit(text) {
        Ok(()) => Ok(text.to_owned()),
        Err((what, help)) => Err(format!("{what}: {help}")),
    }
}

/// A step of `[source] normalise`.
fn step(text: &str) -> Result<Normalisation, String> {
    serde_json::from_value(text.into()).map_err(|_| "a step is trim or lower".to_owned())
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::{commands, pipeline, simulate};

    #[test]
    fn what_errors_advise_a_command_takes() {
        let all = Args::command();
        for (name, advice) in [
            ("run", pipeline::ADVICE),
            ("predict", commands::predict::ADVICE),
            ("simulate", simulate::ADVICE),
        ] {
            let options = all.find_subcommand(name).unwrap().get_arguments();
            let options: Vec<_> =
                options.filter_map(|o| o.get_long()).map(|o| format!("--{o}")).collect();
            let advice = [advice.taken, advice.taken_meanwhile, advice.swept].join(" ");
            for word in advice.split([' ', ',']).filter(|word| word.starts_with("--")) {
                assert!(options.contains(&word.to_owned()), "`{name}` has no {word}");
            }
            let names_keys = advice.contains("sink.");
            assert!(!names_keys || name == "run", "`{name}` takes no key: {advice}");
        }
    }
}
