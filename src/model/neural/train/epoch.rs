//! One epoch of a phase: its batches, their losses, and the steps of the optimiser.

use super::Trainer;
use crate::error::Result;
use crate::model::fitted::TraceRow;
use crate::model::neural::data::{Epoch, batch::Batch};
use crate::model::neural::net::ForwardPass;
use crate::model::neural::net::mode::Mode;
use crate::model::neural::train::frozen::FrozenOutputs;
use crate::model::neural::train::optimiser::Optimiser;
use crate::model::neural::train::step::loss_and_gradient;
use crate::model::neural::{BatchContext, CrowdNet, Gradient, Phase};
use crate::run::Run;

impl<N: CrowdNet> Trainer<'_, N> {
    /// Runs the next epoch of an act.
    ///
    /// # Errors
    /// When the training diverges, the run is cancelled or the device fails.
    pub(super) fn epoch(&mut self, phase: &Phase, run: &Run) -> Result<()> {
        let spec = self.spec;
        let (optimiser, epoch) = (&spec.optimiser, phase.act.start + self.state.epoch);
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
        let (data, scaler, targets) =
            (self.data, self.net.scaler.clone(), self.state.targets.take());
        let over = Epoch {
            name: &name,
            instances: phase.instances,
            targets: targets.as_ref(),
            batching: spec.batching(N::DROPS_LAST_BATCH),
            scaler: &scaler,
        };
        let of_epoch = data.epoch(over, run, |n, batch, features| {
            run.cancel.check()?;
            let mut rng = run.rng(&format!("dropout of {name}, batch {n}"));
            let mut mode = if phase.classifier { Mode::Training(&mut rng) } else { Mode::Fixed };
            let of_batch = self.step(&batch, features, &mut mode, rates, &stepper)?;
            loss += of_batch * batch.len() as f64;
            rows += batch.len();
            Ok(())
        });
        self.state.targets = targets;
        of_epoch?;
        let loss = loss / rows.max(1) as f64;
        if !self.net.parameters.is_finite()? || !self.annotator_params.is_finite() {
            return Err(self.diverged("a parameter that is not a finite number"));
        }
        let seconds = run.clock.seconds() - began;
        let last = self.state.trace.iter().rev().find(|row| row.phase == phase.name);
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
            phase: self.phase,
            batch,
            out: &out,
            gathered: &gathered,
            annotator_params,
            calibrator: self.state.calibrator.as_ref(),
            reduction: self.reduction(),
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
        let spec = &self.spec.optimiser;
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
}

/// The learning rates of one epoch.
#[derive(Clone, Copy)]
struct Rates {
    net: f64,
    annotators: f64,
}
