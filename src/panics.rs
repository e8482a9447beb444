//! A panic that was caught, as a line that says what it was and where.
//!
//! # Why
//! Decoders and kernels of the libraries below panic at a damaged file or at a value that is too large for them. The
//! standard report prints a backtrace among the lines of a log, and a message alone (``called `Option::unwrap()` ``)
//! says nothing. The place is no part of what a catch receives, so a hook keeps it.

use std::any::Any;
use std::panic;
use std::sync::{Mutex, PoisonError};

/// The file and the line of the panic that came last.
static LAST: Mutex<Option<String>> = Mutex::new(None);

/// From here on a panic prints nothing: whoever catches it describes it. `-vv` logs it with its backtrace.
pub fn keep_places() {
    panic::set_hook(Box::new(|info| {
        tracing::debug!(%info, backtrace = %std::backtrace::Backtrace::capture(), "a panic");
        *LAST.lock().unwrap_or_else(PoisonError::into_inner) = info.location().map(short);
    }));
}

/// Without the folders of the machine that compiled it.
fn short(place: &panic::Location<'_>) -> String {
    let file = place.file();
    let from =
        file.rfind("/src/").map_or(0, |at| file[..at].rfind('/').map_or(0, |slash| slash + 1));
    format!("{}:{}", &file[from..], place.line())
}

/// What a caught panic says, and where it was.
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
