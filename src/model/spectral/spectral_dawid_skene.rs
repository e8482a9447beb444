//! Dawid-Skene whose matrices start from moments of three groups of annotators, and not from the votes.
//!
//! ```text
//! Z_g[i] = the labels that the annotators of group g gave instance i, as a sum of one-hot vectors;   N instances
//! M_g[l][k] = E(Z_g[l] | class k),   w[k] = P(class k)
//! for each group c, with the other two a and b:
//!   P = E(Z_c Z_b^T) E(Z_a Z_b^T)^-1,   Q = E(Z_c Z_a^T) E(Z_b Z_a^T)^-1      P Z_a and Q Z_b behave as Z_c does
//!   E(P Z_a (Q Z_b)^T) = sum_k w[k] M_c[.][k] M_c[.][k]^T = L L^T               (Cholesky)
//!   E(L^-1 P Z_a, L^-1 Q Z_b, L^-1 Z_c) = sum_k w[k]^(-1/2) v_k v_k v_k         orthonormal v_k, by the power method
//!   M_c[.][k] = w[k]^(-1/2) L v_k,   where k is the label of the largest element
//! annotator r of group c:   (the others' mean w) diag, M = M_a + M_b:   E(1[r says l] (Z_a + Z_b)^T) (diag(w) M^T)^-1
//! ```
//! 1. Annotators are dealt into three groups at random, so that each has as many annotations as possible.
//! 2. The matrices above; elements below 1e-6 are raised to it, and what an annotator says given a class sums to 1.
//! 3. T from these matrices and uniform P(class).
//! 4. EM as in [`DawidSkene`](crate::model::em::DawidSkene), by maximum likelihood with uniform P(class).
//!
//! The moments determine the matrices, where EM from the votes may end in another optimum. If the matrices cannot be had from
//! them, EM starts at the votes, and a warning says so: if there are fewer than three annotators, a class that
//! nobody tells apart from others, two columns with the largest element at the same label, or more than 32 classes.
//!
//! Y. Zhang, X. Chen, D. Zhou, M. I. Jordan: Spectral Methods Meet EM: A Provably Optimal Algorithm for Crowdsourcing. JMLR 17,
//! 2016. arXiv:1406.3824
//!
//! It is meant for many instances and few classes: the moments are means over instances, of which each class needs hundreds.
//! An instance tells of three groups at once only if it has an annotation of each: a fit warns where instances have fewer than
//! six on average.
//!
//! Differs from the authors' Matlab code in the groups, which there are every third annotator; in columns with the largest element
//! at the same label, of which there one takes a label that is left; in EM, which there skips the labels that an
//! annotator never gave for a class, and stops after ten rounds; and in a Cholesky factor in place of a singular value
//! decomposition, from which the same matrices follow.
//!
//! ```
//! use labelmill::model::{Model, spectral::SpectralDawidSkene};
//! use labelmill::testing::synth::CrowdShape;
//! use labelmill::testing::tiny;
//!
//! let drawn = CrowdShape { classes: 2, ..CrowdShape::default() }.draw(1);
//! let a = tiny(2, &drawn.rows);
//! let fitted = SpectralDawidSkene::default().fit((&a).into(), &mut labelmill::job_context::JobContext::new(0)).unwrap();
//! let right = (0..200).filter(|i| fitted.posterior.row(*i)[drawn.truth[*i] as usize] > 0.5).count();
//! assert!(right > 150, "{right} of 200");
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::PairLogs;
use super::moments::{Found, GroupSums, N_GROUPS};
use crate::error::Result;
use crate::frame::{Annotations, Dims, Evidence, MemoryEstimate, QuestionSizes};
use crate::job_context::{Cancel, JobContext, WarningCode};
use crate::model::em::kernels::{self, Prior, log_domain};
use crate::model::em::{self, DawidSkene, EmModel, EmResult, EmSteps, Objective, PairEm, StopRule};
use crate::model::fitted::Fitted;
use crate::model::posterior::Posterior;
use crate::model::{Capabilities, Model, Spec};

/// Dawid-Skene from the matrices of moments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SpectralDawidSkene {
    /// From how many random vectors each column is looked for. Raising it makes it less likely to take a lesser column for
    /// the largest one, where there are many classes.
    #[schemars(range(min = 1))]
    pub n_starts: u32,
    /// Added to every cell of a confusion matrix before its rows are normalised, in EM. Raising it pulls annotators with few
    /// annotations towards chance.
    #[schemars(range(min = 0.0))]
    pub smoothing: f64,
    /// When to stop.
    pub stop: StopRule,
}

