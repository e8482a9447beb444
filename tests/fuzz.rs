//! For any bytes a reader returns rows or an error: it does not panic, abort or report a defect.
//!
//! The inputs are damaged copies of valid ones, the same in every run, ten thousand by default. To try more, give the
//! total number of inputs:
//!
//! ```text
//! LABELMILL_FUZZ=1000000 cargo test --release --features testing --test integration fuzz:: -- --nocapture
//! ```
//!
//! Each test prints its folder at the start; if the process aborts, the file `input` in that folder holds the input
//! that caused it. `LABELMILL_FUZZ_SEED` gives other inputs.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use labelmill::commands::predict::{Prediction, predict};
use labelmill::engine::EngineSpec;
use labelmill::error::{Error, Result, Stage};
use labelmill::job_context::JobContext;
use labelmill::pipeline::load;
use labelmill::pipeline::{PipelineSpec, read};
use labelmill::sink::{self, RunTables, SinkSpec};
use labelmill::source::{ColumnsSpec, Location, Source};
use labelmill::spec::Overrides;
use labelmill::store::StoreSpec;
use rand::Rng;

use crate::job::Job;
use crate::network_job::{WIDTH, features, job, list, pipeline, write_features};
use crate::support::{unsealed, write_batch, write_crowd};

/// The default number of inputs, for all tests together.
const INPUTS: usize = 10_000;

fn from_environment(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

/// Words that often break parsers of formats, numbers and SQL.
const WORDS: [&str; 32] = [
    "\0",
    "\u{feff}",
    "\r\n",
    "\n",
    "\"",
    "'",
    ",",
    "{",
    "}",
    "[",
    "]",
    ":",
    "\\",
    "\\u0000",
    "\\ud800",
    "null",
    "true",
    "NaN",
    "nan",
    "inf",
    "-0",
    "1e999",
    "-1",
    "18446744073709551616",
    "9223372036854775807",
    "4294967295",
    "0.1e-400",
    "\u{202e}",
    "\"a\":",
    "[[a]]",
    "\t",
    "\u{1b}[2J",
];

/// A damaged copy of one of the seeds, perhaps with a part of another.
fn damaged(seeds: &[Vec<u8>], rng: &mut impl Rng) -> Vec<u8> {
    let mut bytes = seeds[rng.random_range(0..seeds.len())].clone();
    for _ in 0..rng.random_range(1..=6) {
        let at = rng.random_range(0..=bytes.len());
        let end = (at + rng.random_range(0..=24)).min(bytes.len());
        match rng.random_range(0..10) {
            0 => drop(bytes.splice(at..end, [])),
            1 => bytes.truncate(at),
            2 => {
                let part = bytes[at..end].to_vec();
                let times = if rng.random_ratio(1, 50) { 2_000 } else { rng.random_range(1..8) };
                bytes.splice(at..at, part.repeat(times));
            }
            3 => {
                let other = &seeds[rng.random_range(0..seeds.len())];
                let from = rng.random_range(0..=other.len());
                let to = (from + rng.random_range(0..=200)).min(other.len());
                bytes.splice(at..end, other[from..to].iter().copied());
            }
            4 | 5 => {
                let word = WORDS[rng.random_range(0..WORDS.len())];
                bytes.splice(at..at, word.bytes());
            }
            6 => {
                let word = WORDS[rng.random_range(0..WORDS.len())];
                // Replaces a whole number or word.
                let is_word = |b: &u8| b.is_ascii_alphanumeric() || *b == b'.';
                let length = bytes[at..].iter().take_while(|b| is_word(b)).count();
                bytes.splice(at..at + length, word.bytes());
            }
            7 => bytes[at..end].iter_mut().for_each(|b| *b = 0xff),
            _ if at < bytes.len() => bytes[at] ^= 1 << rng.random_range(0..8),
            _ => {}
        }
    }
    bytes
}

/// Calls a reader with damaged copies of the seeds; `share` is the fraction of all inputs that this test tries. An input
/// that fails is kept in the system's folder of temporary files.
fn fuzz<R, F>(name: &str, share: f64, seeds: &[Vec<u8>], folder: &Path, reader: R)
where
    R: FnMut(Vec<u8>) -> F,
    F: Future<Output = Result<()>>,
{
    fuzz_keeping(&std::env::temp_dir(), name, share, seeds, folder, reader);
}

/// As [`fuzz`]; an input that fails is kept in the folder `keep`.
fn fuzz_keeping<R, F>(
    keep: &Path,
    name: &str,
    share: f64,
    seeds: &[Vec<u8>],
    folder: &Path,
    mut reader: R,
) where
    R: FnMut(Vec<u8>) -> F,
    F: Future<Output = Result<()>>,
{
    let all = from_environment("LABELMILL_FUZZ").unwrap_or(INPUTS);
    let inputs = (all as f64 * share) as usize;
    let seed = from_environment("LABELMILL_FUZZ_SEED").unwrap_or(1) as u64;
    let mut rng = JobContext::new(seed).rng(name);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    println!("{name}: {inputs} inputs, the last one at {}/input", folder.display());
    let mut read = 0;
    for seed in seeds {
        runtime
            .block_on(reader(seed.clone()))
            .unwrap_or_else(|e| panic!("{name}: a good input fails: {e}"));
    }
    for n in 0..inputs {
        let bytes = damaged(seeds, &mut rng);
        std::fs::write(folder.join("input"), &bytes).unwrap();
        let found = catch_unwind(AssertUnwindSafe(|| runtime.block_on(reader(bytes.clone()))));
        let what = match found {
            Ok(Ok(())) => {
                read += 1;
                continue;
            }
            Ok(Err(error)) if error.stage != Stage::Bug => continue,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "a panic".to_owned(),
        };
        let kept = keep.join(format!("labelmill-fuzz-{}-{n}", name.replace(' ', "-")));
        std::fs::write(&kept, &bytes).unwrap();
        panic!("{name}, input {n}, kept as {}: {what}", kept.display());
    }
    println!("{name}: {read} of {inputs} were read, the others refused");
    assert!(inputs < 100 || read < inputs, "the inputs are not damaged");
}

fn texts(seeds: &[&str]) -> Vec<Vec<u8>> {
    seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect()
}

#[test]
fn damaged_pipeline_files_are_read_or_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("pipelines");
    let mut seeds: Vec<Vec<u8>> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .map(|path| std::fs::read(path).unwrap())
        .collect();
    seeds.sort();
    seeds.push(
        b"seed = 3\nmodel = { kind = 'conal', train.epochs = 3 }\n[source]\nannotations = 'a.csv'\nfeatures = 'f'\ncolumns = { label = 'l' }\n"
            .to_vec(),
    );
    let job = Job::new();
    fuzz("pipeline files", 0.2, &seeds, &job.path(""), |bytes| {
        let text = String::from_utf8_lossy(&bytes);
        // A variable that nothing reads is an error.
        let var = text.contains("${data}").then(|| "data=nowhere".to_owned());
        let overrides = Overrides { var: var.into_iter().collect(), ..Overrides::default() };
        let done = load(&text, "fuzz", &overrides).map(|_| ());
        std::future::ready(done)
    });
}

