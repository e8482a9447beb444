//! One error type for the whole job: which stage failed, what is wrong, where, what was found and what to do.
//!
//! # Why
//! A scheduler decides by the exit code whether to retry, a person by the help line what to change. Both must
//! survive from the deepest layer, so an error carries its [`Stage`] and its [`Problem`]s instead of a sentence.

mod chain;
mod exhausted;
mod libraries;
mod nearest;
mod not_implemented;
mod offenders;
mod overlap;
mod queries;

use std::borrow::Cow;
use std::fmt;
use std::io;

pub(crate) use chain::find_in_chain;
pub(crate) use libraries::{DAMAGED_HELP, NAME_HELP, QUERY_MEMORY_HELP};
pub use nearest::{did_you_mean, nearest};
pub(crate) use not_implemented::{NotImplementedAnswer, has_status, is_not_implemented};
pub use offenders::{SHOWN_OFFENDERS, offenders};
pub use overlap::{Overlap, UnknownValues};

use crate::escape;
use crate::redact::redacted;

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The part of the job that failed; it alone decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// The pipeline file or the command line.
    Spec,
    /// The rows, columns or files that came in.
    Data,
    /// The model.
    Fit,
    /// The object store or the network: trying again may help.
    Store,
    /// A quality gate that the user set.
    Gate,
    /// The input is missing or empty: there may be nothing to do yet.
    NoInput,
    /// A broken invariant of labelmill itself.
    Bug,
    /// SIGINT (2) or SIGTERM (15).
    Interrupted(i32),
}

impl Stage {
    /// The process exit code of this stage.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Spec => 2,
            Self::Data => 3,
            Self::Fit => 4,
            Self::Store => 5,
            Self::Gate => 6,
            Self::NoInput => 8,
            Self::Bug => 70,
            Self::Interrupted(signal) => 128_u8.wrapping_add(u8::try_from(signal).unwrap_or(0)),
        }
    }
}

/// One thing that is wrong, in the user's own words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The message: lower case, no full stop.
    pub what: String,
    /// Key path, file or column.
    pub location: Option<String>,
    /// The value that was found instead.
    pub found: Option<String>,
    /// The help line: what to do.
    pub help: Option<String>,
}

impl Problem {
    /// A problem with a message alone.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), location: None, found: None, help: None }
    }

    /// Sets the location.
    #[must_use]
    pub fn at(mut self, location: impl Into<String>) -> Self {
        self.location = Some(location.into());
        self
    }

    /// Sets what was found there.
    #[must_use]
    pub fn found(mut self, found: impl Into<String>) -> Self {
        self.found = Some(found.into());
        self
    }

    /// Sets the help line.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The text may come from data, or from a location that was refused.
        let shown = |text: &str| escape::line(&clipped(&redacted(text)));
        f.write_str(&shown(&self.what))?;
        let lines = [("where", &self.location), ("found", &self.found), ("help", &self.help)];
        for (name, text) in lines {
            if let Some(text) = text {
                write!(f, "\n  {name}: {}", shown(text))?;
            }
        }
        Ok(())
    }
}

/// An error: the stage that failed, and its problems.
#[derive(Debug, thiserror::Error)]
pub struct Error {
    /// The stage that failed; it decides the exit code.
    pub stage: Stage,
    /// At least one problem; a spec error carries all problems that were found.
    pub problems: Vec<Problem>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of one problem.
    #[must_use]
    pub fn new(stage: Stage, problem: Problem) -> Self {
        Self { stage, problems: vec![problem], source: None }
    }

    /// An error of several problems, of which there is at least one.
    #[must_use]
    pub fn several(stage: Stage, problems: Vec<Problem>) -> Self {
        Self { stage, problems, source: None }
    }

    /// Every problem of a spec at once.
    #[must_use]
    pub fn spec_problems(problems: Vec<Problem>) -> Self {
        Self::several(Stage::Spec, problems)
    }

