//! SIGINT and SIGTERM: the first signal requests a clean stop, a second one stops at once.
//!
//! # Why
//! The handlers are installed before the workers start and a command reads its files. A signal that arrives meanwhile
//! would otherwise end the process by the system's default, or be lost to a job that starts to listen a moment later.
//! From the first line of the program to that point signals wait. Only before it, while the system loads the program,
//! does a signal end the process by itself.
//!
//! The thread that waits for signals and timeouts never runs the job: every worker may be inside one kernel call for
//! minutes, and would not react.

use std::future::Future;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::error::{Error, Result};
use crate::job_context::Cancel;

/// How long a job may take to stop by itself.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The signals received so far, and the runtime that does the work.
#[derive(Debug, Clone)]
pub(crate) struct Signals {
    seen: watch::Receiver<Received>,
    workers: Handle,
}

#[derive(Debug, Clone, Copy, Default)]
struct Received {
    times: usize,
    last: i32,
}

impl Signals {
    /// Listens for the signals of the stream, in the caller's runtime.
    pub(crate) fn listen(mut next: SignalStream, workers: Handle) -> Self {
        let (sender, receiver) = watch::channel(Received::default());
        outlive_file_limits();
        tokio::spawn(async move {
            while let Some(last) = next.recv().await {
                sender.send_modify(|seen| *seen = Received { times: seen.times + 1, last });
            }
        });
        Self { seen: receiver, workers }
    }

    /// Starts work on the workers, not on the thread that waits for signals.
    fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> JoinHandle<Result<T>> {
        self.workers.spawn(work)
    }

    /// Waits until `times` signals were received; returns the number of the last one.
    async fn received(&self, times: usize) -> i32 {
        let mut seen = self.seen.clone();
        let last = seen.wait_for(|seen| seen.times >= times).await.map(|seen| seen.last).ok();
        match last {
            Some(last) => last,
            None => std::future::pending().await,
        }
    }
}

/// Runs work that publishes nothing; a signal ends it at once. Of the files that `sql --write` was writing, any part may
/// be left.
///
/// # Errors
/// The work's own, or the interruption.
pub(crate) async fn or_signalled<T: Send + 'static>(
    signals: &Signals,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let mut work = signals.spawn(work);
    tokio::select! {
        done = &mut work => flatten(done),
        signal = signals.received(1) => Err(Error::interrupted(signal)),
    }
}

/// Runs a job that checks `cancel`; a signal requests the cancellation.
///
/// # Errors
/// The job's own, or the interruption when the job did not stop in time.
pub(crate) async fn until_signalled<T: Send + 'static>(
    signals: &Signals,
    cancel: &Cancel,
    job: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let mut job = signals.spawn(job);
    let signal = tokio::select! {
        done = &mut job => return flatten(done),
        signal = signals.received(1) => signal,
    };
    if cancel.request(signal) {
        tracing::warn!(signal, "stopping");
        return tokio::select! {
            done = &mut job => flatten(done),
            _ = signals.received(2) => Err(Error::interrupted(signal)),
            () = tokio::time::sleep(STOP_TIMEOUT) => Err(Error::interrupted(signal)),
        };
    }
    // The store has been asked to commit the run: the job reports whether it did.
    tracing::warn!(signal, "the run is being committed: waiting for the store");
    tokio::select! {
        done = &mut job => flatten(done),
        _ = signals.received(2) => Err(Error::interrupted(signal).what(if cancel.is_committed() {
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

/// Lets SIGINT and SIGTERM wait until [`deliver`]: the calling thread, and the threads that it starts, block them.
pub(crate) fn defer() {
    #[cfg(unix)]
    mask(libc::SIG_BLOCK);
}

/// Lets the calling thread, and the threads that it starts, receive SIGINT and SIGTERM again, those that waited too.
pub(crate) fn deliver() {
    #[cfg(unix)]
    mask(libc::SIG_UNBLOCK);
}

#[cfg(unix)]
#[allow(unsafe_code)]
fn mask(how: libc::c_int) {
    // SAFETY: the set is initialised before it is read, and the old mask is not asked for.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGINT);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut());
    }
}

/// Makes a write beyond the process's file size limit an error; by default SIGXFSZ ends the process.
fn outlive_file_limits() {
    // tokio's handler stays installed for the rest of the process, so that the signal no longer ends it.
    #[cfg(unix)]
    drop(tokio::signal::unix::signal(tokio::signal::unix::SignalKind::from_raw(libc::SIGXFSZ)));
}

/// A stream of SIGINT and SIGTERM, whose default handlers are replaced when it is created, in a runtime.
#[cfg(unix)]
pub(crate) struct SignalStream(Option<[tokio::signal::unix::Signal; 2]>);

#[cfg(unix)]
impl SignalStream {
    pub(crate) fn new() -> Self {
        use tokio::signal::unix::{SignalKind, signal};
        match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
            (Ok(interrupt), Ok(terminate)) => Self(Some([interrupt, terminate])),
            _ => Self(None),
        }
    }

    async fn recv(&mut self) -> Option<i32> {
        let [interrupt, terminate] = self.0.as_mut()?;
        tokio::select! {
            received = interrupt.recv() => received.map(|()| 2),
            received = terminate.recv() => received.map(|()| 15),
        }
    }
}

#[cfg(not(unix))]
pub(super) struct SignalStream;

#[cfg(not(unix))]
impl SignalStream {
    pub(super) fn new() -> Self {
        Self
    }

    async fn recv(&mut self) -> Option<i32> {
        tokio::signal::ctrl_c().await.ok().map(|()| 2)
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::process::refuse::tests::{CHILD, child};

    #[test]
    #[allow(unsafe_code)]
    fn a_signal_that_arrives_before_there_is_a_handler_reaches_it_later() {
        if std::env::var_os(CHILD).is_some() {
            defer();
            // SAFETY: sends a signal to this thread, which blocks it.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGTERM) };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let received = runtime.unwrap().block_on(async {
                let mut stream = SignalStream::new();
                deliver();
                stream.recv().await
            });
            writeln!(std::io::stderr(), "received {received:?}").unwrap();
            return;
        }
        let (code, output) = child("a_signal_that_arrives_before");
        assert_eq!(code, Some(0), "{output}");
        assert!(output.contains("received Some(15)"), "{output}");
    }
}
