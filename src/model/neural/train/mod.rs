//! The training loop that all models share.

mod constants;
mod divergence;
mod em_steps;
mod epoch;
mod forward_passes;
mod frozen;
pub(crate) mod learners;
mod selection;
pub(crate) mod step;

use super::objective::train_spec::{Reduction, Select, TrainSpec};
use super::objective::train_state::TrainState;
use super::params::annotator_params::AnnotatorParams;
use crate::error::{Error, Result};
use crate::frame::{Dims, JointQuestion};
use crate::job_context::JobContext;
use crate::model::neural::data::inputs::Inputs;
use crate::model::neural::data::{TrainingData, batch::Batch};
use crate::model::neural::net::optimiser::optimiser_spec::OptimiserSpec;
use crate::model::neural::objective::batch_context::{BatchContext, BatchPrediction};
use crate::model::neural::objective::schedule::{Act, LearnerSubset, Phase};
use crate::model::neural::objective::training_objective::TrainingObjective;
use crate::model::neural::train::learners::Learners;
use crate::model::neural::train::step::Predictor;
use crate::model::saved::checkpoint;
use crate::model::saved::checkpoint::Fingerprint;
use crate::model::saved::snapshot::Snapshot;

/// An objective in training.
pub(crate) struct Trainer<'a, N> {
    pub(crate) model: &'a N,
    /// The digest of the model and its settings, for checkpoints; `None` for an objective that is trained without them.
    pub(crate) fingerprint: Option<Fingerprint>,
    pub(crate) spec: &'a TrainSpec,
    pub(crate) data: &'a TrainingData<'a>,
    pub(crate) dims: Dims,
    /// (feature row, class) of the gold that selects the epoch.
    pub(crate) valid: &'a [(u32, u32)],
    /// The question of each of them, where there are several.
    pub(crate) valid_questions: &'a [JointQuestion],
    pub(crate) learners: Learners,
    pub(crate) annotator_params: AnnotatorParams,
    pub(crate) state: TrainState,
    pub(crate) position: LoopPosition,
}

/// The loop's own variables. They are no part of the training's state: a resumed training computes them anew.
#[derive(Debug, Default)]
pub(crate) struct LoopPosition {
    /// The name of the last phase.
    phase: &'static str,
    /// The name of the phase in the trace.
    label: String,
    /// The epoch of the phase, from 1.
    epoch: u32,
    /// Whether a phase has run out of patience: all acts before the next selection or reset are skipped.
    is_over: bool,
    /// The time of the last checkpoint, in seconds of the run's clock.
    checkpoint_at: f64,
    /// The digest of what the training depends on; `None` without checkpoints.
    fingerprint: Option<String>,
}

