//! Resamples a given crowd: keeps or redraws its annotations, thins them out, and adds annotators.
//!
//! ```text
//! given     n[r][k][l] annotations l of instances of class k by annotator r;  M[k] = the label shares of the whole crowd
//!           P(l | k, r) = (n[r][k][l] + s M[k][l]) / (sum_l n[r][k][l] + s);  M[k] where r never labelled k and s = 0
//! drawn     the pairs (instance, annotator) stay; or a fixed number of annotators for each instance, drawn with weights
//!           that are their numbers of annotations. Every label is drawn from P(l | k, r)
//! ```
//! The given annotations may depend on more than the class. Drawn ones come from the same annotators, but independent
//! confusion matrices are exactly the model that generates them.

use rand::Rng as _;
use rand::seq::index::sample_weighted;

use super::annotators::AnnotatorType;
use super::annotators::confusion::ConfusionMatrix;
use super::draw::{Annotation, Member, SimulatedCrowd, answers, kept, members, redundancy};
use super::grammar::annotator_id;
use super::plan::{GivenCrowd, Instances, Plan, shares};
use crate::error::{Error, Result};
use crate::job_context::JobContext;

/// A given crowd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceCrowd {
    /// The id of each annotator, as text.
    pub annotators: Vec<String>,
    /// The annotations, sorted.
    pub annotations: Vec<Annotation>,
}

/// Draws the crowd of a plan from a given one.
///
/// # Errors
/// When the plan does not fit the classes or the crowd.
pub fn resample(
    plan: &Plan,
    given: GivenCrowd,
    source: &SourceCrowd,
    truth: Instances<'_>,
    job: &JobContext,
) -> Result<SimulatedCrowd> {
    let mut instances: Vec<u32> = source.annotations.iter().map(|a| a.instance).collect();
    instances.dedup();
    let shares = shares(instances.iter().map(|i| truth.class[*i as usize]), truth.classes);
    let added = added(plan, &shares, job)?;
    let n_given = source.annotators.len();
    let mut crowd = given_members(source, given.smoothing, truth);
    let mut annotations = if given.draws_labels {
        drawn(plan, source, &crowd, &instances, truth, job)?
    } else {
        source.annotations.clone()
    };
    if let Some(at_most) = plan.kept {
        annotations = kept(&(annotations, Vec::new()), at_most, job).0;
    }
    let (of_added, _) = answers(&added, truth, &instances, added.len(), None, job)?;
    let numbered_on = |a: Annotation| Annotation { annotator: a.annotator + n_given as u32, ..a };
    annotations.extend(of_added.into_iter().map(numbered_on));
    annotations.sort_unstable();
    let ids = ids(source, added.len())?;
    crowd.extend(added.into_iter().map(|m| Member { group: m.group + 1, ..m }));
    Ok(SimulatedCrowd {
        members: crowd,
        ids,
        annotations,
        gold: Vec::new(),
        shares,
        common: None,
        sources: Vec::new(),
        features: Vec::new(),
    })
}

/// The added annotators.
fn added(plan: &Plan, shares: &[f64], job: &JobContext) -> Result<Vec<Member>> {
    let added = members(plan, shares, job)?;
    let follows = |m: &&Member| matches!(m.kind, Some(AnnotatorType::Follows(..)));
    match added.iter().find(follows) {
        Some(follower) => Err(Error::spec("an annotator beside a given crowd follows nobody")
            .at(format!("`{}`", follower.text(added.len())))
            .help("add annotators that answer by themselves, such as right, wrong or random")),
        None => Ok(added),
    }
}

/// The ids of all annotators: the added ones are numbered on after the given ones.
fn ids(source: &SourceCrowd, added: usize) -> Result<Vec<String>> {
    let (given, all) = (source.annotators.len(), source.annotators.len() + added);
    let mut ids = source.annotators.clone();
    ids.extend((given..all).map(|r| annotator_id(r, all)));
    match ids[given..].iter().find(|id| source.annotators.contains(id)) {
        Some(id) => Err(Error::data("an annotator of the crowd has an added one's id")
            .at("--annotations")
            .found(format!("`{id}`"))
            .help("rename it")),
        None => Ok(ids),
    }
}

/// The given annotators, each with the confusion matrix of its annotations.
fn given_members(source: &SourceCrowd, smoothing: f64, truth: Instances<'_>) -> Vec<Member> {
    let n = truth.classes;
    let cell = |a: &Annotation| truth.class[a.instance as usize] as usize * n + a.label as usize;
    let mut all = vec![0.0; n * n];
    source.annotations.iter().for_each(|a| all[cell(a)] += 1.0);
    let met = |counts: &[f64]| -> Vec<bool> {
        counts.chunks_exact(n).map(|row| row.iter().any(|count| *count > 0.0)).collect()
    };
    let met_by_all = met(&all);
    let crowd =
        ConfusionMatrix::from_weights(n, |k, l| if met_by_all[k] { all[k * n + l] } else { 1.0 });
    let mut by_annotator: Vec<&Annotation> = source.annotations.iter().collect();
    by_annotator.sort_by_key(|a| a.annotator);
    let of_annotator = by_annotator.chunk_by(|a, b| a.annotator == b.annotator);
    let member = |own: &[&Annotation]| {
        let mut counts = vec![0.0; n * n];
        own.iter().for_each(|a| counts[cell(a)] += 1.0);
        let met = met(&counts);
        let confusion = ConfusionMatrix::from_weights(n, |k, l| {
            let weight = if met[k] { smoothing } else { 1.0 };
            counts[k * n + l] + weight * crowd.row(k)[l]
        });
        Member { kind: None, group: 0, own: confusion.clone(), confusion }
    };
    of_annotator.map(member).collect()
}

/// Annotations of the same annotators with newly drawn labels.
fn drawn(
    plan: &Plan,
    source: &SourceCrowd,
    members: &[Member],
    instances: &[u32],
    truth: Instances<'_>,
    job: &JobContext,
) -> Result<Vec<Annotation>> {
    let mut pairs: Vec<(u32, u32)> =
        source.annotations.iter().map(|a| (a.instance, a.annotator)).collect();
    if plan.redundancy.is_some() {
        let wanted = redundancy(plan, members)?;
        let mut annotations_of = vec![0.0; members.len()];
        pairs.iter().for_each(|(_, r)| annotations_of[*r as usize] += 1.0);
        let mut rng = job.rng("assignment");
        pairs.clear();
        for (n, instance) in instances.iter().enumerate() {
            if n % (1 << 12) == 0 {
                job.cancel.check()?;
            }
            let annotators =
                sample_weighted(&mut rng, members.len(), |r| annotations_of[r], wanted)
                    .map_err(|e| Error::bug(format!("annotators cannot be drawn: {e}")))?;
            pairs.extend(annotators.iter().map(|r| (*instance, r as u32)));
        }
        pairs.sort_unstable();
    }
    pairs.dedup();
    let mut rng = job.rng("labels of the crowd");
    let annotation = |(instance, annotator): (u32, u32)| {
        let class = truth.class[instance as usize] as usize;
        let label = members[annotator as usize].own.label(class, rng.random()) as u32;
        Annotation { instance, annotator, label }
    };
    Ok(pairs.into_iter().map(annotation).collect())
}
