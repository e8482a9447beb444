//! The command line, and the only place that prints: results to stdout where asked, all else to stderr.

mod allocator;
mod args;
mod dispatch;
mod progress;
mod publish;
mod resident;
mod signals;
mod simulate;
mod sql;
mod summary;
mod terminal;
mod text_table;

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, SystemTime};

use clap::Parser;
use futures::FutureExt;
use tokio::runtime::Runtime;
use tracing_subscriber::EnvFilter;

pub use allocator::BoundedAllocator;
pub use args::Args;
use args::LogFormat;

use crate::engine::available_memory;
use crate::error::{Error, Result};
use crate::panics;
use signals::Signals;
use terminal::{Log, print_help, print_json, print_message, print_result};

/// Runs the command that the process was called with.
#[must_use]
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(e) => {
            if e.use_stderr() {
                print_message(e.render().to_string().trim_end());
            } else if let Err(error) = print_help(&e) {
                return failed(&error);
            }
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
    start_logging(&args);
    panics::keep_places(allocator::refuse_thread);
    resident::watch(available_memory);
    // A panic while the runtime is built, for example on an invalid number of threads, is reported like any other
    // defect.
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
    print_message(&error.to_string());
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
    let no_runtime = |e: std::io::Error| Error::exhausted(e.to_string());
    try_threads().map_err(no_runtime)?;
    let workers = workers().map_err(no_runtime)?;
    let code = hold_threads(&workers).and_then(|()| {
        let watch = tokio::runtime::Builder::new_current_thread().enable_all().build();
        watch.map_err(no_runtime)?.block_on(async {
            let signals = Signals::listen(workers.handle().clone());
            let done = AssertUnwindSafe(dispatch::dispatch(args, signals)).catch_unwind().await;
            done.unwrap_or_else(|panic| Err(broken_off(&*panic)))
        })
    });
    // Dropping the runtime would wait for workers that may never have got a thread.
    workers.shutdown_background();
    code
}

/// The least number of blocking threads for file operations.
const FILE_THREADS: usize = 4;
/// The bytes of a worker's stack.
const STACK_BYTES: usize = 8 << 20;
/// After so long without the start of a thread, the system is asked for one again.
const THREAD_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How often it is asked again, until it counts as one that refuses threads.
const MAX_THREAD_RETRIES: usize = 9;

/// Builds the runtime of the workers.
///
/// # Why
/// Where the system grants a thread to one worker and refuses it to the next, tokio's builder panics, and waits for the
/// first worker forever while it unwinds. So it has a thread of its own, for which nobody waits longer than
/// [`wait_for_thread`].
fn workers() -> std::io::Result<Runtime> {
    let (sender, runtime) = mpsc::channel();
    let build = move || {
        let workers = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .thread_stack_size(STACK_BYTES)
            .thread_keep_alive(Duration::MAX)
            .build();
        drop(sender.send(workers));
    };
    thread::Builder::new().spawn(build)?;
    wait_for_thread(|| runtime.recv_timeout(THREAD_RETRY_INTERVAL).ok(), || (), try_thread)?
}

/// Starts as many threads as the runtime will at first, and lets them end.
///
/// # Why
/// It fails at once where [`workers`] would first wait.
fn try_threads() -> std::io::Result<()> {
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let gate = Mutex::new(());
    thread::scope(|scope| {
        let shut = gate.lock();
        let start = |_| {
            let waiting = || drop(gate.lock());
            thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, waiting).map(drop)
        };
        let started = (0..workers + FILE_THREADS).try_for_each(start);
        drop(shut);
        started
    })
}

/// Makes the runtime start at least [`FILE_THREADS`] now.
///
/// # Why
/// Where the system grants no more threads, tokio queues a file operation for a blocking thread that is busy. If every
/// such thread has taken over a worker, none becomes free, and the job waits forever. Nor does tokio ask for the thread
/// again once the system would grant it, unless there is another operation.
fn hold_threads(workers: &Runtime) -> Result<()> {
    let (started, starts) = mpsc::channel();
    let (go, _) = tokio::sync::broadcast::channel::<()>(1);
    let hold_one = || {
        let (started, mut wait) = (started.clone(), go.subscribe());
        workers.spawn_blocking(move || {
            let _ = started.send(());
            let _ = wait.blocking_recv();
        });
    };
    (0..FILE_THREADS).for_each(|_| hold_one());
    let has_started = || starts.recv_timeout(THREAD_RETRY_INTERVAL).ok();
    for _ in 0..FILE_THREADS {
        wait_for_thread(has_started, hold_one, try_thread).map_err(|why| {
            Error::exhausted(format!("fewer than {FILE_THREADS} threads for files: {why}"))
        })?;
    }
    Ok(())
}

/// Starts a thread and lets it end.
fn try_thread() -> std::io::Result<()> {
    let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn(|| ())?;
    thread.join().map_err(|_| std::io::Error::other("a thread broke off"))
}

/// What a thread sends when it has started. `look` waits for it a while, `ask_again` asks the system for the thread once
/// more, and `probe` finds out whether the system grants any thread: tokio does not say.
///
/// # Errors
/// The second refusal in a row, or no start after [`MAX_THREAD_RETRIES`].
fn wait_for_thread<T>(
    look: impl Fn() -> Option<T>,
    ask_again: impl Fn(),
    probe: impl Fn() -> std::io::Result<()>,
) -> std::io::Result<T> {
    let mut was_refused = false;
    for _ in 0..MAX_THREAD_RETRIES {
        if let Some(message) = look() {
            return Ok(message);
        }
        ask_again();
        match probe() {
            Err(refusal) if was_refused => return Err(refusal),
            probed => was_refused = probed.is_err(),
        }
    }
    look().ok_or_else(|| std::io::Error::other("a thread does not start"))
}

fn broken_off(panic: &(dyn std::any::Any + Send)) -> Error {
    Error::of_panic(panic, Error::bug("a command broke off"))
}

fn start_logging(args: &Args) {
    let level = match (args.quiet, args.verbose) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "labelmill=info,warn",
        (false, 2) => "labelmill=debug,info",
        (false, _) => "trace",
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(level))
        .with_writer(Log { is_json: args.log_format == LogFormat::Json })
        .with_ansi(Log::has_colour());
    match args.log_format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().init(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

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

    /// What [`wait_for_thread`] returns, and how often it asks again, if the thread has started at the `start`-th look and
    /// the system refuses the probes `refused`.
    fn waited(start: usize, refused: &[usize]) -> (bool, usize) {
        let (looks, asked) = (Cell::new(0), Cell::new(0));
        let look = || (looks.replace(looks.get() + 1) == start).then_some(());
        let ask_again = || asked.set(asked.get() + 1);
        let probe = || {
            let refusal = || Err(std::io::Error::other("refused"));
            if refused.contains(&asked.get()) { refusal() } else { Ok(()) }
        };
        let done = wait_for_thread(look, ask_again, probe);
        (done.is_ok(), asked.get())
    }

    #[test]
    fn a_thread_is_asked_for_until_it_starts_or_the_system_refuses_twice_in_a_row() {
        assert_eq!(waited(0, &[]), (true, 0));
        assert_eq!(waited(2, &[1]), (true, 2));
        assert_eq!(waited(4, &[1, 3]), (true, 4));
        assert_eq!(waited(4, &[2, 3]), (false, 3));
        assert_eq!(waited(MAX_THREAD_RETRIES, &[]), (true, MAX_THREAD_RETRIES));
        assert_eq!(waited(MAX_THREAD_RETRIES + 1, &[]), (false, MAX_THREAD_RETRIES));
    }
}
