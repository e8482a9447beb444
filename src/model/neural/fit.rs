//! From evidence to a fitted model: prepares the data, trains, and predicts every row with the trained model.

use candle_core::Device;
use rand::Rng as _;

use super::{CrowdNet, NetworkSpec, Neural, Task, TrainingObjective, name_of};
use crate::error::{Error, Result};
use crate::frame::{Annotations, Evidence, QuestionFeatures, Role};
use crate::model::checkpoint::Fingerprint;
use crate::model::confusion::{Cells, CommonConfusion, Confusion};
use crate::model::em::kernels::expected_counts_of;
use crate::model::fitted::{Fitted, Report, Stop, Trained};
use crate::model::neural::annotator_params::AnnotatorParams;
use crate::model::neural::data::TrainingData;
use crate::model::neural::param_table::Owner;
use crate::model::neural::predict::description;
use crate::model::neural::train::learner::LearnerSetting;
use crate::model::neural::train::on_device::learners_on_device;
use crate::model::neural::train::spec::{Select, TrainSpec};
use crate::model::neural::train::state::{MAIN_TARGETS, TrainState};
use crate::model::neural::train::{LoopPosition, Trainer, not_finite};
use crate::model::posterior::{Posterior, best};
use crate::model::vote::agreement;
use crate::model::{Model, from_features};
use crate::run::Run;

impl<N: CrowdNet> Model for Neural<N> {
    fn fit(&self, evidence: Evidence<'_>, run: &mut Run) -> Result<Fitted> {
        let Self { network: NetworkSpec { device: on, train, .. }, model } = self;
        let described = from_features::described_of(evidence, N::KIND)?;
        let dims = evidence.annotations.dims();
        let split = split_annotations(train, evidence.annotations, run)?;
        let (training, held_out) = match &split {
            Some([training, held_out]) => {
                (Evidence { annotations: training, ..evidence }, Some(held_out))
            }
            None => (evidence, None),
        };
        let (mut aggregated, data) = prepared(self, training, held_out, run)?;
        let state =
            TrainState::with_targets(aggregated.as_ref().map(|f| f.posterior.dense().into_owned()));
        let Some(data) = data.filter(|data| !data.is_empty() && dims.classes > 0) else {
            return Err(from_features::no_examples());
        };
        let valid = gold_to_select_by(train, described)?;
        let sizes = self.sizes(dims, described);
        let batch_rows = data.batch_rows(train.batching(N::DROPS_LAST_BATCH));
        let (classifier, others) = self.learners(&sizes);
        for learner in std::iter::once(&classifier).chain(&others) {
            learner.input.check_batch(&sizes, batch_rows, run)?;
        }
        let precision = train.precision;
        let setting =
            LearnerSetting { precision, sizes: &sizes, run, device: &Device::Cpu, saved: None };
        let specs = (classifier, others);
        let (mut learners, device) = learners_on_device(on, specs, &setting, |_| batch_rows)?;
        learners.fit_scalers(&data);
        if !model.heads(&sizes).classifier && evidence.annotations.trusted.is_some() {
            run.warn(format!(
                "`{}` is trained on labels, not classes: trusted classes appear in the labels table, but do not train it",
                N::KIND
            ));
        }
        let task = Task {
            evidence: training,
            dims,
            hidden: learners.classifier.network.hidden(),
            run: &run.clone(),
        };
        let annotator_params = AnnotatorParams { tables: model.tables(&task)? };
        learners.check_tables(&annotator_params)?;
        let mut fingerprint = Fingerprint::new(N::KIND);
        fingerprint.add_settings(model)?;
        fingerprint.add_settings(&self.network.backbone)?;
        if let Some(held_out) = held_out.filter(|_| run.keeps_checkpoints()) {
            fingerprint.add_annotations(held_out, &run.cancel)?;
        }
        let mut trainer = Trainer {
            model,
            fingerprint: Some(fingerprint),
            spec: train,
            data: &data,
            dims,
            valid: &valid,
            learners,
            annotator_params,
            state,
            position: LoopPosition::default(),
        };
        trainer.train(run)?;
        trainer.annotator_params.average_unknown(Owner::Annotator, &data.unknown());
        trainer.annotator_params.average_unknown(Owner::Instance, &data.unknown_instances());
        // The posteriors use all annotations, held out or not.
        let mut whole = None;
        let (mut targets, is_own) = match trainer.state.targets.remove(MAIN_TARGETS) {
            Some(targets) => (Some(targets.posterior), targets.is_own),
            None => (None, false),
        };
        if held_out.is_some() {
            (aggregated, whole) = prepared(self, evidence, None, run)?;
            if let (Some(fitted), false) = (&aggregated, is_own) {
                targets = Some(fitted.posterior.dense().into_owned());
            }
        }
        let data = whole.as_ref().unwrap_or(&data);
        let predicted = AllPredictions::of(&trainer, data, targets.as_ref(), evidence, run)?;
        let mut trace = aggregated.as_ref().map_or_else(Vec::new, |a| a.trace.clone());
        let iterations = trainer.state.trace.len() as u32;
        trace.append(&mut trainer.state.trace);
        let objective = trace.last().map(|row| row.objective);
        let converged = aggregated.as_ref().is_none_or(|fitted| fitted.stop.converged);
        let task = Task { evidence, ..task };
        let report = report(model, &task, &trainer.annotator_params, &predicted, aggregated, run);
        Ok(Fitted {
            posterior: predicted.posterior.into(),
            predictions: Some(predicted.predictions),
            report,
            trace,
            stop: Stop { converged, iterations, objective },
            model: Some(Trained {
                description: description(self, &trainer.learners, &sizes),
                parameters: trainer.learners.to_pytorch(&trainer.snapshot()?).to_bytes()?,
            }),
            device: name_of(&device),
        })
    }
}

