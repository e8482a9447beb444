//! A skill for each annotator, from how often pairs of annotators agree: the completion of a matrix of rank one.
//!
//! ```text
//! P(annotator r is right) = (s[r] (C - 1) + 1) / C            s is 0 for chance, 1 for never wrong, below 0 for worse than chance
//! E m[r][t] = s[r] s[t],   m[r][t] = (C e[r][t] / g[r][t] - 1) / (C - 1)
//! g: the instances that both have labelled;  e: those on which they agree
//! ```
//! 1. u[r] = v[r] = 1/2.
//! 2. v[t] = trimmed mean of |m[r][t]| / u[r] over the annotators r that t met; then u from v in the same way; until the
//!    matrix u v^T stays; both are between 1/100 and 100. After 100 steps, u = v = sqrt(u v) before each further one. The mean
//!    leaves out, of the values below the present v[t] and of those above it, the F farthest each, or all where there are
//!    fewer. F = max(0, floor(d / 2) - 1), where d is the least number of others that an annotator met.
//! 3. |s[r]| = u[r] sqrt(|v| / |u|). Signs: x = 1; a hundred times x[r] = (x[r] + sum_t g m x[t] / sum_t g) / 2; then the sign
//!    of x[r], where the sum of x is made positive.
//! 4. s is clamped to -1 / (C - 1) + 1 / sqrt(N) .. 1 - 1 / sqrt(N) (N instances, at least 4), and an annotator who met nobody
//!    has the mean of the others.
//! 5. w[r] = ln(p (C - 1) / (1 - p)) with p = P(r is right); T = softmax of the sums of w by class.
//!
//! A step takes time in proportion to the pairs of annotators that meet. What annotators agree on is learned from
//! no class, so that some of them may be adversaries; F of them around each annotator may do what they like.
//!
//! Q. Ma, A. Olshevsky: Adversarial Crowdsourcing Through Robust Rank-One Matrix Completion. NeurIPS 2020. arXiv:2010.12181
//!
//! It is meant for annotators who meet on many instances: a pair's m has an error of about 1 / sqrt(g). A fit warns where
//! half of the pairs that meet have fewer than 10 instances in common.
//!
//! Differs from crowd-kit's `MMSR` in the start, which is random there; in signs, which it takes from a colouring of the
//! graph of pairs, each of which counts the same, however few instances it rests on: on rte, where it is right on 85.8 %,
//! signs that follow the agreement of each pair are right on 92 %; in annotators who met nobody, who have no weight
//! there; in that u and v are made equal after 100 steps, without which large crowds take thousands of them; and in that T
//! sums to 1. Weights count: a pair's agreement on an instance by their product. A trusted class is the label of one more
//! annotator.
//!
//! ```
//! use labelmill::model::{Model, spectral::Mmsr};
//! use labelmill::testing::tiny;
//!
//! // Annotators 0 to 2 agree on forty instances; annotator 3 always says the opposite.
//! let rows: Vec<_> = (0..160).map(|n| (n / 4, n % 4, (n / 4 + u32::from(n % 4 == 3)) % 2)).collect();
//! let fitted = Mmsr::default().fit((&tiny(2, &rows)).into(), &mut labelmill::job_context::JobContext::new(0)).unwrap();
//! assert!(fitted.report.skill[0] > 0.9 && fitted.report.skill[3] < 0.1);
//! assert!(fitted.posterior.row(1)[1] > 0.99);
//! ```

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::meetings::{Meeting, Meetings};
use super::{co_occurrence, few_annotators, gold_decides};
use crate::error::Result;
use crate::frame::{Dims, Evidence, MemoryEstimate, QuestionSizes};
use crate::job_context::{JobContext, WarningCode};
use crate::model::em::kernels::{LogLikelihood, Prior, log_domain};
use crate::model::fitted::{Fitted, Report, Stop};
use crate::model::posterior::Posterior;
use crate::model::{Capabilities, Model, Spec};

/// MMSR: skills by the robust completion of a matrix of rank one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Mmsr {
    /// The maximum number of steps.
    #[schemars(range(min = 1))]
    pub n_iter: u32,
    /// Stop when the matrix changes by less than this.
    #[schemars(range(min = 0.0))]
    pub tol: f64,
}

impl Default for Mmsr {
    fn default() -> Self {
        Self { n_iter: 10_000, tol: 1e-10 }
    }
}

