//! Describes a caught panic in one line: its message and its place.
//!
//! # Why
//! Decoders and kernels of the libraries that labelmill uses panic on a damaged file or on a value that is too large
//! for them. The default hook prints a backtrace between the lines of a log, and the message alone
//! (``called `Option::unwrap()` ``) says nothing. `catch_unwind` does not return the place of a panic, so a hook stores
//! it.

use std::any::Any;
use std::panic;
use std::sync::{Mutex, PoisonError};

/// The file and line of the last panic.
static LAST: Mutex<Option<String>> = Mutex::new(None);

/// How the standard library's panics begin when a new thread gets no memory for the stack of its signal handlers.
const NO_SIGNAL_STACK: [&str; 2] =
    ["failed to allocate an alternative stack", "failed to set up alternative stack guard page"];

/// Installs the hook: from now on a panic prints nothing, and the code that catches it describes it. `-vv` logs it with
/// its backtrace. `refuse_thread` ends the process if a new thread gets no memory, for the reason that it is given.
///
/// # Why
/// A new thread panics before its first function if it gets no memory for the stack of its signal handlers. No code can
/// catch that panic, and the process would abort.
pub fn keep_places(refuse_thread: fn(&str) -> !) {
    panic::set_hook(Box::new(move |info| {
        let text = info.payload_as_str().unwrap_or_default();
        if let Some(reason) = NO_SIGNAL_STACK.iter().find(|start| text.starts_with(*start)) {
            refuse_thread(reason);
        }
        tracing::debug!(%info, backtrace = %std::backtrace::Backtrace::capture(), "a panic");
        *LAST.lock().unwrap_or_else(PoisonError::into_inner) = info.location().map(short);
    }));
}

/// The file and line, without the folders of the machine that compiled the file.
fn short(location: &panic::Location<'_>) -> String {
    let file = location.file();
    let from =
        file.rfind("/src/").map_or(0, |at| file[..at].rfind('/').map_or(0, |slash| slash + 1));
    format!("{}:{}", &file[from..], location.line())
}

/// The first line of the message of a caught panic.
pub(crate) fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or_default();
    text.lines().next().unwrap_or_default()
}

/// The message and the place of a caught panic.
#[must_use]
pub fn describe(payload: &(dyn Any + Send)) -> String {
    let text = message(payload);
    match LAST.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(location) => format!("a panic in {location}: {text}"),
        None => format!("a panic: {text}"),
    }
}
