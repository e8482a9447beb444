//! A network that learns weighted examples with soft targets, without annotators.
//!
//! ```text
//! loss of a batch = -(1/B) sum_i (w[i] / mean of w) sum_k T[i][k] ln p_i[k]
//! ```
//! A fit trains some epochs in the loop that all models share (`train/`). The next one continues with its parameters and
//! moments, and counts its epochs from there: `train.epochs` are those of all fits, the schedule of the learning rate runs
//! over them, and each has random streams of its own. After them, a fit changes nothing.
//!
//! The weights are part of the targets: those of an example are w[i] T[i], whose sum is w[i].

use std::sync::Arc;

use candle_core::Device;
use serde_json::{Value, json};

use super::data::TrainingData;
use super::data::inputs::{Inputs, LearnerInput};
use super::data::sizes::Sizes;
use super::net::heads::Heads;
use super::numerics::at_least;
use super::objective::batch_context::{BatchContext, Gradient};
use super::objective::network_spec::NetworkSpec;
use super::objective::schedule::{Act, Phase};
use super::objective::train_spec::{Reduction, TrainSpec};
use super::objective::train_state::TrainState;
use super::objective::training_objective::TrainingObjective;
use super::params::annotator_params::AnnotatorParams;
use super::train::learners::Learners;
use super::train::learners::learner::{CLASSIFIER, LearnerSetting, LearnerSpec};
use super::train::learners::on_device::{learners_on_device, rows_of_prediction};
use super::train::{LoopPosition, Trainer, not_finite};
use crate::error::{Error, Result};
use crate::frame::{AnnotationRows, Annotations, Dims, Duplicates, Matrix};
use crate::job_context::{Cancel, JobContext, NoProgress};
use crate::model::fitted::{TraceRow, on_cpu};
use crate::model::neural::device::name_of;
use crate::model::posterior::Posterior;
use crate::model::saved::snapshot::Snapshot;

/// Examples of positive weight.
pub(crate) struct WeightedTargets<'a> {
    /// The features.
    pub(crate) matrix: &'a Matrix,
    /// The row of each example in the matrix.
    pub(crate) rows: &'a [u32],
    /// The weight of each example times its P(class), `[example, class]`.
    pub(crate) targets: Posterior,
}

/// A network for features of one shape and some classes, with what it has learned.
pub(crate) struct SoftTargetNetwork {
    spec: NetworkSpec,
    /// The epochs of one fit.
    epochs_per_fit: u32,
    sizes: Sizes,
    /// `None` before the first fit.
    trained: Option<TrainedLearners>,
}

/// The network after some epochs.
struct TrainedLearners {
    learners: Learners,
    device: Device,
    /// The rows of a batch of the first fit, by which `auto` chooses the device; 0 for a network that was loaded.
    batch_rows: usize,
    /// One row for each epoch since the start; none for a network that was loaded.
    trace: Vec<TraceRow>,
}

impl SoftTargetNetwork {
    /// A network that has learned nothing yet, for features of these axes.
    pub(crate) fn new(
        spec: NetworkSpec,
        epochs_per_fit: u32,
        axes: &[usize],
        classes: usize,
    ) -> Self {
        let features = axes.to_vec();
        let sizes = Sizes { features, classes, labels: classes, ..Sizes::default() };
        Self { spec, epochs_per_fit, sizes, trained: None }
    }

    /// The epochs that further fits still train.
    pub(crate) fn epochs_left(&self) -> u32 {
        let done = self.trained.as_ref().map_or(0, |trained| trained.trace.len() as u32);
        self.spec.train.epochs.saturating_sub(done)
    }

