//! Recognises the errors and panics of libraries when the system gives no more memory or threads: these are neither
//! bugs nor damaged files.

use std::any::Any;

use super::{Error, Problem, Stage};
use crate::panics;

/// Texts in the errors and panics of tokio, the standard library, rayon, Zstandard and the system.
const SIGNS: [&str; 8] = [
    "OS can't spawn worker thread",
    "failed to spawn thread",
    "thread pool has not been initialized",
    "returned null pointer when creating",
    "Allocation error",
    "llocation failed",
    "Cannot allocate memory",
    "Resource temporarily unavailable",
];

/// Whether a text contains one of [`SIGNS`].
pub(super) fn is_exhausted(text: &str) -> bool {
    SIGNS.iter().any(|sign| text.contains(sign))
}

impl Error {
    /// The error when the system gives no more memory or threads; `found` is the original message.
    pub(crate) fn exhausted(found: impl Into<String>) -> Self {
        let problem = Problem::new("the system gives no more memory or threads")
            .found(found)
            .help("allow this process more of both (ulimit, the limits of its container); in a pipeline, set a smaller engine.threads");
        Self::new(Stage::Spec, problem)
    }

    /// The error for a caught panic: `otherwise` with the panic's description, unless the system gave no more memory or
    /// threads.
    #[must_use]
    pub fn of_panic(payload: &(dyn Any + Send), otherwise: Self) -> Self {
        let found = panics::describe(payload);
        if is_exhausted(&found) { Self::exhausted(found) } else { otherwise.found(found) }
    }
}
