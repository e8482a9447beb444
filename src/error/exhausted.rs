//! Recognises the errors and panics of libraries when the system gives no more memory, threads or files: these are
//! neither bugs nor damaged files.

use std::any::Any;
use std::io;

use super::{Error, Problem, Stage};
use crate::panics;

/// What the system may refuse to give more of.
struct Resource {
    what: &'static str,
    /// Texts in the errors and panics of tokio, the standard library, rayon, Zstandard and the system.
    signs: &'static [&'static str],
    help: &'static str,
}

const MEMORY: Resource = Resource {
    what: "the system gives no more memory or threads",
    signs: &[
        "OS can't spawn worker thread",
        "failed to spawn thread",
        "thread pool has not been initialized",
        "returned null pointer when creating",
        "Allocation error",
        "llocation failed",
        "Cannot allocate memory (os error",
        "message: \"Cannot allocate memory",
        "Resource temporarily unavailable (os error",
        "message: \"Resource temporarily unavailable",
    ],
    help: "allow this process more of both (ulimit, the limits of its container); in a pipeline, set a smaller engine.threads",
};

const FILES: Resource = Resource {
    what: "the system opens no more files",
    signs: &[
        "Too many open files (os error",
        "Too many open files in system (os error",
        "message: \"Too many open files",
    ],
    help: "allow this process (ulimit -n, the limits of its container), or the whole machine, more open files",
};

/// The resource that a text says is exhausted.
fn exhausted_in(text: &str) -> Option<&'static Resource> {
    [&FILES, &MEMORY].into_iter().find(|of| of.signs.iter().any(|sign| text.contains(sign)))
}

impl Resource {
    fn error(&self, found: impl Into<String>) -> Error {
        let problem = Problem::new(self.what).found(found).help(self.help);
        Error::new(Stage::Spec, problem)
    }
}

impl Error {
    /// The error when the system gives no more memory, threads or files; `found` is the original message.
    pub(crate) fn exhausted(found: impl Into<String>) -> Self {
        let found = found.into();
        exhausted_in(&found).unwrap_or(&MEMORY).error(found)
    }

    /// The error with this original message, where it says that the system gives no more memory, threads or files. The
    /// message must not quote the user's data, which may say anything.
    pub(crate) fn if_exhausted(text: &str) -> Option<Self> {
        Some(exhausted_in(text)?.error(text.lines().next()?))
    }

    /// The error for a caught panic: `otherwise` with the panic's description, unless the system gave no more memory,
    /// threads or files.
    #[must_use]
    pub fn of_panic(payload: &(dyn Any + Send), otherwise: Self) -> Self {
        let message = panics::message(payload);
        if message.contains("Invalid physical type") {
            return Self::data("a column of a Parquet file has a type that cannot be read")
                .found("a dictionary of truth values, or one of another rare type")
                .help("write the column as plain values, without categories");
        }
        Self::if_exhausted(message).unwrap_or_else(|| otherwise.found(panics::describe(payload)))
    }

    /// The error for a local file or folder: `otherwise`, unless the system gave no more memory or files.
    pub(crate) fn of_io(cause: &io::Error, otherwise: Self) -> Self {
        let Some(exhausted) = Self::if_exhausted(&cause.to_string()) else { return otherwise };
        match otherwise.problems.into_iter().find_map(|problem| problem.location) {
            Some(location) => exhausted.at(location),
            None => exhausted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exhausted_resource_is_named_instead_of_the_operation_that_failed() {
        let folder = || Error::store("cannot list the folder").at("/x").help("check the disk");
        for (cause, what, help) in [
            (libc::ENOMEM, "no more memory", "allow this process more of both"),
            (libc::EAGAIN, "no more memory or threads", "allow this process more of both"),
            (libc::EMFILE, "no more files", "ulimit -n"),
            (libc::ENFILE, "no more files", "the whole machine"),
        ] {
            let cause = io::Error::from_raw_os_error(cause);
            let text = Error::of_io(&cause, folder()).to_string();
            for part in [what, help, "where: /x", &format!("found: {cause}")] {
                assert!(text.contains(part), "{part}: {text}");
            }
            assert!(!text.contains("check the disk"), "{text}");
            assert_eq!(Error::of_io(&cause, folder()).exit_code(), 2);
        }
        let other = io::Error::from_raw_os_error(libc::EIO);
        assert_eq!(Error::of_io(&other, folder()).to_string(), folder().to_string());
    }

    #[test]
    fn a_panic_for_lack_of_memory_is_no_defect() {
        let of = |payload: &'static str| Error::of_panic(&payload, Error::bug("broke off"));
        let lack = of("zstd returned null pointer when creating new context");
        assert_eq!(lack.exit_code(), 2);
        assert!(lack.to_string().contains("found: zstd returned null pointer"), "{lack}");
        let defect = of("index out of bounds");
        assert_eq!(defect.exit_code(), 70);
        assert!(defect.to_string().contains("index out of bounds"), "{defect}");
    }
}