    /// Trains the epochs of one fit, if there are any examples. A fit that fails forgets what was learned before.
    ///
    /// # Errors
    /// When the training diverges, the run is cancelled, the features do not fit the backbone, or the device fails.
    pub(crate) fn fit(&mut self, examples: WeightedTargets<'_>, job: &JobContext) -> Result<()> {
        let WeightedTargets { matrix, rows, targets } = examples;
        if rows.is_empty() {
            return Ok(());
        }
        let row_of: Vec<Option<u32>> = rows.iter().copied().map(Some).collect();
        let (instances, classes) = (rows.len(), self.sizes.classes);
        let dims = Dims { instances, annotators: 0, classes, labels: classes };
        let none = no_annotations(dims)?;
        let data = TrainingData::without_annotations(matrix, &row_of, &none);
        let before = self.trained.take();
        let TrainedLearners { learners, device, batch_rows, trace } =
            before.map_or_else(|| self.start(&data, &targets, job), Ok)?;
        let job = &mut inside(job);
        let done = trace.len() as u32;
        let mean_weight = targets.values().iter().sum::<f64>() / rows.len() as f64;
        let model = SoftTargetLoss { done, epochs_per_fit: self.epochs_per_fit, mean_weight };
        let state = TrainState { trace, ..TrainState::with_targets(Some(targets)) };
        let mut trainer = Trainer {
            model: &model,
            fingerprint: None,
            spec: &self.spec.train,
            data: &data,
            dims,
            valid: &[],
            valid_questions: &[],
            learners,
            annotator_params: AnnotatorParams::default(),
            state,
            position: LoopPosition::default(),
        };
        trainer.train(job)?;
        let (learners, trace) = (trainer.learners, trainer.state.trace);
        self.trained = Some(TrainedLearners { learners, device, batch_rows, trace });
        Ok(())
    }

    /// The network with its initial parameters, and with the scaling of these examples.
    fn start(
        &self,
        data: &TrainingData<'_>,
        targets: &Posterior,
        job: &JobContext,
    ) -> Result<TrainedLearners> {
        let batch_rows =
            data.batch_rows(self.spec.train.batching(SoftTargetLoss::DROPS_LAST_BATCH));
        let mut trained = self.open(None, |_| batch_rows, job)?;
        trained.batch_rows = batch_rows;
        let weight = |i: u32| targets.row(i as usize).iter().sum();
        let row = |i: u32| Some((data.row(i as usize)? as u32, weight(i)));
        let rows = data.instances().into_iter().filter_map(row);
        trained.learners.classifier.network.scaler.fit_weighted(data.matrix, rows);
        Ok(trained)
    }

    /// The network with the arrays of `saved`, else with its initial parameters, on a device for batches of
    /// `batch_rows(learners)` rows.
    fn open(
        &self,
        saved: Option<&Snapshot>,
        batch_rows: impl FnOnce(&Learners) -> usize,
        job: &JobContext,
    ) -> Result<TrainedLearners> {
        let NetworkSpec { device, backbone, train, .. } = &self.spec;
        let input = LearnerInput::Features;
        let classifier = LearnerSpec::new(CLASSIFIER, backbone, Heads::CLASSIFIER, input);
        let (precision, sizes) = (train.precision, &self.sizes);
        let setting = LearnerSetting { precision, sizes, job, device: &Device::Cpu, saved };
        let specs = (classifier, Vec::new());
        let (learners, device) = learners_on_device(device, specs, &setting, batch_rows)?;
        Ok(TrainedLearners { learners, device, batch_rows: 0, trace: Vec::new() })
    }

    /// Writes P(class) of rows of a matrix into `p`, `[row, class]`; uniform before the first fit.
    ///
    /// # Errors
    /// When the run is cancelled, the device fails, or a prediction after a fit is not finite.
    pub(crate) fn predict(
        &self,
        matrix: &Matrix,
        rows: &[u32],
        p: &mut [f64],
        cancel: &Cancel,
    ) -> Result<()> {
        let classes = self.sizes.classes;
        let Some(TrainedLearners { learners, trace, .. }) = &self.trained else {
            p.fill(1.0 / classes as f64);
            return Ok(());
        };
        let at_once = learners.rows_at_once();
        for (rows, p) in rows.chunks(at_once).zip(p.chunks_mut((at_once * classes).max(1))) {
            cancel.check()?;
            p.copy_from_slice(&learners.classifier.predict(Inputs::unseen(matrix), rows)?.p);
        }
        match p.iter().position(|p| !p.is_finite()) {
            // Without a trace the parameters are from a file, which may be damaged: the caller checks for that.
            Some(at) if !trace.is_empty() => {
                let row = rows[at / classes] as usize;
                Err(not_finite(row, p[at], trace.len()))
            }
            _ => Ok(()),
        }
    }

