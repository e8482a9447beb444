//! The acts on labels: E-step, M-step, and the calibration of a learner by trusted instances.

use super::Trainer;
use super::learners::learner::CLASSIFIER;
use crate::error::{Error, Result};
use crate::job_context::JobContext;
use crate::model::calibration::calibrator::{Calibrator, Method, Points};
use crate::model::em::kernels::expected_counts_of;
use crate::model::neural::data::batch::Batch;
use crate::model::neural::objective::batch_context::BatchContext;
use crate::model::neural::objective::train_state::{MAIN_TARGETS, NamedTargets};
use crate::model::neural::objective::training_objective::TrainingObjective;
use crate::model::posterior::Posterior;

impl<N: TrainingObjective> Trainer<'_, N> {
    /// Replaces the targets of this name by the model's posteriors; targets that do not exist yet start as the votes.
    /// Trusted rows stay one-hot, unless the model wants its own posteriors there. For an instance without features, learners that read features give all classes the
    /// same probability, which is not calibrated: it is no prediction.
    ///
    /// # Errors
    /// When the run is cancelled or the device fails.
    pub(super) fn e_step(&mut self, name: &'static str, job: &JobContext) -> Result<()> {
        let old = self.state.targets.remove(name).map(|targets| targets.posterior);
        let mut posterior = old.unwrap_or_else(|| Posterior::from_votes(self.data.annotations));
        let keeps_trusted = self.model.keeps_trusted(name);
        let (with_features, without_features) = self.data.by_features(!keeps_trusted);
        let matrices = self.model.annotator_matrices(&self.annotator_params, self.dims);
        let of_batch = |context: &BatchContext<'_>| match matrices {
            Some(_) => self.model.prior(context),
            None => self.model.e_step(context, name),
        };
        let batch_of = |part: &[u32], posterior: &Posterior| match matrices {
            Some(_) => self.data.unannotated(part, Some(posterior)),
            None => self.data.observed(part, Some(posterior)),
        };
        self.each_part(&with_features, job, |part| {
            let batch = batch_of(part, &posterior);
            replace(&mut posterior, part, &self.with_outputs(&batch, of_batch)?);
            Ok(())
        })?;
        self.each_part(&without_features, job, |part| {
            let batch = batch_of(part, &posterior);
            let values = self.without_features(self.data.inputs(), &batch, of_batch)?;
            replace(&mut posterior, part, &values);
            Ok(())
        })?;
        if let Some(at) = posterior.values().iter().position(|p| !p.is_finite()) {
            let (instance, p) = (at / self.dims.classes, posterior.values()[at]);
            return Err(self.posterior_not_finite(instance, p));
        }
        if let Some(matrices) = matrices {
            posterior = matrices.posteriors(self.data.annotations, posterior);
        }
        self.state.targets.insert(name.to_owned(), NamedTargets { posterior, is_own: true });
        Ok(())
    }

    /// Runs the model's M-step, which estimates annotators' parameters from the targets of this name.
    ///
    /// # Errors
    /// When there are no such targets.
    pub(super) fn m_step(&mut self, name: &str) -> Result<()> {
        let Some(targets) = self.state.targets(name) else {
            return Err(Error::bug(format!("an M-step without the targets `{name}`")));
        };
        let a = self.data.annotations;
        let counts = expected_counts_of(a, targets);
        self.model.m_step(a, &counts, &mut self.state, &mut self.annotator_params);
        Ok(())
    }

    /// Fits the calibrator of a learner to its probabilities of trusted instances; without trusted instances there is
    /// no calibrator.
    ///
    /// # Errors
    /// When the run is cancelled or the device fails.
    pub(super) fn calibrate(
        &mut self,
        learner: &'static str,
        method: Method,
        job: &JobContext,
    ) -> Result<()> {
        let classes = self.dims.classes;
        let mut points = Points::new(classes);
        let trusted = self.data.trusted();
        for part in trusted.chunks(self.learners.rows_at_once()) {
            job.cancel.check()?;
            let instances: Vec<u32> = part.iter().map(|(instance, _)| *instance).collect();
            let batch = self.data.observed(&instances, self.state.targets(MAIN_TARGETS));
            let probabilities = self.probabilities(learner, &batch)?;
            for ((_, class), p) in part.iter().zip(probabilities.chunks_exact(classes)) {
                points.push_class(p, *class as usize, 1.0);
            }
        }
        match Calibrator::fit(method, 0.0, &points) {
            Some(fitted) => self.state.estimates.calibrators.insert(learner.to_owned(), fitted),
            None => self.state.estimates.calibrators.remove(learner),
        };
        Ok(())
    }

    /// P(class) of each row by one learner: the classifier's prediction, or the output of another.
    fn probabilities(&self, learner: &str, batch: &Batch) -> Result<Vec<f64>> {
        if learner == CLASSIFIER {
            return Ok(self.predict(batch)?.classes);
        }
        let inputs = self.data.inputs().with_tables(&self.annotator_params);
        let (_, others) = self.learners.predict(inputs, batch)?;
        let names = self.learners.all().skip(1).map(|other| other.name);
        let own = names.zip(others).find(|(name, _)| *name == learner);
        let unknown = || Error::bug(format!("no learner is called `{learner}`"));
        Ok(own.ok_or_else(unknown)?.1.p)
    }
}

