//! The start at confusion matrices that gold gives, and gold that is held back until fine-tuning.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::frame::{Annotations, Dims, GivenConfusion};
use crate::job_context::JobContext;
use crate::model::neural::objective::given_matrices::few_of_a_class;
use crate::model::neural::objective::network_spec::NetworkSpec;
use crate::model::posterior::Posterior;

/// The annotations with the matrices of gold to start at; `None` where a fit does not start at them.
///
/// # Errors
/// When a table gives other matrices.
pub(super) fn with_matrices_of_gold(
    network: &NetworkSpec,
    a: &Annotations,
    job: &mut JobContext,
) -> Result<Option<Annotations>> {
    if !network.init_from_gold {
        return Ok(None);
    }
    let Some(matrices) = matrices_of_gold(a)? else {
        job.warn("no trusted instance has annotations (gold of the role `train`): init_from_gold changes nothing");
        return Ok(None);
    };
    let few = few_of_a_class(a, "from whose annotations the fit starts");
    few.into_iter().for_each(|warning| job.warn(warning));
    let mut started = a.clone();
    started.given.confusion = Some(Arc::new(matrices));
    Ok(Some(started))
}

/// The annotations without trusted classes; `None` where gold is not held back.
pub(super) fn without_gold(
    network: &NetworkSpec,
    a: &Annotations,
    job: &mut JobContext,
) -> Option<Annotations> {
    if network.hold_back_gold && network.fine_tune == 0 {
        job.warn(
            "gold of the role `train` trains nothing: it is held back, and there is no fine_tune",
        );
    }
    network.hold_back_gold.then(|| {
        let mut untold = a.clone();
        untold.trusted = None;
        untold
    })
}

/// Sets the rows of trusted instances to their classes.
pub(super) fn trust(posterior: &mut Posterior, a: &Annotations) {
    for i in 0..a.dims().instances {
        if let Some(class) = a.trusted_class(i) {
            let row = posterior.row_mut(i);
            row.fill(0.0);
            row[class as usize] = 1.0;
        }
    }
}

/// The matrices that are counted on the annotations of trusted instances, with one count added to each cell. Annotators
/// without such annotations share the matrix of all others together. `None` without any.
fn matrices_of_gold(a: &Annotations) -> Result<Option<GivenConfusion>> {
    if a.given.confusion.is_some() {
        return Err(Error::spec(
            "a fit cannot start at the matrices of gold and at those of a table",
        )
        .at("model.init_from_gold")
        .found("true, with source.confusion")
        .help("leave one of the two out"));
    }
    let Dims { instances, annotators, classes, labels } = a.dims();
    let width = classes * labels;
    // The last is that of all annotators together.
    let mut counts = vec![0.0; (annotators + 1) * width];
    for i in 0..instances {
        let Some(class) = a.trusted_class(i) else { continue };
        for (annotator, label, weight) in a.triples_of_instance(i) {
            for r in [annotator as usize, annotators] {
                counts[r * width + class as usize * labels + label as usize] += weight;
            }
        }
    }
    let has_any = |matrix: &[f64]| matrix.iter().any(|count| *count > 0.0);
    let are_seen: Vec<bool> = counts.chunks_exact(width.max(1)).map(has_any).collect();
    if !are_seen.last().is_some_and(|any| *any) {
        return Ok(None);
    }
    for row in counts.chunks_exact_mut(labels.max(1)) {
        let sum: f64 = row.iter().map(|count| count + 1.0).sum();
        row.iter_mut().for_each(|count| *count = (*count + 1.0) / sum);
    }
    let of_annotator = |r: usize| if are_seen[r] { r } else { annotators } as u32;
    let matrix_of_annotator = (0..annotators).map(of_annotator).collect();
    Ok(Some(GivenConfusion::new((classes, labels), matrix_of_annotator, counts)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, tiny};

    /// Instance 0 is of class 0 and instance 1 of class 1; annotator 0 is right about both, annotator 1 about neither, and
    /// annotator 2 has no trusted instance.
    #[test]
    fn matrices_of_gold_are_counts_and_one() {
        let mut a = tiny(2, &[(0, 0, 0), (1, 0, 1), (0, 1, 1), (1, 1, 0), (2, 2, 0)]);
        assert_eq!(matrices_of_gold(&a).unwrap(), None);
        a.trusted = Some(vec![Some(0), Some(1), None]);
        let (given, mut job) = (matrices_of_gold(&a).unwrap().unwrap(), JobContext::new(0));
        let (two, one) = (2.0 / 3.0, 1.0 / 3.0);
        assert_close(given.matrix_of(0), &[two, one, one, two], 1e-12, "always right");
        assert_close(given.matrix_of(1), &[one, two, two, one], 1e-12, "always wrong");
        assert_close(given.matrix_of(2), &[0.5; 4], 1e-12, "the crowd");
        let network = NetworkSpec {
            init_from_gold: true,
            hold_back_gold: true,
            fine_tune: 1,
            ..NetworkSpec::default()
        };
        let started = with_matrices_of_gold(&network, &a, &mut job).unwrap().unwrap();
        assert_eq!(started.given.confusion.as_deref(), Some(&given));
        assert!(with_matrices_of_gold(&network, &started, &mut job).is_err());
        let untold = without_gold(&network, &started, &mut job).unwrap();
        assert!(untold.trusted.is_none() && untold.given.confusion.is_some());
        let none = NetworkSpec::default();
        assert!(with_matrices_of_gold(&none, &a, &mut job).unwrap().is_none());
        assert!(without_gold(&none, &a, &mut job).is_none());
    }
}
