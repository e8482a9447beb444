//! Tells a request that a store does not know from one that failed: no retry cures the first.

use object_store::Error as StoreError;

use super::find_in_chain;

/// The store does not implement the request. No retry cures this, although the status is one of the server's errors.
#[derive(Debug, thiserror::Error)]
#[error("the server does not know this request: 501 Not Implemented{0}")]
pub(crate) struct NotImplementedAnswer(pub(crate) String);

/// Whether the store answered that it does not know such a request.
pub(crate) fn is_not_implemented(error: &StoreError) -> bool {
    matches!(error, StoreError::NotImplemented { .. })
        || find_in_chain::<NotImplementedAnswer>(error).is_some()
        || has_status(error, &["405"])
        || has_status(error, &["400"]) && error.to_string().contains("NotImplemented")
}

/// Whether the error has one of these statuses in its text, as `object_store` writes it. Not every request maps a
/// status to a kind of error.
pub(crate) fn has_status(error: &StoreError, statuses: &[&str]) -> bool {
    let text = error.to_string();
    statuses.iter().any(|status| text.contains(&format!("status code: {status}")))
}
