//! The training loop that all models share.

pub(crate) mod checkpoint;
mod frozen;
pub(crate) mod moments;
pub(crate) mod optimiser;
pub(crate) mod optimiser_spec;
mod selection;
pub(crate) mod spec;
pub(crate) mod state;
pub(crate) mod step;

use crate::error::{Error, Result};
use crate::frame::Dims;
use crate::model::fitted::TraceRow;
use crate::model::neural::annotator_params::AnnotatorParams;
use crate::model::neural::data::{TrainingData, batch::Batch};
use crate::model::neural::net::layers::Mode;
use crate::model::neural::net::{ForwardPass, Network};
use crate::model::neural::train::checkpoint::Snapshot;
use crate::model::neural::train::frozen::FrozenOutputs;
use crate::model::neural::train::optimiser::Optimiser;
use crate::model::neural::train::state::TrainState;
use crate::model::neural::train::step::loss_and_gradient;
use crate::model::neural::{BatchContext, BatchPrediction, CrowdNet, Gradient, Phase};
use crate::run::Run;

/// A model in training.
pub(crate) struct Trainer<'a, N> {
    pub(crate) model: &'a N,
    pub(crate) data: &'a TrainingData<'a>,
    pub(crate) dims: Dims,
    /// (feature row, class) of the gold that selects the epoch.
    pub(crate) valid: &'a [(u32, u32)],
    pub(crate) net: Network,
    pub(crate) annotator_params: AnnotatorParams,
    pub(crate) state: TrainState,
    /// The network's outputs in a phase that does not train it.
    pub(crate) frozen: Option<FrozenOutputs>,
}

