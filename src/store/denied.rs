//! Distinguishes a store that denies a request, or does not know it, from one that does not answer.
//!
//! # Why
//! A client may be allowed to read one folder of a bucket and nothing else. A request that it may not make tells
//! nothing about the others: the job goes on with those. A store that fails or does not answer ends the job, which a
//! scheduler then starts again.

use object_store::Error as StoreError;
use object_store::client::{HttpError, HttpErrorKind};

use crate::error::{find_in_chain, has_status, is_not_implemented};

/// The host of the metadata service, which gives an instance the credentials of its role.
pub(super) const METADATA_HOST: &str = "169.254.169.254";

/// Whether the same request may succeed later: the server was busy or failed, or no answer came.
pub(crate) fn is_temporary(error: &StoreError) -> bool {
    let is_broken =
        |e: &HttpError| !matches!(e.kind(), HttpErrorKind::Decode | HttpErrorKind::Unknown);
    find_in_chain::<HttpError>(error).is_some_and(is_broken)
        || has_status(error, &["408", "429", "500", "502", "503", "504"])
}

/// Whether the store answered that this client may not make the request, or that it does not know such a request.
pub(crate) fn is_denied(error: &StoreError) -> bool {
    match error {
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => true,
        // The error of a listing has the status in its text alone.
        StoreError::Generic { .. } if has_status(error, &["401", "403"]) => true,
        _ => is_not_implemented(error),
    }
}

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
        assert!(is_temporary(&status("503 Slow Down")) && !is_temporary(&status("400 x")));
        let unknown = status("400 Bad Request: <Code>NotImplemented</Code>");
        assert!(is_not_implemented(&unknown) && is_not_implemented(&status("405 x")));
        assert!(!is_not_implemented(&status("400 Bad Request")));
        let denied = || StoreError::PermissionDenied { path: "x".to_owned(), source: "403".into() };
        let missing = || StoreError::NotFound { path: "x".to_owned(), source: "404".into() };
        assert!(is_denied(&denied()) && !is_denied(&missing()));
        assert!(is_absent(&denied()) && is_absent(&missing()) && !is_absent(&status("503 x")));
    }

    #[test]
    fn a_local_folder_without_rights_is_named_so_and_no_error_of_a_store() {
        let denied: std::io::Error = std::io::ErrorKind::PermissionDenied.into();
        let error = StoreError::Generic { store: "LocalFileSystem", source: Box::new(denied) };
        let error = crate::error::Error::from(error);
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("this user may not read or write"), "{error}");
    }
}
