//! The process: its allocator, its memory, its threads, and the signals that end it.

pub(super) mod allocator;
pub(super) mod libc_heap;
pub(super) mod log_format;
pub(super) mod refuse;
pub(super) mod resident;
pub(super) mod signals;
pub(super) mod threads;
