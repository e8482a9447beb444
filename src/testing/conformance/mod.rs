//! The properties that every model must have. A test compares the tested kinds with the registry, so that no new model is
//! left out.

mod checks;
mod crowds;
mod subject;
mod variant;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::model::ModelKind;
use crate::panics;
use checks::{
    annotator_permutation, better_than_chance, class_permutation, degenerate, double_weight,
    given_matrices, instance_permutation, intervals, many_agree, objective_never_falls, prior,
    questions, repeatable, resumed, saved, soft, sums_to_one, threads, trusted, trusted_teach,
    unanimous,
};
use subject::Subject;

type Check = fn(&Subject<'_>) -> std::result::Result<(), String>;

/// Selects the kinds of model that a check applies to, by their capabilities.
type AppliesTo = fn(&ModelKind) -> bool;

/// Every kind.
const ALL: AppliesTo = |_| true;
/// Kinds that learn from no features.
const LABEL_ONLY: AppliesTo = |kind| !kind.capabilities.features.are_read();
/// The others, of which each fit takes longer.
const WITH_FEATURES: AppliesTo = |kind| kind.capabilities.features.are_read();
/// Kinds with a deterministic start, which take the same steps on a renamed crowd.
const FIXED_START: AppliesTo = |kind| !kind.capabilities.random_start;
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
    ("a weight of 2 is two annotations", WITH_FEATURES, Defaults, double_weight),
    ("unanimous answers are certain", FIXED_START, Defaults, unanimous),
    ("a skill has an interval if the kind declares it", ALL, Defaults, intervals),
    ("degenerate crowds give no panic and no NaN", ALL, DefaultsAndVariant, degenerate),
    ("ten thousand agreeing annotations stay finite", ALL, Defaults, many_agree),
    ("a trusted class stays", ALL, DefaultsAndVariant, trusted),
    ("trusted classes teach, if the kind declares it", ALL, Defaults, trusted_teach),
    ("a soft annotation counts by its weights", LABEL_ONLY, DefaultsAndVariant, soft),
    ("a soft annotation counts by its weights", WITH_FEATURES, Defaults, soft),
    ("given matrices are the start, if the kind declares it", LABEL_ONLY, Defaults, given_matrices),
    ("a good crowd is read better than by chance", ALL, Defaults, better_than_chance),
    ("a saved model predicts what the fitted one did", CLASSIFIERS, Defaults, saved),
    ("an interrupted training goes on to the same bits", CLASSIFIERS, Defaults, resumed),
    ("several questions keep their own tables", ALL, Defaults, questions),
];

/// Runs every check on a kind; returns the failures, each as `kind: check: what`.
#[must_use]
pub fn failures(kind: &ModelKind) -> Vec<String> {
    let subjects = BothSubjects::new(kind);
    CHECKS.iter().flat_map(|check| subjects.failures_of(check)).collect()
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
    use crate::model::{MODELS, model_kind};

    /// A test for each kind, so that kinds run in parallel and one of them can be run alone, and a test that no kind is
    /// left out.
    macro_rules! conform {
        ($($kind:ident),* $(,)?) => {
            $(
                #[test]
                fn $kind() {
                    let failures = super::failures(model_kind(stringify!($kind)).unwrap());
                    assert!(failures.is_empty(), "{}", failures.join("\n"));
                }
            )*

            #[test]
            fn every_kind_has_a_test() {
                let mut tested = vec![$(stringify!($kind)),*];
                let mut kinds: Vec<&str> = MODELS.iter().map(|kind| kind.kind).collect();
                tested.sort_unstable();
                kinds.sort_unstable();
                assert_eq!(tested, kinds);
            }
        };
    }

    // The slowest kinds come first, so that no long test is left for the end.
    conform!(
        lia,
        lia_multi,
        agg_net,
        mbem,
        weighted_doctor_net,
        conal,
        cvl,
        tcl,
        tcls,
        doctor_net,
        max_mig,
        crowd_layer,
        trace_regularised,
        dl,
        single_confusion,
        soft_bootstrap,
        conal_em_net,
        gem,
        crowdlab,
        glad,
        mmce,
        random_effects,
        ibcc,
        conal_em,
        fast_dawid_skene,
        snorkel,
        mace,
        community_bcc,
        worker_clustering,
        one_coin,
        known_confusion,
        dawid_skene,
        spectral_dawid_skene,
        label_model,
        mmsr,
        kos,
        crh,
        zbs,
        iwmv,
        wawa,
        majority_vote,
    );
}
