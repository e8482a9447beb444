//! The command line: its commands, the arguments of which are those of the verbs, and what all of them take.

use std::ffi::OsString;

use clap::{ArgAction, Parser, Subcommand};

use super::shared_args::{FileArgs, LogFormat};
use super::verbs::aggregate::AggregateArgs;
use super::verbs::agreement::AgreementArgs;
use super::verbs::evaluate::EvaluateArgs;
use super::verbs::models::ModelsArgs;
use super::verbs::predict::PredictArgs;
use super::verbs::run::RunArgs;
use super::verbs::simulate::SimulateArgs;
use super::verbs::sql::SqlArgs;

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
