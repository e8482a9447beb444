//! Labels against the annotations of their instance, and the annotators' agreement against chance, in one pass.

use std::ops::Range;

use rayon::prelude::*;

use crate::agreement::SingleAnswers;
use crate::frame::{Annotations, MAX_RANGES, ranges_of_instances};

/// Counts over all instances without a trusted class.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Agreement {
    /// Instances with a label and an annotation that names a class.
    pub labelled: u64,
    /// Those whose label none of their annotators gave.
    pub given_by_nobody: u64,
    /// Those whose annotators (two or more) all gave one other label.
    pub against_unanimous: u64,
    /// Those whose label is not the one with most votes, or not one of these.
    pub differs_from_vote: u64,
    /// How the agreement of pairs of annotators compares with chance; `None` without a pair.
    pub chance: Option<ChanceTest>,
}

/// The agreement of pairs of annotators, against the one of labels drawn at random.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChanceTest {
    /// The number of pairs of annotations of one instance by different annotators, each of whom gave one label only.
    pub pairs: f64,
    /// The share of them that agree.
    pub observed: f64,
    /// The share that would agree if every label were drawn from the labels' shares.
    pub expected: f64,
    /// The difference in standard deviations of labels drawn so.
    pub z_score: f64,
}

/// The sums of a range of instances.
struct AgreementSums {
    counts: Agreement,
    pairs: f64,
    agreeing: f64,
    /// Ordered triples of annotations of one instance: pairs that share an annotation vary together.
    triples: f64,
    of_label: Vec<f64>,
}

impl Agreement {
    /// The counts for the labels that `labels` gives adjacent instances. Call it in the run's pool of threads.
    #[must_use]
    pub fn measure(
        a: &Annotations,
        labels: impl Fn(Range<usize>) -> Vec<Option<u32>> + Sync,
    ) -> Self {
        // AgreementSums per label: more ranges than this would cost more than the pass where labels are many.
        let n = (a.len() / (8 * a.dims().labels.max(1))).clamp(1, MAX_RANGES);
        let ranges = ranges_of_instances(a.dims().instances, n).with_max_len(1);
        let sums: Vec<AgreementSums> =
            ranges.map(|range| AgreementSums::count(a, range, &labels)).collect();
        let mut sums = sums.into_iter();
        let Some(mut all) = sums.next() else { return Self::default() };
        for more in sums {
            all.add(&more);
        }
        Self { chance: all.chance(), ..all.counts }
    }
}

impl AgreementSums {
    fn count(
        a: &Annotations,
        instances: Range<usize>,
        labels: impl Fn(Range<usize>) -> Vec<Option<u32>>,
    ) -> Self {
        let of_label = vec![0.0; a.dims().labels];
        let counts = Agreement::default();
        let mut sums = Self { counts, pairs: 0.0, agreeing: 0.0, triples: 0.0, of_label };
        let (labels, range) = (labels(instances.clone()), a.range(instances));
        let (mut votes, mut answers) = (Vec::new(), SingleAnswers::default());
        for (i, label) in labels.into_iter().enumerate() {
            votes.clear();
            answers.clear();
            for (annotator, label, weight) in range.triples(i) {
                answers.add(annotator, label);
                add_vote(&mut votes, label, weight);
            }
            sums.add_agreement(&mut answers);
            if range.trusted_class(i).is_none() {
                sums.add_label(&votes, answers.len(), a.dims().classes, label);
            }
        }
        sums
    }

    fn add_agreement(&mut self, answers: &mut SingleAnswers) {
        let n = answers.len() as f64;
        if n < 2.0 {
            return;
        }
        self.pairs += n * (n - 1.0) / 2.0;
        self.triples += n * (n - 1.0) * (n - 2.0);
        for (label, n) in answers.counts() {
            self.agreeing += n * (n - 1.0) / 2.0;
            self.of_label[label as usize] += n;
        }
    }

