//! The training loop, once for all models.

use super::batch::{Batch, Data};
use super::crowd::Crowd;
use super::layers::Mode;
use super::net::{Flow, Net};
use super::optimiser::Optimiser;
use super::progress::Progress;
use super::recipe::Select;
use super::snapshot::Snapshot;
use super::step::{judge, loss_and_gradient};
use super::{CrowdNet, Gradient, Judged, Phase, Step};
use crate::error::{Error, Result};
use crate::frame::Dims;
use crate::model::fitted::{TraceRow, best};
use crate::run::Run;

/// A model in training, and what chooses its best epoch.
pub(super) struct Trainer<'a, N> {
    pub(super) model: &'a N,
    pub(super) data: &'a Data<'a>,
    pub(super) dims: Dims,
    /// (feature row, class) of the gold that selects.
    pub(super) valid: &'a [(u32, u32)],
    pub(super) net: Net,
    pub(super) crowd: Crowd,
    pub(super) progress: Progress,
}

/// Rows that are judged at once.
pub(super) const JUDGED_ROWS: usize = 1024;

/// Two scores this near are one.
const SAME_SCORE: f64 = 1e-12;

impl<N: CrowdNet> Trainer<'_, N> {
    /// Trains to the end, from the last checkpoint where the run has one.
    ///
    /// # Errors
    /// When the loss is no number, the run is cancelled, or a checkpoint fails.
    pub(super) fn train(&mut self, run: &mut Run) -> Result<()> {
        self.resume(run)?;
        let phases = self.model.phases();
        let epochs: u32 = phases.iter().map(|p| p.epochs).sum();
        run.progress.begin("training", Some(u64::from(epochs)));
        while let Some(phase) = phases.get(self.progress.phase) {
            if self.progress.epoch >= phase.epochs || self.is_out_of_patience(phase) {
                self.keep_best()?;
                self.progress.phase += 1;
                self.progress.epoch = 0;
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
        let spec = self.model.parts().train;
        let (optimiser, epoch) = (&spec.optimiser, self.progress.epoch);
        let began = run.clock.seconds();
        if optimiser.reset_each_epoch || epoch == 0 {
            self.net.vars.forget();
            self.crowd.forget();
        }
        let moves = epoch >= self.annotator_delay(phase);
        for table in &mut self.crowd.tables {
            table.trained =
                moves && phase.tables.is_none_or(|only| only.contains(&table.name.as_str()));
        }
        let factor = optimiser.factor(epoch, phase.epochs);
        let annotator_rate = phase.annotator_rate.or(optimiser.annotator_learning_rate);
        let rates = Rates {
            net: if phase.classifier { factor * optimiser.learning_rate } else { 0.0 },
            crowd: factor * annotator_rate.unwrap_or(N::ANNOTATOR_RATE),
        };
        let stepper = Optimiser::new(optimiser);
        let name = format!("{} {epoch}", phase.name);
        let (mut loss, mut rows) = (0.0, 0);
        let (data, scaler) = (self.data, self.net.scaler.clone());
        let inside = run.clone();
        data.epoch(&name, spec.cut(N::WHOLE_BATCHES), &scaler, run, |n, batch, features| {
            inside.cancel.check()?;
            let mut rng = inside.rng(&format!("dropout of {name}, batch {n}"));
            let mut mode = if phase.classifier { Mode::Training(&mut rng) } else { Mode::Fixed };
            let of_batch = self.step(&batch, features, &mut mode, rates, &stepper)?;
            loss += of_batch * batch.len() as f64;
            rows += batch.len();
            Ok(())
        })?;
        let loss = loss / rows.max(1) as f64;
        if !loss.is_finite() {
            return Err(Error::fit("the training diverged: its loss is no number")
                .at("model.train.optimiser.learning_rate")
                .found(format!("{loss} in epoch {} of phase `{}`", epoch + 1, phase.name))
                .help("lower the learning rate, or set model.train.optimiser.clip_norm"));
        }
        let seconds = run.clock.seconds() - began;
        let last = self.progress.trace.last().filter(|row| row.phase == phase.name);
        let change = last.map(|row| -loss - row.objective);
        self.progress.trace.push(TraceRow {
            phase: phase.name.to_owned(),
            step: epoch + 1,
            objective: -loss,
            change,
            seconds,
        });
        self.progress.epoch += 1;
        let speed = rows as f64 / seconds.max(1e-9);
        tracing::debug!(phase.name, step = epoch + 1, loss, rows_per_second = speed, "epoch");
        run.progress
            .at(self.progress.trace.len() as u64, &format!("loss {loss:.4}, {speed:.0} rows/s"));
        Ok(())
    }

    /// One step; returns the loss before it.
    fn step(
        &mut self,
        batch: &Batch,
        features: Vec<f32>,
        mode: &mut Mode<'_>,
        rates: Rates,
        optimiser: &Optimiser,
    ) -> Result<f64> {
        let (net, crowd) = (&self.net, &self.crowd);
        let (flow, gathered) =
            rayon::join(|| net.forward(features, mode), || crowd.gather(&batch.annotators));
        let flow = flow?;
        let out = flow.to_host()?;
        let step = Step {
            phase: self.progress.phase,
            batch,
            out: &out,
            gathered: &gathered,
            crowd,
            dims: self.dims,
        };
        let (loss, gradient) = loss_and_gradient(self.model, &step);
        self.descend(batch, &flow, gradient, rates, optimiser)?;
        Ok(loss)
    }

    /// Moves all parameters against their gradient: annotators' beside the network's, unless a common norm is clipped.
    fn descend(
        &mut self,
        batch: &Batch,
        flow: &Flow,
        gradient: Gradient,
        rates: Rates,
        optimiser: &Optimiser,
    ) -> Result<()> {
        let spec = &self.model.parts().train.optimiser;
        let Gradient { out, mut tables } = gradient;
        let backward = || if rates.net > 0.0 { flow.backward(&out).map(Some) } else { Ok(None) };
        let vars = &mut self.net.vars;
        let Some(most) = spec.clip_norm else {
            let crowd = || self.crowd.step(batch, &tables, optimiser, rates.crowd);
            let net = || match backward()? {
                Some(g) => vars.step(&g, 1.0, optimiser, rates.net, spec.weight_decay),
                None => Ok(()),
            };
            return rayon::join(net, crowd).0;
        };
        let of_net = backward()?;
        let mut squares = self.crowd.squared_norm(&tables);
        if let Some(g) = &of_net {
            squares += vars.squared_norm(g)?;
        }
        let scale = (most / squares.sqrt()).min(1.0);
        if let Some(g) = &of_net {
            vars.step(g, scale, optimiser, rates.net, spec.weight_decay)?;
        }
        if scale < 1.0 {
            tables.iter_mut().flatten().for_each(|g| *g *= scale);
        }
        self.crowd.step(batch, &tables, optimiser, rates.crowd);
        Ok(())
    }

    /// Keeps this epoch's model, or the average of all so far, if it is the best.
    fn select(&mut self, phase: &Phase) -> Result<()> {
        let kept = self.model.parts().train.average;
        if kept == 0.0 {
            return self.keep_if_best(phase);
        }
        let last = self.snapshot()?;
        let mut average = self.progress.average.take().unwrap_or_else(|| last.clone());
        // The plain mean of all epochs until there are enough for a running one.
        average.approach(&last, (1.0 / f64::from(self.progress.epoch)).max(1.0 - kept));
        self.load(&average)?;
        self.progress.average = Some(average);
        self.keep_if_best(phase)?;
        self.load(&last)
    }

    fn keep_if_best(&mut self, phase: &Phase) -> Result<()> {
        let Some(score) = self.score(phase)? else { return Ok(()) };
        let best = self.progress.best.as_ref();
        if best.is_none_or(|(best, ..)| score > best + SAME_SCORE) {
            self.progress.best = Some((score, self.progress.epoch, self.snapshot()?));
        }
        Ok(())
    }

    /// Ends a phase with the best model; where nothing selects, with the average if there is one.
    fn keep_best(&mut self) -> Result<()> {
        let average = self.progress.average.take();
        let best = self.progress.best.take().map(|(.., best)| best);
        best.or(average).map_or(Ok(()), |kept| self.load(&kept))
    }

    /// The model as it is.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn snapshot(&self) -> Result<Snapshot> {
        let mut snapshot = Snapshot::default();
        self.net.save(&mut snapshot)?;
        self.crowd.save(&mut snapshot);
        Ok(snapshot)
    }

    fn load(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.net.load(snapshot)?;
        self.crowd.load(snapshot)
    }

    /// Whether nothing better was found for long, counted from when everything moves.
    fn is_out_of_patience(&self, phase: &Phase) -> bool {
        let (patience, best) = (self.model.parts().train.patience, &self.progress.best);
        let all_move = self.annotator_delay(phase);
        patience
            .zip(best.as_ref())
            .is_some_and(|(p, (_, at, _))| self.progress.epoch >= all_move.max(*at) + p)
    }

    /// Epochs of a phase in which annotators' parameters stand still beside a classifier that learns.
    fn annotator_delay(&self, phase: &Phase) -> u32 {
        let delays = phase.classifier && self.crowd.tables.iter().any(|table| !table.is_fixed);
        if delays { self.model.annotator_delay(phase.epochs) } else { 0 }
    }

    /// What the selection compares, greater is better; `None` where the last epoch is kept.
    fn score(&self, phase: &Phase) -> Result<Option<f64>> {
        match self.model.parts().train.select {
            Select::Last => Ok(None),
            Select::AnnotationLikelihood if !phase.moves_likelihood => Ok(None),
            Select::Valid => {
                let (mut right, mut log) = (0.0, 0.0);
                for part in self.valid.chunks(JUDGED_ROWS) {
                    let mut batch = Data::unseen(0..part.len());
                    batch.rows = part.iter().map(|(row, _)| *row).collect();
                    let judged = self.judge(&batch)?;
                    for ((_, class), p) in part.iter().zip(judged.classes.chunks(self.dims.classes))
                    {
                        let found = best(p).map(|(k, _)| k as u32);
                        right += f64::from(u8::from(found == Some(*class)));
                        log += p[*class as usize].max(1e-15).ln();
                    }
                }
                // Among equally many right the surer one is better, by less than one more right would be.
                let n = self.valid.len().max(1) as f64;
                Ok(Some((right + 0.5 / (1.0 - log / n)) / n))
            }
            Select::AnnotationLikelihood => {
                let instances = self.data.instances();
                let (mut log, mut n) = (0.0, 0.0);
                for part in instances.chunks(JUDGED_ROWS) {
                    let batch = self.data.held_out(part);
                    let judged = self.judge(&batch)?;
                    for (said, p) in batch.said.iter().zip(&judged.likelihood) {
                        log += said.weight * p.max(1e-15).ln();
                        n += said.weight;
                    }
                }
                Ok((n > 0.0).then_some(log / n))
            }
        }
    }

    /// What the model says of a batch now.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn judge(&self, batch: &Batch) -> Result<Judged> {
        judge(self.model, &self.net, &self.crowd, self.data.matrix, self.dims, batch)
    }

    /// Goes on from the run's checkpoint, where there is one.
    fn resume(&mut self, run: &Run) -> Result<()> {
        let Some(bytes) = run.checkpoint()? else { return Ok(()) };
        let snapshot = Snapshot::from_bytes(&bytes)?;
        self.load(&snapshot)?;
        self.net.vars.load_moments(&snapshot)?;
        self.crowd.load_moments(&snapshot)?;
        self.progress = Progress::load(&snapshot, &self.model.phases())?;
        Ok(())
    }

    fn checkpoint(&self, run: &Run) -> Result<()> {
        if !run.keeps_checkpoints() {
            return Ok(());
        }
        let mut snapshot = self.snapshot()?;
        self.net.vars.save_moments(&mut snapshot)?;
        self.crowd.save_moments(&mut snapshot);
        self.progress.save(&mut snapshot, &self.model.phases());
        run.save_checkpoint(&snapshot.to_bytes()?)
    }
}

/// The learning rates of one epoch.
#[derive(Clone, Copy)]
struct Rates {
    net: f64,
    crowd: f64,
}