fn replace(posterior: &mut Posterior, instances: &[u32], values: &[f64]) {
    let classes = values.len() / instances.len().max(1);
    for (i, row) in instances.iter().zip(values.chunks_exact(classes.max(1))) {
        posterior.row_mut(*i as usize).copy_from_slice(row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Dims, Evidence};
    use crate::model::neural::data::TrainingData;
    use crate::model::neural::data::batching::Batching;
    use crate::model::neural::models::{AggNet, Tcl};
    use crate::model::neural::net::backbone::BackboneSpec;
    use crate::model::neural::objective::network_spec::NetworkSpec;
    use crate::model::neural::spec::Neural;
    use crate::model::neural::tests::training_loop::trainer::trainer_of;
    use crate::testing::{tiny, weighted, with_features};

    /// Instance 0 is trusted, so that the E-step has no other instance with features.
    #[test]
    fn an_e_step_of_instances_without_features_can_be_stopped() {
        let mut a = tiny(2, &[(0, 0, 0), (1, 0, 1), (2, 1, 1)]);
        a.trusted = Some(vec![Some(0), None, None]);
        let mut with_features = with_features(&a);
        with_features.row_of_instance[1..].fill(None);
        let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
        let data = TrainingData::new(evidence, None, true, Batching::default()).unwrap();
        let (spec, job) = (Neural::<Tcl>::default(), JobContext::new(1));
        let mut trainer = trainer_of(&spec, &data, evidence, &job);
        trainer.e_step(MAIN_TARGETS, &job).unwrap();
        assert!(job.cancel.request(15));
        assert_eq!(trainer.e_step(MAIN_TARGETS, &job).unwrap_err().exit_code(), 143);
    }

    /// The posteriors of the EM kernels are those of batches, which are sums of logarithms: with a trusted instance, an
    /// annotator with one annotation, a label that is no class, instances without features or annotations, more
    /// annotations than one product takes, and no, few or all weights.
    #[test]
    fn the_em_kernels_give_the_posteriors_of_batches() {
        let rows = [(0, 0, 0), (0, 1, 1), (1, 0, 3), (1, 1, 1), (2, 2, 2), (3, 1, 0), (4, 0, 2)];
        let many = (3..33).map(|annotator| (4, annotator, annotator % 3));
        let rows: Vec<(u32, u32, u32)> = rows.into_iter().chain(many).collect();
        let dims = Dims { instances: 6, annotators: 33, classes: 3, labels: 4 };
        let none: fn(usize) -> f64 = |_| 1.0;
        for weight in [none, |n| if n == 1 { 0.5 } else { 1.0 }, |n| 0.5 + n as f64] {
            let mut a = weighted(dims, &rows, (0..rows.len()).map(weight).collect());
            a.trusted = Some(vec![None, None, None, Some(2), None, None]);
            let mut with_features = with_features(&a);
            with_features.row_of_instance[1] = None;
            let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
            let data = TrainingData::new(evidence, None, true, Batching::default()).unwrap();
            let (spec, job) = (Neural::<AggNet>::default(), JobContext::new(1));
            let mut trainer = trainer_of(&spec, &data, evidence, &job);
            trainer.m_step(MAIN_TARGETS).unwrap();
            trainer.e_step(MAIN_TARGETS, &job).unwrap();
            let got = trainer.state.targets(MAIN_TARGETS).unwrap();
            let of_batch = |instances: &[u32]| trainer.data.observed(instances, None);
            let with_features = [0, 2, 4, 5];
            let predicted = trainer.predict(&of_batch(&with_features)).unwrap().posterior;
            let without_features = trainer
                .without_features(data.inputs(), &of_batch(&[1]), |c| trainer.model.predict(c))
                .unwrap()
                .posterior;
            let mut wanted = Posterior::zeros(6, 3);
            replace(&mut wanted, &with_features, &predicted);
            replace(&mut wanted, &[1], &without_features);
            wanted.row_mut(3)[2] = 1.0;
            for (got, wanted) in got.values().iter().zip(wanted.values()) {
                assert!((got - wanted).abs() < 1e-12, "{got}, by batches {wanted}");
            }
            assert!((0.1..0.9).contains(&got.row(0)[1]), "{:?}", got.row(0));
        }
    }

    /// The odds of class 1 are 2^i / 4 for instance i. The trusted instances 1, 3 and 4 have the classes 0, 1 and 0; the
    /// trusted instance 5 has no features. Class 0 has a hit at 1/5, a miss at 1/3 and a hit at 2/3, of which the first
    /// two are one pool; class 1 has a miss at 1/3, a hit at 2/3 and a miss at 4/5, of which the last two are one.
    #[test]
    fn a_calibrator_is_fitted_to_the_plain_probabilities_of_trusted_instances() {
        let mut a = tiny(2, &[(0, 0, 0), (1, 0, 1), (2, 1, 1), (3, 0, 1), (4, 1, 0), (5, 0, 1)]);
        a.trusted = Some(vec![None, Some(0), None, Some(1), Some(0), Some(1)]);
        let mut with_features = with_features(&a);
        with_features.row_of_instance[5] = None;
        let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
        let data = TrainingData::new(evidence, None, true, Batching::default()).unwrap();
        let backbone = BackboneSpec::one_layer();
        let network = NetworkSpec { backbone, ..NetworkSpec::default() };
        let (spec, job) = (Neural { network, model: Tcl::default() }, JobContext::new(1));
        let mut trainer = trainer_of(&spec, &data, evidence, &job);
        // The last of three features is the number of the instance.
        let two = std::f32::consts::LN_2;
        let mut parameters = trainer.snapshot().unwrap();
        let weight = vec![0.0, 0.0, 0.0, 0.0, 0.0, two];
        parameters.f32s("net.classifier.weight".to_owned(), vec![3, 2], weight);
        parameters.f32s("net.classifier.bias".to_owned(), vec![2], vec![0.0, -2.0 * two]);
        trainer.load(&parameters).unwrap();
        let wanted = [
            ([1.0 / 5.0, 1.0 / 3.0, 2.0 / 3.0], [0.5, 0.5, 1.0]),
            ([1.0 / 3.0, 2.0 / 3.0, 4.0 / 5.0], [0.0, 0.5, 0.5]),
        ];
        // The second time, the learner already has a calibrator.
        for time in 0..2 {
            trainer.calibrate(CLASSIFIER, Method::Isotonic, &job).unwrap();
            let calibrator = &trainer.state.estimates.calibrators[CLASSIFIER];
            let fitted = serde_json::to_value(calibrator).unwrap();
            for (k, (at, value)) in wanted.iter().enumerate() {
                for (key, wanted) in [("at", at), ("value", value)] {
                    let knots = fitted["classes"][k][key].as_array().unwrap();
                    assert_eq!(knots.len(), 3, "{time}, class {k}: {fitted}");
                    for (got, want) in knots.iter().zip(wanted) {
                        let got = got.as_f64().unwrap();
                        assert!((got - want).abs() < 1e-6, "{time}, class {k}, {key}: {fitted}");
                    }
                }
            }
        }
    }
}
