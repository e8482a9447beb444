//! SIGINT and SIGTERM: a clean stop, and a hard one for whoever asks twice.
//!
//! # Why
//! Signals are listened to before anything else happens: one that came while a command still reads its arguments would
//! else end the process by the system's default, or be lost to a job that begins to listen a moment later.
//!
//! Whoever waits for a signal, or for the end of a job's patience, is never a thread that works: every worker may be
//! inside one call of a kernel for minutes, and would look at nothing else.

use std::future::Future;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::error::{Error, Result};
use crate::run::Cancel;

/// How long a job may take to stop by itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// The signals that came so far, and where work is done meanwhile.
#[derive(Debug, Clone)]
pub(super) struct Signals {
    seen: watch::Receiver<Received>,
    workers: Handle,
}

#[derive(Debug, Clone, Copy, Default)]
struct Received {
    times: usize,
    last: i32,
}

impl Signals {
    /// Listens from now on, by the runtime that this is called in.
    pub(super) fn listen(workers: Handle) -> Self {
        let (sender, receiver) = watch::channel(Received::default());
        let mut next = next_signal();
        outlive_file_limits();
        tokio::spawn(async move {
            while let Some(last) = next.recv().await {
                sender.send_modify(|seen| *seen = Received { times: seen.times + 1, last });
            }
        });
        Self { seen: receiver, workers }
    }

    /// Begins work on another thread than the one that waits for signals.
    fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> JoinHandle<Result<T>> {
        self.workers.spawn(work)
    }

    /// The number of the signal, once so many came.
    async fn came(&self, times: usize) -> i32 {
        let mut seen = self.seen.clone();
        let last = seen.wait_for(|seen| seen.times >= times).await.map(|seen| seen.last).ok();
        match last {
            Some(last) => last,
            None => std::future::pending().await,
        }
    }
}

/// Runs what leaves nothing behind: a signal ends it where it is.
///
/// # Errors
/// The work's own, or the interruption.
pub(super) async fn or_signalled<T: Send + 'static>(
    signals: &Signals,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let mut work = signals.spawn(work);
    tokio::select! {
        done = &mut work => flatten(done),
        signal = signals.came(1) => Err(Error::interrupted(signal)),
    }
}

/// Runs a job that checks `cancel`; a signal requests it.
///
/// # Errors
/// The job's own, or the interruption when the job did not stop in time.
pub(super) async fn until_signalled<T: Send + 'static>(
    signals: &Signals,
    cancel: &Cancel,
    job: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let mut job = signals.spawn(job);
    let signal = tokio::select! {
        done = &mut job => return flatten(done),
        signal = signals.came(1) => signal,
    };
    if cancel.request(signal) {
        tracing::warn!(signal, "stopping");
        return tokio::select! {
            done = &mut job => flatten(done),
            _ = signals.came(2) => Err(Error::interrupted(signal)),
            () = tokio::time::sleep(PATIENCE) => Err(Error::interrupted(signal)),
        };
    }
    // What the store was asked to commit is committed or not: the job says which.
    tracing::warn!(signal, "the run is being committed: waiting for the store");
    tokio::select! {
        done = &mut job => flatten(done),
        _ = signals.came(2) => Err(Error::interrupted(signal).what(if cancel.is_committed() {
            "stopped by a signal after the run was committed: `latest` may not point to it; run the job again"
        } else {
            "stopped by a signal while the store was asked to commit: the run may be committed, or be committed \
             later; run the job again to find out"
        })),
    }
}

fn flatten<T>(done: Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    done.unwrap_or_else(|e| {
        let error = Error::bug("the job broke off");
        Err(match e.try_into_panic() {
            Ok(panic) => Error::of_panic(&*panic, error),
            Err(e) => error.found(e.to_string()),
        })
    })
}

/// A file that grows beyond what the process may write is an error of that write, and not the end of the process.
fn outlive_file_limits() {
    // A signal that is listened to once does not end the process any more.
    #[cfg(unix)]
    drop(tokio::signal::unix::signal(tokio::signal::unix::SignalKind::from_raw(libc::SIGXFSZ)));
}

/// Every signal as it comes; the system's default is replaced at once.
#[cfg(unix)]
struct SignalStream(Option<[tokio::signal::unix::Signal; 2]>);

#[cfg(unix)]
fn next_signal() -> SignalStream {
    use tokio::signal::unix::{SignalKind, signal};
    match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
        (Ok(interrupt), Ok(terminate)) => SignalStream(Some([interrupt, terminate])),
        _ => SignalStream(None),
    }
}

#[cfg(unix)]
impl SignalStream {
    async fn recv(&mut self) -> Option<i32> {
        let [interrupt, terminate] = self.0.as_mut()?;
        tokio::select! {
            came = interrupt.recv() => came.map(|()| 2),
            came = terminate.recv() => came.map(|()| 15),
        }
    }
}

#[cfg(not(unix))]
struct SignalStream;

#[cfg(not(unix))]
fn next_signal() -> SignalStream {
    SignalStream
}

#[cfg(not(unix))]
impl SignalStream {
    async fn recv(&mut self) -> Option<i32> {
        tokio::signal::ctrl_c().await.ok().map(|()| 2)
    }
}
