//! Shared code of the tests: the real binary, small crowds as files, and tables read back as rows of text.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, StringArray, UInt32Array};
use arrow::util::display::array_value_to_string;
use bytes::Bytes;
use labelmill::model::{FeatureUse, MODELS, ModelKind};
pub use labelmill::testing::assert_close;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter,
};
use tempfile::TempDir;

/// A row as text by column; null is `None`.
pub type Row = BTreeMap<String, Option<String>>;

/// The real binary, without the credentials in the environment of this process.
pub fn labelmill() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_labelmill"));
    command
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("NO_COLOR", "1")
        .env_remove("RUST_BACKTRACE");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
        command.env_remove(name);
    }
    command
}

/// A temporary folder: in `TMPDIR` if that is set, else in memory where there is room, because a disk takes far longer to
/// create and remove thousands of small files.
pub fn temporary_folder() -> TempDir {
    let memory = "/dev/shm";
    let has_room = std::env::var_os("TMPDIR").is_none()
        && rustix::fs::statvfs(memory).is_ok_and(|s| s.f_bavail * s.f_frsize > 2 << 30);
    let named = || {
        let mut folder = tempfile::Builder::new();
        folder.prefix("labelmill-test-");
        folder
    };
    let in_memory = if has_room { named().tempdir_in(memory).ok() } else { None };
    in_memory.unwrap_or_else(|| named().tempdir().unwrap())
}

/// Runs the binary and returns its output.
pub fn run(args: &[&str]) -> Output {
    labelmill().args(args).output().unwrap()
}

/// Runs the binary, which must succeed.
pub fn run_ok(args: &[&str]) -> Output {
    let output = run(args);
    assert!(output.status.success(), "{args:?}\n{}", stderr(&output));
    output
}

/// Runs the binary, which must end with this code; returns stderr.
pub fn run_fails(args: &[&str], code: i32) -> String {
    let output = run(args);
    assert_eq!(output.status.code(), Some(code), "{args:?}\n{}", stderr(&output));
    stderr(&output)
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The folder of the real data sets, or `None` with a message that the test is skipped.
pub fn data_folder(test: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("LABELMILL_DATA").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("SKIPPED {test}: LABELMILL_DATA is not set");
    }
    folder
}

/// Writes columns as a Parquet file.
pub fn write_parquet(path: &Path, columns: Vec<(&str, ArrayRef)>) {
    let batch =
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true)))
            .unwrap();
    write_batch(path, &batch);
}

pub fn write_batch(path: &Path, batch: &RecordBatch) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

/// Removes the digests from a saved model, as in older files, so that other checks have to find what is wrong with it.
pub fn unsealed(model: &Path) -> serde_json::Value {
    let file = model.join("model.json");
    let text = std::fs::read(&file).unwrap();
    let mut description: serde_json::Value = serde_json::from_slice(&text).unwrap();
    for key in ["parameters_sha256", "description_sha256"] {
        description.as_object_mut().unwrap().remove(key).unwrap();
    }
    std::fs::write(&file, description.to_string()).unwrap();
    description
}

/// Rewrites the metadata of a Parquet file with other claims about its columns.
pub fn restate(path: &Path, claim: impl Fn(&ColumnChunkMetaData) -> ColumnChunkMetaData) {
    let bytes = Bytes::from(std::fs::read(path).unwrap());
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&bytes).unwrap();
    let groups = metadata.row_groups().iter().map(|group| {
        let columns = group.columns().iter().map(&claim).collect();
        group.clone().into_builder().set_column_metadata(columns).build().unwrap()
    });
    let metadata = ParquetMetaData::new(metadata.file_metadata().clone(), groups.collect());
    let trailer = bytes.len() - 8;
    let length = u32::from_le_bytes(*bytes[trailer..].first_chunk().unwrap());
    let mut file = bytes[..trailer - length as usize].to_vec();
    ParquetMetaDataWriter::new(&mut file, &metadata).finish().unwrap();
    std::fs::write(path, file).unwrap();
}

/// Removes the size of the text from the metadata of a Parquet file: many writers do not state it.
pub fn forget_sizes(path: &Path) {
    restate(path, |column| {
        let column = column.clone().into_builder();
        column.set_unencoded_byte_array_data_bytes(None).build().unwrap()
    });
}

