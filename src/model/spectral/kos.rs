//! Two sets of messages along the annotations: how likely the class of an instance is, and how reliable an annotator.
//!
//! ```text
//! A[i][r] = +1 if annotator r chose the class for instance i, -1 if another one
//! x[i -> r] = sum over the other annotators s of i of A[i][s] y[s -> i]
//! y[r -> i] = sum over the other instances j of r of A[j][r] x[j -> r]
//! score[i] = sum over all annotators of i of A[i][r] y[r -> i];   the class of the largest score is the label
//! ```
//! 1. Every y is 1, so that the first x are those of a vote.
//! 2. A round computes all x from y, and all y from x; both are divided by their root mean square, which changes no sign.
//! 3. After the rounds, P(class) is in proportion to m + score of the class, where m is the largest that the score of any
//!    class could be if all annotators of the instance chose it, whatever their reliability.
//!
//! One message leaves out what its receiver said, so that nobody confirms himself: an instance with one annotation and an
//! annotator with one instance send 0. An instance whose annotators are all such is labelled by the vote. A skill is
//! (1 + s) / 2, where s is the mean y of an annotator's annotations over the largest magnitude of anybody: an adversary's is
//! below 1/2.
//!
//! The method is one of two classes. Where there are more, each is compared with all others in rounds of its own, and the
//! largest score wins. A round takes time in proportion to the annotations.
//!
//! D. Karger, S. Oh, D. Shah: Budget-Optimal Task Allocation for Reliable Crowdsourcing Systems. Operations Research 62(1),
//! 2014, 1-24. doi:10.1287/opre.2013.1235
//!
//! Its guarantee is for instances with equally many annotators and annotators with equally many instances. Where a few
//! annotators have most annotations, their messages outgrow all others (on rte it is right on 50 %, a vote on 88 to 92 %): a
//! fit warns of that.
//!
//! Differs from the paper and from crowd-kit's `KOS` in the start, which there is random: here renamed annotators change
//! nothing. An annotation by weight w is +w or -w. A soft annotation is the sum of its parts. A trusted class is an
//! annotation by one more annotator, who has labelled all trusted instances.
//!
//! ```
//! use labelmill::model::{Model, spectral::Kos};
//! use labelmill::testing::tiny;
//!
//! // Annotators 0 to 2 agree on eight instances; annotator 3 always says the opposite.
//! let rows: Vec<_> = (0..32).map(|n| (n / 4, n % 4, (n / 4 + u32::from(n % 4 == 3)) % 2)).collect();
//! let fitted = Kos::default().fit((&tiny(2, &rows)).into(), &mut labelmill::job_context::JobContext::new(0)).unwrap();
//! assert!(fitted.report.skill[3] < 0.5 && fitted.posterior.row(1)[1] > 0.99);
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{gold_decides, votes};
use crate::error::Result;
use crate::frame::{
    Annotations, Dims, Evidence, MemoryEstimate, QuestionSizes, dense_memory_estimate,
};
use crate::job_context::{JobContext, WarningCode};
use crate::model::fitted::{Fitted, Report, Stop};
use crate::model::posterior::Posterior;
use crate::model::{Model, Spec};

/// KOS: messages between annotators and instances.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Kos {
    /// The number of rounds. More of them follow the annotators who share most instances.
    #[schemars(range(min = 1))]
    pub n_iter: u32,
}

impl Default for Kos {
    fn default() -> Self {
        Self { n_iter: 10 }
    }
}

impl Spec for Kos {
    const KIND: &'static str = "kos";
    const SUMMARY: &'static str =
        "messages between annotators and instances, for two classes and equally busy annotators";
    const SOURCE: &'static str = "Karger, Oh and Shah 2014, doi:10.1287/opre.2013.1235";
}

