//! What a kind of model needs, and what it promises.

use serde::Serialize;

use crate::source::Relation;

/// What a kind of model needs and what it promises: the conformance suite tests it, `check` and `models` read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
// Each flag is a promise of its own.
#[allow(clippy::struct_excessive_bools)]
pub struct Capabilities {
    /// What it makes of features of the instances.
    pub features: FeatureUse,
    /// What it makes of a table of predictions. They stand for features of a kind that needs these and may read them.
    pub predictions: FeatureUse,
    /// What it makes of a table of confusion matrices: a model that does not need them starts at them.
    pub confusion: FeatureUse,
    /// The fit starts at random weights and learns from random batches: renaming instances, annotators or classes may lead to
    /// another optimum, and the objective may fall. Otherwise renaming only renames the result, and the objective does not
    /// fall.
    pub random_start: bool,
    /// A prior weakens the evidence of few annotations: a class with unanimous labels is likely, but not certain.
    pub annotator_prior: bool,
    /// Skills have intervals.
    pub intervals: bool,
    /// Trusted classes teach it about annotators, and so about other instances; otherwise each is the label of its own
    /// instance alone.
    pub gold: bool,
    /// With more classes it falls back on another way to fit.
    pub max_classes: Option<u32>,
    /// It estimates how likely each annotator is right on each instance, whether or not he labelled it.
    pub pair_competence: bool,
    /// One fit takes all questions of a job, and each question keeps its tables; otherwise each is fitted by itself.
    pub fits_questions_together: bool,
}

/// What a kind of model makes of features, or of another table beside the annotations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FeatureUse {
    /// It does not look at them.
    Unused,
    /// It uses them, where there are any.
    Optional,
    /// It cannot do without them.
    Needed,
}

impl FeatureUse {
    /// Whether it uses them, where there are any.
    #[must_use]
    pub fn are_read(self) -> bool {
        self != Self::Unused
    }
}

impl Capabilities {
    /// The tables beside the annotations that it reads, where they are given.
    pub fn given(self) -> impl Iterator<Item = Relation> {
        let tables =
            [(Relation::Predictions, self.predictions), (Relation::Confusion, self.confusion)];
        let read = tables.into_iter().filter(|(_, using)| using.are_read());
        read.map(|(relation, _)| relation).chain(self.pair_competence.then_some(Relation::Pairs))
    }

    /// Those of a model of labels alone, by maximum likelihood or votes.
    pub const LABELS: Self = Self {
        features: FeatureUse::Unused,
        predictions: FeatureUse::Unused,
        confusion: FeatureUse::Unused,
        random_start: false,
        annotator_prior: false,
        intervals: false,
        gold: true,
        max_classes: None,
        pair_competence: false,
        fits_questions_together: false,
    };

    /// What the kind cannot make use of, in words.
    #[must_use]
    pub fn limits(&self) -> Vec<String> {
        let gold = (!self.gold).then(|| "learns nothing from trusted classes".to_owned());
        let classes = self.max_classes.map(|n| format!("at most {n} classes"));
        gold.into_iter().chain(classes).collect()
    }
    /// Those of a model of labels alone whose EM may start at given confusion matrices.
    pub const EM: Self = Self { confusion: FeatureUse::Optional, ..Self::LABELS };
}
