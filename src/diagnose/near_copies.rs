//! Pairs of annotators that are nearly one.
//!
//! ```text
//! c[r,s] = b[r] b[s]                                 correlation of labels, as a product of skills
//! c[t,u] = c[r,t] c[r,u]   for experts, b[r] = 1     the labels of an expert explain how far all others agree
//! ```
//! # Why
//! A fit may believe two copies in a weak crowd: they become perfect, and perfection explains their agreement. The others
//! know better. Two annotators who agree on nearly all instances are experts, or copies. The labels of an expert explain all
//! agreement of the others; those of a copy of an ordinary annotator leave some of it, beyond its standard error. For two
//! labels the product holds whatever the shares of the classes, and for annotators who give the opposite as well.

use std::collections::BTreeMap;

use super::pair::AnnotatorPair;

/// Pairs with fewer common instances say nothing about their dependence.
pub const MIN_COMMON: u32 = 20;

/// Two annotators who agree this often, and whose kappa is this much above the expected one, are nearly one. Of a rare class
/// the agreement alone tells little: most of it is by chance.
const COPY_AGREEMENT: f64 = 0.95;
const COPY_EXCESS: f64 = 0.1;

/// The greatest probability that any of the compared pairs agrees so often by accident.
const MAX_P_VALUE: f64 = 0.01;

/// The agreement that experts leave to others is more standard errors above 0 once in a hundred times.
const EXPERT_Z_SCORE: f64 = 2.33;

/// Where crowds are weak, so much suffices for two who agree with others as ordinary annotators do.
const ORDINARY_Z_SCORE: f64 = 1.0;

/// With one annotator beside them, two copies are two who never differ: experts agree less.
const EXPERT_AGREEMENT: f64 = 0.96;

/// The sums over some pairs of annotators.
#[derive(Clone, Copy, Default)]
struct PairSums {
    n: f64,
    correlation: f64,
    squares: f64,
    variance: f64,
}

impl PairSums {
    fn from_pair(pair: &AnnotatorPair) -> Self {
        let correlation = pair.correlation;
        Self { n: 1.0, correlation, squares: correlation * correlation, variance: pair.variance }
    }

    fn add(&mut self, other: Self, times: f64) {
        self.n += times * other.n;
        self.correlation += times * other.correlation;
        self.squares += times * other.squares;
        self.variance += times * other.variance;
    }

    fn without(mut self, other: Self) -> Self {
        self.add(other, -1.0);
        self
    }

    /// The mean product of two of the correlations.
    fn product(self) -> f64 {
        (self.correlation * self.correlation - self.squares) / (self.n * (self.n - 1.0))
    }
}

/// The sums over the pairs of each annotator, and over all.
#[derive(Default)]
struct CrowdSums {
    of: BTreeMap<u32, PairSums>,
    all: PairSums,
}

impl CrowdSums {
    fn add(&mut self, pair: &AnnotatorPair, times: f64) {
        let own = PairSums::from_pair(pair);
        self.all.add(own, times);
        for r in [pair.annotator, pair.other] {
            self.of.entry(r).or_default().add(own, times);
        }
    }

    /// The pairs of each of two with others, and the pairs of the others.
    fn around(&self, pair: &AnnotatorPair) -> ([PairSums; 2], PairSums) {
        let own = PairSums::from_pair(pair);
        let of = |r: u32| self.of.get(&r).copied().unwrap_or_default().without(own);
        let (r, s) = (of(pair.annotator), of(pair.other));
        ([r, s], self.all.without(own).without(r).without(s))
    }

    /// The kappa that a pair should have if its two annotators are no experts, and how sure it is that they are none.
    fn expected(&self, pair: &AnnotatorPair) -> (f64, f64) {
        let (of, others) = self.around(pair);
        if others.n >= 1.0 && of.iter().all(|sums| sums.n >= 2.0) {
            let mean = others.correlation / others.n;
            let product = of.map(PairSums::product).iter().sum::<f64>() / 2.0;
            let deviation = others.variance.max(f64::MIN_POSITIVE).sqrt() / others.n;
            let z_score = (mean - product / pair.correlation) / deviation;
            let expected = if mean > 0.0 { (product / mean).max(0.0) } else { 1.0 };
            let is_ordinary = expected < mean.max(0.0).sqrt();
            let least = if is_ordinary { ORDINARY_Z_SCORE } else { EXPERT_Z_SCORE };
            return (if z_score > least { expected } else { 1.0 }, z_score);
        }
        if of.iter().all(|sums| sums.n >= 1.0) && never_differ(pair) {
            return (of.iter().map(|sums| sums.correlation / sums.n).sum::<f64>() / 2.0, 0.0);
        }
        // Of two annotators only the fit knows more, by gold.
        let by_fit = pair.agreement - pair.excess - pair.by_chance;
        (by_fit / (1.0 - pair.by_chance), 0.0)
    }
}

/// Marks the pairs that are nearly one annotator. The plainest first: a copy says nothing of others.
pub(super) fn mark_near_copies(pairs: &mut [AnnotatorPair]) {
    let mut crowd = CrowdSums::default();
    pairs.iter().filter(|pair| pair.n >= MIN_COMMON).for_each(|pair| crowd.add(pair, 1.0));
    let n_compared = crowd.all.n;
    let similar = pairs.iter().enumerate().filter(|(_, pair)| {
        // Without a kappa there is one label alone: nothing can disagree.
        pair.n >= MIN_COMMON && pair.agreement >= COPY_AGREEMENT && pair.kappa.is_some()
    });
    let mut similar: Vec<(f64, usize)> =
        similar.map(|(at, pair)| (crowd.expected(pair).1, at)).collect();
    similar.sort_by(|x, y| y.0.total_cmp(&x.0));
    for (_, at) in similar {
        let pair = &mut pairs[at];
        let (expected, _) = crowd.expected(pair);
        let agreement = pair.by_chance + expected * (1.0 - pair.by_chance);
        pair.is_near_copy = pair.kappa.is_some_and(|kappa| kappa - expected >= COPY_EXCESS)
            && p_value(pair, agreement) * n_compared < MAX_P_VALUE;
        if pair.is_near_copy {
            crowd.add(pair, -1.0);
        }
    }
}

/// Whether two give equal labels where experts who are right 98 times of 100 would have differed.
fn never_differ(pair: &AnnotatorPair) -> bool {
    pair.agreement >= 1.0 && EXPERT_AGREEMENT.powf(f64::from(pair.n)) < MAX_P_VALUE
}

/// The most that the probability of an agreement as frequent as this can be, where `expected` is expected (Chernoff).
fn p_value(pair: &AnnotatorPair, expected: f64) -> f64 {
    let term = |p: f64, q: f64| if p > 0.0 { p * (p / q.max(1e-9)).ln() } else { 0.0 };
    let divergence = term(pair.agreement, expected) + term(1.0 - pair.agreement, 1.0 - expected);
    (-f64::from(pair.n) * divergence).exp()
}