impl Spec for Mmsr {
    const KIND: &'static str = "mmsr";
    const SUMMARY: &'static str =
        "a vote weighted by how often pairs agree, for annotators who share many instances";
    const SOURCE: &'static str = "Ma and Olshevsky 2020, NeurIPS, arXiv:2010.12181";
    const CAPABILITIES: Capabilities =
        Capabilities { annotator_prior: true, ..Capabilities::LABELS };
}

/// The numbers for each pair of annotator and label: skills, signs, and what a step replaces.
const NUMBERS_OF_PAIR: usize = 8;

/// The largest u and v; the least is one by this.
///
/// # Why
/// The agreements of a crowd are not those of a matrix of rank one, but for infinitely many instances: where one annotator
/// agrees with two who agree with each other no better than by chance, his u grows with every step.
const BOUND: f64 = 100.0;

/// From the step after this one on, u and v are made equal before each step.
///
/// # Why
/// m is symmetric, and at the end u and v are the same but for a factor. Where annotators fall into groups that are alike
/// among themselves, u may be too large and v too small in one of them, which a step corrects by less than a hundredth.
const STEPS_APART: u32 = 100;

/// With fewer instances in common, the agreement of a pair tells little.
const FEW_IN_COMMON: f64 = 10.0;

impl Model for Mmsr {
    fn fit(&self, evidence: Evidence<'_>, job: &mut JobContext) -> Result<Fitted> {
        let a = evidence.annotations;
        let Dims { annotators, classes, instances, .. } = a.dims();
        let meetings = Meetings::new(a);
        let advice = "use dawid_skene or one_coin, or compare with majority_vote";
        if let Some(few) = few_annotators(a) {
            job.warn_code(WarningCode::NotMeantFor, format_args!("mmsr compares {few}: {advice}"));
        } else if let Some(median) = meetings.median().filter(|n| *n < FEW_IN_COMMON) {
            job.warn_code(
                WarningCode::NotMeantFor,
                format_args!(
                    "mmsr is meant for annotators who share many instances, and half of the pairs that share any share \
                     {median:.0} or fewer: {advice}"
                ),
            );
        }
        let margin = 1.0 / (instances.max(4) as f64).sqrt();
        job.progress.begin(Self::KIND, Some(u64::from(self.n_iter)));
        let (magnitudes, stop) = self.magnitudes(&meetings, job)?;
        job.progress.end();
        if !stop.converged && self.tol > 0.0 {
            let [n_iter, tol] = ["n_iter", "tol"].map(|key| job.model_key(key));
            job.warn_code(
                WarningCode::NotConverged,
                format_args!(
                    "the skills still moved after {} steps: raise {n_iter} or {tol}",
                    stop.iterations
                ),
            );
        }
        let others = (classes as f64 - 1.0).max(1.0);
        let mut skills: Vec<Option<f64>> = magnitudes
            .iter()
            .zip(meetings.signs(gold_decides(a)))
            .map(|(magnitude, sign)| {
                magnitude.map(|m| (m * sign).clamp(margin - 1.0 / others, 1.0 - margin))
            })
            .collect();
        skills.truncate(annotators);
        let known: Vec<f64> = skills.iter().flatten().copied().collect();
        let mean =
            if known.is_empty() { 0.5 } else { known.iter().sum::<f64>() / known.len() as f64 };
        let right = |s: &Option<f64>| (s.unwrap_or(mean) * others + 1.0) / (others + 1.0);
        // With a single class, every annotation is right.
        let skill: Vec<f64> =
            skills.iter().map(|s| if classes < 2 { 1.0 } else { right(s) }).collect();
        let weight: Vec<f64> = skill
            .iter()
            .map(|p| if classes < 2 { 0.0 } else { (p * others / (1.0 - p)).ln() })
            .collect();
        let mut t = Posterior::zeros(instances, classes);
        let prior = vec![1.0 / classes.max(1) as f64; classes];
        log_domain::e_step(a, Prior::Class(&prior), &WeightedVote(&weight), &mut t);
        let annotator_parameters = vec![("weight".to_owned(), weight)];
        let report = Report { skill, annotator_parameters, ..Report::default() };
        Ok(Fitted { stop, ..Fitted::new(t, report) })
    }

    /// The co-occurrences, and those of pairs of annotators.
    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        co_occurrence::memory_estimate(sizes, NUMBERS_OF_PAIR)
    }
}

/// The weight of each annotator counts for the class that he chose.
struct WeightedVote<'a>(&'a [f64]);

impl LogLikelihood for WeightedVote<'_> {
    fn add(&self, _: usize, annotator: u32, label: u32, logs: &mut [f64]) {
        if let Some(log) = logs.get_mut(label as usize) {
            *log += self.0[annotator as usize];
        }
    }
}