    /// Adds parameters and scaling to a snapshot, with the names and layouts of a saved model; nothing before the first
    /// fit.
    pub(crate) fn save(&self, to: &mut Snapshot) -> Result<()> {
        let Some(TrainedLearners { learners, .. }) = &self.trained else { return Ok(()) };
        let mut own = Snapshot::default();
        learners.save(&mut own)?;
        to.merge("", &learners.to_pytorch(&own));
        Ok(())
    }

    /// Takes parameters and scaling from a snapshot, to predict `n_rows` rows. A later fit begins with them, and with
    /// its first epoch.
    ///
    /// # Errors
    /// When the snapshot belongs to another network, or the device cannot be used.
    pub(crate) fn load(&mut self, from: &Snapshot, n_rows: usize, job: &JobContext) -> Result<()> {
        self.trained = Some(self.open(Some(from), rows_of_prediction(n_rows), job)?);
        Ok(())
    }

    /// Adds the state between two fits to a checkpoint.
    pub(crate) fn save_state(&self, to: &mut Snapshot) -> Result<()> {
        let Some(TrainedLearners { learners, batch_rows, trace, .. }) = &self.trained else {
            return Ok(());
        };
        learners.save(to)?;
        learners.save_moments(to)?;
        to.u32s("batch rows".to_owned(), vec![*batch_rows as u32]);
        TraceRow::save(trace, to);
        Ok(())
    }

    /// Takes the state between two fits from a checkpoint.
    ///
    /// # Errors
    /// When the snapshot belongs to another network, or the device cannot be used.
    pub(crate) fn load_state(&mut self, from: &Snapshot, job: &JobContext) -> Result<()> {
        let batch_rows = from.take_u32s("batch rows", 1)?[0] as usize;
        let mut trained = self.open(None, |_| batch_rows, job)?;
        trained.batch_rows = batch_rows;
        trained.learners.load(from)?;
        trained.learners.load_moments(from)?;
        trained.trace = TraceRow::saved(from)?;
        self.trained = Some(trained);
        Ok(())
    }

    /// The name of the device that the network is on.
    pub(crate) fn device(&self) -> String {
        self.trained.as_ref().map_or_else(on_cpu, |trained| name_of(&trained.device))
    }

    /// The modules of `torch.nn`, as a description of a saved model lists them.
    pub(crate) fn modules(&self) -> Value {
        json!(
            self.trained.as_ref().and_then(|trained| trained.learners.classifier.network.modules())
        )
    }
}

/// The run inside a fit of another model: that model reports its own progress, and has no checkpoint of a network.
fn inside(job: &JobContext) -> JobContext {
    let mut inside = job.clone();
    inside.progress = Arc::new(NoProgress);
    inside.keep_checkpoint(None);
    inside
}

fn no_annotations(dims: Dims) -> Result<Annotations> {
    let none = Annotations::build(dims, AnnotationRows::default(), Duplicates::Keep);
    none.map_err(|_| Error::bug("an annotation is repeated, and there is none"))
}

/// The loss and the schedule of one fit.
#[derive(Debug, Default)]
struct SoftTargetLoss {
    /// The number of epochs of earlier fits.
    done: u32,
    epochs_per_fit: u32,
    /// The mean of the weights of all examples.
    mean_weight: f64,
}

impl TrainingObjective for SoftTargetLoss {
    const REDUCTION: Option<Reduction> = None;
    const TRAINS_ON_TARGETS: bool = true;