impl<N: TrainingObjective> Trainer<'_, N> {
    /// Trains to the end, starting from the run's last checkpoint if there is one.
    ///
    /// # Errors
    /// When the training diverges, the run is cancelled, or a checkpoint cannot be read or written.
    pub(crate) fn train(&mut self, job: &mut JobContext) -> Result<()> {
        if let Some(fingerprint) = self.fingerprint.take().filter(|_| job.keeps_checkpoints()) {
            let fingerprint = self.completed(fingerprint, job)?;
            self.resume(&fingerprint, job)?;
            self.position.fingerprint = Some(fingerprint);
        }
        self.refuse_extreme_weights()?;
        self.warn_of_unused_settings(job);
        self.position.checkpoint_at = job.clock.seconds();
        job.progress.begin("training", Some(self.model.epochs(self.spec).into()));
        while let Some(act) = self.model.next_act(self.spec, &self.state) {
            job.cancel.check()?;
            match act {
                Act::Select => self.select()?,
                Act::Reset(learners) => self.reset(learners)?,
                _ if self.position.is_over => {}
                Act::Train(phase) => {
                    self.warn_of_delay(&phase, job);
                    self.warn_of_rates(&phase, job);
                    self.train_phase(&phase, job)?;
                }
                Act::EStep(name) => self.e_step(name, job)?,
                Act::MStep(name) => self.m_step(name)?,
                Act::Calibrate(learner, method) => self.calibrate(learner, method, job)?,
            }
            self.state.acts += 1;
            self.state.epoch = 0;
        }
        job.progress.end();
        Ok(())
    }

    /// Warns of settings of annotators' parameters where descent trains none of them.
    fn warn_of_unused_settings(&self, job: &mut JobContext) {
        if self.spec.optimiser.sets_annotators()
            && self.annotator_params.tables.iter().all(|table| table.is_fixed)
        {
            job.warn(
                "annotator_learning_rate and annotator_delay change nothing: gradient descent trains no parameters of \
                 annotators in this model",
            );
        }
    }

    /// Warns where annotators' parameters are frozen in all epochs of a phase that trains them.
    fn warn_of_delay(&self, phase: &Phase, job: &mut JobContext) {
        let mut tables = self.annotator_params.tables.iter();
        let trains_any = tables.any(|table| !table.is_fixed && phase.trains(&table.name));
        let begins = phase.act.start == 0 && phase.epochs > 0;
        let delay = self.annotator_delay(phase);
        if begins && trains_any && delay >= phase.epochs {
            job.warn(format!(
                "annotators' parameters are frozen for {delay} epochs, and phase `{}` has {}, so that they keep their \
                 initial values: train longer, or lower annotator_delay (identity_epochs of single_confusion)",
                phase.name, phase.epochs
            ));
        }
    }

    /// Warns where the rates of a phase that trains learners are zero, or still rise when it ends.
    fn warn_of_rates(&self, phase: &Phase, job: &mut JobContext) {
        let OptimiserSpec { learning_rate, warmup, .. } = self.spec.optimiser;
        let (name, epochs) = (phase.name, phase.epochs);
        let begins = phase.round == 0 && phase.act.start == 0 && epochs > 0;
        let begins = begins && phase.learners != LearnerSubset::NONE;
        if begins && phase.learner_rate.unwrap_or(learning_rate) == 0.0 {
            job.warn(format!(
                "the learning rate of phase `{name}` is 0: its networks stay as they are"
            ));
        } else if begins && warmup > epochs {
            job.warn(format!(
                "the rates rise over {warmup} epochs, and phase `{name}` has {epochs}, so that they stay far below \
                 their values: train longer, or lower warmup"
            ));
        }
    }

    /// Runs the remaining epochs of an act.
    fn train_phase(&mut self, phase: &Phase, job: &JobContext) -> Result<()> {
        (self.position.phase, self.position.label) = (phase.name, phase.label());
        while self.state.epoch < phase.act.len() as u32 {
            self.position.is_over = self.is_out_of_patience(phase);
            if self.position.is_over {
                break;
            }
            self.epoch(phase, job)?;
            if phase.is_scored {
                self.score_epoch(phase)?;
            } else if self.spec.select == Select::Valid {
                self.traced_score(phase)?;
            }
            let (epochs, now) = (self.state.trace.len(), job.clock.seconds());
            if self.spec.is_checkpoint_due(epochs, now - self.position.checkpoint_at) {
                self.checkpoint(job)?;
                self.position.checkpoint_at = now;
            }
        }
        Ok(())
    }

    fn select(&mut self) -> Result<()> {
        self.position.is_over = false;
        self.keep_best()
    }

    fn reset(&mut self, learners: LearnerSubset) -> Result<()> {
        self.learners.reset(learners, &format!("reset {}", self.state.acts))?;
        self.position.is_over = false;
        (self.state.best, self.state.average) = (None, None);
        self.state.estimates.calibrators.retain(|name, _| !learners.has(name));
        Ok(())
    }

    /// The current parameters of the model.
    pub(crate) fn snapshot(&self) -> Result<Snapshot> {
        let mut snapshot = Snapshot::default();
        self.learners.save(&mut snapshot)?;
        self.annotator_params.save(&mut snapshot);
        Ok(snapshot)
    }

    fn load(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.learners.load(snapshot)?;
        self.annotator_params.load(snapshot)
    }

    /// The model's learning rate of annotators' parameters for these data.
    fn default_annotator_rate(&self) -> f64 {
        let a = self.data.annotations;
        let is_annotated = |i: &usize| !a.pairs_of_instance(*i).is_empty();
        let annotated = (0..a.dims().instances).filter(is_annotated).count();
        let weights =
            (0..a.dims().instances).flat_map(|i| a.annotations_of_instance(i)).map(|(_, w)| w);
        let weight: f64 = weights.sum();
        self.model.annotator_rate(weight / annotated.max(1) as f64)
    }

    /// Epochs of a phase in which annotators' parameters are frozen while the classifier is trained.
    fn annotator_delay(&self, phase: &Phase) -> u32 {
        let delays = phase.learners != LearnerSubset::NONE
            && self.annotator_params.tables.iter().any(|table| !table.is_fixed);
        let of_model = || self.model.annotator_delay(self.spec, phase.epochs);
        if delays { phase.annotator_delay.unwrap_or_else(of_model) } else { 0 }
    }

    /// Calls `of_part` with these instances in parts, of as many as every learner can predict at once.
    ///
    /// # Errors
    /// When the run is cancelled, or `of_part` fails.
    pub(crate) fn each_part(
        &self,
        instances: &[u32],
        job: &JobContext,
        mut of_part: impl FnMut(&[u32]) -> Result<()>,
    ) -> Result<()> {
        instances.chunks(self.learners.rows_at_once()).try_for_each(|part| {
            job.cancel.check()?;
            of_part(part)
        })
    }

    /// The current model's prediction for a batch.
    pub(crate) fn predict(&self, batch: &Batch) -> Result<BatchPrediction> {
        self.with_outputs(batch, |context| self.model.predict(context))
    }

    /// Computes the networks' outputs for a batch of other inputs, which may have more annotations than the training inputs,
    /// and passes them to `read_out`.
    pub(crate) fn read_out<R>(
        &self,
        inputs: Inputs<'_>,
        batch: &Batch,
        read_out: impl FnOnce(&BatchContext<'_>) -> R,
    ) -> Result<R> {
        self.predictor().with_outputs(inputs, batch, read_out)
    }

    /// Computes the networks' outputs for a batch of instances without features, and passes them to `read_out`. The
    /// outputs of learners that read features are no predictions, and not calibrated: they give all classes the same
    /// probability.
    pub(crate) fn without_features<R>(
        &self,
        inputs: Inputs<'_>,
        batch: &Batch,
        read_out: impl FnOnce(&BatchContext<'_>) -> R,
    ) -> Result<R> {
        let inputs = inputs.with_tables(&self.annotator_params);
        let (out, others) =
            self.learners.predict_without_features(inputs, batch, self.dims.classes)?;
        let mut estimates = self.state.estimates.clone();
        estimates.calibrators.retain(|name, _| !self.learners.reads_features(name));
        let predictor = Predictor { estimates: &estimates, ..self.predictor() };
        Ok(predictor.with(&out, &others, batch, read_out))
    }

    /// Computes the networks' outputs for a batch without training, and passes them to `read_out`.
    fn with_outputs<R>(
        &self,
        batch: &Batch,
        read_out: impl FnOnce(&BatchContext<'_>) -> R,
    ) -> Result<R> {
        self.read_out(self.data.inputs(), batch, read_out)
    }

    /// The divisor of the annotations' losses: the user's choice, or the model's default.
    fn reduction(&self) -> Reduction {
        self.spec.reduction.or(N::REDUCTION).unwrap_or(Reduction::Sum)
    }

    fn predictor(&self) -> Predictor<'_> {
        Predictor {
            learners: &self.learners,
            annotator_params: &self.annotator_params,
            estimates: &self.state.estimates,
            dims: self.dims,
        }
    }

    /// The digest of the model with the training's settings, the seed, the annotations, the gold that selects the epoch,
    /// and the features of instances and of annotators with their rows. It reads all data once.
    fn completed(&self, mut fingerprint: Fingerprint, job: &JobContext) -> Result<String> {
        fingerprint.add_settings(self.spec)?;
        fingerprint.add_seed(job);
        fingerprint.add_annotations(self.data.annotations, &job.cancel)?;
        fingerprint.add_numbers(self.valid.iter().flat_map(|(row, class)| [*row, *class]));
        let of_question = |q: &JointQuestion| [q.index, q.classes, q.labels].map(|n| n as u32);
        fingerprint.add_numbers(self.valid_questions.iter().flat_map(of_question));
        if let Some(joint) = &self.data.annotations.joint {
            fingerprint.add_numbers(joint.questions.iter().flat_map(of_question));
            fingerprint.add_numbers(joint.offsets.iter().map(|n| *n as u32));
            fingerprint.add_numbers(joint.shared.iter().copied());
        }
        let row = |i| self.data.row(i).map_or(u32::MAX, |row| row as u32);
        fingerprint.add_numbers((0..self.data.annotations.dims().instances).map(row));
        fingerprint.add_features(self.data.matrix, &job.cancel)?;
        if let Some((matrix, rows)) = self.data.inputs().annotators {
            fingerprint.add_numbers(rows.iter().map(|row| row.unwrap_or(u32::MAX)));
            fingerprint.add_features(matrix, &job.cancel)?;
        }
        Ok(fingerprint.finish())
    }

    /// Continues from the run's checkpoint, where there is one.
    fn resume(&mut self, fingerprint: &str, job: &mut JobContext) -> Result<()> {
        let saved = checkpoint::read(fingerprint, job)?;
        let Some(snapshot) = saved else { return Ok(()) };
        self.load(&snapshot)?;
        self.learners.load_moments(&snapshot)?;
        self.annotator_params.load_moments(&snapshot)?;
        self.state.load(&snapshot, self.dims)
    }

    fn checkpoint(&self, job: &JobContext) -> Result<()> {
        let Some(fingerprint) = &self.position.fingerprint else { return Ok(()) };
        let mut snapshot = self.snapshot()?;
        self.learners.save_moments(&mut snapshot)?;
        self.annotator_params.save_moments(&mut snapshot);
        self.state.save(&mut snapshot)?;
        checkpoint::write(fingerprint, snapshot, job)
    }
}

/// The error of a prediction that is not finite, of a row of the features (from 0) after this epoch.
pub(crate) fn not_finite(row: usize, p: f64, epoch: usize) -> Error {
    let location = row + 1;
    Error::fit(format!("the prediction of row {location} of the features is not a finite number"))
        .at("model.train")
        .found(format!("{p} after epoch {epoch}"))
        .help(
            "the features of the row may be too large: scale them; or the training has diverged: lower \
             optimiser.learning_rate, or set optimiser.clip_norm",
        )
}
