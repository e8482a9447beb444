//! The starting point of a run of EM.

use rand::Rng as _;

use crate::frame::Annotations;
use crate::model::posterior::Posterior;
use crate::run::Run;

/// The starting point of a run of the loop.
pub enum Start {
    /// A posterior: the M-step comes first.
    Posterior(Posterior),
    /// The parameters that [`EmSteps::start`](super::EmSteps::start) has set: an E-step comes first.
    Parameters,
}

/// The start of a further run: every row that is not trusted is mixed half and half with a random one.
pub(super) fn perturbed(a: &Annotations, mut t: Posterior, attempt: u32, run: &Run) -> Posterior {
    let mut rng = run.rng(&format!("restart/{attempt}"));
    for i in 0..t.len() {
        let row = t.row_mut(i);
        let noise: Vec<f64> = row.iter().map(|_| rng.random::<f64>()).collect();
        let sum: f64 = noise.iter().sum();
        if a.trusted_class(i).is_none() {
            row.iter_mut().zip(&noise).for_each(|(p, n)| *p = 0.5 * *p + 0.5 * n / sum);
        }
    }
    t
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
        let run = Run::new(5);
        let starts: Vec<Posterior> =
            (1..3).map(|n| perturbed(&a, Posterior::from_votes(&a), n, &run)).collect();
        for t in &starts {
            let row = t.row(0);
            assert!((row[0] + row[1] - 1.0).abs() < 1e-12 && row[0] > 0.375 && row[0] < 0.875);
            assert_eq!(t.row(1), [0.0, 1.0]);
        }
        assert!(starts[0].row(0) != starts[1].row(0));
    }
}
