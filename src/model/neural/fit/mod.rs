//! From evidence to a fitted model: prepares the data, trains, and predicts every row with the trained model.

pub(super) mod all_predictions;
mod fine_tuning;
mod gold_start;
mod own_question;
mod pair_competence;
pub(super) mod predict;
mod trained_fit;

use candle_core::Device;
use rand::Rng as _;

use super::data::inputs::INSTANCE_EMBEDDING;
use super::objective::train_spec::{Select, TrainSpec};
use super::objective::train_state::TrainState;
use super::params::annotator_params::AnnotatorParams;
use super::train::learners::learner::LearnerSetting;
use super::train::learners::on_device::learners_on_device;
use crate::error::{Error, Result};
use crate::frame::{
    Annotations, Evidence, Gold, JointQuestion, MemoryEstimate, QuestionFeatures, QuestionSet,
    QuestionSizes, Role,
};
use crate::job_context::JobContext;
use crate::model::Model;
use crate::model::classifier::from_features;
use crate::model::fitted::Fitted;
use crate::model::neural::data::TrainingData;
use crate::model::neural::data::sizes::Sizes;
use crate::model::neural::device::name_of;
use crate::model::neural::objective::crowd_net::CrowdNet;
use crate::model::neural::params::param_table::{Owner, ParamTable};
use crate::model::neural::spec::Neural;
use crate::model::neural::train::learners::Learners;
use crate::model::neural::train::{LoopPosition, Trainer};
use crate::model::saved::checkpoint::Fingerprint;
use fine_tuning::fine_tuned;
use gold_start::{with_matrices_of_gold, without_gold};
use trained_fit::{TrainedFit, task_of};

impl<N: CrowdNet> Model for Neural<N> {
    fn fit(&self, evidence: Evidence<'_>, job: &mut JobContext) -> Result<Fitted> {
        let fitted = fit_all(self, evidence, None, job)?.pop();
        fitted.ok_or_else(|| Error::bug("a fit without a result"))
    }

    fn fit_questions(
        &self,
        questions: &QuestionSet<'_>,
        job: &mut JobContext,
    ) -> Result<Vec<Fitted>> {
        if !N::FITS_QUESTIONS_TOGETHER || questions.evidence.len() < 2 {
            return questions.evidence.iter().map(|evidence| self.fit(*evidence, job)).collect();
        }
        let (a, with_features) = questions.join()?;
        let evidence = Evidence { annotations: &a, with_features: with_features.as_ref() };
        fit_all(self, evidence, Some(questions), job)
    }

    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        N::memory_estimate(sizes)
    }
}

