//! Starts the threads of the process, or finds out soon that the system refuses them.

use std::io;
use std::sync::{Mutex, mpsc};
use std::time::Duration;
use std::{panic, thread};

use tokio::runtime::Runtime;

use crate::error::{Error, Result};

/// The least number of blocking threads for file operations.
const FILE_THREADS: usize = 4;
/// The bytes of a thread's stack.
pub(crate) const STACK_BYTES: usize = 8 << 20;
/// After so long without the start of a thread, the system is asked for one again.
const THREAD_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How often it is asked again, until it counts as one that refuses threads.
const MAX_THREAD_RETRIES: usize = 9;

/// Starts the runtime of the workers, with all workers and [`FILE_THREADS`].
///
/// # Errors
/// When the system refuses the threads.
pub(crate) fn start_workers() -> Result<Runtime> {
    try_threads().map_err(|e| refused(&e))?;
    let workers = workers()?;
    match hold_threads(&workers) {
        Ok(()) => Ok(workers),
        Err(error) => {
            workers.shutdown_background();
            Err(error)
        }
    }
}

/// Builds the runtime of the workers.
///
/// # Why
/// Where the system grants a thread to one worker and refuses it to the next, tokio's builder panics, and waits for the
/// first worker forever while it unwinds. So it has a thread of its own, for which nobody waits longer than
/// [`wait_for_thread`]. It also panics where the system opens no file for its signals, and for an invalid
/// `TOKIO_WORKER_THREADS`.
fn workers() -> Result<Runtime> {
    let (sender, runtime) = mpsc::channel();
    let build = || {
        tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .thread_stack_size(STACK_BYTES)
            .thread_keep_alive(Duration::MAX)
            .build()
    };
    let send = move || {
        let invalid = Error::spec("the threads of the workers cannot be set up")
            .help("leave TOKIO_WORKER_THREADS unset, or set it to a whole number above 0");
        let workers = match panic::catch_unwind(build) {
            Ok(workers) => workers.map_err(|e| refused(&e)),
            Err(panic) => Err(Error::of_panic(&*panic, invalid)),
        };
        drop(sender.send(workers));
    };
    thread::Builder::new().spawn(send).map_err(|e| refused(&e))?;
    let look = || runtime.recv_timeout(THREAD_RETRY_INTERVAL).ok();
    wait_for_thread(look, || (), try_thread).map_err(|e| refused(&e))?
}

fn refused(e: &io::Error) -> Error {
    Error::exhausted(e.to_string())
}

/// Starts as many threads as the runtime will at first, and lets them end.
///
/// # Why
/// It fails at once where [`workers`] would first wait.
fn try_threads() -> io::Result<()> {
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
fn try_thread() -> io::Result<()> {
    let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn(|| ())?;
    thread.join().map_err(|_| io::Error::other("a thread broke off"))
}

/// What a thread sends when it has started. `look` waits for it a while, `ask_again` asks the system for the thread once
/// more, and `probe` finds out whether the system grants any thread: tokio does not say.
///
/// # Errors
/// The second refusal in a row, or no start after [`MAX_THREAD_RETRIES`].
fn wait_for_thread<T>(
    look: impl Fn() -> Option<T>,
    ask_again: impl Fn(),
    probe: impl Fn() -> io::Result<()>,
) -> io::Result<T> {
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
    look().ok_or_else(|| io::Error::other("a thread does not start"))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// What [`wait_for_thread`] returns, and how often it asks again, if the thread has started at the `start`-th look and
    /// the system refuses the probes `refused`.
    fn waited(start: usize, refused: &[usize]) -> (bool, usize) {
        let (looks, asked) = (Cell::new(0), Cell::new(0));
        let look = || (looks.replace(looks.get() + 1) == start).then_some(());
        let ask_again = || asked.set(asked.get() + 1);
        let probe = || {
            let refusal = || Err(io::Error::other("refused"));
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
