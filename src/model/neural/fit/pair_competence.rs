//! How likely annotators are right on instances: on those that they labelled, and on those that the job asks about.

use super::own_question::OwnQuestion;
use crate::error::Result;
use crate::frame::Annotations;
use crate::job_context::JobContext;
use crate::model::fitted::{InstanceAnnotator, PairCompetence};
use crate::model::neural::data::TrainingData;
use crate::model::neural::objective::batch_context::BatchContext;
use crate::model::neural::objective::crowd_net::CrowdNet;
use crate::model::neural::train::Trainer;

/// The competence of each pair of the annotations, or of those of one question, and of each that the job asks about: the sum
/// over the classes of P(class given features) times P(the class is the label given class). Nothing for a model without
/// matrices of pairs.
///
/// # Errors
/// When the run is cancelled, or the device fails.
pub(super) fn pair_competence<N: CrowdNet>(
    trainer: &Trainer<'_, N>,
    data: &TrainingData<'_>,
    own: Option<&OwnQuestion<'_>>,
    job: &JobContext,
) -> Result<PairCompetence> {
    if !N::HAS_MATRICES_OF_PAIRS {
        return Ok(PairCompetence::default());
    }
    let pairs = pairs_of(own.map_or(data.annotations, |own| own.evidence.annotations));
    let joint = data.annotations.joint.as_ref().zip(own);
    let in_data = |pair: &InstanceAnnotator| match &joint {
        Some((joint, own)) => (
            joint.offsets[own.question.index] as u32 + pair.instance,
            own.annotators[pair.annotator as usize],
        ),
        None => (pair.instance, pair.annotator),
    };
    let has_features = |pair: &InstanceAnnotator| data.row(in_data(pair).0 as usize).is_some();
    let at_once = trainer.learners.rows_at_once();
    let mut competence = Vec::with_capacity(pairs.len());
    // Those of one batch either all have features, or none has.
    let parts = pairs.chunk_by(|one, next| has_features(one) == has_features(next));
    for part in parts.flat_map(|part| part.chunks(at_once)) {
        job.cancel.check()?;
        let batch = data.of_pairs(&part.iter().map(in_data).collect::<Vec<_>>());
        let read = |context: &BatchContext<'_>| of_batch(trainer.model, context);
        competence.extend(if has_features(&part[0]) {
            trainer.read_out(data.inputs(), &batch, read)?
        } else {
            trainer.without_features(data.inputs(), &batch, read)?
        });
    }
    Ok(PairCompetence { pairs, competence })
}

/// The pairs of the annotations and those that the job asks about, each once.
fn pairs_of(a: &Annotations) -> Vec<InstanceAnnotator> {
    let annotated = (0..a.dims().instances).flat_map(|i| {
        a.triples_of_instance(i).map(move |(annotator, ..)| InstanceAnnotator {
            instance: i as u32,
            annotator,
            is_annotated: true,
        })
    });
    let asked = a.given.pairs.iter();
    let asked = asked.map(|(instance, annotator)| InstanceAnnotator {
        instance: *instance,
        annotator: *annotator,
        is_annotated: false,
    });
    let mut pairs: Vec<InstanceAnnotator> = annotated.chain(asked).collect();
    // Of the same pair, the annotated one comes first and stays.
    pairs.sort_unstable_by_key(|pair| (pair.instance, pair.annotator, !pair.is_annotated));
    pairs.dedup_by_key(|pair| (pair.instance, pair.annotator));
    pairs
}

fn of_batch<N: CrowdNet>(model: &N, context: &BatchContext<'_>) -> Vec<f64> {
    let (labels, width) = (context.dims.labels, context.dims.classes * context.dims.labels);
    let matrices = model.pair_matrices(context).unwrap_or_default();
    let pairs = context.annotations().zip(matrices.chunks_exact(width.max(1)));
    let right = |((b, _), matrix): ((usize, _), &[f64])| {
        let of_classes = context.out.p(b).iter().enumerate();
        of_classes.map(|(k, p)| p * matrix[k * labels + k]).sum()
    };
    pairs.map(right).collect()
}
