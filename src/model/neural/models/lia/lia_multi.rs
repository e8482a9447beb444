//! LIA-ML: several questions in one fit.
//!
//! ```text
//! h[i,q] = softmax over the classes of q of classifier_q(trunk(x_i))      D[i,q] = difficulty_q(trunk(x_i))
//! K[r,q] = competence_q(e_r)      G[q], and the prior without features: of the question      Q, T, losses: as in LIA
//! ```
//! The questions share the layers before the last, the embeddings of instances and those of annotators; each has a last
//! layer of its own. A batch holds instances of all questions, and an instance of two questions is in it for each. So a
//! question with few annotations has the help of the others where they ask about the same instances, or ask the same
//! annotators. With one question it is LIA to the last bit, and so are its keys.
//!
//! E. A. Platanios, M. Al-Shedivat, E. Xing, T. Mitchell: Learning from Imperfect Annotations: An End-to-End Approach.
//! ICLR 2020 submission, section 3.3.
//!
//! Differs from the paper in the last layers, one for each question as in the authors' code, where the paper's networks
//! take an embedding of the question as a further input; and in all that LIA differs in: the likelihood, its penalties,
//! the learning rate of embeddings, and network and training, which are labelmill's defaults unless `preset = "paper"`. A
//! calibration that holds annotations out fits each question by itself.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use super::Lia;
use crate::error::Result;
use crate::frame::{Annotations, BYTES_PER_ANNOTATION, Dims, MemoryEstimate, QuestionSizes};
use crate::model::FeatureUse;
use crate::model::neural::data::sizes::Sizes;
use crate::model::neural::net::heads::Heads;
use crate::model::neural::objective::batch_context::{BatchContext, BatchPrediction, Gradient};
use crate::model::neural::objective::crowd_net::{AnnotatorReport, CrowdNet, Task};
use crate::model::neural::objective::network_spec::NetworkSpec;
use crate::model::neural::objective::schedule::Act;
use crate::model::neural::objective::train_spec::{Reduction, TrainSpec};
use crate::model::neural::objective::train_state::TrainState;
use crate::model::neural::objective::training_objective::TrainingObjective;
use crate::model::neural::params::annotator_params::AnnotatorParams;
use crate::model::neural::params::param_table::ParamTable;
use crate::model::neural::train::learners::learner::LearnerSpec;
use crate::spec::Problems;

/// LIA-ML.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LiaMulti(pub Lia);

/// The keys of [`Lia`], in place and not by reference: a network's own keys join them.
impl JsonSchema for LiaMulti {
    fn schema_name() -> Cow<'static, str> {
        "LiaMulti".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Lia::json_schema(generator)
    }
}

/// All but the names and the questions are those of [`Lia`].
impl CrowdNet for LiaMulti {
    const KIND: &'static str = "lia_multi";
    const SUMMARY: &'static str = "LIA for all questions at once: they share what is learned of instances and annotators, and each keeps its tables";
    const SOURCE: &'static str = "LIA-ML: Platanios et al. 2020, ICLR submission";
    const FEATURES: FeatureUse = Lia::FEATURES;
    const TRAINING: &'static str = Lia::TRAINING;
    const NEEDS_ANNOTATOR_FEATURES: bool = Lia::NEEDS_ANNOTATOR_FEATURES;
    const HAS_MATRICES_OF_PAIRS: bool = Lia::HAS_MATRICES_OF_PAIRS;
    const FITS_QUESTIONS_TOGETHER: bool = true;

    /// Beside the results, the matrices of all annotators with their expected counts; and, while all
    /// questions are fitted, the joint crowd, the votes, the targets and those of the best epoch.
    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        let Dims { instances, annotators, classes, labels } = sizes.dims;
        let numbers = |n: usize| n.checked_mul(size_of::<f64>());
        let posteriors = numbers(instances.checked_mul(classes)?)?;
        let cells = annotators.checked_mul(classes)?.checked_mul(labels)?;
        let counts = sizes.pairs.checked_mul(classes)?;
        let crowd = sizes.annotations.checked_mul(BYTES_PER_ANNOTATION as usize)?;
        let matrices = numbers(cells.checked_add(counts)?)?;
        let working =
            posteriors.checked_mul(4)?.checked_add(crowd)?.checked_add(numbers(cells)?)?;
        Some(MemoryEstimate { posteriors, matrices, working })
    }

    fn paper() -> (NetworkSpec, Self) {
        let (network, model) = Lia::paper();
        (network, Self(model))
    }

    fn code() -> Option<(NetworkSpec, Self)> {
        Lia::code().map(|(network, model)| (network, Self(model)))
    }

    fn check(&self, train: &TrainSpec, location: &str, problems: &mut Problems) {
        self.0.check(train, location, problems);
    }

    fn instance_embedding(&self, has_features: bool) -> Option<usize> {
        self.0.instance_embedding(has_features)
    }

    fn heads(&self, sizes: &Sizes) -> Heads {
        self.0.heads(sizes)
    }

    fn other_learners(&self, network: &NetworkSpec, sizes: &Sizes) -> Vec<LearnerSpec> {
        self.0.other_learners(network, sizes)
    }

    fn tables(&self, task: &Task<'_>) -> Result<Vec<ParamTable>> {
        self.0.tables(task)
    }

    fn instance_parameters(&self) -> Vec<String> {
        self.0.instance_parameters()
    }

    fn pair_matrices(&self, context: &BatchContext<'_>) -> Option<Vec<f64>> {
        self.0.pair_matrices(context)
    }

    fn report(&self, task: &Task<'_>, params: &AnnotatorParams) -> AnnotatorReport {
        self.0.report(task, params)
    }
}

impl TrainingObjective for LiaMulti {
    const REDUCTION: Option<Reduction> = Lia::REDUCTION;
    const TRAINS_ON_TARGETS: bool = true;
    const ANNOTATOR_RATE: f64 = Lia::ANNOTATOR_RATE;
    const DELAYS_ANNOTATORS: bool = Lia::DELAYS_ANNOTATORS;

    fn weighs_annotations(&self) -> bool {
        self.0.weighs_annotations()
    }

    fn next_act(&self, train: &TrainSpec, state: &TrainState) -> Option<Act> {
        self.0.next_act(train, state)
    }

    fn epochs(&self, train: &TrainSpec) -> u32 {
        self.0.epochs(train)
    }

    fn m_step(
        &self,
        a: &Annotations,
        counts: &[f64],
        state: &mut TrainState,
        params: &mut AnnotatorParams,
    ) {
        self.0.m_step(a, counts, state, params);
    }

    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> Result<f64> {
        self.0.loss(context, gradient)
    }

    fn predict(&self, context: &BatchContext<'_>) -> BatchPrediction {
        self.0.predict(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1000 instances of three classes, 20 annotators with 50 pairs of four labels, and 4000 annotations.
    #[test]
    fn the_memory_of_a_fit_has_the_crowd_and_four_more_rows_for_each_instance() {
        let dims = Dims { instances: 1000, annotators: 20, classes: 3, labels: 4 };
        let gold_roles = Vec::new();
        let sizes = QuestionSizes { dims, annotations: 4000, pairs: 50, gold_roles };
        let (posteriors, cells) = (1000 * 3 * 8, 20 * 3 * 4 * 8);
        let working = 4 * posteriors + 4000 * 44 + cells;
        let want = MemoryEstimate { posteriors, matrices: cells + 50 * 3 * 8, working };
        assert_eq!(LiaMulti::memory_estimate(&sizes), Some(want));
    }
}
