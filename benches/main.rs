//! `cargo bench --features testing` measures the throughput of the kernels in annotations per second. With
//! `LABELMILL_GROWTH=1e6,1e7` in its environment it prints a table as those of `kernels.md`, and with
//! `LABELMILL_LAYERS=cpu` (or `cuda:0`) that of single layers in `networks.md`.

// A benchmark has to print its results.
#![allow(clippy::expect_used, clippy::print_stdout)]

#[cfg(not(any(debug_assertions, feature = "testing")))]
compile_error!("without debug assertions, add `--features testing`");

mod growth;
#[cfg(feature = "neural")]
mod layers;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group};
use labelmill::frame::{Annotations, Dims};
use labelmill::model::em::{DawidSkene, EmSteps};
use labelmill::model::posterior::Posterior;
use labelmill::run::Cancel;
use labelmill::testing::{annotations, synth::CrowdShape};

/// The allocator of the program.
#[global_allocator]
static ALLOCATOR: labelmill::cli::BoundedAllocator<mimalloc::MiMalloc> =
    labelmill::cli::BoundedAllocator(mimalloc::MiMalloc);

const SEED: u64 = 7;

fn crowd(instances: u32, annotators: u32, classes: u32) -> Annotations {
    let crowd = CrowdShape { instances, annotators, classes, redundancy: 5, accuracy: (0.5, 0.95) };
    let dims = Dims {
        instances: instances as usize,
        annotators: annotators as usize,
        classes: classes as usize,
        labels: classes as usize,
    };
    annotations(dims, &crowd.draw(SEED).rows)
}

fn dawid_skene_iteration(c: &mut Criterion) {
    let mut group = c.benchmark_group("dawid_skene_iteration");
    for (name, instances, annotators, classes) in [
        ("100k_2_classes", 20_000, 500, 2),
        ("1m_5_classes", 200_000, 2_000, 5),
        ("500k_50_classes", 100_000, 2_000, 50),
    ] {
        let a = crowd(instances, annotators, classes);
        let spec = DawidSkene::default();
        let (mut params, mut t) = (spec.params(&a), Posterior::from_votes(&a));
        spec.count(&a, &t, &mut params);
        group.throughput(Throughput::Elements(a.len() as u64));
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| {
                assert!(spec.m_step(&a, &t, &mut params, &Cancel::default()).is_ok());
                black_box(spec.e_step(&a, &mut params, &mut t))
            });
        });
    }
    group.finish();
}

fn votes(c: &mut Criterion) {
    let a = crowd(200_000, 2_000, 5);
    let mut group = c.benchmark_group("votes");
    group.throughput(Throughput::Elements(a.len() as u64));
    group.bench_function("1m_5_classes", |b| b.iter(|| black_box(Posterior::from_votes(&a))));
    group.finish();
}

criterion_group! {
    name = kernels;
    config = Criterion::default().sample_size(20);
    targets = dawid_skene_iteration, votes
}

fn main() {
    if let Ok(sizes) = std::env::var("LABELMILL_GROWTH") {
        growth::print(&sizes);
    } else if let Ok(device) = std::env::var("LABELMILL_LAYERS") {
        #[cfg(feature = "neural")]
        layers::print(&device);
        #[cfg(not(feature = "neural"))]
        panic!("LABELMILL_LAYERS={device} needs the feature `neural`");
    } else {
        kernels();
        Criterion::default().configure_from_args().final_summary();
    }
}
