//! Errors of libraries: one of a type among the causes of another, and the line of a message that a user reads.

/// The first error of this type in a chain of errors, such as one of labelmill's own that passed through a library.
pub(crate) fn find_in_chain<'a, E: std::error::Error + 'static>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

/// The first line of a library's message.
pub(super) fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().replacen("Parquet error: ", "", 1)
}
