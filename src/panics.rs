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

/// Installs the hook: from now on a panic prints nothing, and the code that catches it describes it. `-vv` logs it with
/// its backtrace.
pub fn keep_places() {
    panic::set_hook(Box::new(|info| {
        tracing::debug!(%info, backtrace = %std::backtrace::Backtrace::capture(), "a panic");
        *LAST.lock().unwrap_or_else(PoisonError::into_inner) = info.location().map(short);
    }));
}

/// The file and line, without the folders of the machine that compiled the file.
fn short(place: &panic::Location<'_>) -> String {
    let file = place.file();
    let from =
        file.rfind("/src/").map_or(0, |at| file[..at].rfind('/').map_or(0, |slash| slash + 1));
    format!("{}:{}", &file[from..], place.line())
}

/// The message and the place of a caught panic.
#[must_use]
pub fn describe(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or_default();
    let text = text.lines().next().unwrap_or_default();
    match LAST.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(place) => format!("a panic in {place}: {text}"),
        None => format!("a panic: {text}"),
    }
}
