//! The start of a model at confusion matrices that gold or a table gives.

use crate::error::Result;
use crate::frame::{Annotations, Dims, Evidence, GivenConfusion};
use crate::job_context::JobContext;
use crate::model::Model as _;
use crate::model::em::first_start;
use crate::model::fitted::{Fitted, Report};
use crate::model::posterior::best;
use crate::model::vote::{MajorityVote, agreement};

/// The parameters of all annotators, `[annotator, class * labels + label]`, from the cells of their matrices.
pub(crate) fn parameters(
    given: &GivenConfusion,
    annotators: usize,
    of_cell: impl Fn(f64) -> f64,
) -> Vec<f32> {
    let cells = (0..annotators).flat_map(|r| given.matrix_of(r));
    cells.map(|p| of_cell(*p) as f32).collect()
}

/// The first targets of a model that learns from targets: the shares of the votes, or naive Bayes with the given matrices.
pub(crate) fn first_targets(evidence: Evidence<'_>, job: &mut JobContext) -> Result<Fitted> {
    let a = evidence.annotations;
    if a.given.confusion.is_none() {
        return MajorityVote::default().fit(evidence, job);
    }
    let posterior = first_start(a);
    let report = Report { skill: agreement(a, |i| best(posterior.row(i))), ..Report::default() };
    Ok(Fitted::new(posterior, report))
}

/// A warning of classes with few trusted instances, for `what` these are used.
pub(crate) fn few_of_a_class(a: &Annotations, what: &str) -> Option<String> {
    const MIN_OF_CLASS: usize = 3;
    let mut trusted = vec![0; a.dims().classes];
    a.trusted.iter().flatten().flatten().for_each(|class| trusted[*class as usize] += 1);
    let few = trusted.iter().filter(|n| **n < MIN_OF_CLASS).count();
    (few > 0).then(|| {
        format!(
            "{few} of {} classes have fewer than {MIN_OF_CLASS} trusted instances, {what}: give more gold of the role `train`, \
             of every class, or none",
            trusted.len()
        )
    })
}

/// With fewer trusted answers, an annotator's share of right ones tells little.
const MIN_ANSWERS: f64 = 5.0;

/// The annotations without those of annotators who are right about trusted instances (five or more) less often than
/// somebody who always names the most frequent of their classes, and how many annotators these are. An instance without
/// others keeps all its annotations.
pub(crate) fn of_better_annotators(a: &Annotations) -> Result<(Annotations, usize)> {
    let Dims { instances, annotators, classes, .. } = a.dims();
    let (mut right, mut all) = (vec![0.0; annotators], vec![0.0; annotators]);
    let mut of_class = vec![0.0; classes];
    for i in 0..instances {
        let Some(class) = a.trusted_class(i) else { continue };
        of_class[class as usize] += 1.0;
        for (annotator, label, weight) in a.triples_of_instance(i) {
            all[annotator as usize] += weight;
            right[annotator as usize] += if label == class { weight } else { 0.0 };
        }
    }
    let most = of_class.iter().copied().fold(0.0, f64::max) / of_class.iter().sum::<f64>().max(1.0);
    let is_good = |r: usize| all[r] < MIN_ANSWERS || right[r] >= most * all[r];
    let n_left_out = (0..annotators).filter(|r| !is_good(*r)).count();
    let stay: Vec<bool> = (0..instances)
        .flat_map(|i| {
            let good =
                || a.triples_of_instance(i).map(|(annotator, ..)| is_good(annotator as usize));
            let keeps_all = !good().any(|is_good| is_good);
            good().map(move |is_good| is_good || keeps_all)
        })
        .collect();
    let [good, _] = a.split(&stay)?;
    Ok((good, n_left_out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tiny;

    /// By ten trusted instances, annotator 0 is always right and annotator 1 never; annotator 2 has none, and stays. Nobody
    /// but annotator 1 knows instance 11.
    #[test]
    fn annotators_worse_than_the_most_frequent_class_are_left_out() {
        let mut rows: Vec<(u32, u32, u32)> =
            (0..20).map(|n| (n / 2, n % 2, (n / 2 + n % 2) % 2)).collect();
        rows.extend([(10, 1, 1), (10, 2, 0), (11, 1, 1)]);
        let mut a = tiny(2, &rows);
        a.trusted = Some((0..12).map(|i| (i < 10).then_some(i % 2)).collect());
        let (good, n_left_out) = of_better_annotators(&a).unwrap();
        let who = |i: usize| good.triples_of_instance(i).map(|(r, ..)| r).collect::<Vec<_>>();
        assert_eq!([who(0), who(9), who(10), who(11)], [[0], [0], [2], [1]]);
        assert_eq!(n_left_out, 1);
        a.trusted = Some((0..12).map(|i| (i < 4).then_some(i % 2)).collect());
        assert_eq!(of_better_annotators(&a).unwrap().1, 0);
    }
}