    /// `n_single` annotators gave one label only.
    fn add_label(
        &mut self,
        votes: &[(u32, f64)],
        n_single: usize,
        n_classes: usize,
        label: Option<u32>,
    ) {
        if most_voted(votes, n_classes).next().is_none() {
            return;
        }
        let Some(label) = label else { return };
        let is_given = votes.iter().any(|(other, weight)| *other == label && *weight > 0.0);
        let counts = &mut self.counts;
        counts.labelled += 1;
        counts.given_by_nobody += u64::from(!is_given);
        let is_unanimous = votes.len() == 1 && n_single >= 2;
        counts.against_unanimous += u64::from(is_unanimous && !is_given);
        counts.differs_from_vote +=
            u64::from(most_voted(votes, n_classes).all(|other| other != label));
    }

    fn add(&mut self, more: &Self) {
        let (counts, others) = (&mut self.counts, &more.counts);
        counts.labelled += others.labelled;
        counts.given_by_nobody += others.given_by_nobody;
        counts.against_unanimous += others.against_unanimous;
        counts.differs_from_vote += others.differs_from_vote;
        self.pairs += more.pairs;
        self.agreeing += more.agreeing;
        self.triples += more.triples;
        self.of_label.iter_mut().zip(&more.of_label).for_each(|(sum, n)| *sum += n);
    }

    /// With labels drawn from the shares `p`, a pair agrees with probability `e = sum p^2`, and two pairs that share an
    /// annotation have the covariance `c = sum p^3 - e^2`. The shares are those of the `N` labels themselves, so that `P e`
    /// varies with the number of agreeing pairs: of `T` ordered triples, `T - 4 P^2 / N` times `c` is left. Where one label is
    /// rare, nearly all of the variance is gone.
    fn chance(&self) -> Option<ChanceTest> {
        let total: f64 = self.of_label.iter().sum();
        if self.pairs <= 0.0 || total <= 0.0 {
            return None;
        }
        let power = |n: i32| self.of_label.iter().map(|x| (x / total).powi(n)).sum::<f64>();
        let (expected, observed) = (power(2), self.agreeing / self.pairs);
        let covariance = (power(3) - expected * expected).max(0.0);
        let variance = self.pairs * expected * (1.0 - expected)
            + (self.triples - 4.0 * self.pairs * self.pairs / total) * covariance;
        let difference = self.agreeing - self.pairs * expected;
        // One label alone: nothing can disagree, and nothing is known.
        let z_score = if variance > 0.0 { difference / variance.sqrt() } else { f64::INFINITY };
        Some(ChanceTest { pairs: self.pairs, observed, expected, z_score })
    }
}

/// The classes with most votes of instance `i`, by weight; none where no annotation names a class.
#[must_use]
pub fn vote(a: &Annotations, i: usize) -> Vec<u32> {
    let mut votes = Vec::new();
    a.triples_of_instance(i).for_each(|(_, label, weight)| add_vote(&mut votes, label, weight));
    most_voted(&votes, a.dims().classes).collect()
}

fn add_vote(votes: &mut Vec<(u32, f64)>, label: u32, weight: f64) {
    match votes.iter_mut().find(|(other, _)| *other == label) {
        Some((_, sum)) => *sum += weight,
        None => votes.push((label, weight)),
    }
}

/// The classes with most votes; shares of repeated answers sum to whole votes only up to rounding.
fn most_voted(votes: &[(u32, f64)], n_classes: usize) -> impl Iterator<Item = u32> {
    let of_classes =
        votes.iter().filter(move |(label, w)| (*label as usize) < n_classes && *w > 0.0);
    let most = of_classes.clone().map(|(_, weight)| *weight).fold(0.0, f64::max);
    of_classes.filter(move |(_, w)| *w >= most * (1.0 - 1e-9)).map(|(label, _)| *label)
}

#[cfg(test)]
mod tests {
    use rand::Rng as _;

    use super::*;
    use crate::testing::{assert_close, tiny};

