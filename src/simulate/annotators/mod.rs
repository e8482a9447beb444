//! The types of simulated annotators, and the confusion matrix of each.
//!
//! A type is written as a name with arguments: `symmetric(0.8)`, `similar-pair(0.6 3-5 1-9)`, `imitative(a00)`; see
//! [`super::grammar`]. Classes are named by their index in sorted order, from 0, annotators by their ids.
//!
//! Sources: symmetric, pair, class-wise, imitative, supportive, opposite: Li et al. 2022 ("TCL"). Hammer-spammers and
//! pairwise flippers: Tanno et al. 2019, arXiv:1902.03680; the two other kinds of hammer-spammer: Khetan, Lipton and
//! Anandkumar 2018, arXiv:1712.04577. Oracles: always right, wrong or random, as checks of an estimated quality.
//! Constant and naive majority: Cao et al. 2019, arXiv:1905.13436.

pub mod confusion;

use rand::Rng as _;
use rand::seq::SliceRandom;

use crate::error::{Error, Result};
use crate::job_context::Rng;
use confusion::ConfusionMatrix;

/// One type with its parameters. The float is a probability.
#[derive(Debug, Clone, PartialEq)]
pub enum AnnotatorType {
    /// Wrong with this probability, all wrong classes equally likely.
    Symmetric(f64),
    /// Wrong with this probability, then always the next class; a link sets another target.
    Pair(f64, Vec<Link>),
    /// Right on these classes, at random on the others.
    ClassWise(Vec<usize>),
    /// Each label is right with this probability, else random.
    HammerSpammer(f64),
    /// With this probability the annotator is always right, else always random.
    HammerOrSpammer(f64),
    /// With this probability the annotator is always right on a class, else random on that class.
    ClassWiseHammerSpammer(f64),
    /// Right with this probability, else a target that is drawn for each class.
    PairwiseFlipper(f64),
    /// Right with this probability, else the previous or the next class.
    Neighbour(f64),
    /// Right with this probability, else the partner of the class; without links the pairs are drawn.
    SimilarPair(f64, Vec<Link>),
    /// Right with this probability on the linked classes, else their target; always right on the others.
    Confuser(f64, Vec<Link>),
    /// Right with this probability, else the wrong class that `ClassShift` gives.
    Adversarial(f64, ClassShift),
    /// Always right.
    Right,
    /// Always wrong, all wrong classes equally likely.
    Wrong,
    /// Any class at random, whatever is true.
    Random,
    /// Always this class.
    Constant(usize),
    /// Always the most frequent class.
    NaiveMajority,
    /// Depends on the label of another annotator, given by number.
    Follows(Dependence, usize),
}

/// The annotator takes class `.0` for class `.1`.
pub type Link = (usize, usize);

/// The wrong class with which an adversary labels each class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClassShift {
    /// The class `n / 2` places further on of `n` classes, cyclically.
    HalfOfClasses,
    /// The class this many places further on, cyclically.
    By(usize),
    /// The linked class; the links must be a permutation of all classes.
    Permutation(Vec<Link>),
}

impl ClassShift {
    /// The target of each of `n` classes.
    fn targets(&self, n: usize) -> Vec<usize> {
        let positions = match self {
            Self::HalfOfClasses => n / 2,
            Self::By(positions) => positions % n,
            Self::Permutation(links) => return linked((0..n).collect(), links),
        };
        (0..n).map(|k| (k + positions) % n).collect()
    }

    /// Why the targets are not a permutation of `n` classes without fixed points; `None` where they are.
    fn clash(&self, n: usize) -> Option<String> {
        let targets = self.targets(n);
        if let Some(k) = (0..n).find(|k| targets[*k] == *k) {
            return Some(format!("class {k} would be taken for itself"));
        }
        let givers = |name: usize| targets.iter().filter(|to| **to == name).count();
        (0..n).find_map(|k| match givers(k) {
            1 => None,
            givers => Some(format!("{givers} classes would be taken for class {k}")),
        })
    }
}

/// How one annotator depends on another's label for the same instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dependence {
    /// Copies the label.
    Imitative,
    /// Right where the other is right, else any wrong class.
    Supportive,
    /// Right where the other is wrong, else any wrong class.
    Opposite,
}

impl Dependence {
    /// The matrix of an annotator that follows one with matrix `of`.
    #[must_use]
    pub fn confusion(self, of: &ConfusionMatrix) -> ConfusionMatrix {
        match self {
            Self::Imitative => of.clone(),
            Self::Supportive => ConfusionMatrix::spread(of.classes(), |k| of.right(k)),
            Self::Opposite => ConfusionMatrix::spread(of.classes(), |k| 1.0 - of.right(k)),
        }
    }

    /// The follower's label, given the other's label `of`; `draw` is uniform in `[0, 1)`.
    #[must_use]
    pub fn label(self, of: usize, truth: usize, classes: usize, draw: f64) -> usize {
        let is_right = match self {
            Self::Imitative => return of,
            Self::Supportive => of == truth,
            Self::Opposite => of != truth,
        };
        // The wrong classes are the `classes - 1` after the true one, cyclically. `draw` is below 1, so that the index
        // is below `classes - 1`.
        #[allow(clippy::cast_sign_loss)]
        let other = || (truth + 1 + (draw * (classes - 1) as f64) as usize) % classes;
        if is_right { truth } else { other() }
    }
}

