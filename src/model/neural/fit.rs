//! From evidence to a fitted model: prepares the data, trains, and asks the trained model about every row.

use std::mem::replace;

use rand::Rng as _;

use super::batch::Data;
use super::crowd::Crowd;
use super::net::{Net, Sizes};
use super::progress::Progress;
use super::recipe::{Select, TrainSpec};
use super::saved::description;
use super::train::{JUDGED_ROWS, Trainer};
use super::{CrowdNet, Task, device, name_of};
use crate::error::{Error, Result};
use crate::frame::{Annotations, Described, Evidence, Role};
use crate::model::Model;
use crate::model::confusion::{Cells, Confusion};
use crate::model::em::counts::expected_counts;
use crate::model::fitted::{Fitted, Posterior, Report, Stop, Trained};
use crate::model::vote::agreement;
use crate::run::Run;

/// Fits a [`CrowdNet`].
#[derive(Debug, Clone)]
pub struct Neural<N>(pub N);

impl<N> From<N> for Neural<N> {
    fn from(model: N) -> Self {
        Self(model)
    }
}

impl<N: CrowdNet> Model for Neural<N> {
    fn fit(&self, evidence: Evidence<'_>, run: &mut Run) -> Result<Fitted> {
        let model = &self.0;
        let parts = model.parts();
        let Some(described) = evidence.described else {
            return Err(Error::spec(format!("`{}` learns from features", N::KIND))
                .at("source.features")
                .help("set source.features, or choose a label-only model"));
        };
        let (dims, matrix) = (evidence.annotations.dims(), described.matrix());
        let parted = parted(parts.train, evidence.annotations, run)?;
        let (learned, held_out) = match &parted {
            Some([learned, held_out]) => {
                (Evidence { annotations: learned, ..evidence }, Some(held_out))
            }
            None => (evidence, None),
        };
        let (mut aggregated, data) = prepared(model, learned, held_out, run)?;
        let Some(data) = data.filter(|data| !data.is_empty() && dims.classes > 0) else {
            return Err(Error::data("no annotated instance has features to learn from")
                .at("source.features")
                .help("the ids must be the same as in the annotations"));
        };
        let valid = gold_to_select_by(model, described)?;
        let sizes = Sizes { features: matrix.shape().to_vec(), classes: dims.classes };
        let heads = model.heads();
        let (device, precision) = (device(parts.device)?, parts.train.precision);
        let mut net = Net::new(parts.backbone, precision, heads, &sizes, run, &device)?;
        net.scaler.fit(matrix, data.rows().into_iter());
        if !heads.classifier && evidence.annotations.trusted.is_some() {
            run.warn(format!(
                "`{}` learns what annotators say: trusted classes are put out as they are, but do not teach it",
                N::KIND
            ));
        }
        let task = Task { evidence: learned, dims, hidden: net.hidden(), run: &run.clone() };
        let crowd = Crowd { tables: model.tables(&task)? };
        let mut trainer = Trainer {
            model,
            data: &data,
            dims,
            valid: &valid,
            net,
            crowd,
            progress: Progress::default(),
        };
        trainer.train(run)?;
        trainer.crowd.average_unknown(&data.unknown());
        // Everything that was said is answered, held out or not.
        let mut whole = None;
        if held_out.is_some() {
            (aggregated, whole) = prepared(model, evidence, None, run)?;
        }
        let answers = Answers::of(&trainer, whole.as_ref().unwrap_or(&data), evidence, run)?;
        let mut trace = aggregated.as_ref().map_or_else(Vec::new, |a| a.trace.clone());
        let iterations = trainer.progress.trace.len() as u32;
        trace.append(&mut trainer.progress.trace);
        let converged = aggregated.as_ref().is_none_or(|fitted| fitted.stop.converged);
        let task = Task { evidence, ..task };
        let report = report(model, &task, &trainer.crowd, &answers, aggregated, run);
        Ok(Fitted {
            posterior: answers.posterior,
            predictions: Some(answers.predictions),
            report,
            trace,
            stop: Stop { converged, iterations },
            model: Some(Trained {
                description: description(model, &sizes, dims),
                parameters: trainer.snapshot()?.to_bytes()?,
            }),
            device: name_of(&device),
        })
    }
}

/// What is learned from and what is held out, where that selects. Everybody's first annotation is learned from, so that
/// nobody stays unknown.
fn parted(train: &TrainSpec, a: &Annotations, run: &Run) -> Result<Option<[Annotations; 2]>> {
    if train.select != Select::AnnotationLikelihood {
        return Ok(None);
    }
    let mut rng = run.rng("held-out annotations");
    let mut is_known = vec![false; a.dims().annotators];
    let learned = |annotator: u32| {
        let held_out = rng.random::<f64>() < train.held_out;
        !replace(&mut is_known[annotator as usize], true) || !held_out
    };
    let repeated = |_| Error::bug("settled annotations repeat themselves");
    let [learned, held_out] = a.parted(learned).map_err(repeated)?;
    if held_out.is_empty() {
        return Err(Error::data("no annotation is held out to select the best epoch by")
            .at("model.train.held_out")
            .found(format!(
                "a share of {} of {} annotations, of which everybody's first is learned from",
                train.held_out,
                a.len()
            ))
            .help("hold out more, or choose another model.train.select"));
    }
    Ok(Some([learned, held_out]))
}

