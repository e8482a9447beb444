//! Arguments in, exit code out.

use std::process::ExitCode;

/// Batches and columns come and go by the megabyte: an allocator that keeps their pages saves a fifth of a large job.
#[global_allocator]
static ALLOCATOR: labelmill::cli::BoundedAllocator<mimalloc::MiMalloc> =
    labelmill::cli::BoundedAllocator(mimalloc::MiMalloc);

fn main() -> ExitCode {
    labelmill::cli::main()
}
