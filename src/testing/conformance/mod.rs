//! The properties that every model must have. The suite iterates over the registry, so that a new model is tested at
//! once.

mod checks;
mod crowds;
mod subject;
mod variant;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::model::{MODELS, ModelKind, Properties};
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

/// A check with its name.
type Entry = (&'static str, AppliesTo, Settings, Check);

/// The checks, by name.
const CHECKS: &[Entry] = &[
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

/// Runs every check on the kinds that `chosen` selects; returns the failures, each as `kind: check: what`.
///
/// # Why
/// A thread per processor takes one check of one kind after the other. With kinds as the work of one thread pool, a
/// thread that waited for a part of its fit took up another fit, and of two processors one was idle half of the time.
#[must_use]
pub fn failures(chosen: fn(&ModelKind) -> bool) -> Vec<String> {
    let kinds = MODELS.iter().copied().filter(|kind| chosen(kind));
    let subjects: Vec<Subjects<'_>> = kinds.map(Subjects::new).collect();
    let work = subjects.iter().flat_map(|subjects| CHECKS.iter().map(move |c| (subjects, c)));
    let (work, failures) = (Mutex::new(work), Mutex::new(Vec::new()));
    let next = || lock(&work).next();
    let processors = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..processors {
            scope.spawn(|| {
                while let Some((subjects, check)) = next() {
                    let found = subjects.failures_of(check);
                    lock(&failures).extend(found);
                }
            });
        }
    });
    failures.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A kind with its defaults, and with other parameters.
struct Subjects<'a> {
    defaults: Subject<'a>,
    variant: Subject<'a>,
}

impl<'a> Subjects<'a> {
    fn new(kind: &'a ModelKind) -> Self {
        Self {
            defaults: Subject::new(kind, (kind.defaults)()),
            variant: Subject::new(kind, variant::parameters(kind)),
        }
    }

    /// Runs a check, if it applies to the kind.
    fn failures_of(&self, (name, applies, settings, check): &Entry) -> Vec<String> {
        let (kind, mut failures) = (self.defaults.kind, Vec::new());
        if !applies(kind) {
            return failures;
        }
        if let Err(what) = check(&self.defaults) {
            failures.push(format!("{}: {name}: {what}", kind.kind));
        }
        if *settings == DefaultsAndVariant
            && let Err(what) = check(&self.variant)
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