/// What the model's aggregator finds in the evidence, and the data to learn from with it.
fn prepared<'a, N: CrowdNet>(
    model: &N,
    evidence: Evidence<'a>,
    held_out: Option<&Annotations>,
    run: &mut Run,
) -> Result<(Option<Fitted>, Option<Data<'a>>)> {
    let aggregated = model.aggregate(evidence, run)?;
    let targets = aggregated.as_ref().map(|fitted| fitted.posterior.clone());
    let cut = model.parts().train.cut(N::WHOLE_BATCHES);
    Ok((aggregated, Data::new(evidence, held_out, targets, cut)))
}

fn gold_to_select_by<N: CrowdNet>(model: &N, described: &Described) -> Result<Vec<(u32, u32)>> {
    let gold = described.gold.iter().filter(|gold| gold.role == Role::Valid);
    let valid: Vec<(u32, u32)> = gold.map(|gold| (gold.instance, gold.class)).collect();
    if model.parts().train.select == Select::Valid && valid.is_empty() {
        return Err(Error::data("there is no gold to select the best epoch by")
            .at("model.train.select")
            .found("no gold row of role `valid` whose instance has features")
            .help("give some in source.gold, or select = \"annotation_likelihood\" or \"last\""));
    }
    Ok(valid)
}

/// What the trained model says of every row.
struct Answers {
    posterior: Posterior,
    predictions: Posterior,
    instance_parameters: Vec<(String, Vec<f64>)>,
}

impl Answers {
    fn of<N: CrowdNet>(
        trainer: &Trainer<'_, N>,
        data: &Data<'_>,
        evidence: Evidence<'_>,
        run: &mut Run,
    ) -> Result<Self> {
        let a = evidence.annotations;
        let classes = a.dims().classes;
        let names = trainer.model.instance_parameters();
        let mut posterior = data.targets().cloned().unwrap_or_else(|| Posterior::from_votes(a));
        let mut parameters = vec![vec![f64::NAN; a.dims().instances]; names.len()];
        let instances = data.instances();
        for part in instances.chunks(JUDGED_ROWS) {
            run.cancel.check()?;
            let judged = trainer.judge(&data.observed(part))?;
            for (n, i) in part.iter().map(|i| *i as usize).enumerate() {
                if a.trusted_class(i).is_none() {
                    posterior
                        .row_mut(i)
                        .copy_from_slice(&judged.posterior[n * classes..(n + 1) * classes]);
                }
                for (name, values) in parameters.iter_mut().enumerate() {
                    values[i] = judged.parameters[n * names.len() + name];
                }
            }
        }
        let without = a.dims().instances - instances.len();
        if without > 0 {
            run.warn(format!(
                "{without} of {} annotated instances have no features: their labels follow from annotations alone",
                a.dims().instances
            ));
        }
        let mut predictions = Posterior::zeros(data.matrix.len(), classes);
        for first in (0..data.matrix.len()).step_by(JUDGED_ROWS) {
            run.cancel.check()?;
            let rows = first..(first + JUDGED_ROWS).min(data.matrix.len());
            let judged = trainer.judge(&Data::unseen(rows.clone()))?;
            predictions.values_mut()[rows.start * classes..rows.end * classes]
                .copy_from_slice(&judged.classes);
        }
        let instance_parameters = names.into_iter().zip(parameters).collect();
        Ok(Self { posterior, predictions, instance_parameters })
    }
}

fn report<N: CrowdNet>(
    model: &N,
    task: &Task<'_>,
    crowd: &Crowd,
    answers: &Answers,
    aggregated: Option<Fitted>,
    run: &mut Run,
) -> Report {
    let a = task.evidence.annotations;
    let learned = model.report(task, crowd);
    learned.warnings.into_iter().for_each(|warning| run.warn(warning));
    let mut report = aggregated.map_or_else(Report::default, |fitted| fitted.report);
    report.common = learned.common;
    report.annotator_parameters = learned.parameters;
    report.instance_parameters.clone_from(&answers.instance_parameters);
    if let Some(probability) = learned.confusion {
        let confusion = Confusion {
            cells: Cells::Whole(probability),
            expected_count: expected_counts(a, &answers.posterior),
        };
        report.skill = confusion.skill(a);
        report.confusion = Some(confusion);
    } else if report.skill.is_empty() {
        report.skill = agreement(a, &answers.posterior);
    }
    report
}
