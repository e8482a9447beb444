//! The command line, and the only place that prints: results to stdout where asked, all else to stderr.

mod args;
mod environment;
mod plain_table;
mod progress;
mod publish;
mod shared_args;
mod summary;
mod terminal;
mod text_table;
mod verbs;

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, SystemTime};

use clap::Parser;
use futures::FutureExt;

pub use crate::process::allocator::BoundedAllocator;
pub use args::Args;

use crate::engine::available_memory;
use crate::error::{Error, Result};
use crate::panics;
use crate::process::signals::{SignalStream, Signals};
use crate::process::threads::STACK_BYTES;
use crate::process::{libc_heap, refuse, resident, signals, threads};
use terminal::{print_error, print_help, print_usage_error, start_logging};

/// Runs the command that the process was called with.
///
/// # Why
/// It runs in a thread whose stack is there from the start. The stack of the main thread grows, and where the system
/// gives no more memory for it, a signal ends the process.
#[must_use]
pub fn main() -> ExitCode {
    signals::defer();
    libc_heap::reserve();
    panics::keep_places(refuse::refuse_thread);
    let done =
        thread::Builder::new().stack_size(STACK_BYTES).spawn(run).map(thread::JoinHandle::join);
    match done {
        Ok(code) => code.unwrap_or_else(|panic| failed(&broken_off(&*panic))),
        Err(e) => failed(&Error::exhausted(e.to_string())),
    }
}

fn run() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(e) => {
            if e.use_stderr() {
                start_logging(args::log_format_of(std::env::args_os()), false, 0);
                print_usage_error(e.render().to_string().trim_end());
            } else if let Err(error) = print_help(&e) {
                return failed(&error);
            }
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
    start_logging(args.log_format, args.quiet, args.verbose);
    resident::watch(available_memory);
    let done = std::panic::catch_unwind(AssertUnwindSafe(|| {
        check_clock()?;
        block_on(args)
    }));
    match done.unwrap_or_else(|panic| Err(broken_off(&*panic))) {
        Ok(code) => code,
        Err(error) => {
            tracing::debug!(?error, "failed");
            failed(&error)
        }
    }
}

/// Prints the error; returns its exit code.
fn failed(error: &Error) -> ExitCode {
    refuse::print_alone();
    print_error(error);
    ExitCode::from(error.exit_code())
}

/// Checks that the clock is between 1970 and 9999. Timestamps have years of four digits; writing any other time would
/// panic.
#[allow(clippy::disallowed_methods)]
fn check_clock() -> Result<()> {
    check_time(SystemTime::now())
}

fn check_time(now: SystemTime) -> Result<()> {
    const LAST: Duration = Duration::from_secs(253_402_300_799);
    match now.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) if since <= LAST => Ok(()),
        _ => Err(Error::spec("the clock of this machine is before 1970 or after 9999")
            .help("set the clock: what is published is stamped with the time")),
    }
}

fn block_on(args: Args) -> Result<ExitCode> {
    let watch = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let watch = watch.map_err(|e| Error::exhausted(e.to_string()))?;
    // Before the workers start, which takes longer than everything before.
    let stream = watch.block_on(async { SignalStream::new() });
    signals::deliver();
    let workers = threads::start_workers()?;
    let code = watch.block_on(async {
        let signals = Signals::listen(stream, workers.handle().clone());
        let done = AssertUnwindSafe(Box::pin(verbs::dispatch(args, signals))).catch_unwind().await;
        done.unwrap_or_else(|panic| Err(broken_off(&*panic)))
    });
    // The workers end with the process. Dropping the runtime would wait for workers that may never have got a thread, and
    // a shutdown would cancel tasks of an interrupted command, which could still print that as an error.
    std::mem::forget(workers);
    code
}

fn broken_off(panic: &(dyn std::any::Any + Send)) -> Error {
    Error::of_panic(panic, Error::bug("a command broke off"))
}

#[cfg(test)]
mod tests {
    #[cfg(target_os = "linux")]
    use std::io::Write;

    use super::*;
    #[cfg(target_os = "linux")]
    use crate::engine::EngineSpec;
    #[cfg(target_os = "linux")]
    use crate::process::refuse::tests::{CHILD, child};

    #[test]
    fn times_that_cannot_be_written_are_refused() {
        let epoch = SystemTime::UNIX_EPOCH;
        assert!(check_time(epoch).is_ok());
        for wrong in [epoch - Duration::from_secs(1), epoch + Duration::from_hours(100_000_000)] {
            let error = check_time(wrong).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains("set the clock"), "{error}");
        }
    }

    /// Runs commands, some of which fail, and prints the bound that each of them leaves.
    #[cfg(target_os = "linux")]
    fn bounds_of_commands() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let (file, nowhere) = (path("pipeline.toml"), path("nowhere"));
        let text = "source.annotations = [['i', 'a', 'x']]\nmodel.kind = 'majority_vote'\n\
                    engine.memory_limit = '64MiB'\n";
        std::fs::write(&file, format!("{text}sink.url = '{}'\n", path("out"))).unwrap();
        let limit = ["--memory-limit", "64MiB"];
        for command in [
            &["run", &file][..],
            &["check", &file],
            &["explain", &file],
            &["test", &file],
            &["sql", "-c", "select 1", limit[0], limit[1]],
            &["evaluate", "--run", &nowhere, "--truth", &nowhere, limit[0], limit[1]],
            &["simulate", "--list", limit[0], limit[1]],
            &["models"],
        ] {
            let args = std::iter::once(&"labelmill").chain(command);
            let _ = block_on(Args::try_parse_from(args).unwrap());
            let bound = crate::process::allocator::job_limit();
            writeln!(std::io::stderr(), "{} {bound}", command[0]).unwrap();
            crate::process::allocator::bound_job(usize::MAX);
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn every_command_bounds_the_memory_of_the_process() {
        if std::env::var_os(CHILD).is_some() {
            return bounds_of_commands();
        }
        let (code, output) = child("every_command_bounds_the_memory");
        assert_eq!(code, Some(0), "{output}");
        for command in ["run", "check", "explain", "test", "sql", "evaluate", "simulate"] {
            // The limit and 2 GiB.
            let line = format!("{command} {}", (64 << 20) + (2_usize << 30));
            assert!(output.lines().any(|found| found == line), "{line}: {output}");
        }
        let usual = EngineSpec::default().allocation_bound();
        assert!(output.contains(&format!("models {usual}\n")), "{output}");
    }
}