impl Model for Kos {
    fn fit(&self, evidence: Evidence<'_>, job: &mut JobContext) -> Result<Fitted> {
        let a = evidence.annotations;
        let Dims { annotators, classes, .. } = a.dims();
        let edges = Edges::new(a);
        if let Some(times) = edges.imbalance(annotators) {
            job.warn_code(
                WarningCode::NotMeantFor,
                format_args!(
                    "kos is meant for annotators with equally many annotations, and the busiest one has {times:.0} times as \
                     many as the mean: compare with majority_vote, or use dawid_skene or one_coin"
                ),
            );
        }
        if classes > 2 {
            job.warn_code(
                WarningCode::NotMeantFor,
                format_args!(
                    "kos is meant for two classes, and compares each of {classes} with all others together: use dawid_skene or \
                     one_coin, or compare with majority_vote"
                ),
            );
        }
        // With two classes, the messages of one are the opposite of those of the other.
        let n_sides = if classes == 2 { 1 } else { classes };
        let mut sides = Vec::with_capacity(n_sides);
        job.progress.begin(Self::KIND, Some(n_sides as u64));
        for class in 0..n_sides {
            sides.push(edges.side(a, &edges.signs(a, class as u32), self.n_iter, job)?);
            job.progress.at(class as u64 + 1, "classes compared with the others");
        }
        job.progress.end();
        let mut posterior = Posterior::from_votes(a);
        posterior.par_rows_mut(|i, row| {
            if a.trusted_class(i).is_none() {
                write_row(&sides, i, row);
            }
        });
        // With a single class, every annotator is right.
        let mut skill = vec![if classes < 2 { 1.0 } else { 0.0 }; annotators];
        for side in &sides {
            let largest = side.reliability.iter().fold(0.0, |max: f64, m| max.max(m.abs()));
            if largest > 0.0 && classes > 1 {
                let share = 0.5 / n_sides as f64;
                let of_side = side.reliability.iter().map(|y| (1.0 + y / largest) * share);
                skill.iter_mut().zip(of_side).for_each(|(skill, part)| *skill += part);
            }
        }
        let stop = Stop::planned(self.n_iter, "iteration", None);
        Ok(Fitted { stop, ..Fitted::new(posterior, Report { skill, ..Report::default() }) })
    }

    /// That of posteriors, three numbers for each annotation, and the scores of each class.
    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        let own = dense_memory_estimate(sizes)?;
        // An annotator, a sign and two messages.
        let bytes_of_edge = size_of::<u32>() + 3 * size_of::<f64>();
        let edges = sizes.annotations.checked_add(sizes.dims.instances)?;
        let edges = edges.checked_mul(bytes_of_edge)?;
        let scores = own.posteriors.checked_mul(2)?;
        Some(MemoryEstimate { working: edges.checked_add(scores)?, ..own })
    }
}

/// Writes the posterior of instance `i`; that of the vote stays where no message tells the classes apart.
fn write_row(sides: &[Side], i: usize, row: &mut [f64]) {
    let most = sides.iter().fold(0.0, |max: f64, side| max.max(side.most[i]));
    let score = |k: usize| {
        let sign = if sides.len() < row.len() && k == 1 { -1.0 } else { 1.0 };
        sign * sides[k.min(sides.len() - 1)].score[i]
    };
    let masses: Vec<f64> = (0..row.len()).map(|k| (most + score(k)).max(0.0)).collect();
    let sum: f64 = masses.iter().sum();
    if sum > 0.0 {
        row.iter_mut().zip(masses).for_each(|(p, mass)| *p = mass / sum);
    }
}

/// One edge for each instance and each annotator of it who chose a class.
struct Edges {
    /// Where the edges of each instance begin, and one past the last.
    offsets: Vec<usize>,
    /// The annotator of each edge; the one who knows all trusted classes comes after the others.
    annotators: Vec<u32>,
    n_annotators: usize,
}

/// The messages of a class against all others.
struct Side {
    /// `[instance]`
    score: Vec<f64>,
    /// What the magnitude of a score could be, `[instance]`.
    most: Vec<f64>,
    /// The mean message of an annotator, `[annotator]`.
    reliability: Vec<f64>,
}

