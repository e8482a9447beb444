//! A learner: a network with its optimiser state, and with its own names and random streams.
//!
//! # Why
//! The classifier has no prefix, and draws from the run's own random streams. So its arrays in a checkpoint or a saved
//! model have the same names and initial values as in a model without other learners.

use std::borrow::Cow;

use candle_core::Device;

use crate::error::Result;
use crate::job_context::JobContext;
use crate::model::neural::data::inputs::{EmbeddingInput, Inputs, LearnerInput, Reader};
use crate::model::neural::data::sizes::Sizes;
use crate::model::neural::data::{TrainingData, batch::Batch};
use crate::model::neural::net::backbone::BackboneSpec;
use crate::model::neural::net::forward_pass::ForwardPass;
use crate::model::neural::net::forward_pass::mode::Mode;
use crate::model::neural::net::heads::{Heads, Outputs};
use crate::model::neural::net::input::input_rows::InputRows;
use crate::model::neural::net::input::rows::{MAX_PREDICTION_BYTES, PREDICTION_SHARE};
use crate::model::neural::net::optimiser::optimiser_spec::OptimiserSpec;
use crate::model::neural::net::parameters::Parameters;
use crate::model::neural::net::parameters::pytorch::from_pytorch;
use crate::model::neural::net::precision::Precision;
use crate::model::neural::net::{NetShape, Network};
use crate::model::neural::objective::schedule::LearnerSubset;
use crate::model::neural::params::annotator_params::AnnotatorParams;
use crate::model::neural::train::frozen::{FROZEN_SHARE, FrozenOutputs, MAX_FROZEN_BYTES};
use crate::model::saved::snapshot::Snapshot;

/// The name of the learner that every model has.
pub(crate) const CLASSIFIER: &str = "classifier";

/// A model's description of one of its learners.
#[derive(Debug, Clone, PartialEq)]
pub struct LearnerSpec {
    /// The prefix of the names of its arrays; unique in the model.
    pub name: &'static str,
    /// The network before its last layers.
    pub backbone: BackboneSpec,
    /// The outputs that the model reads.
    pub heads: Heads,
    /// The input that the learner reads.
    pub input: LearnerInput,
    /// The optimiser's rule, rates and decay for this learner; `None` for those of `train.optimiser`, whose clipping
    /// and resets hold for all learners.
    pub optimiser: Option<OptimiserSpec>,
}

impl LearnerSpec {
    /// A learner with the optimiser of all.
    pub(crate) fn new(
        name: &'static str,
        backbone: &BackboneSpec,
        heads: Heads,
        input: LearnerInput,
    ) -> Self {
        Self { name, backbone: backbone.clone(), heads, input, optimiser: None }
    }
}

/// The settings that all learners of a model share.
pub(crate) struct LearnerSetting<'a> {
    pub(crate) precision: Precision,
    pub(crate) sizes: &'a Sizes,
    pub(crate) job: &'a JobContext,
    pub(crate) device: &'a Device,
    /// The arrays of a saved model; `None` if the parameters are to be initialised.
    pub(crate) saved: Option<&'a Snapshot>,
}

/// A network with its input and random streams.
pub(crate) struct Learner {
    pub(in crate::model::neural) name: &'static str,
    pub(crate) network: Network,
    pub(super) heads: Heads,
    pub(super) input: LearnerInput,
    pub(super) optimiser: Option<OptimiserSpec>,
    /// The number of values in a row of the input.
    width: usize,
    /// The run with the learner's random streams.
    job: JobContext,
    /// The network's outputs for all training rows, in a phase that does not train it.
    pub(in crate::model::neural) frozen: Option<FrozenOutputs>,
    /// Whether batch norm keeps its running statistics in training.
    pub(in crate::model::neural) keeps_statistics: bool,
}