/// Writes (instance, annotator, label) triples of text.
pub fn write_crowd(path: &Path, rows: &[(&str, &str, &str)]) {
    let column = |f: fn(&(&str, &str, &str)) -> String| {
        Arc::new(StringArray::from_iter_values(rows.iter().map(f))) as ArrayRef
    };
    write_parquet(
        path,
        vec![
            ("instance_id", column(|r| r.0.to_owned())),
            ("annotator_id", column(|r| r.1.to_owned())),
            ("label", column(|r| r.2.to_owned())),
        ],
    );
}

/// The bytes of every file below a run's folder by its path, without the files of the table `run`.
pub fn table_files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(folder).unwrap().display().to_string();
            if path.is_dir() {
                folders.push(path);
            } else if name.ends_with(".parquet") && !name.starts_with("run/") {
                files.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    files
}

/// The manifest of the committed run in a folder, whichever name the manifest has.
pub fn manifest(run: &Path) -> serde_json::Value {
    committed(run).unwrap_or_else(|| panic!("{} is not committed", run.display()))
}

/// The manifest of the run in a folder, or `None` if the run is not committed.
pub fn committed(run: &Path) -> Option<serde_json::Value> {
    let names = std::fs::read_dir(run).into_iter().flatten().flatten().map(|e| e.path());
    let is_manifest = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with("manifest") && name.ends_with(".json")
    };
    let contents = names.filter(is_manifest).map(|path| std::fs::read(path).unwrap());
    let manifests = contents
        .filter_map(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok())
        .filter(|content| content.get("digest").is_some());
    let manifests: Vec<serde_json::Value> = manifests.collect();
    assert!(manifests.len() < 2, "{} is committed twice", run.display());
    manifests.into_iter().next()
}

/// The folder with the files of a committed run.
pub fn files_of(run: &Path) -> PathBuf {
    run.join(manifest(run)["attempt"].as_str().unwrap())
}

/// The batches of a table of a run on local disk, in the order of its files.
pub fn read_batches(run: &Path, table: &str) -> Vec<RecordBatch> {
    let folder = run.join(table);
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
        .iter()
        .flat_map(|path| {
            let file = std::fs::File::open(path).unwrap();
            ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap()
        })
        .map(Result::unwrap)
        .collect()
}

/// A table of a run on local disk, as rows of text.
pub fn read_table(run: &Path, table: &str) -> Vec<Row> {
    read_batches(run, table).iter().flat_map(rows).collect()
}

pub fn rows(batch: &RecordBatch) -> Vec<Row> {
    let schema = batch.schema();
    let cell = |row: usize, column: usize| {
        let array = batch.column(column);
        array.is_valid(row).then(|| array_value_to_string(array, row).unwrap())
    };
    (0..batch.num_rows())
        .map(|row| {
            let fields = schema.fields().iter().enumerate();
            fields.map(|(c, f)| (f.name().clone(), cell(row, c))).collect()
        })
        .collect()
}

/// A cell as text; null is empty.
pub fn text(row: &Row, column: &str) -> String {
    row[column].clone().unwrap_or_default()
}

/// A cell as a number.
pub fn number(row: &Row, column: &str) -> f64 {
    text(row, column).parse().unwrap_or_else(|_| panic!("{column} of {row:?} is not a number"))
}

/// Every model that learns from annotations alone.
pub fn label_only() -> impl Iterator<Item = &'static ModelKind> {
    let needs_others = |model: &ModelKind| {
        let uses = model.capabilities;
        uses.features.are_read() || uses.confusion == FeatureUse::Needed
    };
    MODELS.iter().copied().filter(move |model| !needs_others(model))
}

/// Whether a kind of model trains a network.
pub fn trains_network(model: &ModelKind) -> bool {
    (model.defaults)()["train"].is_object()
}

/// Sends a signal, such as `KILL`, to a process; a process that is gone is not an error.
pub fn send_signal(pid: u32, signal: &str) {
    let _ = Command::new("sh").args(["-c", &format!("kill -{signal} {pid}")]).output();
}

/// Writes (instance, annotator, label) triples of numbers.
pub fn write_numbers(path: &Path, rows: &[(u32, u32, u32)]) {
    let column = |f: fn(&(u32, u32, u32)) -> u32| {
        Arc::new(UInt32Array::from_iter_values(rows.iter().map(f))) as ArrayRef
    };
    write_parquet(
        path,
        vec![
            ("instance_id", column(|r| r.0)),
            ("annotator_id", column(|r| r.1)),
            ("label", column(|r| r.2)),
        ],
    );
}
