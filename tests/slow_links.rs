//! A slow link is not a broken one: while bytes move, a request goes on, however long it takes.

use std::time::{Duration, Instant};

use labelmill::testing::synth::CrowdShape;

use crate::s3_job::{assert_equals_local_run, job, summary};
use crate::s3_server::{Fault, Server};
use crate::support::{stderr, write_numbers};

/// A server with a crowd whose file is larger than the buffers of the system.
fn server() -> Server {
    let server = Server::start_narrow();
    let crowd = CrowdShape { instances: 20_000, redundancy: 10, ..CrowdShape::default() };
    write_numbers(&server.bucket().join("in/crowd.parquet"), &crowd.draw(1).rows);
    server
}

/// No request is sent again, and one second without a byte is too long.
const IMPATIENT: [&str; 4] = ["--set", "store.idle_seconds=1", "--set", "store.max_retries=0"];

#[test]
fn a_download_that_takes_longer_than_the_idle_time_goes_through() {
    let server = server();
    let bytes = std::fs::metadata(server.bucket().join("in/crowd.parquet")).unwrap().len();
    // At least 150 pauses of ten milliseconds: more than a second in all, and each far shorter than a second.
    server.fault(Fault::Slow(usize::try_from(bytes / 150).unwrap()), "GetObject /in/", 0, 100);
    let start = Instant::now();
    let done = summary(&server, &IMPATIENT);
    assert!(start.elapsed() > Duration::from_millis(1_500), "it was not slow");
    assert_equals_local_run(&server, &done, &[]);
}

#[test]
fn an_upload_that_takes_longer_than_the_idle_time_goes_through() {
    let server = Server::start_narrow();
    let crowd =
        CrowdShape { instances: 6_000, classes: 90, redundancy: 2, ..CrowdShape::default() };
    write_numbers(&server.bucket().join("in/crowd.parquet"), &crowd.draw(1).rows);
    // The upload takes longer than the idle time. After the client has sent its last bytes, the server still has to
    // read them from the buffers of the system.
    server.fault(Fault::Slow(16 << 10), "PutObject posteriors/", 0, 1);
    let plain = ["--set", "sink.compression=none", "--set", "model.stop.max_iter=2"];
    let whole = ["--set", "store.piece_size=1GiB", "--set", "store.max_retries=0"];
    let patience = ["--set", "store.idle_seconds=3"];
    let start = Instant::now();
    let done = summary(&server, &[&plain[..], &whole, &patience].concat());
    assert!(start.elapsed() > Duration::from_secs(4), "it was not slow");
    assert_eq!(server.forget_faults(), 0);
    assert_equals_local_run(&server, &done, &plain);
}

// keys: store.idle_seconds
#[test]
fn a_download_that_stands_still_is_given_up_and_goes_on_where_it_stopped() {
    let server = server();
    server.fault(Fault::Stall(40_000), "GetObject /in/", 0, 1);
    let done = summary(&server, &IMPATIENT);
    assert_eq!(server.forget_faults(), 0);
    assert_equals_local_run(&server, &done, &[]);
}

#[test]
fn a_download_that_breaks_off_again_and_again_goes_on_as_long_as_bytes_come() {
    let server = server();
    server.fault(Fault::Cut(60_000), "GetObject /in/", 0, 6);
    let done = summary(&server, &["--set", "store.max_retries=0"]);
    assert_eq!(server.forget_faults(), 0);
    assert_equals_local_run(&server, &done, &[]);
}

#[test]
fn a_store_that_never_answers_ends_the_job_with_code_5() {
    let server = server();
    server.fault(Fault::Stall(0), "GetObject /in/", 0, 1_000);
    let output = server.run(&job(&IMPATIENT));
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert!(stderr(&output).contains("help:"), "{}", stderr(&output));
}