    #[test]
    fn labels_are_counted_against_the_annotations_of_their_instance() {
        // 0: unanimous for 0; 1: two for 1, one for 0; 2: a tie of 0 and 1; 3: one annotator; 4: 0 by one who repeats it.
        let rows = [
            (0, 0, 0),
            (0, 1, 0),
            (1, 0, 1),
            (1, 1, 1),
            (1, 2, 0),
            (2, 0, 0),
            (2, 1, 1),
            (3, 0, 0),
            (4, 0, 0),
            (4, 0, 0),
        ];
        let mut a = tiny(3, &rows);
        let measured =
            Agreement::measure(&a, |all| all.map(|i| Some([1, 0, 1, 2, 2][i])).collect());
        assert_eq!(measured.labelled, 5);
        assert_eq!((measured.given_by_nobody, measured.against_unanimous), (3, 1));
        assert_eq!(measured.differs_from_vote, 4);
        // Pairs: 1 + 3 + 1, of which 1 + 1 + 0 agree.
        let chance = measured.chance.unwrap();
        assert_close(&[chance.pairs, chance.observed], &[5.0, 0.4], 1e-12, "pairs");
        // Labels of these instances: 4 of 0 and 3 of 1.
        assert_close(&[chance.expected], &[25.0 / 49.0], 1e-12, "by chance");
        a.trusted = Some(vec![Some(1), None, None, None, None]);
        assert_eq!(Agreement::measure(&a, |all| vec![Some(2); all.len()]).labelled, 4);
        assert_eq!((vote(&a, 1), vote(&a, 2)), (vec![1], vec![0, 1]));
    }

    /// Soft annotations are several rows of one annotator: no pair of opinions.
    #[test]
    fn several_labels_of_one_annotator_make_no_pair() {
        let both = |i: u32, r: u32| [(i, r, 0), (i, r, 1)];
        let soft: Vec<_> = (0..4).flat_map(|i| [both(i, 0), both(i, 1)].concat()).collect();
        assert_eq!(
            Agreement::measure(&tiny(2, &soft), |all| vec![Some(0); all.len()]).chance,
            None
        );
        // Annotators 1 and 2 have one label each, beside annotator 0 with two.
        let a = tiny(2, &[(0, 0, 0), (0, 0, 1), (0, 1, 1), (0, 2, 1)]);
        let found = Agreement::measure(&a, |all| vec![Some(0); all.len()]);
        let chance = found.chance.unwrap();
        assert_close(&[chance.pairs, chance.observed], &[1.0, 1.0], 1e-12, "pairs");
        assert_eq!((found.given_by_nobody, found.against_unanimous), (0, 0));
    }

    /// One instance of three annotators and labels 0, 0, 1: e = 5/9, sum p^3 = 9/27, and 4 P^2 / N = 12 triples are the
    /// shares' own.
    #[test]
    fn the_z_score_of_chance_is_the_one_worked_out_by_hand() {
        let a = tiny(2, &[(0, 0, 0), (0, 1, 0), (0, 2, 1)]);
        let chance = Agreement::measure(&a, |all| vec![None; all.len()]).chance.unwrap();
        let variance: f64 =
            3.0 * (5.0 / 9.0) * (4.0 / 9.0) + (6.0 - 12.0) * (1.0 / 3.0 - 25.0 / 81.0);
        assert_close(&[chance.z_score], &[(1.0 - 15.0 / 9.0) / variance.sqrt()], 1e-12, "z");
    }

    /// Labels that say nothing have a z-score with mean 0 and standard deviation 1, however rare a label is.
    #[test]
    fn the_z_score_of_random_labels_is_a_standard_normal_one() {
        for share in [0.02, 0.1, 0.5] {
            let z = |n: u64| {
                let mut rng = crate::job_context::rng(n, "labels");
                let draw = |(i, r)| (i, r, u32::from(rng.random::<f64>() < share));
                // Instances with 2 to 5 annotators.
                let positions = (0..300).flat_map(|i| (0..2 + i % 4).map(move |r| (i, r)));
                let rows: Vec<_> = positions.map(draw).collect();
                Agreement::measure(&tiny(2, &rows), |all| vec![None; all.len()])
                    .chance
                    .unwrap()
                    .z_score
            };
            let all: Vec<f64> = (0..200).map(z).filter(|z| z.is_finite()).collect();
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            let squares: f64 = all.iter().map(|z| (z - mean) * (z - mean)).sum();
            let sd = (squares / all.len() as f64).sqrt();
            assert!(mean.abs() < 0.25 && (0.85..1.15).contains(&sd), "{share}: {mean} {sd}");
        }
    }
}