impl Mmsr {
    /// |s| of every annotator; `None` for one who met nobody.
    fn magnitudes(
        &self,
        meetings: &Meetings,
        job: &JobContext,
    ) -> Result<(Vec<Option<f64>>, Stop)> {
        let n_met = || meetings.0.iter().map(Vec::len).filter(|n| *n > 0);
        let n_trimmed = (n_met().min().unwrap_or(0) / 2).saturating_sub(1);
        let next = |present: &[f64], by: &[f64]| -> Vec<f64> {
            let of_annotator = |values: &mut Vec<f64>, (present, met): (&f64, &Vec<Meeting>)| {
                values.clear();
                values.extend(met.iter().map(|m| m.agreement.abs() / by[m.other as usize]));
                trimmed_mean(values, *present, n_trimmed).clamp(1.0 / BOUND, BOUND)
            };
            present.par_iter().zip(&meetings.0).map_init(Vec::new, of_annotator).collect()
        };
        let mut u = vec![0.5; meetings.0.len()];
        let mut v = u.clone();
        let mut stop = Stop { converged: false, iterations: 0, objective: None, planned: None };
        while !stop.converged && stop.iterations < self.n_iter {
            job.cancel.check()?;
            stop.iterations += 1;
            if stop.iterations > STEPS_APART {
                u.iter_mut().zip(&v).for_each(|(u, v)| *u = f64::sqrt(*u * v));
                v.clone_from(&u);
            }
            let next_v = next(&v, &u);
            let next_u = next(&u, &next_v);
            // No less than the change of the matrix, and free of what the difference of two matrices would cancel.
            let change = distance(&next_u, &u) * norm(&next_v) + norm(&u) * distance(&next_v, &v);
            stop.converged = change < self.tol;
            (u, v) = (next_u, next_v);
            job.progress.at(u64::from(stop.iterations), &format!("change {change:.1e}"));
        }
        let balance = if norm(&u) > 0.0 { (norm(&v) / norm(&u)).sqrt() } else { 1.0 };
        let magnitude = |(u, met): (&f64, &Vec<Meeting>)| (!met.is_empty()).then_some(u * balance);
        Ok((u.iter().zip(&meetings.0).map(magnitude).collect(), stop))
    }
}

/// The mean without the `n_trimmed` smallest of the values below the present one and the `n_trimmed` largest of those above
/// it, or without all of these where there are fewer.
fn trimmed_mean(values: &mut [f64], present: f64, n_trimmed: usize) -> f64 {
    let below = values.iter().filter(|v| **v < present).count().min(n_trimmed);
    let above = values.iter().filter(|v| **v > present).count().min(n_trimmed);
    let n_kept = values.len() - below - above;
    if n_kept == 0 {
        return present;
    }
    if below > 0 {
        values.select_nth_unstable_by(below, f64::total_cmp);
    }
    let values = &mut values[below..];
    if above > 0 {
        values.select_nth_unstable_by(n_kept, f64::total_cmp);
    }
    values[..n_kept].iter().sum::<f64>() / n_kept as f64
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|v| v * v).sum::<f64>().sqrt()
}

