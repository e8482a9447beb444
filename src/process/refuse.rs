//! Ends the process where the system gives no more memory, and lets one thread print why the process ends.

use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::log_format::{MESSAGES, logs_are_json};
use crate::error::Stage;

const NO_MEMORY: &str = "there is not enough memory";

/// The most bytes of a message.
const MESSAGE_BYTES: usize = 1024;

/// The help where the machine or the container has no more memory.
pub(super) const MACHINE_HELP: &str = "make smaller values, give a container more memory, or run \
     on a larger machine; a smaller engine.memory_limit refuses earlier, and says what does not \
     fit";

/// The help where the memory limit allows no more.
pub(super) const JOB_HELP: &str =
    "make smaller values, or raise engine.memory_limit (without a pipeline, --memory-limit)";

/// Ends the process because a new thread gets no memory.
#[cold]
pub(crate) fn refuse_thread(found: &str) -> ! {
    refuse(format_args!("{found}"), MACHINE_HELP)
}

/// Returns at once in the first thread that calls it. Others wait for that one to end the process, so that one thread
/// prints why it ends; not for long, as it may need a lock that a waiting thread holds.
#[allow(unsafe_code)]
pub(crate) fn print_alone() {
    static PRINTING: AtomicUsize = AtomicUsize::new(0);
    // SAFETY: asks for the thread's own handle, which is never 0.
    let this = unsafe { libc::pthread_self() } as usize;
    for _ in 0..100 {
        match PRINTING.compare_exchange(0, this, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return,
            Err(printing) if printing == this => return,
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Prints the error and ends the process, without allocating and without a lock.
#[cold]
#[allow(unsafe_code)]
pub(super) fn refuse(found: fmt::Arguments<'_>, help: &str) -> ! {
    print_alone();
    let mut text = [0; MESSAGE_BYTES];
    let mut rest = &mut text[..];
    // A message that does not fit is cut off.
    let _ = if logs_are_json() {
        let code = Stage::Spec.exit_code();
        // No part has a character that JSON would escape.
        writeln!(
            rest,
            "{{\"level\":\"ERROR\",\"fields\":{{\"message\":\"{NO_MEMORY}\",\"found\":\"{found}\",\"help\":\"{help}\",\
             \"exit_code\":{code}}},\"target\":\"{MESSAGES}\"}}"
        )
    } else {
        writeln!(rest, "error: {NO_MEMORY}\n  found: {found}\n  help: {help}")
    };
    let length = MESSAGE_BYTES - rest.len();
    // SAFETY: writes bytes that are there, without the lock of the standard library's writer, and ends the process as it
    // is; no destructor runs that could allocate or wait for a lock.
    unsafe {
        libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), length);
        libc::_exit(i32::from(Stage::Spec.exit_code()))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::process::Command;

    use super::*;
    use crate::process::log_format::write_logs_as_json;

    /// Set in the environment of a test that runs as a process of its own.
    pub(crate) const CHILD: &str = "LABELMILL_TEST_CHILD";

    /// Runs a test in a process of its own; returns its exit code and its stderr.
    pub(crate) fn child(test: &str) -> (Option<i32>, String) {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([test, "--nocapture", "--test-threads", "1"]);
        let output = child.env(CHILD, "1").output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }

    /// Other panics are caught. Where a job gets too little address space, a test of the program meets the panic itself.
    #[test]
    fn a_thread_without_memory_for_its_signal_stack_ends_the_process_by_an_exit_code() {
        if std::env::var_os(CHILD).is_some() {
            crate::panics::keep_places(refuse_thread);
            for reason in
                ["no alternative stack", "failed to allocate an alternative stack: ENOMEM"]
            {
                assert!(std::thread::spawn(move || panic!("{reason}")).join().is_err());
                writeln!(std::io::stderr(), "caught: {reason}").unwrap();
            }
            return;
        }
        let (code, output) = child("a_thread_without_memory");
        assert_eq!(code, Some(2), "{output}");
        let refused = "caught: no alternative stack\nerror: there is not enough memory\n  found: failed to allocate an \
                       alternative stack\n";
        assert!(output.contains(refused), "{output}");
    }

    #[test]
    fn the_longest_refusal_is_an_object_where_logs_are_json() {
        let most = usize::MAX;
        if std::env::var_os(CHILD).is_some() {
            write_logs_as_json(true);
            let held = "while large values and tables hold";
            let limit = "the memory limit allows";
            refuse(
                format_args!("{most} bytes wanted at once, {held} {most}; {limit} {most}"),
                MACHINE_HELP,
            );
        }
        let (code, output) = child("the_longest_refusal_is_an_object");
        assert_eq!(code, Some(2), "{output}");
        let line: serde_json::Value = serde_json::from_str(output.lines().last().unwrap()).unwrap();
        let fields = &line["fields"];
        assert_eq!((&fields["exit_code"], &fields["help"]), (&2.into(), &MACHINE_HELP.into()));
        assert!(fields["found"].as_str().unwrap().ends_with(&most.to_string()), "{line}");
    }

    #[test]
    fn of_many_threads_that_get_no_memory_one_prints_and_prints_once() {
        if std::env::var_os(CHILD).is_some() {
            print_alone();
            std::thread::spawn(|| refuse_thread("of another thread"));
            std::thread::sleep(Duration::from_millis(200));
            refuse_thread("of this thread");
        }
        let (code, output) = child("of_many_threads_that_get_no_memory");
        assert_eq!(code, Some(2), "{output}");
        assert!(output.contains("of this thread") && !output.contains("of another"), "{output}");
    }
}