/// Fits a model to one question, or to the joint crowd of several; the results are in the order of the questions.
fn fit_all<N: CrowdNet>(
    spec: &Neural<N>,
    evidence: Evidence<'_>,
    questions: Option<&QuestionSet<'_>>,
    job: &mut JobContext,
) -> Result<Vec<Fitted>> {
    let is_embedded = spec.model.instance_embedding(evidence.with_features.is_some()).is_some();
    let without_features = is_embedded.then(|| {
        let annotators = evidence.with_features.and_then(|d| d.annotators.clone());
        QuestionFeatures::without_instances(evidence.annotations.dims().instances, annotators)
    });
    let with_features = match &without_features {
        Some(without) => without,
        None => from_features::with_features_of(evidence, N::KIND)?,
    };
    if is_embedded && evidence.with_features.is_some_and(|own| !own.matrix().is_empty()) {
        job.warn("a learned embedding of each instance takes the place of its features, which change nothing");
    }
    let evidence = Evidence { with_features: Some(with_features), ..evidence };
    let (dims, train) = (evidence.annotations.dims(), &spec.network.train);
    let started = with_matrices_of_gold(&spec.network, evidence.annotations, job)?;
    let evidence =
        Evidence { annotations: started.as_ref().unwrap_or(evidence.annotations), ..evidence };
    let without_gold = without_gold(&spec.network, evidence.annotations, job);
    let of_training =
        Evidence { annotations: without_gold.as_ref().unwrap_or(evidence.annotations), ..evidence };
    let split = split_annotations(train, of_training.annotations, job)?;
    let (training, held_out) = match &split {
        Some([training, held_out]) => {
            (Evidence { annotations: training, ..evidence }, Some(held_out))
        }
        None => (of_training, None),
    };
    let (aggregated, data) = prepared(spec, training, held_out, job)?;
    let (valid, valid_questions) = gold_to_select_by(train, with_features, questions)?;
    let sizes = spec.sizes(evidence.annotations, with_features);
    let reads_annotators = sizes.annotator_features.is_some();
    from_features::warn_of_annotator_features(N::KIND, reads_annotators, with_features, job);
    let (learners, device) = learners_for(spec, &data, &sizes, job)?;
    let trains_on_classes = spec.model.heads(&sizes).classifier;
    warn_of_unused_classes(N::KIND, trains_on_classes, data.annotations, job);
    let targets = aggregated.as_ref().map(|fitted| fitted.posterior.dense().into_owned());
    let mut trainer = Trainer {
        model: &spec.model,
        annotator_params: first_params(spec, training, &sizes, &learners, job)?,
        fingerprint: Some(fingerprint_of(spec, held_out, job)?),
        spec: train,
        data: &data,
        dims,
        valid: &valid,
        valid_questions: &valid_questions,
        learners,
        state: TrainState::with_targets(targets),
        position: LoopPosition::default(),
    };
    trainer.train(job)?;
    trainer.average_unknown();
    let mut planned = spec.model.epochs(train);
    if spec.network.fine_tune > 0 {
        let (tuned, epochs) = fine_tuned(trainer, spec.network.fine_tune, evidence, job)?;
        (trainer, planned) = (tuned, planned + epochs);
    }
    // Posteriors follow from all annotations, held out or not.
    let (aggregated, whole) = if held_out.is_some() || without_gold.is_some() {
        let (aggregated, whole) = prepared(spec, evidence, None, job)?;
        (aggregated, Some(whole))
    } else {
        (aggregated, None)
    };
    let data = whole.as_ref().unwrap_or(&data);
    TrainedFit {
        spec,
        trainer,
        planned,
        evidence,
        data,
        aggregated,
        sizes,
        device: name_of(&device),
    }
    .results(questions, job)
}

fn warn_of_unused_classes(
    kind: &str,
    trains_on_classes: bool,
    a: &Annotations,
    job: &mut JobContext,
) {
    if !trains_on_classes && a.trusted.is_some() {
        job.warn(format!(
            "`{kind}` is trained on labels, not classes: trusted classes appear in the labels table, but do not train it"
        ));
    }
}

/// The training annotations and the held-out annotations, where held-out likelihood selects the epoch.
pub(crate) fn split_annotations(
    train: &TrainSpec,
    a: &Annotations,
    job: &JobContext,
) -> Result<Option<[Annotations; 2]>> {
    if train.select != Select::AnnotationLikelihood {
        return Ok(None);
    }
    let mut rng = job.rng("held-out annotations");
    let parts = a.hold_out(|_| rng.random::<f64>() < train.held_out)?;
    if parts[1].is_empty() {
        return Err(nothing_held_out(a.text_of_share(train.held_out)));
    }
    Ok(Some(parts))
}

/// The result of the model's aggregator, and the training data.
fn prepared<'a, N: CrowdNet>(
    spec: &Neural<N>,
    evidence: Evidence<'a>,
    held_out: Option<&Annotations>,
    job: &mut JobContext,
) -> Result<(Option<Fitted>, TrainingData<'a>)> {
    let aggregated = spec.model.aggregate(evidence, job)?;
    let batching = spec.network.train.batching(N::DROPS_LAST_BATCH);
    let data = TrainingData::new(evidence, held_out, aggregated.is_some(), batching)
        .filter(|data| !data.is_empty() && evidence.annotations.dims().classes > 0)
        .ok_or_else(|| from_features::no_examples(evidence.annotations))?;
    if let Some(held_out) = held_out
        && data.held_out_instances().is_empty()
    {
        let n = held_out.len();
        return Err(nothing_held_out(format!("{n} annotations of instances without features")));
    }
    Ok((aggregated, data))
}

