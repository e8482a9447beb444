//! The error when a run needs more memory than its limit.

use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool};

use crate::error::Error;

/// The error for what a step takes, such as `ids take 66 MiB`, where the pool cannot give its `bytes` beside those that
/// all others hold meanwhile.
pub(crate) fn too_little_memory(
    pool: &dyn MemoryPool,
    taken: &str,
    bytes: u64,
    others: u64,
) -> Error {
    let limit = match pool.memory_limit() {
        MemoryLimit::Finite(limit) => format!("{} may be taken", bytes_in_words(limit as u64)),
        _ => "no more is left".to_owned(),
    };
    let held = match others {
        0 => String::new(),
        _ => format!(", of which {} are held already", bytes_in_words(others)),
    };
    Error::spec("the input does not fit into the memory that the run may take")
        .at("engine.memory_limit")
        .found(format!(
            "{taken}; {limit}{held}, queries included: this step needs a limit of at least {}, and later ones may need \
             more",
            bytes_in_words(bytes.saturating_add(others))
        ))
        .help(
            "set engine.memory_limit to what the machine can give (left out, it is three quarters of its memory), run \
             on a larger machine, or read less: a filter in source.sql, fewer questions",
        )
}

/// Bytes as a person reads them, such as `44 MiB`, rounded up.
pub(crate) fn bytes_in_words(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| bytes >> shift >= 10) {
        Some((shift, unit)) => format!("{} {unit}", bytes.div_ceil(1 << shift)),
        None => format!("{bytes} bytes"),
    }
}