impl Learner {
    /// Builds the network with initial parameters, or with those of a saved model.
    ///
    /// # Errors
    /// When the features do not fit the backbone, the saved arrays belong to another model, or the device is out of
    /// memory.
    pub(in crate::model::neural) fn new(
        spec: LearnerSpec,
        setting: &LearnerSetting<'_>,
    ) -> Result<Self> {
        let LearnerSpec { name, backbone, heads, input, optimiser } = spec;
        let LearnerSetting { precision, sizes, job, device, saved } = *setting;
        let part = if name == CLASSIFIER { job.clone() } else { job.part(name) };
        // The classifier has logits for each question.
        let n = if name == CLASSIFIER { sizes.n_questions() } else { 1 };
        let shape = NetShape { features: input.shape(sizes)?, classes: sizes.classes * n };
        let network = match saved {
            None => Network::new(&backbone, precision, &heads, &shape, &part, device)?,
            Some(saved) => {
                let initialisation = backbone.initialisation;
                let room = Parameters::within(&part, device, initialisation, saved.n_f32s());
                Network::build(&backbone, precision, &heads, &shape, room)?
            }
        };
        let width = shape.features.iter().product();
        let mut learner = Self {
            name,
            network,
            heads,
            input,
            optimiser,
            width,
            job: part,
            frozen: None,
            keeps_statistics: false,
        };
        if let Some(saved) = saved {
            let own = from_pytorch(&learner.part_of(saved), &learner.heads);
            learner.network.load(&own)?;
        }
        Ok(learner)
    }

    /// The prefix of the names of its arrays.
    pub(super) fn prefix(&self) -> String {
        if self.name == CLASSIFIER { String::new() } else { format!("{}.", self.name) }
    }