impl Default for SpectralDawidSkene {
    fn default() -> Self {
        Self { n_starts: 20, smoothing: 0.0, stop: StopRule::default() }
    }
}

impl Spec for SpectralDawidSkene {
    const KIND: &'static str = "spectral_dawid_skene";
    const SUMMARY: &'static str =
        "dawid_skene without prior, from matrices of moments, for many instances of few classes";
    const SOURCE: &'static str = "Zhang et al. 2016, JMLR 17, arXiv:1406.3824";
    const CAPABILITIES: Capabilities =
        Capabilities { random_start: true, max_classes: Some(MAX_CLASSES), ..Capabilities::LABELS };
}

/// The moments of more classes take too long: their third ones have as many cells as the cube of this.
const MAX_CLASSES: u32 = 32;

impl Model for SpectralDawidSkene {
    fn fit(&self, evidence: Evidence<'_>, job: &mut JobContext) -> Result<Fitted> {
        let a = evidence.annotations;
        let start = match self.start(a, job) {
            Ok(start) => {
                warn_of_thin_labels(a, job);
                Some(start)
            }
            Err(why) => {
                job.warn_code(
                    WarningCode::NotMeantFor,
                    format_args!("EM starts at the votes, since moments give no matrices: {why}; dawid_skene has a prior too"),
                );
                None
            }
        };
        let Self { smoothing, stop, .. } = self.clone();
        let inner =
            DawidSkene { smoothing, stop, fixed_prior: true, ..DawidSkene::maximum_likelihood() };
        em::fit(&FromPosteriors { inner: PairEm(inner), start }, Self::KIND, a, job)
    }

    /// That of other models of pairs, and the matrices and posteriors of the start.
    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        let own = kernels::memory_estimate(sizes)?;
        let rows = sizes.pairs.checked_mul(2)?.checked_add(sizes.dims.instances)?;
        let start = rows.checked_mul(sizes.dims.classes)?.checked_mul(size_of::<f64>())?;
        Some(MemoryEstimate { working: own.working.checked_add(start)?, ..own })
    }
}

/// With fewer annotations, most instances have one of a group or none: of 21 real crowds, four have fewer and yet matrices of
/// moments, and two of these lose more than three points to the vote.
const MIN_REDUNDANCY: usize = 2 * N_GROUPS;

/// Warns where most instances say little of how three annotators go together.
fn warn_of_thin_labels(a: &Annotations, job: &mut JobContext) {
    let annotated = (0..a.dims().instances).filter(|i| !a.pairs_of_instance(*i).is_empty());
    let mean = a.len() as f64 / annotated.count().max(1) as f64;
    if mean < MIN_REDUNDANCY as f64 {
        job.warn_code(
            WarningCode::NotMeantFor,
            format_args!(
                "spectral_dawid_skene is meant for instances with {MIN_REDUNDANCY} annotations or more, two of each of its \
                 groups of annotators, and here they have {mean:.1}: use dawid_skene or ibcc, or compare with majority_vote"
            ),
        );
    }
}

/// Dawid-Skene that starts at these posteriors, or at the votes.
struct FromPosteriors {
    inner: PairEm<DawidSkene>,
    start: Option<Posterior>,
}

impl EmSteps for FromPosteriors {
    type Params = <PairEm<DawidSkene> as EmSteps>::Params;

    fn params(&self, a: &Annotations) -> Self::Params {
        self.inner.params(a)
    }

    fn start(
        &self,
        a: &Annotations,
        attempt: u32,
        params: &mut Self::Params,
        job: &JobContext,
    ) -> Option<f64> {
        match &self.start {
            Some(t) => params.count(a, t),
            None => return self.inner.start(a, attempt, params, job),
        }
        None
    }

    fn m_step(&self, a: &Annotations, params: &mut Self::Params, cancel: &Cancel) -> Result<()> {
        self.inner.m_step(a, params, cancel)
    }

    fn e_step(&self, a: &Annotations, params: &mut Self::Params) -> Objective {
        self.inner.e_step(a, params)
    }

    fn caution(&self, a: &Annotations, job: &JobContext) -> Option<String> {
        self.inner.caution(a, job)
    }

