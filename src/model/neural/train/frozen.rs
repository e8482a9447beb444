//! The outputs of a network that the running phase does not train, computed once instead of in every step.

use crate::error::Result;
use crate::model::neural::net::heads::Outputs;

/// The share of the run's memory that the outputs of one learner may take: one in this many bytes. Larger outputs are
/// computed in every step instead.
pub(super) const FROZEN_SHARE: usize = 32;

/// The largest number of bytes that the outputs of one learner may take, however much memory the run has.
pub(super) const MAX_FROZEN_BYTES: usize = 256 << 20;

/// The outputs of all training rows.
pub(crate) struct FrozenOutputs {
    /// The ids of the input's rows, ascending.
    pub(super) rows: Vec<u32>,
    pub(super) outputs: Outputs,
    /// Whether the constants of the running act were computed, and kept unless they are too large.
    pub(super) has_constants_of_act: bool,
}

impl FrozenOutputs {
    /// Computes the outputs of these rows by `predict`, `at_once` rows at a time; `None` if they are larger than
    /// `max_bytes`.
    pub(super) fn compute(
        rows: Vec<u32>,
        at_once: usize,
        max_bytes: usize,
        predict: impl Fn(&[u32]) -> Result<Outputs>,
    ) -> Result<Option<Self>> {
        let mut outputs = Outputs::default();
        for part in rows.chunks(at_once) {
            outputs.extend(&predict(part)?);
            let of_row = outputs.numbers() / outputs.rows.max(1);
            if of_row * rows.len() * size_of::<f64>() > max_bytes {
                return Ok(None);
            }
        }
        Ok(Some(Self { rows, outputs, has_constants_of_act: false }))
    }

    /// The outputs of the rows of a batch.
    pub(super) fn gather(&self, rows: &[u32]) -> Outputs {
        let locations: Vec<usize> = rows.iter().map(|row| self.location(*row)).collect();
        self.outputs.select(&locations)
    }

