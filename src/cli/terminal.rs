//! The only place that prints: results to stdout, all else to stderr.
//!
//! Text for people is escaped, so that data cannot send control sequences to a terminal, and the user part and the
//! query of a URL never reach stderr, whatever the message. Output for programs keeps every value.
//!
//! With `--log-format json`, messages, warnings and errors are lines of the log, so that a program that collects stderr
//! reads one format.

use std::io::{ErrorKind, IsTerminal, Write};

use serde_json::Value;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use super::shared_args::LogFormat;
use crate::error::{Error, Result, clipped};
use crate::escape;
use crate::process::log_format::{MESSAGES, logs_are_json, write_logs_as_json};
use crate::redact::{redacted, redacted_json};

/// Starts the log: with `quiet` it shows errors alone, otherwise the more lines the higher `verbose` is.
pub(super) fn start_logging(format: LogFormat, quiet: bool, verbose: u8) {
    let level = match (quiet, verbose) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "labelmill=info,warn",
        (false, 2) => "labelmill=debug,info",
        (false, _) => "trace",
    };
    let is_json = format == LogFormat::Json;
    write_logs_as_json(is_json);
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(format!("{level},{MESSAGES}=info")))
        .with_writer(Log)
        .with_ansi(Log::has_colour());
    if is_json { builder.json().init() } else { builder.init() }
}

/// Prints a message to stderr.
pub(super) fn print_message(text: &str) {
    if logs_are_json() {
        tracing::info!(target: MESSAGES, "{text}");
    } else {
        print_text(text);
    }
}

/// Prints a warning to stderr.
pub(super) fn print_warning(text: &str) {
    if logs_are_json() {
        tracing::warn!(target: MESSAGES, "{text}");
    } else {
        print_text(&format!("warning: {text}"));
    }
}

/// Prints an error of the arguments to stderr: the text that `clap` made of it.
pub(super) fn print_usage_error(text: &str) {
    if logs_are_json() {
        print_error(&Error::spec(text.trim_start_matches("error: ")));
    } else {
        print_text(text);
    }
}

/// Prints an error to stderr.
pub(super) fn print_error(error: &Error) {
    if !logs_are_json() {
        return print_text(&error.to_string());
    }
    for problem in &error.problems {
        let shown = |text: &String| clipped(&redacted(text)).into_owned();
        let [location, found, help] =
            [&problem.location, &problem.found, &problem.help].map(|text| text.as_ref().map(shown));
        tracing::error!(
            target: MESSAGES,
            { "where" = location, found, help, exit_code = error.exit_code() },
            "{}",
            shown(&problem.what)
        );
    }
}

/// Prints text for people to stderr.
fn print_text(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", escape::lines(&redacted(text)));
}

/// Prints a result for people to stdout; a closed pipe is no error.
pub(super) fn print_result(text: &str) -> Result<()> {
    print_exact(&escape::lines(text))
}

/// Prints a result for programs, as JSON; a closed pipe is no error.
pub(super) fn print_json(value: &Value) -> Result<()> {
    print_exact(&escape::json(&serde_json::to_string_pretty(value).unwrap_or_default()))
}

fn print_exact(text: &str) -> Result<()> {
    stream(format!("{text}\n").as_bytes()).map(drop)
}

/// Prints the help or the version, in colours on a terminal; a closed pipe is no error.
pub(super) fn print_help(help: &clap::Error) -> Result<()> {
    written(help.print().and_then(|()| std::io::stdout().flush())).map(drop)
}

/// Writes a part of the output to stdout; returns false once the reader is gone.
pub(super) fn stream(part: &[u8]) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    written(out.write_all(part).and_then(|()| out.flush()))
}

/// Whether stdout still has a reader, given the result of writing to it.
fn written(result: std::io::Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Error::store(format!("the output cannot be written: {e}"))
            .at("stdout")
            .help("free some space, or write it elsewhere")),
    }
}

/// The writer of log lines.
#[derive(Debug, Clone, Copy)]
struct Log;

impl Log {
    fn has_colour() -> bool {
        std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none()
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        *self
    }
}

/// Each call of `write` gets one whole log line.
impl Write for Log {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let text = match serde_json::from_str(&text) {
            // JSON has escapes of its own.
            Ok(fields) if logs_are_json() => {
                format!("{}\n", escape::json(&redacted_json(fields).to_string()))
            }
            _ => coloured(&redacted(&text)),
        };
        // A log that cannot be written changes nothing about the job. On an error, the subscriber would print it to the
        // same stderr, and panic.
        let _ = std::io::stderr().write_all(text.as_bytes());
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

/// The styles of log lines: plain, bold, dim, italic, and the colours of the levels. None of them hides text.
const COLOURS: [&str; 9] = ["0m", "1m", "2m", "3m", "31m", "32m", "33m", "34m", "35m"];

/// Escapes all control characters except line ends and the styles in [`COLOURS`].
fn coloured(text: &str) -> String {
    let mut pieces = text.split("\u{1b}[");
    let mut out = escape::lines(pieces.next().unwrap_or_default());
    for piece in pieces {
        let is_colour = COLOURS.iter().any(|code| piece.starts_with(code));
        out.push_str(if is_colour { "\u{1b}[" } else { "\\u{1b}[" });
        out.push_str(&escape::lines(piece));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_keep_their_colours_alone() {
        assert_eq!(coloured("\u{1b}[32mINFO\u{1b}[0m x\n"), "\u{1b}[32mINFO\u{1b}[0m x\n");
        assert_eq!(coloured("\u{1b}[2J\u{1b}]0;t\u{7}"), "\\u{1b}[2J\\u{1b}]0;t\\u{7}");
        // Hidden, in reverse, and text on its own colour.
        for code in ["8m", "7m", "30;40m", "1;31m", "m", "38;5;0m"] {
            assert_eq!(coloured(&format!("\u{1b}[{code}x")), format!("\\u{{1b}}[{code}x"));
        }
    }
}