impl AnnotatorType {
    /// The matrix of one such annotator; `rng` draws the random parts, so that each annotator has its own. `None` for
    /// one that follows another.
    ///
    /// # Errors
    /// When a class that the type names does not exist, or there are too few classes. The caller adds the annotator to
    /// the error.
    pub fn confusion(&self, shares: &[f64], rng: &mut Rng) -> Result<Option<ConfusionMatrix>> {
        let n = shares.len();
        self.check_classes(n)?;
        let draw = |rng: &mut Rng, chance: f64| rng.random::<f64>() < chance;
        Ok(Some(match self {
            Self::Follows(..) => return Ok(None),
            Self::Symmetric(eps) => ConfusionMatrix::spread(n, |_| 1.0 - eps),
            Self::Pair(eps, links) => {
                let after = (0..n).map(|k| (k + 1) % n).collect();
                ConfusionMatrix::targeted(1.0 - eps, &linked(after, links))
            }
            Self::ClassWise(known) => ConfusionMatrix::from_weights(n, |k, l| {
                if known.contains(&k) { f64::from(u8::from(k == l)) } else { 1.0 }
            }),
            Self::HammerSpammer(p) => ConfusionMatrix::from_weights(n, |k, l| {
                (1.0 - p) / n as f64 + if k == l { *p } else { 0.0 }
            }),
            Self::HammerOrSpammer(p) => {
                let is_hammer = draw(rng, *p);
                let others = if is_hammer { 0.0 } else { 1.0 / n as f64 };
                ConfusionMatrix::from_weights(n, |k, l| others + if k == l { 0.01 } else { 0.0 })
            }
            Self::ClassWiseHammerSpammer(g) => {
                let known: Vec<bool> = (0..n).map(|_| draw(rng, *g)).collect();
                let extra: Vec<f64> = (0..n).map(|_| rng.random_range(0.1..0.11)).collect();
                ConfusionMatrix::from_weights(n, |k, l| {
                    f64::from(u8::from(!known[k])) + if k == l { extra[k] } else { 0.0 }
                })
            }
            Self::PairwiseFlipper(p) => {
                let targets: Vec<usize> =
                    (0..n).map(|k| (k + rng.random_range(1..n)) % n).collect();
                ConfusionMatrix::targeted(*p, &targets)
            }
            Self::Neighbour(a) => ConfusionMatrix::from_weights(n, |k, l| {
                let beside = |other: usize| if other == l { (1.0 - a) / 2.0 } else { 0.0 };
                (if k == l { *a } else { 0.0 }) + beside((k + 1) % n) + beside((k + n - 1) % n)
            }),
            Self::SimilarPair(a, links) if links.is_empty() => {
                ConfusionMatrix::targeted(*a, &matched(n, rng))
            }
            Self::SimilarPair(a, links) | Self::Confuser(a, links) => {
                ConfusionMatrix::targeted(*a, &linked((0..n).collect(), links))
            }
            Self::Adversarial(a, names) => ConfusionMatrix::targeted(*a, &names.targets(n)),
            Self::Right => ConfusionMatrix::spread(n, |_| 1.0),
            Self::Wrong => ConfusionMatrix::spread(n, |_| 0.0),
            Self::Random => ConfusionMatrix::from_weights(n, |_, _| 1.0),
            Self::Constant(class) => always(n, *class),
            Self::NaiveMajority => {
                let most = (0..n).rev().max_by(|a, b| shares[*a].total_cmp(&shares[*b]));
                always(n, most.unwrap_or_default())
            }
        }))
    }

    /// Checks that there are enough classes, and that those named exist.
    fn check_classes(&self, n: usize) -> Result<()> {
        let wrong = |what: String| {
            let found = format!("{n} classes");
            Err(Error::spec(what).found(found).help(
                "classes are named by their place in sorted order, from 0: choose another recipe, or other groups",
            ))
        };
        let named: Vec<usize> = match self {
            Self::ClassWise(known) => known.clone(),
            Self::Constant(class) => vec![*class],
            Self::Pair(_, links)
            | Self::SimilarPair(_, links)
            | Self::Confuser(_, links)
            | Self::Adversarial(_, ClassShift::Permutation(links)) => {
                links.iter().flat_map(|(a, b)| [*a, *b]).collect()
            }
            _ => Vec::new(),
        };
        if let Some(class) = named.iter().find(|class| **class >= n) {
            return wrong(format!("there is no class {class}"));
        }
        let alone = matches!(
            self,
            Self::ClassWise(_)
                | Self::Right
                | Self::Random
                | Self::Constant(_)
                | Self::NaiveMajority
        );
        if n < 2 && !alone {
            return wrong("an annotator who may be wrong needs two classes".to_owned());
        }
        match self {
            Self::SimilarPair(_, links) if !links.is_empty() => {
                match (0..n).find(|k| links.iter().filter(|(from, _)| from == k).count() != 1) {
                    Some(class) => wrong(format!("class {class} needs exactly one partner")),
                    None => Ok(()),
                }
            }
            Self::Adversarial(_, given) => given.clash(n).map_or(Ok(()), wrong),
            _ => Ok(()),
        }
    }
}

fn always(n: usize, class: usize) -> ConfusionMatrix {
    ConfusionMatrix::from_weights(n, |_, l| f64::from(u8::from(l == class)))
}

fn linked(mut target: Vec<usize>, links: &[Link]) -> Vec<usize> {
    links.iter().for_each(|(from, to)| target[*from] = *to);
    target
}

/// Random pairs of partners; where the number of classes is odd, the last three form a cycle.
fn matched(n: usize, rng: &mut Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    order.shuffle(rng);
    let mut target = vec![0; n];
    let pairs = if n.is_multiple_of(2) { n } else { n - 3 };
    for circle in order[..pairs].chunks(2).chain(order[pairs..].chunks(3)) {
        let next = circle.iter().cycle().skip(1);
        circle.iter().zip(next).for_each(|(from, to)| target[*from] = *to);
    }
    target
}