    fn stop(&self) -> &StopRule {
        self.inner.stop()
    }
}

impl EmModel for FromPosteriors {
    fn finish(&self, a: &Annotations, params: Self::Params, cancel: &Cancel) -> Result<EmResult> {
        self.inner.finish(a, params, cancel)
    }
}

impl SpectralDawidSkene {
    /// Steps 1 to 3; else why the matrices cannot be had.
    fn start(&self, a: &Annotations, job: &JobContext) -> Found<Posterior> {
        let Dims { annotators, classes, instances, .. } = a.dims();
        if annotators < N_GROUPS {
            return Err("there are fewer than three annotators");
        }
        if classes > MAX_CLASSES as usize {
            return Err("there are more than 32 classes");
        }
        let sums = GroupSums::new(a, job);
        let logs = sums.logs(&sums.found(self.n_starts, job)?)?;
        let mut t = Posterior::zeros(instances, classes);
        let prior = vec![1.0 / classes as f64; classes];
        log_domain::e_step(a, Prior::Class(&prior), &PairLogs { a, logs: &logs }, &mut t);
        if t.values().iter().all(|p| p.is_finite()) { Ok(t) } else { Err("they are not finite") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Dims;
    use crate::testing::synth::CrowdShape;
    use crate::testing::{annotations, fit, iterations, tiny};

    /// Nine annotators of whom each labels every instance, by the matrices below; as many instances as the product of
    /// all outcomes asks for would be too many, so that they are drawn.
    fn drawn(n: u32) -> (Annotations, Vec<u32>) {
        let shape = CrowdShape {
            instances: n,
            annotators: 9,
            classes: 3,
            redundancy: 9,
            accuracy: (0.55, 0.95),
        };
        let drawn = shape.draw(3);
        let dims = Dims { instances: n as usize, annotators: 9, classes: 3, labels: 3 };
        (annotations(dims, &drawn.rows), drawn.truth)
    }

    // keys: spectral_dawid_skene.n_starts, spectral_dawid_skene.smoothing
    #[test]
    fn the_start_is_right_before_any_iteration() {
        let (a, truth) = drawn(600);
        let start = SpectralDawidSkene { n_starts: 1, ..SpectralDawidSkene::default() }
            .start(&a, &JobContext::new(0))
            .unwrap();
        let right = (0..600).filter(|i| start.row(*i)[truth[*i] as usize] > 0.5).count();
        assert!(right > 560, "{right}");
        let skill = |smoothing| {
            let spec = SpectralDawidSkene {
                smoothing,
                stop: iterations(5),
                ..SpectralDawidSkene::default()
            };
            fit(spec, &a).report.skill[0]
        };
        assert!(skill(1e4) < 0.4 && skill(0.0) > 0.5);
    }

    #[test]
    fn thin_labels_are_warned_of() {
        let warnings = |redundancy| {
            let drawn = CrowdShape { redundancy, ..CrowdShape::default() }.draw(1);
            let mut job = JobContext::new(0);
            SpectralDawidSkene::default().fit((&tiny(3, &drawn.rows)).into(), &mut job).unwrap();
            job.warnings().join("")
        };
        assert!(warnings(5).contains("here they have 5.0"), "{}", warnings(5));
        assert!(!warnings(6).contains("[not_meant_for]"), "{}", warnings(6));
    }

    #[test]
    fn crowds_without_such_moments_start_at_the_votes_and_say_so() {
        let tied = tiny(2, &[(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)]);
        let unused = tiny(
            3,
            &(0..60)
                .map(|n: u32| (n / 4, n % 4, (n / 4 + u32::from(n.is_multiple_of(7))) % 2))
                .collect::<Vec<_>>(),
        );
        let many = tiny(40, &[(0, 0, 0), (0, 1, 39), (0, 2, 0)]);
        for (a, why) in [
            (tied, "fewer than three annotators"),
            (unused, "never told apart"),
            (many, "more than 32 classes"),
        ] {
            let mut job = JobContext::new(0);
            let fitted = SpectralDawidSkene::default().fit((&a).into(), &mut job).unwrap();
            assert!(job.warnings()[0].contains(why), "{:?}", job.warnings());
            let dawid_skene = DawidSkene { fixed_prior: true, ..DawidSkene::maximum_likelihood() };
            assert_eq!(fitted.posterior, fit(dawid_skene, &a).posterior, "{why}");
        }
    }
}
