//! Draws a crowd's annotations from a plan: numbers in, numbers out.
//!
//! # Why
//! Each purpose has a random stream of its own: the matrices, the assignment of annotators to instances, the labels,
//! the source of each label (common or individual noise), and the annotations that are kept. Labels are drawn instance
//! by instance, annotator by annotator, in sorted order, one draw for each. So nothing depends on the order of the
//! truth's rows or on threads, and a change in one part of a recipe leaves the draws of the others unchanged.

use rand::Rng as _;
use rand::seq::SliceRandom;
use rand::seq::index::sample;
use rayon::prelude::*;

use super::annotators::confusion::ConfusionMatrix;
use super::annotators::{AnnotatorType, Dependence};
use super::conal::Shares;
use super::grammar::annotator_id;
use super::plan::{Instances, Plan, shares};
use crate::error::{Error, Result};
use crate::frame::Role;
use crate::job_context::JobContext;

/// One annotator of a crowd.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// The type; `None` for an annotator of a given crowd.
    pub kind: Option<AnnotatorType>,
    /// The group, from 0.
    pub group: usize,
    /// P(label given class), including common noise.
    pub confusion: ConfusionMatrix,
    /// P(label given class) of the annotator's individual noise alone; without common noise equal to `confusion`.
    pub own: ConfusionMatrix,
}

/// One annotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Annotation {
    /// The instance's index.
    pub instance: u32,
    /// The annotator's index.
    pub annotator: u32,
    /// The label's index.
    pub label: u32,
}

/// A simulated crowd and its annotations.
pub struct SimulatedCrowd {
    /// The annotators.
    pub members: Vec<Member>,
    /// The id of each annotator.
    pub ids: Vec<String>,
    /// The annotations, sorted by instance and annotator.
    pub annotations: Vec<Annotation>,
    /// Instances with gold, sorted, and its role: `train` for the trusted ones.
    pub gold: Vec<(u32, Role)>,
    /// The share of each class among the annotated instances.
    pub shares: Vec<f64>,
    /// The common confusion matrix, where there is common noise.
    pub common: Option<ConfusionMatrix>,
    /// For each annotation, with common noise: whether the label came from the common confusion matrix, and the
    /// probability of that.
    pub sources: Vec<(bool, f64)>,
    /// The features of each annotator, where the plan describes annotators; else empty.
    pub features: Vec<Vec<f32>>,
}

/// Draws the crowd of a plan.
///
/// # Errors
/// When the plan does not fit the classes, or an annotator follows one that does not come before it.
pub fn draw(plan: &Plan, truth: Instances<'_>, job: &JobContext) -> Result<SimulatedCrowd> {
    let trusted = plan.trusted(truth, job);
    let instances = plan.annotated(truth, &trusted, job);
    if instances.is_empty() {
        return Err(Error::spec("no instance is left to annotate")
            .found(format!("{} instances, {} trusted", truth.class.len(), trusted.len()))
            .help("lower trusted or valid, or raise annotated or the budget"));
    }
    let shares = shares(instances.iter().map(|i| truth.class[*i as usize]), truth.classes);
    let mut members = members(plan, &shares, job)?;
    let n_annotators = members.len();
    let redundancy = redundancy(plan, &members)?;
    let noise = match &plan.common {
        Some(noise) => Some(noise.spread(truth, &instances, n_annotators, job)?),
        None => None,
    };
    let common = match &plan.common {
        Some(noise) => noise
            .kind
            .confusion(&shares, &mut job.rng("common matrix"))
            .map_err(|e| e.or_at(&format!("common `{}`", noise.kind.text(n_annotators))))?,
        None => None,
    };
    if let (Some(noise), Some(common)) = (&noise, &common) {
        mix(&mut members, common, noise, truth, &instances);
    }
    let noise = noise.as_ref().zip(common.as_ref());
    let mut drawn = answers(&members, truth, &instances, redundancy, noise, job)?;
    if let Some(at_most) = plan.kept {
        drawn = kept(&drawn, at_most, job);
    }
    let (annotations, sources) = drawn;
    let gold = plan.gold(truth, &trusted, &instances, job);
    let mistakes = |m: &Member| plan.describes_annotators.then(|| m.confusion.mistakes());
    let features = members.iter().filter_map(mistakes).collect();
    let ids = (0..n_annotators).map(|r| annotator_id(r, n_annotators)).collect();
    Ok(SimulatedCrowd { members, ids, annotations, gold, shares, common, sources, features })
}

impl Member {
    /// The type as text, in a crowd of `annotators` annotators.
    #[must_use]
    pub fn text(&self, annotators: usize) -> String {
        self.kind.as_ref().map_or_else(|| "given".to_owned(), |kind| kind.text(annotators))
    }
}

/// The annotators of the plan's groups.
pub(super) fn members(plan: &Plan, shares: &[f64], job: &JobContext) -> Result<Vec<Member>> {
    let mut rng = job.rng("matrices");
    let n = plan.annotators();
    let mut members: Vec<Member> = Vec::with_capacity(n);
    let kinds = plan.groups.iter().enumerate();
    for (group, kind) in kinds.flat_map(|(g, (n, kind))| std::iter::repeat_n((g, kind), *n)) {
        let own = kind
            .confusion(shares, &mut rng)
            .map_err(|e| e.or_at(&format!("`{}`", kind.text(n))))?;
        let confusion = match (own, kind) {
            (Some(confusion), _) => confusion,
            (None, AnnotatorType::Follows(manner, of)) => {
                let of = members.get(*of).ok_or_else(|| not_before(kind, members.len(), n))?;
                manner.confusion(&of.confusion)
            }
            (None, _) => return Err(Error::bug("only followers have no matrix of their own")),
        };
        let own = confusion.clone();
        members.push(Member { kind: Some(kind.clone()), group, confusion, own });
    }
    Ok(members)
}

