//! SIGINT and SIGTERM: a clean stop, and a hard one for whoever asks twice.

use std::future::Future;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::run::Cancel;

/// How long a job may take to stop by itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs a job that checks `cancel`; a signal requests it.
///
/// # Errors
/// The job's own, or the interruption when the job did not stop in time.
pub(super) async fn until_signalled<T: Send + 'static>(
    cancel: &Cancel,
    job: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let mut job = tokio::spawn(job);
    let signal = tokio::select! {
        done = &mut job => return flatten(done),
        signal = first_signal() => signal,
    };
    tracing::warn!(signal, "stopping");
    cancel.request(signal);
    tokio::select! {
        done = &mut job => flatten(done),
        _ = first_signal() => Err(Error::interrupted(signal)),
        () = tokio::time::sleep(PATIENCE) => Err(Error::interrupted(signal)),
    }
}

fn flatten<T>(done: Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    done.unwrap_or_else(|e| Err(Error::bug(format!("the job broke: {e}"))))
}

#[cfg(unix)]
async fn first_signal() -> i32 {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => 2,
        _ = terminate.recv() => 15,
    }
}

#[cfg(not(unix))]
async fn first_signal() -> i32 {
    match tokio::signal::ctrl_c().await {
        Ok(()) => 2,
        Err(_) => std::future::pending().await,
    }
}
