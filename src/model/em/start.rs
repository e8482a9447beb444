//! The starting point of a run of EM: the votes.

use std::ops::Range;

use rand::Rng as _;

use crate::frame::Annotations;
use crate::job_context::JobContext;
use crate::model::posterior::write_votes;

/// Writes the shares of the votes of adjacent instances, `[instance, class]`, into zeros. From the second attempt on, every
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
        write_votes(a, i, row);
        if attempt > 0 && a.trusted_class(i).is_none() {
            let noise: Vec<f64> = row.iter().map(|_| rng.random::<f64>()).collect();
            let sum: f64 = noise.iter().sum();
            row.iter_mut().zip(&noise).for_each(|(p, n)| *p = 0.5 * *p + 0.5 * n / sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tiny;

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
