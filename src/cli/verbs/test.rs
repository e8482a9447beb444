//! `labelmill test`: runs the `[[test]]` blocks of a pipeline file.

use std::process::ExitCode;

use crate::cli::environment::load_without;
use crate::cli::shared_args::FileArgs;
use crate::cli::terminal::{print_error, print_message, print_warning};
use crate::commands::test::{Verdict, exit_code, run_tests};
use crate::error::{Error, Problem, Result, Stage};
use crate::process::log_format::logs_are_json;

pub(super) async fn command(args: &FileArgs) -> Result<ExitCode> {
    let spec = load_without(args, &["source", "sink"])?;
    let verdicts = run_tests(&spec).await;
    verdicts.iter().for_each(print_verdict);
    let passed = verdicts.iter().filter(|verdict| verdict.passed()).count();
    print_message(&format!("{passed} passed, {} failed", verdicts.len() - passed));
    Ok(ExitCode::from(exit_code(&verdicts)))
}

fn print_verdict(verdict: &Verdict) {
    let Verdict { name, result, warnings } = verdict;
    if verdict.passed() {
        return print_message(&format!("ok      {name}"));
    }
    if logs_are_json() {
        match result {
            Ok(rows) => {
                let failed = Problem::new(format!("the test `{name}` failed"));
                print_error(&Error::new(Stage::Gate, failed.found(rows.join("; "))));
            }
            Err(e) => print_error(e),
        }
        return warnings.iter().for_each(|warning| print_warning(warning));
    }
    print_message(&format!("FAILED  {name}"));
    let print_line = |line: &str| print_message(&format!("        {line}"));
    match result {
        Ok(rows) => rows.iter().for_each(|row| print_line(row)),
        Err(e) => e.to_string().lines().for_each(print_line),
    }
    warnings.iter().for_each(|warning| print_line(&format!("warning: {warning}")));
}