/// The training annotations and the held-out annotations, where held-out likelihood selects the epoch.
pub(crate) fn split_annotations(
    train: &TrainSpec,
    a: &Annotations,
    run: &Run,
) -> Result<Option<[Annotations; 2]>> {
    if train.select != Select::AnnotationLikelihood {
        return Ok(None);
    }
    let mut rng = run.rng("held-out annotations");
    let parts = a.hold_out(|_| rng.random::<f64>() < train.held_out)?;
    if parts[1].is_empty() {
        return Err(Error::data("no annotation is held out to select the best epoch by")
            .at("model.train.held_out")
            .found(format!(
                "a share of {} of {} annotations, without the first of each annotator",
                train.held_out,
                a.len()
            ))
            .help("hold out more, or choose another select"));
    }
    Ok(Some(parts))
}

/// The result of the model's aggregator, and the training data.
fn prepared<'a, N: CrowdNet>(
    spec: &Neural<N>,
    evidence: Evidence<'a>,
    held_out: Option<&Annotations>,
    run: &mut Run,
) -> Result<(Option<Fitted>, Option<TrainingData<'a>>)> {
    let aggregated = spec.model.aggregate(evidence, run)?;
    let batching = spec.network.train.batching(N::DROPS_LAST_BATCH);
    let data = TrainingData::new(evidence, held_out, aggregated.is_some(), batching);
    Ok((aggregated, data))
}

fn gold_to_select_by(train: &TrainSpec, described: &QuestionFeatures) -> Result<Vec<(u32, u32)>> {
    let gold = described.gold.iter().filter(|gold| gold.role == Role::Valid);
    let valid: Vec<(u32, u32)> = gold.map(|gold| (gold.instance, gold.class)).collect();
    if train.select == Select::Valid && valid.is_empty() {
        return Err(Error::data("there is no gold to select the best epoch by")
            .at("model.train.select")
            .found("no gold row of role `valid` whose instance has features")
            .help("give some in source.gold, or select = \"annotation_likelihood\" or \"last\""));
    }
    Ok(valid)
}

/// The predictions of the trained model for every row.
struct AllPredictions {
    posterior: Posterior,
    predictions: Posterior,
    instance_parameters: Vec<(String, Vec<f64>)>,
}

