//! A trainer for tests of the parts of a training, without the predictions and the report of a fit.

use candle_core::Device;

use crate::model::neural::tests::*;
use crate::model::neural::train::learners::Learners;
use crate::model::neural::train::learners::learner::LearnerSetting;
use crate::model::neural::train::{LoopPosition, Trainer};

/// The trainer of a model on the CPU, with initial parameters; its targets are the aggregator's, where the model has an
/// aggregator.
pub(in crate::model::neural) fn trainer_of<'a, N: CrowdNet>(
    spec: &'a Neural<N>,
    data: &'a TrainingData<'a>,
    evidence: Evidence<'_>,
    job: &JobContext,
) -> Trainer<'a, N> {
    let Neural { network: NetworkSpec { train, .. }, model } = spec;
    let dims = evidence.annotations.dims();
    let sizes = spec.sizes(evidence.annotations, evidence.with_features.unwrap());
    let (precision, device) = (train.precision, &Device::Cpu);
    let setting = LearnerSetting { precision, sizes: &sizes, job, device, saved: None };
    let learners = Learners::new(spec.learners(&sizes), &setting).unwrap();
    let hidden = learners.classifier.network.hidden();
    let task = Task { evidence, dims, hidden, job };
    let annotator_params = AnnotatorParams { tables: model.tables(&task).unwrap() };
    let aggregated = model.aggregate(evidence, &mut job.clone()).unwrap();
    Trainer {
        model,
        fingerprint: None,
        spec: train,
        data,
        dims,
        valid: &[],
        valid_questions: &[],
        learners,
        annotator_params,
        state: TrainState::with_targets(
            aggregated.map(|fitted| fitted.posterior.dense().into_owned()),
        ),
        position: LoopPosition::default(),
    }
}