#[test]
fn damaged_manifests_are_read_or_refused() {
    let job = Job::new();
    job.run("source.annotations = [['i', 'a', 'x']]\nmodel.kind = 'majority_vote'\nsink.run_id = 'good'");
    let good = std::fs::read(job.path("out/runs/good/manifest.json")).unwrap();
    let sink = SinkSpec { url: job.url("out"), ..SinkSpec::default() };
    let sink = Arc::new(sink::open(&sink, &StoreSpec::default()).unwrap());
    fuzz("manifests", 0.35, &[good], &job.path(""), |bytes| {
        let (sink, path) = (Arc::clone(&sink), job.path("out/runs/good/manifest.json"));
        async move {
            std::fs::write(path, bytes).unwrap();
            sink.committed("good").await.map(|_| ())
        }
    });
}

/// Reads a source as a job does, up to the numbers that a model would get.
async fn frame_of(file: String, gold: Option<String>) -> Result<()> {
    let mut spec = PipelineSpec::default();
    spec.source.annotations = Some(Location::Url(file));
    spec.source.gold = gold.map(Location::Url);
    spec.engine.threads = Some(2);
    let ctx = spec.engine.session()?;
    let mut job = JobContext::new(1);
    let source = Source::register(&ctx, &spec.source, &spec.store, &RunTables, &mut job).await?;
    read(&spec, &ctx, &source, &mut job).await.map(|_| ())
}

fn fuzz_source(name: &str, share: f64, file: &str, seeds: &[Vec<u8>]) {
    let job = Job::new();
    fuzz(name, share, seeds, &job.path(""), |bytes| {
        std::fs::write(job.path(file), bytes).unwrap();
        frame_of(job.url(file), None)
    });
}

#[test]
fn damaged_csv_files_are_read_or_refused() {
    let seeds = texts(&[
        "instance_id,annotator_id,label\ni1,a1,yes\ni1,a2,no\ni2,a1,yes\n",
        "instance_id,annotator_id,label,weight,annotated_at,question\n1,2,3,0.5,2026-01-02,q\n1,3,3,1,2026-01-02T03:04:05Z,q\n\"2\",2,\"a \"\"b\"\"\nc\",1e3,,p\n",
        "label,instance_id,annotator_id\r\n,1,2\r\n\"x,y\",-1,2.5\r\n",
    ]);
    fuzz_source("csv files", 0.15, "in.csv", &seeds);
}

