//! The properties that every model must have. The suite iterates over the registry, so that a new model is tested at
//! once.

mod checks;
mod crowds;
mod subject;
mod variant;

use std::iter;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ScopedJoinHandle};

use crate::model::{MODELS, ModelKind, Properties};
use crate::panics;
use checks::{
    annotator_permutation, better_than_chance, class_permutation, degenerate, double_weight,
    instance_permutation, many_agree, objective_never_falls, prior, repeatable, resumed, saved,
    sums_to_one, threads, trusted, unanimous,
};
use subject::Subject;

type Check = fn(&Subject<'_>) -> std::result::Result<(), String>;

/// Selects the kinds of model that a check applies to, by their declared properties.
type AppliesTo = fn(&ModelKind) -> bool;

/// Every kind.
const ALL: AppliesTo = |_| true;
/// Kinds that need no features.
const LABEL_ONLY: AppliesTo = |kind| !kind.needs_features;
/// Kinds with a deterministic start, which take the same steps on a renamed crowd.
const FIXED_START: AppliesTo = |kind| kind.properties != Properties::RandomStart;
/// Kinds that learn a classifier from features.
const CLASSIFIERS: AppliesTo = |kind| kind.predict.is_some();

/// The parameters of the fits of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Settings {
    Defaults,
    /// The defaults, and then the variant.
    DefaultsAndVariant,
}
use Settings::{Defaults, DefaultsAndVariant};

/// A check: its name, the kinds that it applies to, and the parameters of its fits.
type NamedCheck = (&'static str, AppliesTo, Settings, Check);

/// The checks.
const CHECKS: &[NamedCheck] = &[
    (
        "rows of the posterior and of every confusion matrix sum to 1",
        ALL,
        DefaultsAndVariant,
        sums_to_one,
    ),
    ("there is a prior if the parameters say so", ALL, DefaultsAndVariant, prior),
    ("the objective never falls", FIXED_START, DefaultsAndVariant, objective_never_falls),
    ("a second fit gives the same bits", ALL, Defaults, repeatable),
    ("one thread and four give the same bits", ALL, DefaultsAndVariant, threads),
    ("renamed annotators change nothing", FIXED_START, DefaultsAndVariant, annotator_permutation),
    (
        "renamed instances rename the posterior",
        FIXED_START,
        DefaultsAndVariant,
        instance_permutation,
    ),
    ("renamed classes rename the posterior", FIXED_START, DefaultsAndVariant, class_permutation),
    ("a weight of 2 is two annotations", LABEL_ONLY, DefaultsAndVariant, double_weight),
    ("unanimous answers are certain", FIXED_START, Defaults, unanimous),
    ("degenerate crowds give no panic and no NaN", ALL, DefaultsAndVariant, degenerate),
    ("ten thousand agreeing annotations stay finite", ALL, Defaults, many_agree),
    ("a trusted class stays", ALL, DefaultsAndVariant, trusted),
    ("a good crowd is read better than by chance", ALL, Defaults, better_than_chance),
    ("a saved model predicts what the fitted one did", CLASSIFIERS, Defaults, saved),
    ("an interrupted training goes on to the same bits", CLASSIFIERS, Defaults, resumed),
];

/// Runs every check on the kinds that `chosen` selects; returns the failures in alphabetical order, each as
/// `kind: check: what`.
///
/// # Why
/// As tasks of a thread pool, kinds nested: a thread that waited for a fit began the next kind, and went on with the
/// first one only when that had ended. The networks took 31 s on two processors with 50 s of work; with a queue that
/// every thread takes one check from, they take 27 s (AMD EPYC; before: commit `6f84447`).
///
/// # Panics
/// If there is no such kind.
#[must_use]
pub fn failures(chosen: fn(&ModelKind) -> bool) -> Vec<String> {
    let kinds = MODELS.iter().copied().filter(|kind| chosen(kind));
    let kinds: Vec<BothSubjects<'_>> = kinds.map(BothSubjects::new).collect();
    assert!(!kinds.is_empty(), "no kind is chosen");
    // Neighbours in the queue are different kinds: checks of one kind wait for the fit that they share.
    let work = CHECKS.iter().flat_map(|check| kinds.iter().map(move |kind| (kind, check)));
    let work = Mutex::new(work);
    let next = || work.lock().unwrap_or_else(PoisonError::into_inner).next();
    let run = || -> Vec<String> {
        iter::from_fn(next).flat_map(|(kind, check)| kind.failures_of(check)).collect()
    };
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let mut failures: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> = (0..processors).map(|_| scope.spawn(run)).collect();
        let joined = threads.into_iter().map(ScopedJoinHandle::join);
        joined.flat_map(|found| found.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    failures.sort();
    failures
}

/// A kind with its defaults, and with other parameters.
struct BothSubjects<'a> {
    defaults: Subject<'a>,
    variant: Subject<'a>,
}

impl<'a> BothSubjects<'a> {
    fn new(kind: &'a ModelKind) -> Self {
        Self {
            defaults: Subject::new(kind, (kind.defaults)()),
            variant: Subject::new(kind, variant::parameters(kind)),
        }
    }

    /// Runs a check, if it applies to the kind. A panic is a failure.
    fn failures_of(&self, (name, applies, settings, check): &NamedCheck) -> Vec<String> {
        let (kind, mut failures) = (self.defaults.kind, Vec::new());
        if !applies(kind) {
            return failures;
        }
        let caught = |subject: &Subject<'_>| {
            catch_unwind(AssertUnwindSafe(|| check(subject)))
                .unwrap_or_else(|panic| Err(panics::describe(&*panic)))
        };
        if let Err(what) = caught(&self.defaults) {
            failures.push(format!("{}: {name}: {what}", kind.kind));
        }
        if *settings == DefaultsAndVariant
            && let Err(what) = caught(&self.variant)
        {
            let parameters = &self.variant.parameters;
            failures.push(format!("{} {parameters}: {name}: {what}", kind.kind));
        }
        failures
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_label_only_model_conforms() {
        let failures = super::failures(|kind| !kind.needs_features);
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }

    #[test]
    fn every_model_with_features_conforms() {
        let failures = super::failures(|kind| kind.needs_features);
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
}