    fn next_act(&self, train: &TrainSpec, state: &TrainState) -> Option<Act> {
        let end = self.done.saturating_add(self.epochs_per_fit).min(train.epochs);
        let phase = Phase { act: self.done..end, ..Phase::joint("train", train.epochs) };
        (state.acts == 0 && self.done < end).then_some(Act::Train(phase))
    }

    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> Result<f64> {
        let n = context.dims.classes;
        let targets = context.batch.targets.chunks_exact(n);
        let scale = 1.0 / (self.mean_weight * context.batch.len() as f64);
        let mut loss = 0.0;
        for ((b, targets), d_logits) in
            targets.enumerate().zip(gradient.out.logits.chunks_exact_mut(n))
        {
            let (p, weight) = (context.out.p(b), targets.iter().sum::<f64>());
            for ((p, target), d) in p.iter().zip(targets).zip(d_logits) {
                loss -= scale * target * at_least(*p, f64::MIN_POSITIVE).ln();
                *d += scale * (weight * p - target);
            }
        }
        Ok(loss)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::neural::data::batch::Batch;
    use crate::model::neural::net::heads::Outputs;
    use crate::model::neural::objective::train_state::Estimates;

    /// Two examples of the weights 2 and 0.5, where the mean of all weights is 1.5, so that both terms are divided by 3:
    /// the first has the target (0.3, 0.7), the second (0, 1). The derivative by a logit is (w p - w T) / 3.
    #[test]
    fn examples_of_a_batch_count_by_their_share_of_the_mean_weight() {
        let model = SoftTargetLoss { mean_weight: 1.5, ..SoftTargetLoss::default() };
        let targets = vec![0.6, 1.4, 0.0, 0.5];
        let batch = Batch { targets, ..TrainingData::unseen(vec![0, 1]) };
        let p = vec![0.4, 0.6, 0.1, 0.9];
        let out = Outputs { rows: 2, logits: vec![0.0; 4], p, ..Outputs::default() };
        let context = BatchContext {
            phase: "train",
            batch: &batch,
            out: &out,
            others: &[],
            gathered: &Vec::new(),
            annotator_params: &AnnotatorParams::default(),
            estimates: &Estimates::default(),
            reduction: Reduction::Sum,
            dims: Dims { instances: 2, annotators: 0, classes: 2, labels: 2 },
        };
        let mut gradient = Gradient { out: out.zeros_like(), ..Gradient::default() };
        let loss = model.loss(&context, &mut gradient).unwrap();
        let want = -(0.6 * 0.4_f64.ln() + 1.4 * 0.6_f64.ln() + 0.5 * 0.9_f64.ln()) / 3.0;
        assert!((loss - want).abs() < 1e-12, "{loss}, expected {want}");
        let slopes = [0.8 - 0.6, 1.2 - 1.4, 0.05, 0.45 - 0.5];
        for (got, want) in gradient.out.logits.iter().zip(slopes) {
            assert!((got - want / 3.0).abs() < 1e-12, "{got}, expected {want} / 3");
        }
    }

    /// Nine epochs in all, four in each fit: the last fit has one, and no fit follows it.
    #[test]
    fn a_schedule_of_all_fits_is_cut_into_fits() {
        let train = TrainSpec { epochs: 9, ..TrainSpec::default() };
        let epochs = |done| {
            let model = SoftTargetLoss { done, epochs_per_fit: 4, mean_weight: 1.0 };
            match model.next_act(&train, &TrainState::default()) {
                Some(Act::Train(phase)) => Some((phase.act, phase.epochs)),
                _ => None,
            }
        };
        let wanted = [Some((0..4, 9)), Some((4..8, 9)), Some((8..9, 9)), None];
        assert_eq!([0, 4, 8, 9].map(epochs), wanted);
        let (model, state) =
            (SoftTargetLoss::default(), TrainState { acts: 1, ..TrainState::default() });
        assert_eq!(model.next_act(&train, &state), None);
    }
}