impl Edges {
    fn new(a: &Annotations) -> Self {
        let Dims { instances, annotators: n, .. } = a.dims();
        let (mut offsets, mut annotators) = (vec![0], Vec::with_capacity(a.len()));
        for i in 0..instances {
            let own = annotators.len();
            for (r, ..) in votes(a, i) {
                if annotators[own..].last() != Some(&r) {
                    annotators.push(r);
                }
            }
            offsets.push(annotators.len());
        }
        Self { offsets, annotators, n_annotators: n + 1 }
    }

    /// How many times as many edges as the mean the busiest annotator has, where edges are far from equally many: where the
    /// variance of their numbers is more than twice the square of the mean.
    fn imbalance(&self, n_annotators: usize) -> Option<f64> {
        let mut counts = vec![0.0; self.n_annotators];
        self.annotators.iter().for_each(|r| counts[*r as usize] += 1.0);
        counts.truncate(n_annotators);
        let (sum, squares) = counts.iter().fold((0.0, 0.0), |(s, q), n| (s + n, q + n * n));
        let (mean, most) = (sum / n_annotators as f64, counts.iter().copied().fold(0.0, f64::max));
        (squares * n_annotators as f64 > 3.0 * sum * sum).then(|| most / mean)
    }

    /// The weight for this class less that for others, `[edge]`.
    fn signs(&self, a: &Annotations, class: u32) -> Vec<f64> {
        let mut signs = vec![0.0; self.annotators.len()];
        for (i, range) in self.offsets.windows(2).enumerate() {
            let mut edge = range[0];
            for (r, label, weight) in votes(a, i) {
                edge += usize::from(self.annotators[edge] != r);
                signs[edge] += if label == class { weight } else { -weight };
            }
        }
        signs
    }

    fn side(&self, a: &Annotations, signs: &[f64], n_iter: u32, job: &JobContext) -> Result<Side> {
        let mut y = vec![1.0; signs.len()];
        let mut x = y.clone();
        for _ in 0..n_iter {
            job.cancel.check()?;
            for range in self.offsets.windows(2) {
                let own = range[0]..range[1];
                let sum: f64 = own.clone().map(|e| signs[e] * y[e]).sum();
                own.for_each(|e| x[e] = sum - signs[e] * y[e]);
            }
            scale(&mut x);
            let (sums, _) = self.sums(|e| signs[e] * x[e]);
            for (e, r) in self.annotators.iter().enumerate() {
                y[e] = sums[*r as usize] - signs[e] * x[e];
            }
            scale(&mut y);
        }
        let gold = self.n_annotators - 1;
        if gold_decides(a) && self.sums(|e| y[e]).0[gold] < 0.0 {
            y.iter_mut().for_each(|y| *y = -*y);
        }
        let of = |part: &dyn Fn(usize) -> f64| -> Vec<f64> {
            self.offsets.windows(2).map(|range| (range[0]..range[1]).map(part).sum()).collect()
        };
        let (score, most) = (of(&|e| signs[e] * y[e]), of(&|e| (signs[e] * y[e]).abs()));
        let (sums, counts) = self.sums(|e| y[e]);
        let reliability = sums.iter().zip(counts).map(|(sum, n)| sum / n.max(1.0)).collect();
        Ok(Side { score, most, reliability })
    }

    /// The sum over the edges of each annotator, and their number.
    fn sums(&self, part: impl Fn(usize) -> f64) -> (Vec<f64>, Vec<f64>) {
        let (mut sums, mut counts) = (vec![0.0; self.n_annotators], vec![0.0; self.n_annotators]);
        for (e, r) in self.annotators.iter().enumerate() {
            sums[*r as usize] += part(e);
            counts[*r as usize] += 1.0;
        }
        (sums, counts)
    }
}