impl AllPredictions {
    fn of<N: CrowdNet>(
        trainer: &Trainer<'_, N>,
        data: &TrainingData<'_>,
        targets: Option<&Posterior>,
        evidence: Evidence<'_>,
        run: &mut Run,
    ) -> Result<Self> {
        let a = evidence.annotations;
        let classes = a.dims().classes;
        let predictions = predictions(trainer, classes, run)?;
        let mut posterior = targets.cloned().unwrap_or_else(|| Posterior::from_votes(a));
        let names = trainer.model.instance_parameters();
        let mut parameters = vec![vec![f64::NAN; a.dims().instances]; names.len()];
        let instances = data.instances();
        if N::CONDITIONS_ON_ANNOTATIONS {
            for part in instances.chunks(trainer.learners.rows_at_once()) {
                run.cancel.check()?;
                let predicted =
                    trainer.predict_from(data.inputs(), &data.observed(part, targets))?;
                for (n, i) in part.iter().map(|i| *i as usize).enumerate() {
                    if a.trusted_class(i).is_none() {
                        let own = &predicted.posterior[n * classes..(n + 1) * classes];
                        posterior.row_mut(i).copy_from_slice(own);
                    }
                    for (name, values) in parameters.iter_mut().enumerate() {
                        values[i] = predicted.parameters[n * names.len() + name];
                    }
                }
            }
            // A model without parameters of annotators has nothing to condition on but its targets.
            let (_, without_features) = data.untrusted();
            let conditions = !trainer.annotator_params.tables.is_empty();
            let at_once = trainer.learners.rows_at_once();
            for part in without_features.chunks(at_once).filter(|_| conditions) {
                run.cancel.check()?;
                let batch = data.observed(part, targets);
                let predicted = trainer.predict_without_features(data.inputs(), &batch)?.posterior;
                for (i, row) in part.iter().zip(predicted.chunks_exact(classes)) {
                    posterior.row_mut(*i as usize).copy_from_slice(row);
                }
            }
        } else {
            for i in instances.iter().map(|i| *i as usize) {
                if let (Some(row), None) = (data.row(i), a.trusted_class(i)) {
                    posterior.row_mut(i).copy_from_slice(predictions.row(row));
                }
            }
        }
        let first_broken = |p: &Posterior| p.values().iter().position(|v| !v.is_finite());
        let epochs = trainer.state.trace.len();
        if let Some(at) = first_broken(&predictions) {
            return Err(not_finite(at / classes, predictions.values()[at], epochs));
        }
        if let Some(at) = first_broken(&posterior) {
            let p = posterior.values()[at];
            return Err(match data.row(at / classes) {
                Some(row) => not_finite(row, p, epochs),
                None => trainer.diverged(&format!("a posterior of {p} without features")),
            });
        }
        let without = a.dims().instances - instances.len();
        if without > 0 {
            run.warn(from_features::without_features(without, a.dims().instances));
        }
        let instance_parameters = names.into_iter().zip(parameters).collect();
        Ok(Self { posterior, predictions, instance_parameters })
    }
}

/// The classifier's probabilities for every row of features.
fn predictions<N: TrainingObjective>(
    trainer: &Trainer<'_, N>,
    classes: usize,
    run: &Run,
) -> Result<Posterior> {
    let (rows, at_once) = (trainer.data.matrix.len(), trainer.learners.rows_at_once());
    let mut predictions = Posterior::zeros(rows, classes);
    for first in (0..rows).step_by(at_once) {
        run.cancel.check()?;
        let part = first..(first + at_once).min(rows);
        let predicted =
            trainer.predict(&TrainingData::unseen(part.clone().map(|row| row as u32).collect()))?;
        predictions.values_mut()[part.start * classes..part.end * classes]
            .copy_from_slice(&predicted.classes);
    }
    Ok(predictions)
}

fn report<N: CrowdNet>(
    model: &N,
    task: &Task<'_>,
    annotator_params: &AnnotatorParams,
    predicted: &AllPredictions,
    aggregated: Option<Fitted>,
    run: &mut Run,
) -> Report {
    let a = task.evidence.annotations;
    let learned = model.report(task, annotator_params);
    learned.warnings.into_iter().for_each(|warning| run.warn(warning));
    let mut report = aggregated.map_or_else(Report::default, |fitted| fitted.report);
    report.common = learned.common.map(|probability| {
        CommonConfusion::new(a, probability, &expected_counts_of(a, &predicted.posterior))
    });
    report.prior = learned.prior.or(report.prior);
    report.annotator_parameters = learned.parameters;
    report.instance_parameters.clone_from(&predicted.instance_parameters);
    if let Some(probability) = learned.confusion {
        let confusion = Confusion {
            cells: Cells::Dense(probability),
            expected_count: expected_counts_of(a, &predicted.posterior),
        };
        report.skill = confusion.skill(a);
        report.confusion = Some(confusion);
    } else if report.skill.is_empty() {
        report.skill = agreement(a, |i| best(predicted.posterior.row(i)));
    }
    report
}
