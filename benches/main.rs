//! `cargo bench --features testing` prints the table of `kernels.md`: the time of an iteration of EM. With
//! `LABELMILL_ROWS=3,5` it prints these rows alone, and with `LABELMILL_LAYERS=cpu` (or `cuda:0`) the table of single layers
//! in `networks.md`.

// A benchmark has to print its results.
#![allow(clippy::expect_used, clippy::print_stdout)]

#[cfg(not(any(debug_assertions, feature = "testing")))]
compile_error!("without debug assertions, add `--features testing`");

mod iterations;
#[cfg(feature = "neural")]
mod layers;

/// The allocator of the program.
#[global_allocator]
static ALLOCATOR: labelmill::cli::BoundedAllocator<mimalloc::MiMalloc> =
    labelmill::cli::BoundedAllocator(mimalloc::MiMalloc);

fn main() {
    let Ok(device) = std::env::var("LABELMILL_LAYERS") else { return iterations::print() };
    #[cfg(feature = "neural")]
    layers::print(&device);
    #[cfg(not(feature = "neural"))]
    panic!("LABELMILL_LAYERS={device} needs the feature `neural`");
}