    /// The index of a row.
    pub(super) fn location(&self, row: u32) -> usize {
        self.rows.partition_point(|other| *other < row)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::frame::Evidence;
    use crate::job_context::JobContext;
    use crate::model::neural::data::TrainingData;
    use crate::model::neural::data::batching::Batching;
    use crate::model::neural::data::inputs::LearnerInput;
    use crate::model::neural::data::sizes::Sizes;
    use crate::model::neural::models::WeightedDoctorNet;
    use crate::model::neural::models::doctor_net::label_probabilities;
    use crate::model::neural::net::backbone::{Architecture, BackboneSpec};
    use crate::model::neural::net::heads::{Head, HeadInput, Heads};
    use crate::model::neural::net::input::input_rows::InputRows;
    use crate::model::neural::net::precision::Precision;
    use crate::model::neural::objective::network_spec::NetworkSpec;
    use crate::model::neural::objective::schedule::LearnerSubset;
    use crate::model::neural::objective::train_spec::TrainSpec;
    use crate::model::neural::params::annotator_params::AnnotatorParams;
    use crate::model::neural::spec::Neural;
    use crate::model::neural::tests::training_loop::trainer::trainer_of;
    use crate::model::neural::train::learners::learner::{
        CLASSIFIER, Learner, LearnerSetting, LearnerSpec,
    };
    use crate::testing::{tiny, with_features};

    /// Instances out of order, one of them twice. Their feature rows have other indices than the instances; instance 1
    /// has none.
    #[test]
    fn frozen_outputs_are_those_of_a_forward_pass() {
        let a = tiny(2, &[(0, 0, 0), (1, 0, 1), (2, 0, 1), (3, 0, 0), (4, 0, 1)]);
        let mut with_features = with_features(&a);
        with_features.row_of_instance = vec![Some(1), None, Some(0), Some(4), Some(2)];
        let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
        let data = TrainingData::new(evidence, None, false, Batching::default()).unwrap();
        let heads = Heads {
            hidden: true,
            named: vec![Head { name: "head", from: HeadInput::Features, widths: vec![2, 3] }],
            ..Heads::CLASSIFIER
        };
        let (features, annotator_features) = (vec![3], None);
        let sizes = Sizes {
            features,
            classes: 2,
            labels: 2,
            annotators: 2,
            annotator_features,
            questions: Vec::new(),
            question: 0,
        };
        let job = &JobContext::new(1);
        let precision = Precision::F32;
        let setting =
            LearnerSetting { precision, sizes: &sizes, job, device: &Device::Cpu, saved: None };
        let learner = |backbone: &BackboneSpec, input| {
            let (backbone, heads) = (backbone.clone(), heads.clone());
            let spec = LearnerSpec { name: CLASSIFIER, backbone, heads, input, optimiser: None };
            Learner::new(spec, &setting).unwrap()
        };
        let spec = BackboneSpec { hidden: vec![4], ..BackboneSpec::default() };
        let all = |out: &Outputs| [&out.logits[..], &out.p, &out.hidden, &out.named[0]].concat();
        let batch = data.observed(&[4, 0, 3, 0], None);
        for (input, ids) in
            [(LearnerInput::Features, [2, 1, 4, 1]), (LearnerInput::Annotations, [4, 0, 3, 0])]
        {
            let mut one = learner(&spec, input);
            let wanted = one.predict(data.inputs(), &ids).unwrap();
            one.freeze(LearnerSubset::NONE, &data).unwrap();
            assert!(one.frozen.is_some() && one.reader().is_none());
            let tables = AnnotatorParams::default();
            let (pass, got) = one
                .forward(&batch, InputRows::default(), &tables, LearnerSubset::NONE, "")
                .unwrap();
            assert!(pass.is_none());
            assert_eq!((got.rows, got.numbers()), (4, 4 * (2 + 2 + 4 + 3)));
            for (got, want) in all(&got).iter().zip(all(&wanted)) {
                assert!((got - want).abs() < 1e-6, "{input:?}: {got}, expected {want}");
            }
        }
        let flips = BackboneSpec { kind: Architecture::Linear, flip: true, ..spec.clone() };
        let mut flips = learner(&flips, LearnerInput::Features);
        flips.freeze(LearnerSubset::NONE, &data).unwrap();
        assert!(flips.frozen.is_none());
        // Four rows of eleven f64s are 352 bytes: a thirty-second of the memory holds them, or all but one of them.
        for (memory, fits) in [(32 * 352, true), (32 * 352 - 1, false)] {
            let job = &JobContext::new(1).with_memory(memory);
            let setting = LearnerSetting { job, ..setting };
            let input = LearnerInput::Annotations;
            let (backbone, heads) = (spec.clone(), heads.clone());
            let spec = LearnerSpec { name: CLASSIFIER, backbone, heads, input, optimiser: None };
            let mut learner = Learner::new(spec, &setting).unwrap();
            learner.freeze(LearnerSubset::NONE, &data).unwrap();
            assert_eq!(learner.frozen.is_some(), fits, "{memory}");
        }
    }

    /// The phase `heads` trains the network, and the phase `weights` does not.
    #[test]
    fn a_phase_that_does_not_train_the_network_computes_its_outputs_once() {
        let a = tiny(2, &[(0, 0, 0), (1, 0, 1), (2, 1, 1), (3, 1, 0), (4, 0, 1)]);
        let with_features = with_features(&a);
        let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
        let data = TrainingData::new(evidence, None, false, Batching::default()).unwrap();
        let train = TrainSpec { epochs: 1, ..TrainSpec::default() };
        let network = NetworkSpec { train, ..NetworkSpec::default() };
        let model = WeightedDoctorNet { weight_epochs: 2, ..WeightedDoctorNet::default() };
        let (spec, mut job) = (Neural { network, model }, JobContext::new(1));
        let mut trainer = trainer_of(&spec, &data, evidence, &job);
        trainer.train(&mut job).unwrap();
        let frozen = trainer.learners.classifier.frozen.as_ref().unwrap();
        assert_eq!(frozen.rows, [0, 1, 2, 3, 4]);
        // The probabilities of each row's only label by both heads.
        let heads = &trainer.annotator_params.tables[0];
        for (i, (constants, label)) in
            frozen.outputs.constants.iter().zip([0, 1, 1, 0, 1]).enumerate()
        {
            assert_eq!(constants.len(), 2);
            for (r, got) in constants.iter().enumerate() {
                let mut p = [0.0; 2];
                label_probabilities(&heads.row(r), frozen.outputs.hidden(i), &mut p);
                assert!((got - p[label]).abs() < 1e-6, "{i}, {r}: {got}, expected {p:?}");
            }
        }
        assert_eq!(frozen.outputs.constants.len(), 5);
    }
}