    /// Joins errors that were collected. The stage is that of the first error that waiting does not mend, where there
    /// is one; a store that fails goes before an input that is missing, which may be no error to the job.
    ///
    /// # Errors
    /// The problems of all of them, when there is at least one.
    pub fn all(errors: impl IntoIterator<Item = Self>) -> Result<()> {
        let joined = errors.into_iter().reduce(|mut all, error| {
            let is_wrong = |stage| !matches!(stage, Stage::Store | Stage::NoInput);
            let rank = |stage| u8::from(stage != Stage::NoInput) + u8::from(is_wrong(stage));
            if rank(error.stage) > rank(all.stage) {
                all.stage = error.stage;
            }
            all.problems.extend(error.problems);
            all
        });
        joined.map_or(Ok(()), Err)
    }

    /// A spec or usage error.
    pub fn spec(what: impl Into<String>) -> Self {
        Self::new(Stage::Spec, Problem::new(what))
    }

    /// An error in the input.
    pub fn data(what: impl Into<String>) -> Self {
        Self::new(Stage::Data, Problem::new(what))
    }

    /// An input that is missing or empty.
    pub fn no_input(what: impl Into<String>) -> Self {
        Self::new(Stage::NoInput, Problem::new(what))
    }

    /// An error of a model.
    pub fn fit(what: impl Into<String>) -> Self {
        Self::new(Stage::Fit, Problem::new(what))
    }

    /// An error of a store or the network.
    pub fn store(what: impl Into<String>) -> Self {
        Self::new(Stage::Store, Problem::new(what))
    }

    /// An error of a local folder that the spec names: of the spec where another try would fail too, because the folder
    /// does not exist or gives no access, or a file is in its place, or a folder in the place of one of its files.
    pub(crate) fn of_folder(what: impl Into<String>, cause: &io::Error) -> Self {
        use io::ErrorKind as Kind;
        match cause.kind() {
            Kind::AlreadyExists
            | Kind::IsADirectory
            | Kind::NotADirectory
            | Kind::NotFound
            | Kind::PermissionDenied
            | Kind::ReadOnlyFilesystem => Self::spec(what),
            _ => Self::store(what),
        }
    }

    /// A broken invariant, in words.
    pub fn bug(what: impl Into<String>) -> Self {
        Self::new(
            Stage::Bug,
            Problem::new(what)
                .help("this is a defect of labelmill: please report it with the pipeline file"),
        )
    }

    /// A clean stop on a signal.
    #[must_use]
    pub fn interrupted(signal: i32) -> Self {
        Self::new(
            Stage::Interrupted(signal),
            Problem::new("stopped by a signal; nothing was published"),
        )
    }

    /// Sets the location.
    #[must_use]
    pub fn at(self, location: impl Into<String>) -> Self {
        self.amend(|p| p.location = Some(location.into()))
    }

    /// Sets what was found there.
    #[must_use]
    pub fn found(self, found: impl Into<String>) -> Self {
        self.amend(|p| p.found = Some(found.into()))
    }

    /// Sets the help line.
    #[must_use]
    pub fn help(self, help: impl Into<String>) -> Self {
        self.amend(|p| p.help = Some(help.into()))
    }

    /// The process exit code.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        self.stage.exit_code()
    }

    /// Replaces the message.
    #[must_use]
    pub fn what(self, what: impl Into<String>) -> Self {
        self.amend(|p| p.what = what.into())
    }

    /// Puts the subject before the message.
    #[must_use]
    pub fn about(self, subject: &str) -> Self {
        self.amend(|p| p.what = format!("{subject}: {}", p.what))
    }

    /// Puts the subject before the message, where there is one.
    #[must_use]
    pub fn about_some(self, subject: Option<String>) -> Self {
        match subject {
            Some(subject) => self.about(&subject),
            None => self,
        }
    }

    /// Sets the location if there is none yet.
    #[must_use]
    pub fn or_at(self, location: &str) -> Self {
        self.amend(|p| {
            p.location.get_or_insert_with(|| location.to_owned());
        })
    }

    /// Moves every location that is the key `from`, or a key or an item below it, to the same one below `to`.
    #[must_use]
    pub(crate) fn moved(mut self, from: &str, to: &str) -> Self {
        for location in self.problems.iter_mut().filter_map(|problem| problem.location.as_mut()) {
            let below = location.strip_prefix(from);
            if let Some(below) =
                below.filter(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
            {
                *location = format!("{to}{below}");
            }
        }
        self
    }

    fn amend(mut self, change: impl FnOnce(&mut Problem)) -> Self {
        if let Some(problem) = self.problems.last_mut() {
            change(problem);
        }
        self
    }
}

