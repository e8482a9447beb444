//! The start of a model at confusion matrices that gold or a table gives.

use crate::error::Result;
use crate::frame::{Annotations, Dims, Evidence, GivenConfusion};
use crate::job_context::JobContext;
use crate::model::Model as _;
use crate::model::em::kernels::{GivenRows, Likelihood, Prior};
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

/// The first targets of a model that learns from targets: the shares of the votes, or naive Bayes with the given matrices,
/// whose prior is the shares of the trusted classes, each counted once more.
pub(crate) fn first_targets(evidence: Evidence<'_>, job: &mut JobContext) -> Result<Fitted> {
    let a = evidence.annotations;
    if a.given.confusion.is_none() {
        return MajorityVote::default().fit(evidence, job);
    }
    let Dims { instances, classes, .. } = a.dims();
    let mut prior = vec![1.0; classes];
    (0..instances)
        .filter_map(|i| a.trusted_class(i))
        .for_each(|class| prior[class as usize] += 1.0);
    let sum: f64 = prior.iter().sum();
    prior.iter_mut().for_each(|p| *p /= sum);
    let posterior =
        Likelihood::estimated(a, &[], &GivenRows::new(a)).posteriors(a, Prior::Class(&prior));
    let report = Report { skill: agreement(a, |i| best(posterior.row(i))), ..Report::default() };
    Ok(Fitted::new(posterior, report))
}

/// The annotations without those of annotators who are right about trusted instances less often than somebody who always
/// names the most frequent of their classes; all annotations where nobody is better.
pub(crate) fn of_better_annotators(a: &Annotations) -> Result<Annotations> {
    let Dims { instances, annotators, classes, .. } = a.dims();
    let (mut right, mut all) = (vec![0.0; annotators], vec![0.0; annotators]);
    let mut of_class = vec![0.0; classes];
    for i in 0..instances {
        let Some(class) = a.trusted_class(i) else { continue };
        of_class[class as usize] += 1.0;
        for (annotator, label, weight) in a.triples_of(i) {
            all[annotator as usize] += weight;
            right[annotator as usize] += if label == class { weight } else { 0.0 };
        }
    }
    let most = of_class.iter().copied().fold(0.0, f64::max) / of_class.iter().sum::<f64>().max(1.0);
    let is_good = |r: u32| right[r as usize] >= most * all[r as usize];
    let triples = (0..instances).flat_map(|i| a.triples_of(i));
    let stay: Vec<bool> = triples.map(|(annotator, ..)| is_good(annotator)).collect();
    if stay.contains(&true) {
        let [good, _] = a.split(&stay)?;
        return Ok(good);
    }
    Ok(a.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tiny;

    /// Annotator 0 is always right and annotator 1 never; annotator 2 has no trusted instance, and stays.
    #[test]
    fn annotators_worse_than_the_most_frequent_class_are_left_out() {
        let rows = [(0, 0, 0), (1, 0, 1), (0, 1, 1), (1, 1, 0), (2, 1, 1), (2, 2, 0)];
        let mut a = tiny(2, &rows);
        a.trusted = Some(vec![Some(0), Some(1), None]);
        let good = of_better_annotators(&a).unwrap();
        let who = |i: usize| good.triples_of(i).map(|(r, ..)| r).collect::<Vec<_>>();
        assert_eq!([who(0), who(1), who(2)], [vec![0], vec![0], vec![2]]);
        let mut worst = tiny(2, &[(0, 0, 0), (1, 0, 1)]);
        worst.trusted = Some(vec![Some(1), Some(0)]);
        assert_eq!(of_better_annotators(&worst).unwrap().len(), 2);
    }
}
