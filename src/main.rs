//! Arguments in, exit code out.

use std::process::ExitCode;

/// Batches and columns come and go by the megabyte: an allocator that keeps their pages saves a fifth of a large job.
#[global_allocator]
static ALLOCATOR: labelmill::cli::BoundedAllocator<mimalloc::MiMalloc> =
    labelmill::cli::BoundedAllocator(mimalloc::MiMalloc);

fn main() -> ExitCode {
    compute_candle_alone();
    labelmill::cli::main()
}

/// Lets candle compute its element-wise operations on the thread that asks for them, unless the environment says otherwise.
///
/// # Why
/// The backward pass of a network adds every gradient to zeros. Where a gradient is long, candle shares the addition with
/// threads of its own, which spin while they wait: training LeNet took 2.0 s of processor time instead of 1.1 s, and on a
/// busy machine up to twice the time of the clock.
#[allow(unsafe_code)]
fn compute_candle_alone() {
    const THREADS: &str = "CANDLE_NUM_THREADS";
    if std::env::var_os(THREADS).is_none() {
        // SAFETY: no other thread runs yet, so none reads the environment.
        unsafe { std::env::set_var(THREADS, "1") };
    }
}
