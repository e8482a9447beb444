//! The properties that every model must have. The suite iterates over the registry, so that a new model is tested at
//! once.

mod checks;
mod crowds;
mod subject;
mod variant;

use rayon::prelude::*;

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

/// The checks, by name.
const CHECKS: &[(&str, AppliesTo, Settings, Check)] = &[
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

/// Runs every check on the kinds that `chosen` selects, several kinds at a time; returns the failures, each as
/// `kind: check: what`.
#[must_use]
pub fn failures(chosen: fn(&ModelKind) -> bool) -> Vec<String> {
    let kinds: Vec<&ModelKind> = MODELS.iter().copied().filter(|kind| chosen(kind)).collect();
    kinds.into_par_iter().flat_map_iter(failures_of).collect()
}

/// Runs the checks that apply to one kind.
fn failures_of(kind: &ModelKind) -> Vec<String> {
    let mut failures = Vec::new();
    let defaults = Subject::new(kind, (kind.defaults)());
    let variant = Subject::new(kind, variant::parameters(kind));
    for (name, _, settings, check) in CHECKS.iter().filter(|(_, applies, ..)| applies(kind)) {
        if let Err(what) = check(&defaults) {
            failures.push(format!("{}: {name}: {what}", kind.kind));
        }
        if *settings == DefaultsAndVariant
            && let Err(what) = check(&variant)
        {
            failures.push(format!("{} {}: {name}: {what}", kind.kind, variant.parameters));
        }
    }
    failures
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
