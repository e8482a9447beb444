//! The selection of the epoch whose model is kept.

use crate::error::Result;
use crate::model::fitted::TraceRow;
use crate::model::neural::data::{TrainingData, batch::Batch};
use crate::model::neural::numerics::at_least;
use crate::model::neural::objective::schedule::Phase;
use crate::model::neural::objective::train_spec::Select;
use crate::model::neural::objective::train_state::{Best, MAIN_TARGETS};
use crate::model::neural::objective::training_objective::TrainingObjective;
use crate::model::neural::params::param_table::Owner;
use crate::model::neural::train::Trainer;
use crate::model::neural::train::step::likelihood;
use crate::model::posterior::best;
use crate::model::saved::snapshot::Snapshot;

/// An epoch is better only if its score is greater by more than this.
const SAME_SCORE: f64 = 1e-12;

/// Probabilities are clamped to at least this in the log-loss of a score.
const MIN_SCORED: f64 = 1e-15;

impl<N: TrainingObjective> Trainer<'_, N> {
    /// Keeps this epoch's model, or the average of the models so far, if its score is the best.
    pub(super) fn score_epoch(&mut self, phase: &Phase) -> Result<()> {
        let kept = self.spec.average;
        if kept == 0.0 {
            return self.keep_if_best(phase);
        }
        let last = self.snapshot()?;
        let mut average = self.state.average.take().unwrap_or_else(|| last.clone());
        // The plain mean of all epochs, as long as 1 / epochs exceeds the last epoch's weight in the exponential
        // average.
        average.approach(&last, (1.0 / f64::from(self.epochs_done(phase))).max(1.0 - kept));
        self.load_average(&average)?;
        self.state.average = Some(average);
        self.keep_if_best(phase)?;
        self.load(&last)
    }

    fn load_average(&mut self, average: &Snapshot) -> Result<()> {
        self.load(average)?;
        self.model.restore_averaged(&mut self.annotator_params, self.dims);
        Ok(())
    }

    fn keep_if_best(&mut self, phase: &Phase) -> Result<()> {
        let Some(score) = self.traced_score(phase)? else { return Ok(()) };
        let best = self.state.best.as_ref();
        if best.is_none_or(|best| score > best.score + SAME_SCORE) {
            self.state.best = Some(Best {
                score,
                epoch: self.epochs_done(phase),
                model: self.snapshot()?,
                targets: self.state.targets.clone(),
                estimates: self.state.estimates.clone(),
            });
        }
        Ok(())
    }

    /// The score of this epoch, which the trace names.
    ///
    /// # Errors
    /// When it is no finite number, or the device fails.
    pub(super) fn traced_score(&mut self, phase: &Phase) -> Result<Option<f64>> {
        let score = self.score(phase)?;
        if let Some(score) = score.filter(|score| !score.is_finite()) {
            return Err(self.non_finite(&format!("a score of {score}")));
        }
        if let Some(row) = self.state.trace.last_mut() {
            row.score = score;
        }
        Ok(score)
    }

    /// Marks the epoch whose model is kept: the best, or the last where none was scored.
    fn mark_kept(&mut self) {
        let best = self.state.best.as_ref().map(|best| (best.epoch, Some(best.score)));
        let is_best = |row: &&mut TraceRow| best.is_none_or(|best| best == (row.step, row.score));
        if let Some(row) = self.state.trace.iter_mut().rev().find(is_best) {
            row.is_kept = true;
        }
    }

    /// Restores the best model since the last selection with its targets and estimates; if no epoch was scored, the average
    /// model, if there is one. Annotators and instances without training data get the mean of the others' parameters, so
    /// that a later act does not use their initial ones.
    pub(super) fn keep_best(&mut self) -> Result<()> {
        self.mark_kept();
        let average = self.state.average.take();
        let best = self.state.best.take().map(|best| {
            self.state.targets = best.targets;
            self.state.estimates = best.estimates;
            best.model
        });
        if best.is_some() || average.is_some() {
            self.learners.thaw();
        }
        match (best, average) {
            (Some(best), _) => self.load(&best)?,
            (None, Some(average)) => self.load_average(&average)?,
            (None, None) => {}
        }
        self.average_unknown();
        Ok(())
    }

    /// Sets the parameters of annotators and instances without training data to the mean of the others'.
    pub(crate) fn average_unknown(&mut self) {
        self.annotator_params.average_unknown(Owner::Annotator, &self.data.unknown());
        self.annotator_params.average_unknown(Owner::Instance, &self.data.unknown_instances());
    }

    /// Whether the last improvement of the phase is at least `patience` epochs ago; epochs with frozen annotators do
    /// not count.
    pub(super) fn is_out_of_patience(&self, phase: &Phase) -> bool {
        let (patience, best) = (self.spec.patience, &self.state.best);
        let (delay, done) = (self.annotator_delay(phase), self.epochs_done(phase));
        patience
            .zip(best.as_ref())
            .is_some_and(|(p, best)| done >= delay.max(best.epoch).saturating_add(p))
    }

    /// The number of completed epochs of the phase, including those of earlier acts.
    fn epochs_done(&self, phase: &Phase) -> u32 {
        phase.act.start + self.state.epoch
    }

    /// The score of this epoch, greater is better; `None` if epochs of the phase are not compared.
    fn score(&self, phase: &Phase) -> Result<Option<f64>> {
        match self.spec.select {
            Select::Last => Ok(None),
            Select::AnnotationLikelihood if !phase.changes_likelihood => Ok(None),
            Select::Valid => {
                let (mut right, mut log) = (0.0, 0.0);
                let at_once = self.learners.rows_at_once();
                for (n, part) in self.valid.chunks(at_once).enumerate() {
                    let questions = self
                        .valid_questions
                        .iter()
                        .skip(n.saturating_mul(at_once))
                        .take(part.len());
                    let batch = Batch {
                        questions: questions.copied().collect(),
                        ..TrainingData::unseen(part.iter().map(|(row, _)| *row).collect())
                    };
                    let predicted = self.predict(&batch)?;
                    for ((_, class), p) in
                        part.iter().zip(predicted.classes.chunks(self.dims.classes))
                    {
                        let found = best(p).map(|(k, _)| k as u32);
                        right += f64::from(u8::from(found == Some(*class)));
                        log += at_least(p[*class as usize], MIN_SCORED).ln();
                    }
                }
                // Ties in accuracy break to the smaller log-loss, whose term is smaller than the gain from one more
                // correct prediction.
                let n = self.valid.len().max(1) as f64;
                Ok(Some((right + 0.5 / (1.0 - log / n)) / n))
            }
            Select::AnnotationLikelihood => {
                let instances = self.data.held_out_instances();
                let (mut log, mut n) = (0.0, 0.0);
                for part in instances.chunks(self.learners.rows_at_once()) {
                    let batch = self.data.held_out(part, self.state.targets(MAIN_TARGETS));
                    let likelihoods =
                        self.with_outputs(&batch, |context| likelihood(self.model, context))?;
                    for (annotation, p) in batch.annotations.iter().zip(likelihoods) {
                        log += annotation.weight * at_least(p, MIN_SCORED).ln();
                        n += annotation.weight;
                    }
                }
                Ok((n > 0.0).then_some(log / n))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Dims, Evidence};
    use crate::job_context::JobContext;
    use crate::model::neural::data::batching::Batching;
    use crate::model::neural::models::TraceRegularised;
    use crate::model::neural::net::backbone::BackboneSpec;
    use crate::model::neural::objective::network_spec::NetworkSpec;
    use crate::model::neural::objective::train_spec::TrainSpec;
    use crate::model::neural::objective::train_state::{NamedTargets, TrainState};
    use crate::model::neural::spec::Neural;
    use crate::model::neural::tests::training_loop::trainer::trainer_of;
    use crate::model::posterior::Posterior;
    use crate::testing::{tiny, weighted, with_features};

    /// Calls `read` with an untrained model that selects by `select`, on three instances. The second and third have
    /// held-out annotations with the weights 1 and 3; the features of the first cannot be read.
    fn with_trainer<R>(
        select: Select,
        valid: &[(u32, u32)],
        read: impl FnOnce(&mut Trainer<'_, TraceRegularised>) -> R,
    ) -> R {
        with_trusted_classes(select, valid, None, read)
    }

    /// The same with these trusted classes.
    fn with_trusted_classes<R>(
        select: Select,
        valid: &[(u32, u32)],
        trusted: Option<Vec<Option<u32>>>,
        read: impl FnOnce(&mut Trainer<'_, TraceRegularised>) -> R,
    ) -> R {
        let dims = Dims { instances: 3, annotators: 2, classes: 3, labels: 3 };
        let mut a = tiny(3, &[(0, 0, 0), (1, 0, 1), (2, 1, 2)]);
        a.trusted = trusted;
        let rows = [(1, 1, 0), (2, 0, 2)];
        let held_out = weighted(dims, &rows, vec![1.0, 3.0]);
        let mut with_features = with_features(&a);
        with_features.row_of_instance[0] = Some(99);
        let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
        let data =
            TrainingData::new(evidence, Some(&held_out), false, Batching::default()).unwrap();
        let train = TrainSpec { select, ..TrainSpec::default() };
        let backbone = BackboneSpec { hidden: vec![4], ..BackboneSpec::default() };
        let network = NetworkSpec { backbone, train, ..NetworkSpec::default() };
        let spec = Neural { network, model: TraceRegularised::default() };
        read(&mut Trainer { valid, ..trainer_of(&spec, &data, evidence, &JobContext::new(1)) })
    }

    #[test]
    fn held_out_annotations_count_by_their_weight() {
        with_trainer(Select::AnnotationLikelihood, &[], |trainer| {
            let log = |instance: u32| {
                let batch = trainer.data.held_out(&[instance], None);
                let p = trainer.with_outputs(&batch, |context| trainer.model.likelihood(context));
                p.unwrap()[0].ln()
            };
            let score = trainer.score(&Phase::joint("train", 1)).unwrap().unwrap();
            let want = (log(1) + 3.0 * log(2)) / 4.0;
            assert!(log(1) != log(2) && (score - want).abs() < 1e-9, "{score}, expected {want}");
        });
    }

    /// The matrices at the start have 0.005062 outside the diagonal: the probability of the label 2, of weight 3, given
    /// the trusted class 0. The other annotation is of an instance whose class is not known.
    #[test]
    fn held_out_annotations_of_a_trusted_instance_are_those_of_its_class() {
        let score = |trusted| {
            let select = Select::AnnotationLikelihood;
            with_trusted_classes(select, &[], trusted, |trainer| {
                trainer.score(&Phase::joint("train", 1)).unwrap().unwrap()
            })
        };
        let other = with_trainer(Select::AnnotationLikelihood, &[], |trainer| {
            let batch = trainer.data.held_out(&[1], None);
            let p = trainer.with_outputs(&batch, |context| trainer.model.likelihood(context));
            p.unwrap()[0].ln()
        });
        let got = score(Some(vec![None, None, Some(0)]));
        let want = (other + 3.0 * 0.005_062_f64.ln()) / 4.0;
        assert!((got - want).abs() < 1e-4 && got != score(None), "{got}, expected {want}");
    }

    /// The targets and where they come from are those of the epoch that was scored, not those of the last E-step.
    #[test]
    fn the_targets_and_estimates_of_the_best_epoch_are_kept() {
        with_trainer(Select::Valid, &[(0, 0)], |trainer| {
            let votes = Posterior::from_votes(trainer.data.annotations);
            trainer.state = TrainState::with_targets(Some(votes));
            trainer.state.estimates.prior = Some(vec![0.5, 0.25, 0.25]);
            let wanted = (trainer.state.targets.clone(), trainer.state.estimates.clone());
            trainer.keep_if_best(&Phase::joint("train", 1)).unwrap();
            trainer.state.estimates.prior = None;
            for name in [MAIN_TARGETS, "second"] {
                let targets = NamedTargets { posterior: Posterior::zeros(3, 3), is_own: true };
                trainer.state.targets.insert(name.to_owned(), targets);
            }
            trainer.keep_best().unwrap();
            assert_eq!((trainer.state.targets.clone(), trainer.state.estimates.clone()), wanted);
        });
    }

    #[test]
    fn the_likelier_of_two_that_are_as_often_right_is_better() {
        let batch = TrainingData::unseen(vec![0]);
        let p = with_trainer(Select::Valid, &[], |t| t.predict(&batch).unwrap().classes);
        let mut classes = [0_u32, 1, 2];
        classes.sort_by(|a, b| p[*b as usize].total_cmp(&p[*a as usize]));
        let score = |valid: &[(u32, u32)]| {
            with_trainer(Select::Valid, valid, |t| {
                t.score(&Phase::joint("train", 1)).unwrap().unwrap()
            })
        };
        let [right, second, last] = classes.map(|class| score(&[(0, class)]));
        assert!(right > second && second > last, "{right} {second} {last}");
        // However improbable a true class is, one more correct prediction counts for more.
        let half = score(&[(0, classes[0]), (0, classes[2])]);
        assert!(half > second, "{half} {second}");
    }

    #[test]
    fn a_score_that_is_no_number_is_an_error_of_the_fit() {
        for select in [Select::Valid, Select::AnnotationLikelihood] {
            with_trainer(select, &[(0, 1)], |trainer| {
                let mut snapshot = trainer.snapshot().unwrap();
                let name = "net.classifier.bias".to_owned();
                snapshot.f32s(name, vec![3], vec![f32::NAN; 3]);
                trainer.load(&snapshot).unwrap();
                let error = trainer.keep_if_best(&Phase::joint("train", 1)).unwrap_err();
                assert_eq!(error.exit_code(), 4);
                assert!(error.to_string().contains("learning_rate"), "{error}");
                assert!(error.to_string().contains("a score of NaN"), "{error}");
            });
        }
    }
}
