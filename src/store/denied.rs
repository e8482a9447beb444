//! Distinguishes a store that denies a request from one that does not answer.
//!
//! # Why
//! A client may be allowed to read one folder of a bucket and nothing else. A request that it may not make tells
//! nothing about the others: the job goes on with those. A store that fails or does not answer ends the job, which a
//! scheduler then starts again.

use object_store::Error as StoreError;

/// Whether the store answered that this client may not make the request, or that it does not know such a request.
pub(crate) fn is_denied(error: &StoreError) -> bool {
    match error {
        StoreError::PermissionDenied { .. }
        | StoreError::Unauthenticated { .. }
        | StoreError::NotImplemented { .. } => true,
        // The error of a listing has the status in its text alone.
        StoreError::Generic { .. } => {
            let text = error.to_string();
            DENIED.iter().any(|status| text.contains(status))
        }
        _ => false,
    }
}

/// The statuses of such answers, as `object_store` writes them.
const DENIED: [&str; 3] = ["status code: 401", "status code: 403", "status code: 501"];

/// Whether there is no such object, as far as this client may know: to a client that may not list, S3 denies a request
/// for a missing object.
pub(crate) fn is_absent(error: &StoreError) -> bool {
    matches!(error, StoreError::NotFound { .. }) || is_denied(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_denies_a_request_is_told_from_one_that_fails() {
        let status = |status: &str| StoreError::Generic {
            store: "S3",
            source: format!(
                "Error performing list request: Server returned non-2xx status code: {status}: "
            )
            .into(),
        };
        assert!(is_denied(&status("403 Forbidden")) && is_denied(&status("401 Unauthorized")));
        assert!(!is_denied(&status("503 Slow Down")) && !is_denied(&status("400 Bad Request")));
        let denied = || StoreError::PermissionDenied { path: "x".to_owned(), source: "403".into() };
        let missing = || StoreError::NotFound { path: "x".to_owned(), source: "404".into() };
        assert!(is_denied(&denied()) && !is_denied(&missing()));
        assert!(is_absent(&denied()) && is_absent(&missing()) && !is_absent(&status("503 x")));
    }
}