#[test]
fn damaged_ndjson_files_are_read_or_refused() {
    let seeds = texts(&[
        "{\"instance_id\":\"i\",\"annotator_id\":\"a\",\"label\":\"x\"}\n{\"instance_id\":\"i\",\"annotator_id\":\"b\",\"label\":\"y\"}\n",
        "{\"instance_id\":1,\"annotator_id\":2,\"label\":true,\"weight\":0.5}\n{\"instance_id\":2,\"annotator_id\":2,\"label\":false,\"weight\":null,\"more\":{\"a\":[1,2]}}\n",
    ]);
    fuzz_source("ndjson files", 0.15, "in.ndjson", &seeds);
}

/// Rows with every column of the contract.
fn typed_rows() -> RecordBatch {
    let column = |values: [&str; 3]| Arc::new(StringArray::from(values.to_vec())) as ArrayRef;
    RecordBatch::try_from_iter([
        ("instance_id", Arc::new(Int64Array::from(vec![1, 1, 2])) as ArrayRef),
        ("annotator_id", column(["a", "b", "a"])),
        (
            "label",
            cast(
                &column(["x", "y", "x"]),
                &DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
            )
            .unwrap(),
        ),
        ("weight", Arc::new(Float64Array::from(vec![Some(1.0), Some(0.5), None]))),
        ("annotated_at", Arc::new(TimestampMicrosecondArray::from(vec![1, 2, 3]))),
        ("question", column(["q", "q", "p"])),
    ])
    .unwrap()
}

#[test]
fn damaged_parquet_files_are_read_or_refused() {
    let job = Job::new();
    write_crowd(&job.path("a.parquet"), &[("i", "a", "x"), ("i", "b", "y"), ("j", "a", "x")]);
    let rows = [("1", "a", "x"); 300];
    write_crowd(&job.path("b.parquet"), &rows);
    write_batch(&job.path("c.parquet"), &typed_rows());
    let seeds =
        ["a.parquet", "b.parquet", "c.parquet"].map(|f| std::fs::read(job.path(f)).unwrap());
    fuzz_source("parquet files", 0.06, "in.parquet", &seeds);
}

#[test]
fn damaged_arrow_files_are_read_or_refused() {
    let rows = typed_rows();
    let mut seeds = Vec::new();
    for compression in [None, Some(CompressionType::ZSTD), Some(CompressionType::LZ4_FRAME)] {
        let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
        let mut file =
            FileWriter::try_new_with_options(Vec::new(), &rows.schema(), options.clone()).unwrap();
        file.write(&rows).unwrap();
        seeds.push(file.into_inner().unwrap());
        let mut stream =
            StreamWriter::try_new_with_options(Vec::new(), &rows.schema(), options).unwrap();
        stream.write(&rows).unwrap();
        seeds.push(stream.into_inner().unwrap());
    }
    fuzz_source("arrow files", 0.04, "in.arrow", &seeds);
}

/// Predicts with the model in a folder; the same prediction is not published twice.
async fn prediction(folder: String, features: String, output: String) -> Result<()> {
    let what = Prediction {
        model: &folder,
        features: &features,
        output: &output,
        columns: ColumnsSpec::default(),
        engine: EngineSpec { threads: Some(1), ..EngineSpec::default() },
        device: Some("cpu"),
        force: false,
    };
    predict(&what, &StoreSpec::default(), &mut JobContext::new(1)).await.map(|_| ())
}

/// Damages one file of a trained model.
fn fuzz_model(name: &str, share: f64, kind: &str, file: &str) {
    let job = job();
    let run = job.run(&pipeline(&format!("kind = '{kind}'")).replace("epochs = 20", "epochs = 1"));
    write_features(&job.path("new.parquet"), list(&features()[..20 * WIDTH], WIDTH));
    let model = job.path("model");
    std::fs::create_dir(&model).unwrap();
    for entry in std::fs::read_dir(run.join("model")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), model.join(entry.file_name())).unwrap();
    }
    unsealed(&model);
    let good = std::fs::read(model.join(file)).unwrap();
    fuzz(name, share, &[good], &job.path(""), |bytes| {
        std::fs::write(model.join(file), bytes).unwrap();
        prediction(job.url("model"), job.url("new.parquet"), job.url("predicted"))
    });
}

#[test]
fn damaged_descriptions_of_models_are_read_or_refused() {
    fuzz_model("descriptions of models", 0.02, "single_confusion", "model.json");
    fuzz_model("descriptions of networks", 0.01, "conal", "model.json");
}

#[test]
fn damaged_numbers_of_models_are_read_or_refused() {
    fuzz_model("numbers of models", 0.02, "max_mig", "model.safetensors");
}

#[test]
fn a_panic_and_a_defect_are_found() {
    let job = Job::new();
    let seeds = texts(&["abcdefgh"]);
    for kind in 0..2 {
        let found = catch_unwind(AssertUnwindSafe(|| {
            let folder = job.path("");
            fuzz_keeping(&folder, "itself", 0.01, &seeds, &folder, |bytes| {
                let broken = bytes.len() < 8;
                assert!(!broken || kind == 1, "broken");
                std::future::ready(if broken { Err(Error::bug("broken")) } else { Ok(()) })
            });
        }));
        assert!(found.is_err(), "{kind}");
    }
}