fn distance(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(x, y)| (x - y) * (x - y)).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, fit, tiny};

    /// Three annotators, four instances: 0 and 1 agree on 3 of 4, 0 and 2 on 3 of 4, 1 and 2 on 2 of 4. With two classes, m
    /// is 1/2, 1/2 and 0; nothing is trimmed. The first v[0] = (1/2 + 1/2) / 2 / .5 = 1, v[1] = (1/2 + 0) / 2 / .5 = 1/2 = v[2].
    /// Then u[0] = (1/2 / .5 + 1/2 / .5) / 2 = 1, u[1] = (1/2 / 1 + 0) / 2 = 1/4 = u[2].
    /// |v|^2 = 1.5 and |u|^2 = 1.125, so that s[1] = 1/4 (1.5 / 1.125)^(1/4).
    // keys: mmsr.n_iter, mmsr.tol
    #[test]
    fn a_step_is_the_one_worked_out_by_hand() {
        let labels = [[0, 0, 0], [1, 1, 1], [0, 1, 0], [1, 1, 0]];
        let row = |i: usize| (0..3).map(move |r| (i as u32, r as u32, labels[i][r]));
        let a = tiny(2, &(0..4).flat_map(row).collect::<Vec<_>>());
        let fitted = fit(Mmsr { n_iter: 1, tol: 0.0 }, &a);
        let s = 0.25 * (1.5_f64 / 1.125).powf(0.25);
        let p = f64::midpoint(s, 1.0);
        // s[0] is above its bound, 1 - 1 / sqrt(4).
        assert_close(&fitted.report.skill, &[0.75, p, p], 1e-12, "p");
        let odds = |p: f64| p / (1.0 - p);
        let against = 3.0 * odds(p);
        assert_close(&fitted.posterior.row(2)[..1], &[against / (against + odds(p))], 1e-12, "T2");
        assert_eq!((fitted.stop.iterations, fitted.stop.converged), (1, false));
        // No matrix of rank one has these agreements; the bound ends the growth of u[0].
        assert!(fit(Mmsr::default(), &a).stop.converged);
    }

    #[test]
    fn a_mean_leaves_out_the_farthest_on_both_sides() {
        let mean = |n_trimmed| trimmed_mean(&mut [9.0, 1.0, 2.0, 3.0, 4.0], 2.5, n_trimmed);
        assert_eq!((mean(0), mean(1), mean(2)), (3.8, 3.0, 3.0));
        // Of two below the present value none is left, of three above it one.
        assert_eq!(trimmed_mean(&mut [1.0, 2.0, 3.0, 4.0, 9.0], 2.5, 2), 3.0);
        assert_eq!(trimmed_mean(&mut [], 0.3, 1), 0.3);
    }

    /// A chain of eight groups, of which every second one errs: neighbours have one instance in common. With u and v apart
    /// there are 835 steps.
    #[test]
    fn groups_that_hardly_meet_take_few_steps() {
        let (mut rows, mut i) = (Vec::new(), 0);
        for group in 0..8 {
            for k in 0..24 {
                let is_wrong = |r: u32| group % 2 == 1 && (k + 5 * r).is_multiple_of(4);
                rows.extend((0..4).map(|r| (i, 4 * group + r, (i + u32::from(is_wrong(r))) % 2)));
                i += 1;
            }
            if group < 7 {
                rows.extend([(i, 4 * group + 3, i % 2), (i, 4 * group + 4, i % 2)]);
                i += 1;
            }
        }
        let Stop { converged, iterations, .. } = fit(Mmsr::default(), &tiny(2, &rows)).stop;
        assert!(converged && (STEPS_APART..STEPS_APART + 30).contains(&iterations), "{iterations}");
    }

    #[test]
    fn adversaries_are_inverted_and_strangers_have_the_mean_skill() {
        // Six annotators, of whom 4 and 5 say the opposite on all instances but every ninth; annotator 6 is alone.
        let label = |i: u32, r: u32| (i / 3 + u32::from(r > 3 && !(i + r).is_multiple_of(9))) % 2;
        let mut rows: Vec<_> = (0..540).map(|n| (n / 6, n % 6, label(n / 6, n % 6))).collect();
        rows.push((90, 6, 1));
        let fitted = fit(Mmsr::default(), &tiny(2, &rows));
        let skill = &fitted.report.skill;
        assert!(skill[..4].iter().all(|s| *s > 0.9) && skill[4] < 0.2, "{skill:?}");
        assert!(skill[6] > 0.6 && skill[6] < 0.7, "{skill:?}");
        assert!(fitted.posterior.row(90)[1] > 0.6);
    }

    /// Two pairs of annotators contradict each other.
    #[test]
    fn trusted_classes_tell_who_is_right() {
        let row = |n: u32| (n / 4, n % 4, (n / 4 + u32::from(n % 4 > 1)) % 2);
        let mut a = tiny(2, &(0..160).map(row).collect::<Vec<_>>());
        for truth in [0, 1] {
            a.trusted = Some((0..40).map(|i| (i < 9).then_some((i + truth) % 2)).collect());
            let fitted = fit(Mmsr::default(), &a);
            assert!(fitted.posterior.row(20)[truth as usize] > 0.9, "{:?}", fitted.report.skill);
        }
    }

    #[test]
    fn pairs_with_few_common_instances_are_warned_of() {
        let warnings = |n: u32, annotators: u32| {
            let rows: Vec<_> = (0..n * annotators)
                .map(|j| (j / annotators, j % annotators, j / annotators % 2))
                .collect();
            let mut job = JobContext::new(0);
            Mmsr::default().fit((&tiny(2, &rows)).into(), &mut job).unwrap();
            job.warnings().join("")
        };
        assert!(
            warnings(9, 3).contains("share 9 or fewer")
                && warnings(9, 3).contains("[not_meant_for]")
        );
        assert_eq!(warnings(10, 3), "");
        assert!(warnings(10, 2).contains("here are 2"));
    }
}
