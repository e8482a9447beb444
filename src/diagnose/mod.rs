//! What the data cannot support: facts about annotators and labels that a statistician would state beside every result.
//!
//! ```text
//! agreement   one pass over all instances: labels against the annotations, the vote, agreement by chance
//! pairs       one pass over a bounded sample of instances: annotators that err together, and near_copies
//! ```
//! The facts are numbers; `pipeline::warnings` decides which of them a person should act on.

mod agreement;
mod answers;
mod matrices;
mod near_copies;
mod pair;
mod pairs;

pub use agreement::{Agreement, ChanceTest, vote};
pub use near_copies::MIN_COMMON;
pub use pair::AnnotatorPair;
pub use pairs::AnnotatorDependence;

use crate::agreement::AgreementRow;
use crate::frame::Annotations;
use crate::model::fitted::Fitted;

/// The facts about one question.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Diagnosis {
    /// How the labels agree with the annotations, and the annotations with each other.
    pub agreement: Agreement,
    /// How far annotators depend on each other.
    pub dependence: AnnotatorDependence,
    /// The agreement of annotators beyond chance, by each statistic.
    pub statistics: Vec<AgreementRow>,
}

/// Measures the dependence of annotators given the classes of a fit, before its posteriors are calibrated: a calibrated
/// posterior is no longer the one that goes with the matrices. Call it in the run's pool of threads.
#[must_use]
pub fn dependence(a: &Annotations, fitted: &Fitted) -> AnnotatorDependence {
    matrices::ExplainingMatrices::new(a, fitted)
        .map_or_else(AnnotatorDependence::default, |m| pairs::measure(a, &m))
}
