//! Row order, file partitioning, batch size and threads change no byte of any table.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use arrow::array::{ArrayRef, Float64Array, StringArray};
use labelmill::job_context::{Clock, JobContext};
use labelmill::pipeline::load;
use labelmill::pipeline::{self, PipelineSpec};
use labelmill::spec::Overrides;
use labelmill::testing::synth::CrowdShape;
use proptest::prelude::*;
use rand::SeedableRng;
use rand::seq::SliceRandom;

use crate::support::{label_only, table_files, temporary_folder, write_parquet};

/// How the same rows are stored and read.
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

/// The instance, annotator, label and weight of an annotation; without weights, the last is not used.
type AnnotationRow = (String, String, String, f64);

/// A crowd with repeated annotations, some with equal and some with different labels.
fn crowd() -> Vec<AnnotationRow> {
    let drawn = CrowdShape { instances: 60, ..CrowdShape::default() }.draw(11);
    let rows = drawn.rows.iter().enumerate();
    // Weights whose floating-point sum depends on their order.
    let weight = |n: usize| 0.1 + (n * 7919 % 1000) as f64 / 997.0;
    let mut rows: Vec<AnnotationRow> = rows
        .map(|(n, (i, r, l))| {
            (
                format!("item {i}"),
                format!("a-rather-long-annotator-name-{r}"),
                format!("c{l}"),
                weight(n),
            )
        })
        .collect();
    for repeat in 0..3 {
        let again: Vec<AnnotationRow> = rows[..40]
            .iter()
            .enumerate()
            .map(|(n, row)| {
                (row.0.clone(), row.1.clone(), row.2.clone(), weight(n + 1000 * (repeat + 1)))
            })
            .collect();
        rows.extend(again);
    }
    let others: Vec<AnnotationRow> =
        rows[..20].iter().map(|(i, r, _, w)| (i.clone(), r.clone(), "c0".to_owned(), *w)).collect();
    rows.extend(others);
    rows
}

/// The files of a run by their path.
type PublishedFiles = BTreeMap<String, Vec<u8>>;

/// The files of the crowd in the plainest layout, by kind of model and by whether it is weighted.
static PLAIN: LazyLock<BTreeMap<(&str, bool), PublishedFiles>> = LazyLock::new(|| {
    let plain = Layout { order: 0, files: 1, batch_size: 8192, threads: 1 };
    let published = |(kind, is_weighted)| ((kind, is_weighted), publish(&plain, kind, is_weighted));
    crowds().map(published).collect()
});

/// Every kind of model for labels alone, with and without weights.
fn crowds() -> impl Iterator<Item = (&'static str, bool)> {
    label_only().flat_map(|model| [(model.kind, false), (model.kind, true)])
}

/// Publishes the crowd in this layout and returns every file but those of the table `run`.
fn publish(layout: &Layout, model: &str, is_weighted: bool) -> PublishedFiles {
    let folder = temporary_folder();
    let mut rows = crowd();
    rows.shuffle(&mut rand::rngs::StdRng::seed_from_u64(layout.order));
    for (n, part) in rows.chunks(rows.len().div_ceil(layout.files)).enumerate() {
        let text = |of: fn(&AnnotationRow) -> &String| -> ArrayRef {
            Arc::new(StringArray::from_iter_values(part.iter().map(of)))
        };
        let mut columns = vec![
            ("instance_id", text(|row| &row.0)),
            ("annotator_id", text(|row| &row.1)),
            ("label", text(|row| &row.2)),
        ];
        if is_weighted {
            let weights = Float64Array::from_iter_values(part.iter().map(|row| row.3));
            // The last digit of an instance decides its question.
            let question = |row: &AnnotationRow| if row.0.ends_with('7') { "few" } else { "many" };
            let questions = StringArray::from_iter_values(part.iter().map(question));
            columns.push(("weight", Arc::new(weights)));
            columns.push(("question", Arc::new(questions)));
        }
        write_parquet(&folder.path().join(format!("in/part-{n}.parquet")), columns);
    }
    let output = folder.path().join("out");
    let gold = "source.gold = [['item 3', 'c1', 'train'], ['item 7', 'c0', 'train'], ['item 9', 'c1', 'holdout']]\n";
    let more = if is_weighted { gold } else { "" };
    run(&spec(folder.path(), &output, layout, model, more));
    table_files(&output.join("latest").canonicalize().unwrap())
}

fn spec(folder: &Path, output: &Path, layout: &Layout, model: &str, more: &str) -> PipelineSpec {
    let text = format!(
        "source.annotations = '{}/in/'\nsink = {{ url = '{}', sync = false }}\nmodel.kind = '{model}'\n\
         engine = {{ batch_size = {}, threads = {} }}\n{more}",
        folder.display(),
        output.display(),
        layout.batch_size,
        layout.threads
    );
    load(&text, "test", &Overrides::default()).unwrap()
}

fn run(spec: &PipelineSpec) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let mut job = JobContext::new(spec.seed).with_threads(spec.engine.threads()).unwrap();
    job.clock = Clock::Stopped;
    runtime.block_on(pipeline::run(spec, pipeline::Rerun::default(), &mut job)).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_layout_changes_a_byte(layout in layouts()) {
        for (kind, is_weighted) in crowds() {
            let (want, got) = (&PLAIN[&(kind, is_weighted)], publish(&layout, kind, is_weighted));
            prop_assert_eq!(want.keys().collect::<Vec<_>>(), got.keys().collect::<Vec<_>>());
            for (name, bytes) in want {
                let what = if is_weighted { "with weights, questions and gold" } else { "" };
                prop_assert!(got[name] == *bytes, "{} of {} differs {}", name, kind, what);
            }
        }
    }
}