/// The error where no held-out annotation can select the epoch.
fn nothing_held_out(found: String) -> Error {
    Error::data("no annotation is held out to select the best epoch by")
        .at("model.train.held_out")
        .found(found)
        .help("hold out more, or choose another select")
}

/// (feature row, class) of the gold that selects the epoch, and the question of each, where there are several.
type SelectingGold = (Vec<(u32, u32)>, Vec<JointQuestion>);

/// The gold that selects the epoch.
fn gold_to_select_by(
    train: &TrainSpec,
    with_features: &QuestionFeatures,
    questions: Option<&QuestionSet<'_>>,
) -> Result<SelectingGold> {
    let is_valid = |gold: &&Gold| gold.role == Role::Valid;
    let pair = |gold: &Gold| (gold.instance, gold.class);
    let (valid, of): (Vec<_>, Vec<_>) = match questions {
        // Embeddings say nothing about instances without annotations.
        Some(questions) if !with_features.matrix().is_empty() => {
            let gold = questions.gold().filter(|(_, gold)| is_valid(gold));
            gold.map(|(question, gold)| (pair(gold), question)).unzip()
        }
        _ => (with_features.gold.iter().filter(is_valid).map(pair).collect(), Vec::new()),
    };
    if train.select == Select::Valid && valid.is_empty() {
        return Err(Error::data("there is no gold to select the best epoch by")
            .at("model.train.select")
            .found("no gold row of role `valid` whose instance has features")
            .help("give some in source.gold, or select = \"annotation_likelihood\" or \"last\""));
    }
    Ok((valid, of))
}

/// The model's learners with initial parameters, scaled to these data, and the device that they are on.
fn learners_for<N: CrowdNet>(
    spec: &Neural<N>,
    data: &TrainingData<'_>,
    sizes: &Sizes,
    job: &JobContext,
) -> Result<(Learners, Device)> {
    let train = &spec.network.train;
    let batch_rows = data.batch_rows(train.batching(N::DROPS_LAST_BATCH));
    let (classifier, others) = spec.learners(sizes);
    for learner in std::iter::once(&classifier).chain(&others) {
        learner.input.check_batch(sizes, batch_rows, job)?;
    }
    let precision = train.precision;
    let setting = LearnerSetting { precision, sizes, job, device: &Device::Cpu, saved: None };
    let (specs, on) = ((classifier, others), &spec.network.device);
    let (mut learners, device) = learners_on_device(on, specs, &setting, |_| batch_rows)?;
    learners.fit_scalers(data);
    Ok((learners, device))
}

/// The model's tables with their initial parameters.
fn first_params<N: CrowdNet>(
    spec: &Neural<N>,
    evidence: Evidence<'_>,
    sizes: &Sizes,
    learners: &Learners,
    job: &JobContext,
) -> Result<AnnotatorParams> {
    let mut tables = spec.model.tables(&task_of(evidence, learners, job))?;
    if let Some(width) = spec.model.instance_embedding(sizes.has_features()) {
        let a = evidence.annotations;
        let n = a.joint.as_ref().map_or(a.dims().instances, |joint| joint.n_shared);
        tables.push(ParamTable::embeddings(INSTANCE_EMBEDDING, Owner::Instance, n, width, job));
    }
    let annotator_params = AnnotatorParams { tables };
    learners.check_tables(&annotator_params)?;
    Ok(annotator_params)
}

/// The digest of the model's settings and, for checkpoints, of the held-out annotations. The trainer adds the rest.
fn fingerprint_of<N: CrowdNet>(
    spec: &Neural<N>,
    held_out: Option<&Annotations>,
    job: &JobContext,
) -> Result<Fingerprint> {
    let mut fingerprint = Fingerprint::new(N::KIND);
    fingerprint.add_settings(&spec.model)?;
    fingerprint.add_settings(&spec.network.backbone)?;
    fingerprint.add_settings(&[spec.network.init_from_gold, spec.network.hold_back_gold])?;
    if let Some(held_out) = held_out.filter(|_| job.keeps_checkpoints()) {
        fingerprint.add_annotations(held_out, &job.cancel)?;
    }
    Ok(fingerprint)
}
