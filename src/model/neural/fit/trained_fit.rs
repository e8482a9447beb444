//! From a trained model to the results of its questions: predictions, report and trace.

use std::borrow::Cow;

use super::all_predictions::{AllPredictions, PosteriorInputs};
use super::gold_start::trust;
use super::own_question::OwnQuestion;
use super::pair_competence::pair_competence;
use super::predict::description;
use crate::error::Result;
use crate::frame::{Evidence, JointQuestion, QuestionSet};
use crate::job_context::JobContext;
use crate::model::classifier::from_features;
use crate::model::confusion::{Cells, CommonConfusion, Confusion};
use crate::model::em::kernels::expected_counts_of;
use crate::model::fitted::{Fitted, PlannedSteps, Report, Stop, Trained};
use crate::model::neural::data::TrainingData;
use crate::model::neural::data::sizes::Sizes;
use crate::model::neural::objective::crowd_net::{CrowdNet, Task};
use crate::model::neural::objective::train_state::{MAIN_TARGETS, NamedTargets};
use crate::model::neural::spec::Neural;
use crate::model::neural::train::Trainer;
use crate::model::neural::train::learners::Learners;
use crate::model::posterior::best;
use crate::model::vote::agreement;

/// A trained model, and what its results follow from.
pub(super) struct TrainedFit<'a, N: CrowdNet> {
    pub(super) spec: &'a Neural<N>,
    pub(super) trainer: Trainer<'a, N>,
    /// The epochs of the schedule, with those of a fine-tuning.
    pub(super) planned: u32,
    pub(super) evidence: Evidence<'a>,
    pub(super) data: &'a TrainingData<'a>,
    pub(super) aggregated: Option<Fitted>,
    pub(super) sizes: Sizes,
    pub(super) device: String,
}

impl<N: CrowdNet> TrainedFit<'_, N> {
    /// The results of the questions, in their order, or of the only one.
    pub(super) fn results(
        self,
        questions: Option<&QuestionSet<'_>>,
        job: &mut JobContext,
    ) -> Result<Vec<Fitted>> {
        let Self { spec, mut trainer, planned, evidence, data, aggregated, sizes, device } = self;
        let own = trainer.state.targets.remove(MAIN_TARGETS).filter(|targets| targets.is_own);
        let with_gold = |NamedTargets { mut posterior, .. }: NamedTargets| {
            trust(&mut posterior, evidence.annotations);
            posterior
        };
        let targets = own
            .map(|targets| Cow::Owned(with_gold(targets)))
            .or_else(|| Some(aggregated.as_ref()?.posterior.dense()));
        let warning = from_features::without_features(data.annotations, |i| data.row(i).is_some());
        warning.into_iter().for_each(|warning| job.warn(warning));
        let is_embedded = spec.model.instance_embedding(sizes.has_features()).is_some();
        let inputs = PosteriorInputs { data, targets: targets.as_deref() };
        let mut trace = aggregated.as_ref().map(|fitted| fitted.trace.clone()).unwrap_or_default();
        let iterations = trainer.state.trace.len() as u32;
        trace.extend_from_slice(&trainer.state.trace);
        let converged = aggregated.as_ref().is_none_or(|fitted| fitted.stop.converged);
        let saved = |sizes: &Sizes| -> Result<Trained> {
            Ok(Trained {
                description: description(spec, &trainer.learners, sizes),
                parameters: trainer.learners.to_pytorch(&trainer.snapshot()?).to_bytes()?,
            })
        };
        let fitted = |predicted: AllPredictions, report: Report, sizes: &Sizes| -> Result<Fitted> {
            Ok(Fitted {
                posterior: predicted.posterior.into(),
                predictions: (!is_embedded).then_some(predicted.predictions),
                report,
                trace: trace.clone(),
                stop: Stop {
                    converged,
                    iterations,
                    objective: trace.last().map(|row| row.objective),
                    planned: Some(PlannedSteps { n: planned, unit: "epoch" }),
                },
                model: (!is_embedded).then(|| saved(sizes)).transpose()?,
                device: device.clone(),
            })
        };
        let Some((questions, joint)) = questions.zip(evidence.annotations.joint.as_ref()) else {
            let predicted = AllPredictions::predict(&trainer, inputs, None, job)?;
            let base = aggregated.map(|fitted| fitted.report);
            let report = reported((&trainer, evidence, data), None, &predicted, base, job)?;
            return Ok(vec![fitted(predicted, report, &sizes)?]);
        };
        let of_question = |question: &JointQuestion| {
            let own = OwnQuestion {
                question: *question,
                evidence: questions.evidence[question.index],
                annotators: &questions.annotators[question.index],
            };
            let predicted = AllPredictions::predict(&trainer, inputs, Some(*question), job)?;
            let base = spec.model.aggregate(own.evidence, job)?.map(|fitted| fitted.report);
            let report = reported((&trainer, evidence, data), Some(&own), &predicted, base, job)?;
            fitted(predicted, report, &sizes.of_question(*question))
        };
        joint.questions.iter().map(of_question).collect()
    }
}

/// The report of a question, or of the only one, with the competence of pairs.
fn reported<N: CrowdNet>(
    (trainer, evidence, data): (&Trainer<'_, N>, Evidence<'_>, &TrainingData<'_>),
    own: Option<&OwnQuestion<'_>>,
    predicted: &AllPredictions,
    base: Option<Report>,
    job: &mut JobContext,
) -> Result<Report> {
    let report = report(trainer, evidence, own, predicted, base, job);
    Ok(Report { pair_competence: pair_competence(trainer, data, own, job)?, ..report })
}

fn report<N: CrowdNet>(
    trainer: &Trainer<'_, N>,
    evidence: Evidence<'_>,
    own: Option<&OwnQuestion<'_>>,
    predicted: &AllPredictions,
    aggregated: Option<Report>,
    job: &mut JobContext,
) -> Report {
    let task = task_of(evidence, &trainer.learners, job);
    let mut learned = trainer.model.report(&task, &trainer.annotator_params);
    learned.warnings.into_iter().for_each(|warning| job.warn(warning));
    let mut report = aggregated.unwrap_or_default();
    if let Some(own) = own {
        let of_own = |all: &mut Vec<f64>| {
            *all = own.annotators.iter().map(|r| all[*r as usize]).collect();
        };
        learned.parameters.iter_mut().for_each(|(_, values)| of_own(values));
    }
    let a = own.map_or(evidence.annotations, |own| own.evidence.annotations);
    report.common = learned.common.map(|probability| {
        CommonConfusion::new(a, probability, &expected_counts_of(a, &predicted.posterior))
    });
    report.prior = learned.prior.or(report.prior);
    report.annotator_parameters = learned.parameters;
    let pairs = predicted.pairs.as_ref().map(|pairs| match own {
        Some(own) => pairs.of_question(own.question, own.annotators),
        None => pairs.of_annotators(),
    });
    let (of_pairs, competence) = pairs.unzip();
    let competence = competence.map(|mean| ("competence".to_owned(), mean));
    report.annotator_parameters.extend(competence);
    report.instance_parameters.clone_from(&predicted.instance_parameters);
    if let Some(probability) = learned.confusion.or(of_pairs) {
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

pub(super) fn task_of<'a>(
    evidence: Evidence<'a>,
    learners: &Learners,
    job: &'a JobContext,
) -> Task<'a> {
    let hidden = learners.classifier.network.hidden();
    Task { evidence, dims: evidence.annotations.dims(), hidden, job }
}