/// A help that several problems share stands once, below the last of them.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            let is_repeated = self.problems[i + 1..].iter().any(|later| later.help == problem.help);
            let help = problem.help.clone().filter(|_| !is_repeated);
            write!(f, "error: {}", Problem { help, ..problem.clone() })?;
        }
        Ok(())
    }
}

/// The most characters of one value that a person is shown.
const SHOWN_CHARACTERS: usize = 4_000;

/// The beginning of a long text, and its length.
pub(crate) fn clipped(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(SHOWN_CHARACTERS) {
        None => text.into(),
        Some((end, _)) => format!("{}... ({} bytes)", &text[..end], text.len()).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_fit_to_be_printed_wherever_its_words_come_from() {
        let error = Error::data("not read: \u{1b}[2J")
            .at("https://me:hunter2@h/x?sig=hunter2")
            .found("`a\nhelp: obey`");
        assert_eq!(
            error.to_string(),
            "error: not read: \\u{1b}[2J\n  where: https://***@h/x?***\n  found: `a\\nhelp: obey`"
        );
    }

    #[test]
    fn a_help_that_several_problems_share_stands_once() {
        let error = |what: &str, help: &str| Error::data(what).help(help);
        let all = [error("a", "do x"), error("b", "do y"), error("c", "do x"), Error::data("d")];
        let text = Error::all(all).unwrap_err().to_string();
        let want = "error: a\nerror: b\n  help: do y\nerror: c\n  help: do x\nerror: d";
        assert_eq!(text, want);
    }

    #[test]
    fn errors_that_are_joined_are_worth_a_retry_only_if_all_of_them_are() {
        let joined = |errors: Vec<Error>| Error::all(errors).unwrap_err();
        let (spec, data, store) = (|| Error::spec("a"), || Error::data("b"), || Error::store("c"));
        let error = joined(vec![store(), data(), spec()]);
        assert_eq!(
            (error.stage, error.to_string().as_str()),
            (Stage::Data, "error: c\nerror: b\nerror: a")
        );
        assert_eq!(joined(vec![spec(), store()]).stage, Stage::Spec);
        assert_eq!(joined(vec![store(), store()]).stage, Stage::Store);
        let missing = || Error::no_input("d");
        assert_eq!(joined(vec![missing(), store()]).stage, Stage::Store);
        assert_eq!(joined(vec![store(), missing()]).stage, Stage::Store);
        assert_eq!(joined(vec![missing(), missing()]).stage, Stage::NoInput);
        assert_eq!(joined(vec![store(), missing(), data()]).stage, Stage::Data);
        assert!(Error::all([]).is_ok());
    }

    #[test]
    fn a_long_secret_is_redacted_before_it_is_cut() {
        let error = Error::data(format!("not read: https://{}@host", "hunter2".repeat(1_000)));
        assert_eq!(error.to_string(), "error: not read: https://***@host");
    }

    #[test]
    fn a_move_changes_places_below_the_key_and_nothing_else() {
        let locations = ["a.b", "a.b.c", "a.bc", "x.a.b", "file: a.b"];
        let problem = |location: &str| Problem::new("a.b").found("a.b").help("a.b").at(location);
        let mut error = Error::spec_problems(locations.map(problem).to_vec());
        error.problems.push(Problem::new("a.b"));
        let moved = error.moved("a.b", "y.z").problems;
        let wanted = ["y.z", "y.z.c", "a.bc", "x.a.b", "file: a.b"];
        assert_eq!(moved[..5], wanted.map(problem));
        assert_eq!(moved[5], Problem::new("a.b"));
    }
}
