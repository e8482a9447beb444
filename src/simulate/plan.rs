//! The plan of a crowd, and the choice of the instances that are annotated and trusted.

use rand::seq::index::sample;

use super::annotators::AnnotatorType;
use super::grammar::Group;
use crate::frame::{Matrix, Role};
use crate::job_context::JobContext;

/// The plan that a recipe makes: annotators, assignment and noise.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The annotators, group by group.
    pub groups: Vec<Group>,
    /// Number of different annotators for each instance; `None` for all of them.
    pub redundancy: Option<usize>,
    /// The share of the instances that is annotated, drawn at random.
    pub annotated: f64,
    /// The most instances that are annotated, where the number of annotations is limited.
    pub at_most: Option<usize>,
    /// The share of each class that is trusted, drawn at random.
    pub trusted: f64,
    /// Whether trusted instances are annotated too.
    pub annotates_trusted: bool,
    /// Of the instances that are neither annotated nor trusted, the share with gold of role `valid`; the rest gets the
    /// role `holdout`. `None` where they have no gold.
    pub valid: Option<f64>,
    /// The most annotations kept for an instance, chosen at random after all are drawn.
    pub kept: Option<usize>,
    /// Whether the annotators' mistakes are published as their features.
    pub describes_annotators: bool,
    /// A confusion matrix that all annotators share for some annotations.
    pub common: Option<CommonNoise>,
    /// How a given crowd is used, where there is one; the groups are then added to it.
    pub given: Option<GivenCrowd>,
}

/// How a given crowd is used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GivenCrowd {
    /// Whether its labels are redrawn.
    pub draws_labels: bool,
    /// The pseudo-counts of the whole crowd's matrix in each row of an annotator's.
    pub smoothing: f64,
}

impl Plan {
    /// A plan in which every annotator of `groups` labels every instance.
    #[must_use]
    pub fn new(groups: Vec<Group>) -> Self {
        Self {
            groups,
            redundancy: None,
            annotated: 1.0,
            at_most: None,
            trusted: 0.0,
            annotates_trusted: false,
            valid: None,
            kept: None,
            describes_annotators: false,
            common: None,
            given: None,
        }
    }

    /// How many annotators there are, or the largest number if they are more.
    #[must_use]
    pub fn annotators(&self) -> usize {
        self.groups.iter().fold(0, |all: usize, (n, _)| all.saturating_add(*n))
    }

    /// Draws the trusted instances: the same share of every class.
    #[must_use]
    pub fn trusted(&self, truth: Instances<'_>, job: &JobContext) -> Vec<u32> {
        let mut rng = job.rng("trusted");
        let mut trusted = Vec::new();
        for class in 0..truth.classes as u32 {
            let of_class: Vec<u32> =
                (0..).zip(truth.class).filter(|(_, k)| **k == class).map(|(i, _)| i).collect();
            let chosen = sample(&mut rng, of_class.len(), part(self.trusted, of_class.len()));
            trusted.extend(chosen.iter().map(|n| of_class[n]));
        }
        trusted.sort_unstable();
        trusted
    }

    /// Draws the instances that are annotated; sorted.
    #[must_use]
    pub fn annotated(&self, truth: Instances<'_>, trusted: &[u32], job: &JobContext) -> Vec<u32> {
        let all = 0..truth.class.len() as u32;
        let is_free = |i: &u32| self.annotates_trusted || trusted.binary_search(i).is_err();
        let free: Vec<u32> = all.filter(is_free).collect();
        let wanted = part(self.annotated, free.len()).min(self.at_most.unwrap_or(usize::MAX));
        if wanted == free.len() {
            return free;
        }
        let chosen = sample(&mut job.rng("annotated"), free.len(), wanted);
        let mut chosen: Vec<u32> = chosen.iter().map(|n| free[n]).collect();
        chosen.sort_unstable();
        chosen
    }

    /// The instances with gold, sorted, and the role of each.
    #[must_use]
    pub fn gold(
        &self,
        truth: Instances<'_>,
        trusted: &[u32],
        annotated: &[u32],
        job: &JobContext,
    ) -> Vec<(u32, Role)> {
        let mut gold: Vec<(u32, Role)> = trusted.iter().map(|i| (*i, Role::Train)).collect();
        if let Some(share) = self.valid {
            let is_in = |sorted: &[u32], i: u32| sorted.binary_search(&i).is_ok();
            let all = 0..truth.class.len() as u32;
            let rest: Vec<u32> =
                all.filter(|i| !is_in(trusted, *i) && !is_in(annotated, *i)).collect();
            let mut roles = vec![Role::Holdout; rest.len()];
            let chosen = sample(&mut job.rng("valid"), rest.len(), part(share, rest.len()));
            chosen.iter().for_each(|n| roles[n] = Role::Valid);
            gold.extend(rest.into_iter().zip(roles));
        }
        gold.sort_unstable();
        gold
    }
}

/// A confusion matrix that all annotators share for some annotations.
#[derive(Debug, Clone, PartialEq)]
pub struct CommonNoise {
    /// The type of annotator that the matrix is drawn from.
    pub kind: AnnotatorType,
    /// The mean probability that a label comes from it.
    pub proportion: f64,
}

/// The instances to annotate.
#[derive(Clone, Copy)]
pub struct Instances<'a> {
    /// The class of each instance, in sorted order of the instances.
    pub class: &'a [u32],
    /// How many classes there are.
    pub classes: usize,
    /// The features of each instance, by row of the matrix, where the plan has common noise.
    pub features: Option<(&'a Matrix, &'a [u32])>,
}

/// The share, from 0 to 1, of a number, rounded.
#[allow(clippy::cast_sign_loss)]
fn part(share: f64, of: usize) -> usize {
    (share * of as f64).round() as usize
}

/// The share of each class.
pub fn shares(of: impl Iterator<Item = u32>, classes: usize) -> Vec<f64> {
    let mut counts = vec![0_u32; classes];
    of.for_each(|k| counts[k as usize] += 1);
    let all = f64::from(counts.iter().sum::<u32>());
    counts.iter().map(|n| f64::from(*n) / all).collect()
}
