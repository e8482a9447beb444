//! One epoch of a phase: its batches, their losses, and the steps of the optimiser.

use super::Trainer;
use crate::error::{Error, Result};
use crate::job_context::JobContext;
use crate::model::fitted::TraceRow;
use crate::model::neural::data::Epoch;
use crate::model::neural::data::batch::Batch;
use crate::model::neural::data::read_ahead::{ReadAhead, ReadBatch};
use crate::model::neural::net::input::input_rows::InputRows;
use crate::model::neural::net::optimiser::Optimiser;
use crate::model::neural::objective::batch_context::{BatchContext, Gradient};
use crate::model::neural::objective::schedule::Phase;
use crate::model::neural::objective::training_objective::TrainingObjective;
use crate::model::neural::params::annotator_params::AnnotatorParams;
use crate::model::neural::params::param_table::ParamTable;
use crate::model::neural::train::forward_passes::{ForwardPasses, LearnerGradients};
use crate::model::neural::train::learners::{LearnerUpdate, Learners};
use crate::model::neural::train::step::loss_and_gradient;

impl<N: TrainingObjective> Trainer<'_, N> {
    /// Runs the next epoch of an act.
    ///
    /// # Errors
    /// When the training diverges, the run is cancelled or the device fails.
    pub(super) fn epoch(&mut self, phase: &Phase, job: &JobContext) -> Result<()> {
        let spec = self.spec;
        let (optimiser, epoch) = (&spec.optimiser, phase.act.start + self.state.epoch);
        let began = job.clock.seconds();
        self.position.epoch = epoch + 1;
        if optimiser.reset_each_epoch || (epoch == 0 && !phase.keeps_moments) {
            self.reset_moments(phase);
        }
        let is_delayed = epoch < self.annotator_delay(phase);
        for table in &mut self.annotator_params.tables {
            table.trained = !is_delayed && phase.trains(&table.name);
        }
        let factor = optimiser.factor(epoch, phase.epochs);
        let annotator_rate = phase.annotator_rate.or(optimiser.annotator_learning_rate);
        let updates = EpochUpdates {
            learners: self.learners.updates(optimiser, phase, epoch),
            annotators: Optimiser::new(optimiser),
            annotator_rate: factor
                * annotator_rate.unwrap_or_else(|| self.default_annotator_rate()),
        };
        self.learners.freeze(phase.learners, self.data)?;
        self.keep_constants(phase, job)?;
        let name = format!("{} {epoch}", self.position.label);
        let (mut loss, mut rows) = (0.0, 0);
        let (data, readers) = (self.data, self.learners.readers());
        let targets = self.state.targets.remove(phase.targets);
        if targets.is_none() && N::TRAINS_ON_TARGETS {
            return Err(Error::bug(format!("there are no targets `{}`", phase.targets)));
        }
        let over = Epoch {
            name: &name,
            instances: phase.instances,
            targets: targets.as_ref().map(|targets| &targets.posterior),
            batching: spec.batching(N::DROPS_LAST_BATCH),
            readers: &readers,
        };
        let of_epoch = data.epoch(over, job, |ReadBatch { index, batch, inputs }, ahead| {
            job.cancel.check()?;
            let stream = format!("dropout of {name}, batch {index}");
            let forward = |learners: &Learners, tables: &AnnotatorParams| {
                learners.forward(&batch, inputs, tables, phase.learners, &stream)
            };
            let of_batch = self.step(&batch, forward, &updates, ahead)?;
            loss += of_batch * batch.len() as f64;
            rows += batch.len();
            Ok(())
        });
        let back = targets.map(|targets| (phase.targets.to_owned(), targets));
        self.state.targets.extend(back);
        of_epoch?;
        let loss = loss / rows.max(1) as f64;
        if !self.learners.are_finite()? || !self.annotator_params.is_finite() {
            return Err(self.non_finite("a parameter that is not a finite number"));
        }
        let seconds = job.clock.seconds() - began;
        let last = self.state.trace.iter().rev().find(|row| row.phase == self.position.label);
        let change = last.map(|row| -loss - row.objective);
        self.state.trace.push(TraceRow {
            phase: self.position.label.clone(),
            step: epoch + 1,
            objective: -loss,
            change,
            seconds,
            ..TraceRow::default()
        });
        self.state.epoch += 1;
        let speed = rows as f64 / seconds.max(1e-9);
        tracing::debug!(
            phase = self.position.label,
            step = epoch + 1,
            loss,
            rows_per_second = speed,
            "epoch"
        );
        job.progress
            .at(self.state.trace.len() as u64, &format!("loss {loss:.4}, {speed:.0} rows/s"));
        Ok(())
    }

    /// Makes one step of the optimiser; returns the loss before the step. A GPU receives the inputs of the next batch with
    /// the gradients of this one.
    fn step(
        &mut self,
        batch: &Batch,
        forward: impl FnOnce(&Learners, &AnnotatorParams) -> Result<ForwardPasses> + Send,
        updates: &EpochUpdates,
        ahead: &mut ReadAhead,
    ) -> Result<f64> {
        let (learners, annotator_params) = (&self.learners, &self.annotator_params);
        let gather = || annotator_params.gather(batch);
        let (passes, gathered) = rayon::join(|| forward(learners, annotator_params), gather);
        let passes = passes?;
        let context = BatchContext {
            phase: self.position.phase,
            batch,
            out: &passes.out,
            others: &passes.others,
            gathered: &gathered,
            annotator_params,
            estimates: &self.state.estimates,
            reduction: self.reduction(),
            dims: self.dims,
        };
        let (loss, gradient) = loss_and_gradient(self.model, &context)?;
        if !loss.is_finite() {
            return Err(self.non_finite(&format!("a loss of {loss}")));
        }
        let next = if self.learners.copies_inputs() { ahead.next_inputs() } else { &mut [] };
        self.descend(batch, &passes, gradient, updates, next)?;
        Ok(loss)
    }

    /// Sets the moments of the parameters that a phase trains to zero.
    fn reset_moments(&mut self, phase: &Phase) {
        self.learners.reset_moments(phase.learners);
        let tables = self.annotator_params.tables.iter_mut();
        tables.filter(|table| phase.trains(&table.name)).for_each(ParamTable::reset_moments);
    }

    /// Updates all parameters. Learners and annotators are updated in parallel, unless the norm over both is clipped, or a
    /// learner's gradient with respect to its input belongs to a table of parameters.
    fn descend(
        &mut self,
        batch: &Batch,
        passes: &ForwardPasses,
        gradient: Gradient,
        updates: &EpochUpdates,
        next_inputs: &mut [InputRows],
    ) -> Result<()> {
        let spec = &self.spec.optimiser;
        let Gradient { mut out, others, mut tables } = gradient;
        self.learners.spread_over_questions(&mut out, batch);
        let are_updated = updates.learners.iter().any(|update| update.rate > 0.0);
        let read_tables = self.learners.read_tables();
        let mut backward = || {
            if are_updated || read_tables {
                passes.backward(&out, &others, next_inputs)
            } else {
                Ok(LearnerGradients::default())
            }
        };
        if spec.clip_norm.is_none() && !read_tables {
            let (learners, optimiser) = (&mut self.learners, &updates.annotators);
            let annotator_params =
                || self.annotator_params.step(batch, &tables, optimiser, updates.annotator_rate);
            let learners = || learners.step(&backward()?.of_parameters, 1.0, &updates.learners);
            return rayon::join(learners, annotator_params).0;
        }
        let LearnerGradients { of_parameters, of_inputs } = backward()?;
        self.learners.add_input_gradients(&of_inputs, batch, &self.annotator_params, &mut tables);
        let mut scale = 1.0;
        if let Some(max_norm) = spec.clip_norm {
            let squares = self.annotator_params.squared_norm(&tables)
                + self.learners.squared_norm(&of_parameters)?;
            if !squares.is_finite() {
                return Err(
                    self.non_finite(&format!("a squared norm of {squares} of the gradient"))
                );
            }
            scale = (max_norm / squares.sqrt()).min(1.0);
        }
        self.learners.step(&of_parameters, scale, &updates.learners)?;
        if scale < 1.0 {
            tables.iter_mut().flatten().for_each(|g| *g *= scale);
        }
        self.annotator_params.step(batch, &tables, &updates.annotators, updates.annotator_rate);
        Ok(())
    }
}

/// How learners and annotators' parameters are updated in one epoch.
struct EpochUpdates {
    learners: Vec<LearnerUpdate>,
    annotators: Optimiser,
    annotator_rate: f64,
}