    /// The learner's own arrays in a snapshot, with the prefix removed.
    pub(super) fn part_of<'a>(&self, from: &'a Snapshot) -> Cow<'a, Snapshot> {
        let prefix = self.prefix();
        if prefix.is_empty() { Cow::Borrowed(from) } else { Cow::Owned(from.part(&prefix)) }
    }

    /// Fits the scaling of the input to the training data.
    pub(super) fn fit_scaler(&mut self, data: &TrainingData<'_>) {
        data.fit_scaler(&mut self.network.scaler, self.input);
    }

    /// The number of rows that are predicted at once.
    pub(super) fn rows_at_once(&self) -> usize {
        self.network.rows_at_once(self.job.share_of_memory(PREDICTION_SHARE, MAX_PREDICTION_BYTES))
    }

    /// Computes the outputs for rows of the input, and keeps nothing for a backward pass.
    pub(crate) fn predict(&self, inputs: Inputs<'_>, ids: &[u32]) -> Result<Outputs> {
        if ids.is_empty() {
            return Ok(self.no_rows());
        }
        let numbers = self.input.read(inputs, &self.network.scaler, self.width, ids);
        self.network.forward(numbers, &mut Mode::Fixed)?.to_host()
    }

    /// The outputs for a batch of no annotators, for which the network has nothing to compute.
    fn no_rows(&self) -> Outputs {
        Outputs { named: vec![Vec::new(); self.heads.named.len()], ..Outputs::default() }
    }

    /// The outputs for instances without features. A learner that reads features gives all classes the same
    /// probability; its hidden layer and its named heads are those of a row of zeros, the mean of standardised features.
    pub(super) fn predict_without_features(
        &self,
        inputs: Inputs<'_>,
        batch: &Batch,
        classes: usize,
    ) -> Result<Outputs> {
        if self.input != LearnerInput::Features {
            return self.predict(inputs, self.input.ids(batch));
        }
        let rows = batch.len();
        let mut out = Outputs { rows, ..Outputs::default() };
        if self.heads.hidden || !self.heads.named.is_empty() {
            let pass = self.network.forward(vec![0.0; self.width], &mut Mode::Fixed)?;
            out = pass.to_host()?.select(&vec![0; rows]);
        }
        if self.heads.classifier {
            out.logits = vec![0.0; rows * classes];
            out.p = vec![1.0 / classes as f64; rows * classes];
        }
        Ok(out)
    }

    /// Computes and keeps the outputs of all training rows if the learner is not in `trained`, unless they are too
    /// large or features are augmented in every step.
    pub(in crate::model::neural) fn freeze(
        &mut self,
        trained: LearnerSubset,
        data: &TrainingData<'_>,
    ) -> Result<()> {
        if trained.has(self.name) || self.embedding().is_some() {
            self.frozen = None;
        } else if self.frozen.is_none() && !self.network.scaler.augments() {
            let predict = |rows: &[u32]| self.predict(data.inputs(), rows);
            let (rows, at_once) = (data.ids(self.input), self.rows_at_once());
            let max_bytes = self.job.share_of_memory(FROZEN_SHARE, MAX_FROZEN_BYTES);
            self.frozen = FrozenOutputs::compute(rows, at_once, max_bytes, predict)?;
        }
        Ok(())
    }

    /// The reader of the learner's input; `None` if its outputs are frozen, or if it reads a table of parameters, which
    /// every step changes.
    pub(in crate::model::neural) fn reader(&self) -> Option<Reader> {
        let Self { input, width, job, .. } = self;
        let reader = || Reader {
            input: *input,
            width: *width,
            scaler: self.network.scaler.clone(),
            copied_outputs: self.network.copied_outputs(),
            job: job.clone(),
        };
        (self.frozen.is_none() && self.embedding().is_none()).then(reader)
    }

    /// The table of parameters that the learner reads, if it reads one.
    pub(super) fn embedding(&self) -> Option<EmbeddingInput> {
        match self.input {
            LearnerInput::Embedding(embedding) => Some(embedding),
            _ => None,
        }
    }

    /// Computes the outputs for a batch in training; also returns the forward pass if the learner is in `trained`, or
    /// reads a table of parameters.
    pub(in crate::model::neural) fn forward(
        &self,
        batch: &Batch,
        rows: InputRows,
        tables: &AnnotatorParams,
        trained: LearnerSubset,
        stream: &str,
    ) -> Result<(Option<ForwardPass>, Outputs)> {
        if let Some(frozen) = &self.frozen {
            return Ok((None, frozen.gather(self.input.ids(batch))));
        }
        if self.input.ids(batch).is_empty() {
            return Ok((None, self.no_rows()));
        }
        let mut rng = self.job.rng(stream);
        let is_trained = trained.has(self.name);
        let mut mode = match (is_trained, self.keeps_statistics) {
            (true, false) => Mode::Training(&mut rng),
            (true, true) => Mode::Tuning(&mut rng),
            (false, _) => Mode::Fixed,
        };
        let Some(embedding) = self.embedding() else {
            let pass = self.network.forward(rows, &mut mode)?;
            let out = pass.to_host()?;
            return Ok((is_trained.then_some(pass), out));
        };
        let numbers = embedding.rows(tables, self.input.ids(batch));
        let pass = self.network.forward_of_variable(numbers, &mut mode)?;
        let out = pass.to_host()?;
        Ok((Some(pass), out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Matrix;
    use crate::model::neural::net::backbone::Scaling;
    use crate::model::neural::net::heads::{Head, HeadInput};

    /// Three rows without features: the logits are equal, the other outputs those of a row of zeros.
    #[test]
    fn an_instance_without_features_has_every_output() {
        let heads = Heads {
            hidden: true,
            named: vec![Head { name: "head", from: HeadInput::Features, widths: vec![5, 3] }],
            ..Heads::CLASSIFIER
        };
        let backbone =
            BackboneSpec { hidden: vec![4], scaling: Scaling::None, ..BackboneSpec::default() };
        let sizes =
            Sizes { features: vec![3], classes: 2, labels: 2, annotators: 1, ..Sizes::default() };
        let (job, device, precision) = (JobContext::new(1), Device::Cpu, Precision::F32);
        let setting =
            LearnerSetting { precision, sizes: &sizes, job: &job, device: &device, saved: None };
        let spec = LearnerSpec::new(CLASSIFIER, &backbone, heads, LearnerInput::Features);
        let learner = Learner::new(spec, &setting).unwrap();
        let zeros = Matrix::from_rows(3, &[0.0; 3]);
        let inputs = Inputs::unseen(&zeros);
        let of_zeros = learner.predict(inputs, &[0, 0, 0]).unwrap();
        let batch = TrainingData::unseen(vec![0, 0, 0]);
        let got = learner.predict_without_features(inputs, &batch, 2).unwrap();
        assert_eq!((got.rows, &got.logits, &got.p), (3, &vec![0.0; 6], &vec![0.5; 6]));
        assert!(of_zeros.hidden.iter().any(|h| *h != 0.0) && of_zeros.named[0].len() == 9);
        let pairs = got.hidden.iter().chain(&got.named[0]);
        for (got, want) in pairs.zip(of_zeros.hidden.iter().chain(&of_zeros.named[0])) {
            assert!((got - want).abs() < 1e-6, "{got}, expected {want}");
        }
        assert_eq!((got.hidden.len(), got.named[0].len()), (12, 9));
    }
}