fn not_before(kind: &AnnotatorType, at: usize, annotators: usize) -> Error {
    let id = |annotator: usize| annotator_id(annotator, annotators);
    Error::spec("an annotator follows one who does not come before")
        .at(format!("`{}`", kind.text(annotators)))
        .found(format!("{at} annotators before it: it is {} itself", id(at)))
        .help(format!(
            "list the one who is followed first; annotators are numbered from {} through the groups",
            id(0)
        ))
}

/// How many annotations an instance gets.
pub(super) fn redundancy(plan: &Plan, members: &[Member]) -> Result<usize> {
    let wanted = plan.redundancy.unwrap_or(members.len());
    if wanted > members.len() {
        return Err(Error::spec("an instance cannot have more answers than there are annotators")
            .at("--set redundancy")
            .found(format!("{wanted} answers, {} annotators", members.len()))
            .help("lower redundancy, or add annotators"));
    }
    let follows = |m: &&Member| matches!(m.kind, Some(AnnotatorType::Follows(..)));
    match members.iter().find(follows) {
        Some(follower) if wanted < members.len() || plan.common.is_some() => {
            Err(Error::spec("who follows another must see every instance that the other sees")
                .at(format!("`{}`", follower.text(members.len())))
                .found(format!("{wanted} of {} annotators an instance", members.len()))
                .help("leave redundancy out, so that everybody answers"))
        }
        _ => Ok(wanted),
    }
}

/// With common noise, an annotator's matrix is a mixture of its own and the common one, with the mean share of each
/// class.
fn mix(
    members: &mut [Member],
    common: &ConfusionMatrix,
    noise: &Shares,
    truth: Instances<'_>,
    of: &[u32],
) {
    members.par_iter_mut().enumerate().for_each(|(annotator, member)| {
        let share =
            noise.by_class(annotator, of.iter().map(|i| truth.class[*i as usize]), truth.classes);
        member.confusion = member.own.mixed(common, |k| share[k]);
    });
}

pub(super) type DrawnAnswers = (Vec<Annotation>, Vec<(bool, f64)>);

pub(super) fn answers(
    members: &[Member],
    truth: Instances<'_>,
    instances: &[u32],
    redundancy: usize,
    noise: Option<(&Shares, &ConfusionMatrix)>,
    job: &JobContext,
) -> Result<DrawnAnswers> {
    let mut streams = ["assignment", "answers", "sources"].map(|purpose| job.rng(purpose));
    let [assignment, answers, sources] = &mut streams;
    let mut annotations = Vec::with_capacity(instances.len() * redundancy);
    let mut origins = Vec::new();
    let mut labels = vec![0; members.len()];
    for (n, instance) in instances.iter().enumerate() {
        if n % (1 << 16) == 0 {
            job.cancel.check()?;
        }
        let mut annotators: Vec<usize> = if redundancy < members.len() {
            sample(assignment, members.len(), redundancy).into_vec()
        } else {
            (0..members.len()).collect()
        };
        annotators.sort_unstable();
        let class = truth.class[*instance as usize] as usize;
        for r in annotators {
            let draw: f64 = answers.random();
            let mut confusion = &members[r].own;
            if let Some((shares, common)) = noise {
                let share = shares.share(n, r);
                let is_common = sources.random::<f64>() < share;
                confusion = if is_common { common } else { confusion };
                origins.push((is_common, share));
            }
            labels[r] = match members[r].kind {
                Some(AnnotatorType::Follows(manner, of)) => {
                    Dependence::label(manner, labels[of], class, truth.classes, draw)
                }
                _ => confusion.label(class, draw),
            };
            let annotator = r as u32;
            annotations.push(Annotation {
                instance: *instance,
                annotator,
                label: labels[r] as u32,
            });
        }
    }
    Ok((annotations, origins))
}

/// Keeps at most `at_most` annotations of each instance.
///
/// It shuffles all annotations of an instance and keeps the first. With one seed, what a smaller limit keeps is
/// therefore a subset of what a larger one keeps, and a series over redundancies compares the same annotations.
pub(super) fn kept(
    (annotations, sources): &DrawnAnswers,
    at_most: usize,
    job: &JobContext,
) -> DrawnAnswers {
    let mut rng = job.rng("kept");
    let (mut kept, mut start) = (Vec::new(), 0);
    for of_instance in annotations.chunk_by(|a, b| a.instance == b.instance) {
        let mut order: Vec<usize> = (start..start + of_instance.len()).collect();
        start += of_instance.len();
        order.shuffle(&mut rng);
        order.truncate(at_most);
        order.sort_unstable();
        kept.extend(order);
    }
    let origins = kept.iter().filter_map(|n| sources.get(*n).copied()).collect();
    (kept.iter().map(|n| annotations[*n]).collect(), origins)
}

impl SimulatedCrowd {
    /// The instances with gold of this role, sorted.
    #[must_use]
    pub fn instances_with_role(&self, role: Role) -> Vec<u32> {
        self.gold.iter().filter(|(_, r)| *r == role).map(|(i, _)| *i).collect()
    }

    /// The share of right annotations.
    #[must_use]
    pub fn accuracy(&self, truth: &[u32]) -> f64 {
        let right = self.annotations.iter().filter(|a| truth[a.instance as usize] == a.label);
        right.count() as f64 / self.annotations.len().max(1) as f64
    }
}