/// Divides by the root mean square; messages that are mere rounding become 0.
fn scale(messages: &mut [f64]) {
    let squares: f64 = messages.iter().map(|m| m * m).sum();
    let root = (squares / messages.len() as f64).sqrt();
    messages.iter_mut().for_each(|m| *m = if root > 1e-12 { *m / root } else { 0.0 });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{annotations, assert_close, fit, tiny};

    /// Signs of class 0: instance 0 (+, +), instance 1 (+, -), instance 2 (-). x from y = 1: what the other one said: 1, 1, -1,
    /// 1, and 0 for a single annotation; their root mean square is sqrt(4/5). Annotator 0 has x 1, -1, 0 and signs +, +, -,
    /// so y = -1, 1, 0; annotator 1 has 1, 1 and +, -, so y = -1, 1. With the signs, scores are -1 - 1, 1 - 1, 0.
    // keys: kos.n_iter
    #[test]
    fn a_round_is_the_one_worked_out_by_hand() {
        let a = tiny(2, &[(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 1), (2, 0, 1)]);
        let edges = Edges::new(&a);
        let signs = edges.signs(&a, 0);
        assert_eq!(signs, [1.0, 1.0, 1.0, -1.0, -1.0]);
        let side = edges.side(&a, &signs, 1, &JobContext::new(0)).unwrap();
        let unit = 1.25_f64.sqrt();
        assert_close(&side.score, &[-2.0 * unit, 0.0, 0.0], 1e-12, "score");
        assert_close(&side.most, &[2.0 * unit, 2.0 * unit, 0.0], 1e-12, "most");
        // Without a message, the vote stays.
        let fitted = fit(Kos { n_iter: 1 }, &a);
        assert_eq!(fitted.posterior.dense().values(), [0.0, 1.0, 0.5, 0.5, 0.0, 1.0]);
    }

    #[test]
    fn an_adversary_is_inverted_and_a_trusted_class_tells_who_is_one() {
        // Annotators 0 and 1 agree; so do 2 and 3, who say the opposite.
        let row = |n: u32| (n / 4, n % 4, (n / 4 + u32::from(n % 4 > 1)) % 2);
        let rows: Vec<_> = (0..40).map(row).collect();
        for truth in [0, 1] {
            let mut a = tiny(2, &rows);
            a.trusted = Some((0..10).map(|i| (i < 4).then_some((i + truth) % 2)).collect());
            let fitted = fit(Kos::default(), &a);
            for i in 4..10 {
                let class = (i + truth as usize) % 2;
                assert!(fitted.posterior.row(i)[class] > 0.99, "{:?}", fitted.posterior.row(i));
            }
            assert_eq!(fitted.report.skill[0] > 0.5, truth == 0);
        }
    }

    /// A soft annotation that is .9 for class 1, and a label that is no class.
    #[test]
    fn soft_annotations_are_part_of_an_edge_and_other_labels_are_none() {
        let dims = Dims { instances: 1, annotators: 2, classes: 2, labels: 3 };
        let a =
            crate::testing::weighted(dims, &[(0, 0, 0), (0, 0, 1), (0, 1, 2)], vec![0.1, 0.9, 1.0]);
        let edges = Edges::new(&a);
        assert_eq!(edges.annotators, [0]);
        assert_close(&edges.signs(&a, 1), &[0.8], 1e-12, "sign");
        assert_eq!(Edges::new(&annotations(dims, &[(0, 1, 2)])).annotators.len(), 0);
    }

    #[test]
    fn a_crowd_with_one_busy_annotator_is_warned_of() {
        let busy = (0..60).map(|i| (i, 0, i % 2));
        let others = (0..60).map(|i| (i, 1 + i / 3, i % 2));
        let warnings = |rows: Vec<(u32, u32, u32)>| {
            let mut job = JobContext::new(0);
            Kos::default().fit((&tiny(2, &rows)).into(), &mut job).unwrap();
            job.warnings().to_vec()
        };
        let both = warnings(busy.chain(others.clone()).collect());
        assert!(
            both[0].contains("has 10 times") && both[0].contains("[not_meant_for]"),
            "{both:?}"
        );
        assert_eq!(warnings(others.collect()), [""; 0]);
    }
}
