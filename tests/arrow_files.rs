//! Arrow IPC files and streams: read whatever their mixture, and refused where they cannot be read rightly.

use std::process::Command;
use std::sync::Arc;

use arrow::array::{ArrayRef, DictionaryArray, Int32Array, RecordBatch, StringArray};
use arrow::datatypes::Int32Type;
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};

use crate::job::{Job, assert_says, rows_read, vote, write_as};
use crate::support::run;

/// One annotation of an instance.
fn one(instance: &str) -> RecordBatch {
    let column = |text: &str| Arc::new(StringArray::from(vec![text])) as ArrayRef;
    let columns = [("instance_id", instance), ("annotator_id", "a"), ("label", "x")];
    RecordBatch::try_from_iter(columns.map(|(name, text)| (name, column(text)))).unwrap()
}

fn file_of(batch: &RecordBatch, options: IpcWriteOptions) -> Vec<u8> {
    let mut file = FileWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
    file.write(batch).unwrap();
    file.into_inner().unwrap()
}

fn stream_of(batch: &RecordBatch) -> Vec<u8> {
    let mut stream = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    stream.write(batch).unwrap();
    stream.into_inner().unwrap()
}

/// The error of a job that reads these bytes, exit code 3.
fn refused(bytes: &[u8]) -> String {
    let job = Job::new();
    std::fs::write(job.path("in.arrow"), bytes).unwrap();
    let error = job.fails(&vote("in.arrow", ""), 3);
    assert_says(&error, &["in.arrow"]);
    error
}

/// DataFusion chooses the reader of all files of a scan by the first one.
#[test]
fn a_folder_may_hold_files_and_streams() {
    let (file, stream) = (file_of(&one("i"), IpcWriteOptions::default()), stream_of(&one("j")));
    for parts in [[&file, &stream], [&stream, &file]] {
        let job = Job::new();
        std::fs::create_dir(job.path("in")).unwrap();
        for (name, bytes) in ["in/0.arrow", "in/1.arrows"].iter().zip(parts) {
            std::fs::write(job.path(name), bytes).unwrap();
        }
        assert_eq!(rows_read(&job.run(&vote("in/", ""))), "2 2");
    }
}

#[test]
fn what_follows_the_end_of_a_stream_is_not_left_out() {
    let (first, second) = (stream_of(&one("i")), stream_of(&one("j")));
    let both = [&first[..], &second[..]].concat();
    assert_says(&refused(&both), &["more than one stream"]);
    // The first stream without the eight bytes that end it.
    let joined = [&first[..first.len() - 8], &second[..]].concat();
    assert_says(&refused(&joined), &["more than one stream"]);
    let batch_first = &second[schema_bytes(&second)..];
    assert_says(&refused(batch_first), &["does not begin with a schema"]);
    let job = Job::new();
    std::fs::write(job.path("in.arrow"), [&first[..], &[0; 8]].concat()).unwrap();
    assert_eq!(rows_read(&job.run(&vote("in.arrow", ""))), "1 1");
}

/// The bytes of the first message of a stream: its mark, its length and its metadata.
fn schema_bytes(stream: &[u8]) -> usize {
    8 + i32::from_le_bytes(stream[4..8].try_into().unwrap()) as usize
}