impl<N: CrowdNet> Trainer<'_, N> {
    /// Trains to the end, from the last checkpoint where the run has one.
    ///
    /// # Errors
    /// When the training diverges, the run is cancelled, or a checkpoint cannot be read or written.
    pub(crate) fn train(&mut self, run: &mut Run) -> Result<()> {
        self.resume(run)?;
        let phases = self.model.phases();
        let epochs: u32 = phases.iter().map(|p| p.epochs).sum();
        run.progress.begin("training", Some(u64::from(epochs)));
        while let Some(phase) = phases.get(self.state.phase) {
            if self.state.epoch >= phase.epochs || self.is_out_of_patience(phase) {
                self.keep_best()?;
                self.state.phase += 1;
                self.state.epoch = 0;
                continue;
            }
            self.epoch(phase, run)?;
            self.select(phase)?;
            self.checkpoint(run)?;
        }
        run.progress.end();
        Ok(())
    }

    fn epoch(&mut self, phase: &Phase, run: &mut Run) -> Result<()> {
        let spec = self.model.common().train;
        let (optimiser, epoch) = (&spec.optimiser, self.state.epoch);
        let began = run.clock.seconds();
        if optimiser.reset_each_epoch || epoch == 0 {
            self.net.parameters.reset_moments();
            self.annotator_params.reset_moments();
        }
        let moves = epoch >= self.annotator_delay(phase);
        for table in &mut self.annotator_params.tables {
            table.trained =
                moves && phase.tables.is_none_or(|only| only.contains(&table.name.as_str()));
        }
        let factor = optimiser.factor(epoch, phase.epochs);
        let annotator_rate = phase.annotator_rate.or(optimiser.annotator_learning_rate);
        let rates = Rates {
            net: if phase.classifier { factor * optimiser.learning_rate } else { 0.0 },
            annotators: factor * annotator_rate.unwrap_or(N::ANNOTATOR_RATE),
        };
        if phase.classifier {
            self.frozen = None;
        } else if self.frozen.is_none() {
            self.frozen = FrozenOutputs::of(&self.net, self.data)?;
        }
        let stepper = Optimiser::new(optimiser);
        let name = format!("{} {epoch}", phase.name);
        let (mut loss, mut rows) = (0.0, 0);
        let (data, scaler) = (self.data, self.net.scaler.clone());
        let inside = run.clone();
        data.epoch(
            &name,
            spec.batching(N::DROPS_LAST_BATCH),
            &scaler,
            run,
            |n, batch, features| {
                inside.cancel.check()?;
                let mut rng = inside.rng(&format!("dropout of {name}, batch {n}"));
                let mut mode =
                    if phase.classifier { Mode::Training(&mut rng) } else { Mode::Fixed };
                let of_batch = self.step(&batch, features, &mut mode, rates, &stepper)?;
                loss += of_batch * batch.len() as f64;
                rows += batch.len();
                Ok(())
            },
        )?;
        let loss = loss / rows.max(1) as f64;
        if !self.net.parameters.is_finite()? || !self.annotator_params.is_finite() {
            return Err(self.diverged("a parameter that is not a finite number"));
        }
        let seconds = run.clock.seconds() - began;
        let last = self.state.trace.last().filter(|row| row.phase == phase.name);
        let change = last.map(|row| -loss - row.objective);
        self.state.trace.push(TraceRow {
            phase: phase.name.to_owned(),
            step: epoch + 1,
            objective: -loss,
            change,
            seconds,
        });
        self.state.epoch += 1;
        let speed = rows as f64 / seconds.max(1e-9);
        tracing::debug!(phase.name, step = epoch + 1, loss, rows_per_second = speed, "epoch");
        run.progress
            .at(self.state.trace.len() as u64, &format!("loss {loss:.4}, {speed:.0} rows/s"));
        Ok(())
    }

    /// Makes one step of the optimiser; returns the loss before it.
    fn step(
        &mut self,
        batch: &Batch,
        features: Vec<f32>,
        mode: &mut Mode<'_>,
        rates: Rates,
        optimiser: &Optimiser,
    ) -> Result<f64> {
        let (net, annotator_params) = (&self.net, &self.annotator_params);
        let gather = || annotator_params.gather(&batch.annotators);
        let (forward, out, gathered) = if let Some(frozen) = &self.frozen {
            (None, frozen.gather(&batch.rows), gather())
        } else {
            let (forward, gathered) = rayon::join(|| net.forward(features, mode), gather);
            let forward = forward?;
            let out = forward.to_host()?;
            (Some(forward), out, gathered)
        };
        let context = BatchContext {
            phase: self.state.phase,
            batch,
            out: &out,
            gathered: &gathered,
            annotator_params,
            dims: self.dims,
        };
        let (loss, gradient) = loss_and_gradient(self.model, &context);
        if !loss.is_finite() {
            return Err(self.diverged(&format!("a loss of {loss}")));
        }
        self.descend(batch, forward.as_ref(), gradient, rates, optimiser)?;
        Ok(loss)
    }

    /// Updates all parameters. Network and annotators are updated in parallel, unless the norm over both is clipped.
    fn descend(
        &mut self,
        batch: &Batch,
        forward: Option<&ForwardPass>,
        gradient: Gradient,
        rates: Rates,
        optimiser: &Optimiser,
    ) -> Result<()> {
        let spec = &self.model.common().train.optimiser;
        let Gradient { out, mut tables } = gradient;
        let trained = forward.filter(|_| rates.net > 0.0);
        let backward = || trained.map(|forward| forward.backward(&out)).transpose();
        let Some(max_norm) = spec.clip_norm else {
            let parameters = &mut self.net.parameters;
            let annotator_params =
                || self.annotator_params.step(batch, &tables, optimiser, rates.annotators);
            let net = || match backward()? {
                Some(g) => parameters.step(&g, 1.0, optimiser, rates.net, spec.weight_decay),
                None => Ok(()),
            };
            return rayon::join(net, annotator_params).0;
        };
        let of_net = backward()?;
        let mut squares = self.annotator_params.squared_norm(&tables);
        if let Some(g) = &of_net {
            squares += self.net.parameters.squared_norm(g)?;
        }
        if !squares.is_finite() {
            return Err(self.diverged(&format!("a squared norm of {squares} of the gradient")));
        }
        let scale = (max_norm / squares.sqrt()).min(1.0);
        if let Some(g) = &of_net {
            self.net.parameters.step(g, scale, optimiser, rates.net, spec.weight_decay)?;
        }
        if scale < 1.0 {
            tables.iter_mut().flatten().for_each(|g| *g *= scale);
        }
        self.annotator_params.step(batch, &tables, optimiser, rates.annotators);
        Ok(())
    }

    /// The current parameters of the model.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn snapshot(&self) -> Result<Snapshot> {
        let mut snapshot = Snapshot::default();
        self.net.save(&mut snapshot)?;
        self.annotator_params.save(&mut snapshot);
        Ok(snapshot)
    }

    fn load(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.net.load(snapshot)?;
        self.annotator_params.load(snapshot)
    }

    /// Epochs of a phase in which annotators' parameters are frozen while the classifier is trained.
    fn annotator_delay(&self, phase: &Phase) -> u32 {
        let delays =
            phase.classifier && self.annotator_params.tables.iter().any(|table| !table.is_fixed);
        if delays { self.model.annotator_delay(phase.epochs) } else { 0 }
    }

    /// The current model's prediction for a batch.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn predict(&self, batch: &Batch) -> Result<BatchPrediction> {
        self.with_outputs(batch, |context| self.model.predict(context))
    }

    /// Computes the network's outputs for a batch without training, and passes them to `read_out`.
    fn with_outputs<R>(
        &self,
        batch: &Batch,
        read_out: impl FnOnce(&BatchContext<'_>) -> R,
    ) -> Result<R> {
        let matrix = self.data.matrix;
        step::with_outputs(&self.net, &self.annotator_params, matrix, self.dims, batch, read_out)
    }

    /// The error of a training whose numbers are no longer finite.
    pub(crate) fn diverged(&self, found: &str) -> Error {
        let phases = self.model.phases();
        let phase = phases.get(self.state.phase).or(phases.last()).map_or("", |phase| phase.name);
        Error::fit("the training diverged")
            .at("model.train.optimiser.learning_rate")
            .found(format!("{found} in epoch {} of phase `{phase}`", self.state.epoch + 1))
            .help(
                "lower learning_rate or annotator_learning_rate, or set \
                 model.train.optimiser.clip_norm",
            )
    }

    /// Continues from the run's checkpoint, where there is one.
    fn resume(&mut self, run: &Run) -> Result<()> {
        let Some(bytes) = run.checkpoint()? else { return Ok(()) };
        let snapshot = Snapshot::from_bytes(&bytes)?;
        self.load(&snapshot)?;
        self.net.parameters.load_moments(&snapshot)?;
        self.annotator_params.load_moments(&snapshot)?;
        self.state = TrainState::load(&snapshot, &self.model.phases())?;
        Ok(())
    }

    fn checkpoint(&self, run: &Run) -> Result<()> {
        if !run.keeps_checkpoints() {
            return Ok(());
        }
        let mut snapshot = self.snapshot()?;
        self.net.parameters.save_moments(&mut snapshot)?;
        self.annotator_params.save_moments(&mut snapshot);
        self.state.save(&mut snapshot, &self.model.phases());
        run.save_checkpoint(&snapshot.to_bytes()?)
    }
}

/// The learning rates of one epoch.
#[derive(Clone, Copy)]
struct Rates {
    net: f64,
    annotators: f64,
}
