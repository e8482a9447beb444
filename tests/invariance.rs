//! Row order, file partitioning, batch size and threads change no byte of any table.

use std::collections::BTreeMap;
use std::path::Path;

use labelmill::pipeline::load;
use labelmill::pipeline::{self, PipelineSpec};
use labelmill::run::{Clock, Run};
use labelmill::spec::Overrides;
use labelmill::testing::synth::CrowdShape;
use proptest::prelude::*;
use rand::SeedableRng;
use rand::seq::SliceRandom;

use crate::support::{table_files, write_crowd};

/// How the same rows come in.
#[derive(Debug, Clone)]
struct Layout {
    order: u64,
    files: usize,
    batch_size: usize,
    threads: usize,
}

fn layouts() -> impl Strategy<Value = Layout> {
    (any::<u64>(), 1..5_usize, prop_oneof![Just(1), 2..50_usize, Just(8192)], 1..5_usize).prop_map(
        |(order, files, batch_size, threads)| Layout { order, files, batch_size, threads },
    )
}

/// Publishes the crowd in this layout and returns every file but those of `run`.
fn publish(layout: &Layout, model: &str) -> BTreeMap<String, Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let names: Vec<(String, String, String)> =
        CrowdShape { instances: 60, ..CrowdShape::default() }
            .draw(11)
            .rows
            .iter()
            .map(|(i, r, l)| {
                (format!("item {i}"), format!("a-rather-long-annotator-name-{r}"), format!("c{l}"))
            })
            .collect();
    let mut rows: Vec<(&str, &str, &str)> =
        names.iter().map(|(i, r, l)| (i.as_str(), r.as_str(), l.as_str())).collect();
    // Repeated answers, equal and different ones.
    rows.extend_from_within(0..40);
    rows.extend(names[..20].iter().map(|(i, r, _)| (i.as_str(), r.as_str(), "c0")));
    rows.shuffle(&mut rand::rngs::StdRng::seed_from_u64(layout.order));
    for (n, part) in rows.chunks(rows.len().div_ceil(layout.files)).enumerate() {
        write_crowd(&folder.path().join(format!("in/part-{n}.parquet")), part);
    }
    let output = folder.path().join("out");
    run(&spec(folder.path(), &output, layout, model));
    table_files(&output.join("latest").canonicalize().unwrap())
}

fn spec(folder: &Path, output: &Path, layout: &Layout, model: &str) -> PipelineSpec {
    let text = format!(
        "source.annotations = '{}/in/'\nsink.url = '{}'\nmodel.kind = '{model}'\n\
         engine = {{ batch_size = {}, threads = {} }}",
        folder.display(),
        output.display(),
        layout.batch_size,
        layout.threads
    );
    load(&text, "test", &Overrides::default()).unwrap()
}

fn run(spec: &PipelineSpec) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let mut run = Run::new(spec.seed).with_threads(spec.engine.threads()).unwrap();
    run.clock = Clock::Stopped;
    runtime.block_on(pipeline::run(spec, false, &mut run)).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    // keys: engine.batch_size, engine.threads
    #[test]
    fn no_layout_changes_a_byte(layout in layouts()) {
        let plain = Layout { order: 0, files: 1, batch_size: 8192, threads: 1 };
        for model in labelmill::model::MODELS.iter().filter(|f| !f.needs_features) {
            let (want, got) = (publish(&plain, model.kind), publish(&layout, model.kind));
            prop_assert_eq!(want.keys().collect::<Vec<_>>(), got.keys().collect::<Vec<_>>());
            for (name, bytes) in &want {
                prop_assert!(got[name] == *bytes, "{} of {} differs", name, model.kind);
            }
        }
    }
}