#[test]
fn a_file_of_another_endianness_is_refused() {
    /// The metadata of a schema message without fields that is marked as big-endian.
    const BIG_ENDIAN: [u8; 56] = [
        16, 0, 0, 0, 0, 0, 10, 0, 12, 0, 6, 0, 5, 0, 8, 0, 10, 0, 0, 0, 0, 1, 4, 0, 12, 0, 0, 0, 8,
        0, 12, 0, 6, 0, 8, 0, 8, 0, 0, 0, 0, 0, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    let (mark, length, end) = ([0xff; 4], 56_i32.to_le_bytes(), [255, 255, 255, 255, 0, 0, 0, 0]);
    let bytes = [&mark[..], &length, &BIG_ENDIAN, &end].concat();
    assert_says(&refused(&bytes), &["endianness"]);
}

/// Integers of 24 bits, which Arrow does not have.
#[test]
fn a_type_that_does_not_exist_is_refused_where_the_schema_is_read() {
    let numbers = Arc::new(Int32Array::from(vec![7])) as ArrayRef;
    let batch = RecordBatch::try_from_iter([("instance_id", numbers)]).unwrap();
    let bytes = stream_of(&batch);
    let is_width = |at: &usize| bytes[*at..at + 4] == 32_i32.to_le_bytes();
    let errors: Vec<String> = (8..schema_bytes(&bytes) - 4)
        .step_by(4)
        .filter(is_width)
        .map(|at| {
            let mut changed = bytes.clone();
            changed[at..at + 4].copy_from_slice(&24_i32.to_le_bytes());
            refused(&changed)
        })
        .collect();
    let what = "the schema of the Arrow file cannot be read";
    assert!(errors.iter().any(|error| error.contains(what)), "{errors:?}");
}

#[test]
fn lengths_beyond_an_arrow_file_are_a_data_error() {
    let job = Job::new();
    let ids = |v: &str| Arc::new(StringArray::from(vec![v, v])) as ArrayRef;
    let columns = ["instance_id", "annotator_id", "label"].map(|name| (name, ids(name)));
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    write_as(&job.path("good.arrow"), &batch);
    let good = std::fs::read(job.path("good.arrow")).unwrap();
    let pipeline = vote("in.arrow", "");
    // Puts a huge length in the place of every eight bytes of the footer, one place at a time.
    let end = good.len() - 10;
    let mut n_refused = 0;
    for at in (end - 200..end).step_by(8) {
        let mut bytes = good.clone();
        bytes[at..at + 8].copy_from_slice(&(i64::MAX / 2).to_le_bytes());
        std::fs::write(job.path("in.arrow"), bytes).unwrap();
        let file = job.write("pipeline.toml", &pipeline);
        let sink = format!("sink.url={}", job.url("out"));
        let output = run(&["run", &file, "--force", "--set", &sink]);
        assert!(matches!(output.status.code(), Some(0 | 3)), "at {at}: {output:?}");
        n_refused += usize::from(output.status.code() == Some(3));
    }
    assert!(n_refused > 5, "{n_refused} refused");
    std::fs::write(job.path("in.arrow"), b"\xff\xff\xff\xff\xff\xff\xff\x7f").unwrap();
    assert_says(&job.ends(&pipeline, &[], 3), &["in.arrow", "beyond the file"]);
}

/// Arrow's reader of streams would take the first letters of the file for the length of a message, 1.3 GB.
#[cfg(target_os = "linux")]
#[test]
fn a_damaged_dictionary_of_an_arrow_file_takes_less_than_a_gibibyte() {
    let long = "x".repeat(200);
    let column: DictionaryArray<Int32Type> = [long.as_str(); 2].into_iter().collect();
    let column = Arc::new(column) as ArrayRef;
    let columns = ["instance_id", "annotator_id", "label"].map(|name| (name, column.clone()));
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let options =
        IpcWriteOptions::default().try_with_compression(Some(CompressionType::ZSTD)).unwrap();
    let mut file = FileWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
    file.write(&batch).unwrap();
    let mut bytes = file.into_inner().unwrap();
    let frame = [0x28, 0xb5, 0x2f, 0xfd];
    let at = bytes.windows(4).position(|four| four == frame).unwrap();
    bytes[at..at + 4].fill(0);
    let job = Job::new();
    std::fs::write(job.path("in.arrow"), bytes).unwrap();
    let aggregate = format!(
        "ulimit -v {}; exec {} aggregate -q --annotations {} --model majority_vote --output {}",
        1 << 20,
        env!("CARGO_BIN_EXE_labelmill"),
        job.url("in.arrow"),
        job.url("out"),
    );
    let done = Command::new("sh").args(["-c", &aggregate]).output().unwrap();
    let error = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(3), "{error}");
    assert_says(&error, &["in.arrow", "damaged"]);
}
