//! The network that aggregates: it reads the answers of all annotators, and needs nearly all of them.

use crate::error::{Error, Result};
use crate::frame::Annotations;
use crate::model::neural::data::batching::InstanceSubset;
use crate::model::neural::data::inputs::LearnerInput;
use crate::model::neural::net::backbone::{BackboneSpec, Scaling};
use crate::model::neural::net::heads::Heads;
use crate::model::neural::net::optimiser::optimiser_spec::{LrSchedule, OptimiserSpec};
use crate::model::neural::objective::schedule::{Act, LearnerSubset, Phase};
use crate::model::neural::train::learners::learner::LearnerSpec;

/// The name of the learner, and of its phase.
pub(super) const AGGREGATOR: &str = "aggregator";

/// The network, with its own optimiser: Adam at one rate.
pub(super) fn aggregator() -> LearnerSpec {
    let backbone = BackboneSpec {
        hidden: vec![64, 32],
        dropout: 0.0,
        batch_norm: false,
        scaling: Scaling::None,
        ..BackboneSpec::default()
    };
    let schedule = LrSchedule::Constant;
    let optimiser = OptimiserSpec { schedule, weight_decay: 0.0, ..OptimiserSpec::default() };
    LearnerSpec {
        name: AGGREGATOR,
        backbone,
        heads: Heads::CLASSIFIER,
        input: LearnerInput::Annotations,
        optimiser: Some(optimiser),
    }
}

/// Its training in this round, from 0, of so many epochs each.
pub(super) fn aggregation(round: u32, rounds: u32, epochs: u32) -> Act {
    let [start, end] = [round, round + 1].map(|round| round.saturating_mul(epochs));
    Act::Train(Phase {
        act: start..end,
        learners: LearnerSubset::Only(&[AGGREGATOR]),
        instances: InstanceSubset::Untrusted,
        is_scored: false,
        ..Phase::joint(AGGREGATOR, rounds.saturating_mul(epochs))
    })
}

/// Refuses data of which a larger share of answers is missing.
///
/// # Errors
/// When it is.
pub(super) fn check_complete(a: &Annotations, max_missing: f64) -> Result<()> {
    let (mut instances, mut answers) = (0, 0);
    for i in 0..a.dims().instances {
        let pairs = a.pairs_of_instance(i);
        // The pairs of one annotator are adjacent.
        let same = |c: &&[u32]| a.annotator_of_pair(c[0]) == a.annotator_of_pair(c[1]);
        answers += pairs.len() - pairs.windows(2).filter(same).count();
        instances += usize::from(!pairs.is_empty() || a.trusted_class(i).is_some());
    }
    let (annotators, all) = (a.dims().annotators, instances * a.dims().annotators);
    let missing = (all - answers) as f64 / all.max(1) as f64;
    if missing <= max_missing {
        return Ok(());
    }
    Err(Error::data("`tcls` needs an answer of every annotator to every instance")
        .at("model.kind")
        .found(format!(
            "{:.1} % of the answers of {annotators} annotators to {instances} annotated or trusted instances are \
             missing",
            100.0 * missing
        ))
        .help("choose `tcl`, which takes sparse annotations, or raise model.max_missing: missing answers are zeros"))
}
