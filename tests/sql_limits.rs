//! Every query of `labelmill sql` ends: with its rows, with an error, or within seconds of a signal.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::job::Job;
use crate::support::{labelmill, run_ok, send_signal, stderr, stdout};

fn spawn(args: &[&str]) -> Child {
    let mut command = labelmill();
    // With one worker thread, a task that waits for a signal there would have to wait for the query.
    command.args(args).env("TOKIO_WORKER_THREADS", "1");
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// Waits until the process has computed for half a second, far longer than to start and to plan a query.
fn wait_until_it_computes(pid: u32) {
    let began = Instant::now();
    let is_busy = || {
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
            return began.elapsed() > Duration::from_secs(2);
        };
        // The name of the program, in brackets, may hold blanks; the twelfth field after it counts hundredths of a second.
        let user = stat.rsplit(") ").next().and_then(|fields| fields.split(' ').nth(11));
        user.is_none_or(|user| user.parse::<u64>().unwrap() >= 50)
    };
    while !is_busy() {
        assert!(began.elapsed() < Duration::from_secs(60), "it does not compute");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends the signal; the process must end with the code within seconds.
fn assert_ends(child: &mut Child, signal: &str, code: i32) {
    send_signal(child.id(), signal);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        if let Some(status) = child.try_wait().unwrap() {
            assert_eq!(status.code(), Some(code));
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    panic!("{signal} did not end the query");
}

#[test]
fn a_signal_ends_a_query_inside_one_long_call() {
    let query = "select levenshtein(repeat('a', 400000), repeat('b', 400000))";
    for (signal, code) in [("TERM", 143), ("INT", 130)] {
        let mut child = spawn(&["sql", "-c", query]);
        wait_until_it_computes(child.id());
        assert!(child.try_wait().unwrap().is_none(), "the call was not long");
        assert_ends(&mut child, signal, code);
    }
}

#[test]
fn rows_are_written_while_they_come() {
    let query = "select value, 'x' as text from range(0, 1000000000000)";
    for (form, rows) in [("--json", 100_000), ("-q", 100_000)] {
        let mut child = spawn(&["sql", form, "-c", query]);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let last = lines.take(rows).map(Result::unwrap).last().unwrap();
        assert!(last.contains("9999") && last.contains('x'), "{last}");
        // The reader has closed the pipe, which is not an error.
        let ended = child.wait().unwrap();
        assert_eq!(ended.code(), Some(0), "{form}");
    }
    let mut child = spawn(&["sql", "--json", "-c", query]);
    // After a second the pipe is full, and the query waits for a reader.
    std::thread::sleep(Duration::from_secs(1));
    assert_ends(&mut child, "TERM", 143);
}

/// A query that doubles a text `times` times, with one column name per step.
fn doubled(first: &str, times: usize) -> String {
    let step =
        |query: String, n: usize| format!("select s{n} || s{n} as s{} from ({query})", n + 1);
    let query = (0..times).fold(format!("select {first} as s0"), step);
    format!("select length(s{times}) as n from ({query})")
}

#[test]
fn values_that_no_memory_holds_end_in_an_error() {
    let wide = "arrow_cast(repeat('x', 1000000), 'LargeUtf8')";
    for (query, codes) in [
        ("select length(repeat('x', 2000000000))".to_owned(), [2, 3]),
        ("select array_length(range(10000000000))".to_owned(), [2, 3]),
        ("select array_length(array_repeat('x', 1000000000))".to_owned(), [2, 3]),
        (
            "select sum(length(repeat('x', value % 3 + 1000000))) from range(0, 100000)".to_owned(),
            [2, 3],
        ),
        (doubled("repeat('x', 1000000)", 14), [2, 3]),
        (doubled(wide, 20), [2, 3]),
        (
            "select length(regexp_replace(repeat('x', 60000), 'x', repeat('y', 60000000), 'g'))"
                .to_owned(),
            [2, 3],
        ),
        (
            "select length(string_agg(repeat('x', 60000000), '')) from range(0, 200)".to_owned(),
            [2, 3],
        ),
    ] {
        // The limit of 4 GiB protects the machine that runs the test.
        let mut command = std::process::Command::new("sh");
        let binary = env!("CARGO_BIN_EXE_labelmill");
        command.args(["-c", "ulimit -v 4194304; exec \"$0\" sql -c \"$1\"", binary, &query]);
        let output = command.env("RUST_BACKTRACE", "1").output().unwrap();
        let message = stderr(&output);
        assert!(
            output.status.code().is_some_and(|code| codes.contains(&code)),
            "{query}\n{message}"
        );
        assert!(message.starts_with("error: ") && message.contains("help:"), "{query}\n{message}");
    }
}

#[test]
fn a_query_with_thousands_of_literals_takes_seconds() {
    let job = Job::new();
    let rows: String = (0..3_000).map(|n| format!("{n}\n")).collect();
    let table = format!("t={}", job.write("in.csv", &format!("x\n{rows}")));
    let literals: Vec<String> = (0..8_000).map(|n| n.to_string()).collect();
    let listed = format!("x in ({})", literals.join(", "));
    let began = Instant::now();
    for query in [
        format!("select {listed} from t"),
        format!("select count(*) from t where {listed}"),
        format!("select count(*) from t group by {listed}"),
    ] {
        let file = job.write("query.sql", &query);
        let shown = stdout(&run_ok(&["sql", "--table", &table, &file]));
        // The column name repeats the whole list, so the rows must not be padded to its width.
        assert!(shown.len() < 2_000_000, "{}", shown.len());
    }
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}
