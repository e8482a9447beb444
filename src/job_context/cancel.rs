//! Stops a run between two steps of work, but not during its commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::error::{Error, Result};

/// The stop flag of a run: a signal sets it, and the run checks it between two steps of work. During a commit, a signal
/// takes effect only after the store has answered: then it is certain whether the run is committed.
#[derive(Debug, Clone, Default)]
pub struct Cancel {
    state: Arc<AtomicI32>,
    /// The last signal. One that arrives during the commit takes effect if the commit fails.
    pending: Arc<AtomicI32>,
}

/// The states of [`Cancel`] other than the number of a signal.
const RUNNING: i32 = 0;
const COMMITTING: i32 = -1;
const COMMITTED: i32 = -2;

impl Cancel {
    /// Asks the run to stop because of `signal`. Returns whether the run will stop: a commit is not stopped.
    #[must_use]
    pub fn request(&self, signal: i32) -> bool {
        self.pending.store(signal, Ordering::SeqCst);
        let requested =
            self.state.compare_exchange(RUNNING, signal, Ordering::SeqCst, Ordering::SeqCst);
        requested.map_or_else(|state| state > RUNNING, |_| true)
    }

    /// Fails once a stop was requested.
    ///
    /// # Errors
    /// The interruption.
    pub fn check(&self) -> Result<()> {
        match self.state.load(Ordering::Acquire) {
            signal if signal > RUNNING => Err(Error::interrupted(signal)),
            _ => Ok(()),
        }
    }

    /// Begins the commit: the run cannot be stopped until [`Cancel::end_commit`].
    ///
    /// # Errors
    /// The interruption, where a stop was requested before.
    pub fn begin_commit(&self) -> Result<()> {
        let begun =
            self.state.compare_exchange(RUNNING, COMMITTING, Ordering::AcqRel, Ordering::Acquire);
        match begun {
            Err(signal) if signal > RUNNING => Err(Error::interrupted(signal)),
            _ => Ok(()),
        }
    }

    /// Ends the commit, once the store has answered. A run that was not committed can be stopped again; a signal that
    /// arrived during the commit stops it now.
    pub fn end_commit(&self, is_committed: bool) {
        if is_committed {
            return self.state.store(COMMITTED, Ordering::SeqCst);
        }
        // In this order, a signal that arrives in between is either seen here, or finds a run that can be stopped.
        self.state.store(RUNNING, Ordering::SeqCst);
        let signal = self.pending.load(Ordering::SeqCst);
        if signal != RUNNING {
            self.state.compare_exchange(RUNNING, signal, Ordering::SeqCst, Ordering::SeqCst).ok();
        }
    }

    /// Whether the run is committed.
    #[must_use]
    pub fn is_committed(&self) -> bool {
        self.state.load(Ordering::Acquire) == COMMITTED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_stops_a_commit_and_a_stop_before_it_prevents_it() {
        let cancel = Cancel::default();
        cancel.begin_commit().unwrap();
        assert!(!cancel.request(15) && cancel.check().is_ok() && !cancel.is_committed());
        cancel.end_commit(false);
        assert_eq!(cancel.check().unwrap_err().exit_code(), 143, "it came during the commit");
        assert!(cancel.request(2) && cancel.begin_commit().is_err());
        let committed = Cancel::default();
        committed.begin_commit().unwrap();
        committed.end_commit(true);
        assert!(!committed.request(15) && committed.check().is_ok() && committed.is_committed());
    }

    #[test]
    fn a_requested_stop_is_an_error_with_the_shell_s_exit_code() {
        let cancel = Cancel::default();
        assert!(cancel.check().is_ok());
        assert!(cancel.request(15));
        assert_eq!(cancel.check().unwrap_err().exit_code(), 143);
    }
}
