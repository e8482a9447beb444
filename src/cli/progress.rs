//! Progress bars, on a terminal only; warnings always.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::terminal::print_warning;
use crate::job_context::Progress;
use crate::process::log_format::logs_are_json;

/// Draws one bar at a time on stderr.
pub(super) struct Bars {
    bar: Mutex<Option<ProgressBar>>,
    draws: bool,
    quiet: bool,
}

impl Bars {
    pub(super) fn new(quiet: bool) -> Self {
        let draws = !quiet && !logs_are_json() && std::io::stderr().is_terminal();
        Self { bar: Mutex::new(None), draws, quiet }
    }

    fn with_bar(&self, act: impl FnOnce(&mut Option<ProgressBar>)) {
        if let Ok(mut bar) = self.bar.lock() {
            act(&mut bar);
        }
    }
}

impl Progress for Bars {
    fn begin(&self, stage: &str, total: Option<u64>) {
        tracing::info!(stage, total, "begins");
        if !self.draws {
            return;
        }
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
        let template = match total {
            Some(_) => "{prefix:>12} [{bar:30}] {human_pos}/{human_len} {msg}",
            None => "{prefix:>12} {spinner} {human_pos} {msg}",
        };
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
        bar.set_prefix(stage.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        self.with_bar(|current| *current = Some(bar));
    }

    fn at(&self, position: u64, message: &str) {
        self.with_bar(|bar| {
            if let Some(bar) = bar {
                bar.set_position(position);
                bar.set_message(message.to_owned());
            }
        });
    }

    fn end(&self) {
        self.with_bar(|bar| {
            if let Some(bar) = bar.take() {
                bar.finish_and_clear();
            }
        });
    }

    fn warn(&self, message: &str) {
        if !self.quiet {
            self.with_bar(|bar| match bar {
                Some(bar) => bar.suspend(|| print_warning(message)),
                None => print_warning(message),
            });
        }
    }
}
