//! Whether stderr is text or lines of JSON: the end of the process is told in the same format as all else.

use std::sync::atomic::{AtomicBool, Ordering};

/// The target of the log lines that are messages. They are shown at every level.
pub(crate) const MESSAGES: &str = "message";

static LOGS_ARE_JSON: AtomicBool = AtomicBool::new(false);

/// Whether stderr holds one JSON object a line.
pub(crate) fn logs_are_json() -> bool {
    LOGS_ARE_JSON.load(Ordering::Relaxed)
}

/// Sets whether stderr holds one JSON object a line.
pub(crate) fn write_logs_as_json(are_json: bool) {
    LOGS_ARE_JSON.store(are_json, Ordering::Relaxed);
}
