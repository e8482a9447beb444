//! The program: runs [`labelmill::cli::main`] with the allocator and thread settings of the process.

use std::process::ExitCode;

/// Batches and columns are allocated and freed by the megabyte: an allocator that keeps their pages saves a fifth of
/// the time of a large job.
#[global_allocator]
static ALLOCATOR: labelmill::cli::BoundedAllocator<mimalloc::MiMalloc> =
    labelmill::cli::BoundedAllocator(mimalloc::MiMalloc);

fn main() -> ExitCode {
    compute_candle_alone();
    labelmill::cli::main()
}

/// Makes candle compute element-wise operations on the calling thread, unless `CANDLE_NUM_THREADS` is set.
///
/// # Why
/// The backward pass of a network adds every gradient to zeros. candle splits the addition of a long gradient over its
/// own threads, which spin while they wait: training LeNet took 2.0 s of processor time instead of 1.1 s, and on a busy
/// machine up to twice the wall time.
#[allow(unsafe_code)]
fn compute_candle_alone() {
    const THREADS: &str = "CANDLE_NUM_THREADS";
    if std::env::var_os(THREADS).is_none() {
        // SAFETY: no other thread runs yet, so none reads the environment.
        unsafe { std::env::set_var(THREADS, "1") };
    }
}
