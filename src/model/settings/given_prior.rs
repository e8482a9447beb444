//! P(class) as the user gives it, in place of an estimate.

use crate::error::{Error, Problem, Result};
use crate::frame::Annotations;
use crate::job_context::JobContext;
use crate::spec::Problems;

/// How far the shares of a given prior may be from a sum of 1: they may be rounded.
const TOLERANCE: f64 = 1e-3;

/// The key of the shares.
const KEY: &str = "class_prior";

/// Adds a problem where the shares are not those of a distribution that leaves every class possible.
pub(in crate::model) fn check_shares(
    shares: Option<&Vec<f64>>,
    location: &str,
    problems: &mut Problems,
) {
    let Some(shares) = shares else { return };
    let sum: f64 = shares.iter().sum();
    if shares.iter().all(|share| *share > 0.0) && (sum - 1.0).abs() <= TOLERANCE {
        return;
    }
    let problem = Problem::new("the shares of the classes are above 0 and sum to 1");
    let problem =
        problem.at(format!("{location}.{KEY}")).found(format!("{shares:?}, of sum {sum}"));
    problems.push(problem.help("write one share for each class, in the order of the classes"));
}

/// Checks that there is one share for each class.
///
/// # Errors
/// When there are more or fewer.
pub(in crate::model) fn check_number(
    shares: Option<&Vec<f64>>,
    a: &Annotations,
    job: &JobContext,
) -> Result<()> {
    let (given, classes) = (shares.map_or(a.dims().classes, Vec::len), a.dims().classes);
    if given == classes {
        return Ok(());
    }
    Err(Error::data("the shares of the classes are not as many as the classes")
        .at(job.model_key(KEY))
        .found(format!("{given} shares, {classes} classes"))
        .help("list the classes in frame.classes, and write one share for each, in that order"))
}

/// The shares, which sum to exactly 1 but for rounding; uniform where none are given.
pub(in crate::model) fn shares_or_uniform(shares: Option<&Vec<f64>>, n_classes: usize) -> Vec<f64> {
    let uniform = || vec![1.0 / n_classes.max(1) as f64; n_classes];
    let Some(shares) = shares else { return uniform() };
    let sum: f64 = shares.iter().sum();
    shares.iter().map(|share| share / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tiny;

    #[test]
    fn shares_are_refused_that_are_none_or_as_many_as_other_classes() {
        let is_fine = |shares: &[f64]| {
            let mut problems = Problems::default();
            check_shares(Some(&shares.to_vec()), "model", &mut problems);
            problems.into_result().map_err(|e| e.to_string())
        };
        assert_eq!(is_fine(&[0.333, 0.667]), Ok(()));
        for wrong in [&[0.5, 0.6][..], &[0.0, 1.0], &[-0.5, 1.5], &[f64::NAN, 0.5], &[]] {
            let error = is_fine(wrong).unwrap_err();
            assert!(error.contains("model.class_prior"), "{error}");
        }
        let (a, job) = (tiny(3, &[(0, 0, 2)]), JobContext::new(0));
        assert!(check_number(None, &a, &job).is_ok());
        assert!(check_number(Some(&vec![0.2, 0.3, 0.5]), &a, &job).is_ok());
        let error = check_number(Some(&vec![0.5, 0.5]), &a, &job).unwrap_err().to_string();
        assert!(error.contains("found: 2 shares, 3 classes"), "{error}");
        assert_eq!(
            shares_or_uniform(Some(&vec![0.25, 0.7501]), 2),
            [0.25 / 1.0001, 0.7501 / 1.0001]
        );
        assert_eq!(shares_or_uniform(None, 2), [0.5, 0.5]);
    }
}
