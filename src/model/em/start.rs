//! The starting point of EM: the votes, or what confusion matrices that a table gives make of the annotations.

use std::ops::Range;

use rand::Rng as _;

use crate::frame::Annotations;
use crate::job_context::JobContext;
use crate::model::numerics::softmax;
use crate::model::posterior::{Posterior, write_votes};

/// The posteriors at which the first attempt starts.
pub(in crate::model) fn first_start(a: &Annotations) -> Posterior {
    let mut t = Posterior::zeros(a.dims().instances, a.dims().classes);
    t.par_rows_mut(|i, row| write_first(a, i, row));
    t
}

/// Writes the row of an instance into zeros: `T[k]` ~ product over the annotations (r, y) of pi[r][k][y] with the given matrices
/// pi, drawn to chance; the shares of the votes without any.
fn write_first(a: &Annotations, i: usize, row: &mut [f64]) {
    let Some(given) = a.given.confusion.as_deref().filter(|_| a.trusted_class(i).is_none()) else {
        return write_votes(a, i, row);
    };
    let mut logs = vec![0.0; row.len()];
    for (r, label, weight) in a.triples_of_instance(i) {
        for (k, log) in logs.iter_mut().enumerate() {
            *log += weight * given.soften(given.cell(r as usize, k, label as usize)).ln();
        }
    }
    softmax(&logs, row);
}

/// Writes the start of adjacent instances, `[instance, class]`, into zeros. From the second attempt on, it is the votes, and every
/// row that is not trusted is mixed half and half with a random one.
pub(super) fn write_start(
    a: &Annotations,
    instances: Range<usize>,
    attempt: u32,
    job: &JobContext,
    rows: &mut [f64],
) {
    let n = a.dims().classes.max(1);
    let mut rng = job.rng(&format!("restart/{attempt}/{}", instances.start));
    for (i, row) in instances.zip(rows.chunks_exact_mut(n)) {
        if attempt == 0 {
            write_first(a, i, row);
            continue;
        }
        write_votes(a, i, row);
        if a.trusted_class(i).is_none() {
            let noise: Vec<f64> = row.iter().map(|_| rng.random::<f64>()).collect();
            let sum: f64 = noise.iter().sum();
            row.iter_mut().zip(&noise).for_each(|(p, n)| *p = 0.5 * *p + 0.5 * n / sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::frame::{Dims, GivenConfusion};
    use crate::testing::{assert_close, tiny, weighted};

    /// Annotator 0 is right in nine of ten cases, annotator 1 says the opposite in eight of ten, with a weight of 2.
    #[test]
    fn given_matrices_make_the_first_start_alone() {
        let dims = Dims { instances: 3, annotators: 2, classes: 2, labels: 2 };
        let mut a = weighted(dims, &[(0, 0, 0), (0, 1, 0), (1, 0, 0)], vec![1.0, 2.0, 1.0]);
        let cells = vec![0.9, 0.1, 0.1, 0.9, 0.2, 0.8, 0.8, 0.2];
        a.given.confusion = Some(Arc::new(GivenConfusion::new((2, 2), vec![0, 1], cells)));
        a.trusted = Some(vec![None, Some(1), None]);
        // Softened: .892 and .108, .206 and .794.
        let (t, odds) = (first_start(&a), 0.892 / 0.108 * (0.206_f64 / 0.794).powi(2));
        assert_close(
            t.values(),
            &[odds / (1.0 + odds), 1.0 / (1.0 + odds), 0.0, 1.0, 0.5, 0.5],
            1e-12,
            "T",
        );
        let (mut rows, mut second) = ([0.0; 6], [0.0; 6]);
        write_start(&a, 0..3, 0, &JobContext::new(5), &mut rows);
        assert_eq!(rows, t.values());
        write_start(&a, 0..3, 1, &JobContext::new(5), &mut second);
        assert!(second[0] > 0.5, "{second:?}");
    }

    /// The votes for instance 0 are 3 and 1 of 4; instance 1 is trusted.
    #[test]
    fn half_of_another_start_are_the_votes_and_trusted_rows_stay() {
        let mut a = tiny(2, &[(0, 0, 0), (0, 1, 0), (0, 2, 0), (0, 3, 1), (1, 0, 0)]);
        a.trusted = Some(vec![None, Some(1)]);
        let job = JobContext::new(5);
        let starts: Vec<[f64; 4]> = (0..3)
            .map(|attempt| {
                let mut rows = [0.0; 4];
                write_start(&a, 0..2, attempt, &job, &mut rows);
                rows
            })
            .collect();
        assert_eq!(starts[0], [0.75, 0.25, 0.0, 1.0]);
        for row in &starts[1..] {
            assert!((row[0] + row[1] - 1.0).abs() < 1e-12 && row[0] > 0.375 && row[0] < 0.875);
            assert_eq!(row[2..], [0.0, 1.0]);
        }
        assert!(starts[1] != starts[2]);
    }
}
