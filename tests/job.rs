//! A job in a temporary folder: its input files, its pipeline, and the output of the real binary.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::RecordBatch;
use datafusion::prelude::SessionContext;
use tokio::runtime::Runtime;

use crate::support::{Row, labelmill, read_table, stderr, temporary_folder, text};

/// No test cuts the power, so nothing has to be on the disk before a commit: syncing takes longer than a small job.
const UNSYNCED: [&str; 2] = ["--set", "sink.sync=false"];

/// The model of [`vote`].
pub const VOTE_KIND: &str = "model.kind = 'majority_vote'\n";

/// A temporary folder for one test.
pub struct Job {
    folder: tempfile::TempDir,
}

impl Job {
    pub fn new() -> Self {
        Self { folder: temporary_folder() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The path of a file in the folder, as an argument.
    pub fn url(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Writes a text file; `{dir}` in it stands for the folder.
    pub fn write(&self, name: &str, content: &str) -> String {
        std::fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        std::fs::write(self.path(name), content.replace("{dir}", &self.url(""))).unwrap();
        self.url(name)
    }

    /// Runs a pipeline of this text with more arguments, which must end with this code; returns stderr.
    pub fn ends(&self, pipeline: &str, arguments: &[&str], code: i32) -> String {
        let output = self.output(pipeline, arguments);
        assert_eq!(output.status.code(), Some(code), "{pipeline}\n{}", stderr(&output));
        stderr(&output)
    }

    /// Runs a pipeline of this text; returns stderr if it fails.
    pub fn ends_any(&self, pipeline: &str) -> Option<String> {
        let output = self.output(pipeline, &[]);
        (!output.status.success()).then(|| stderr(&output))
    }

    fn output(&self, pipeline: &str, arguments: &[&str]) -> Output {
        let file = self.write("pipeline.toml", pipeline);
        let sink = format!("sink.url={}", self.url("out"));
        let mut command = labelmill();
        command.args(["run", &file, "--set", &sink]).args(UNSYNCED).args(arguments);
        command.output().unwrap()
    }

    /// Runs a pipeline of this text and returns the folder of the published run.
    pub fn run(&self, pipeline: &str) -> PathBuf {
        self.ends(pipeline, &[], 0);
        self.path("out/latest").canonicalize().unwrap()
    }

    /// Runs a pipeline of this text, which must fail with this code and publish nothing; returns stderr.
    pub fn fails(&self, pipeline: &str, code: i32) -> String {
        let error = self.ends(pipeline, &[], code);
        assert!(!self.path("out/latest").exists(), "{pipeline}");
        error
    }
}

/// Runs a pipeline of this text in a folder of its own and returns one of its tables.
pub fn table_of(pipeline: &str, table: &str) -> Vec<Row> {
    read_table(&Job::new().run(pipeline), table)
}

/// A pipeline that takes the majority vote over a file of the folder, with more keys.
pub fn vote(file: &str, more: &str) -> String {
    fit("majority_vote", file, more)
}

/// A pipeline that fits a model to a file of the folder, with more keys.
pub fn fit(model: &str, file: &str, more: &str) -> String {
    format!("source.annotations = '{{dir}}{file}'\nmodel.kind = '{model}'\n{more}")
}

/// The chosen columns of every row, joined by spaces; null is empty.
pub fn cells(rows: &[Row], columns: &[&str]) -> Vec<String> {
    let join = |row| columns.iter().map(|c| text(row, c)).collect::<Vec<_>>().join(" ");
    rows.iter().map(join).collect()
}

/// How many rows a run read and how many it used.
pub fn rows_read(run: &Path) -> String {
    cells(&read_table(run, "run"), &["rows_read", "rows_used"]).remove(0)
}

/// Asserts that a message contains all of these parts.
pub fn assert_says(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "`{part}` is missing in\n{error}");
    }
}

/// Writes a batch in the format that the extension of the file names.
pub fn write_as(path: &Path, batch: &RecordBatch) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let name = path.file_name().unwrap().to_str().unwrap().trim_start_matches('.');
    let (format, options) = match name.split_once('.').unwrap().1 {
        "parquet" => ("PARQUET", ""),
        "csv" => ("CSV", ""),
        "csv.gz" => ("CSV", "OPTIONS ('format.compression' 'gzip')"),
        "ndjson" => ("JSON", ""),
        "ndjson.gz" => ("JSON", "OPTIONS ('format.compression' 'gzip')"),
        "arrow" => ("ARROW", ""),
        other => panic!("no such format: {other}"),
    };
    // A session takes longer to make than most files take to write.
    static SESSION: LazyLock<(Runtime, SessionContext)> =
        LazyLock::new(|| (Runtime::new().unwrap(), SessionContext::new()));
    static WRITTEN: AtomicUsize = AtomicUsize::new(0);
    let (runtime, ctx) = &*SESSION;
    let table = format!("batch_{}", WRITTEN.fetch_add(1, Ordering::Relaxed));
    let copy = format!("COPY {table} TO '{}' STORED AS {format} {options}", path.display());
    runtime.block_on(async {
        ctx.register_batch(&table, batch.clone()).unwrap();
        ctx.sql(&copy).await.unwrap().collect().await.unwrap();
        ctx.deregister_table(&table).unwrap();
    });
}
