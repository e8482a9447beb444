//! The consensus, the weights of the classifier and of the annotators, and the posteriors and skills that follow.

use crate::frame::Annotations;
use crate::model::fitted::Report;
use crate::model::posterior::{Posterior, tied};

/// The least share and the least weight.
const LEAST: f64 = 1e-6;

/// P(class given features) of the instances, where there is any.
pub(super) struct Predictions {
    p: Posterior,
    pub(super) has: Vec<bool>,
}

impl Predictions {
    pub(super) fn new<'a>(a: &Annotations, row: impl Fn(usize) -> Option<&'a [f64]>) -> Self {
        let n = a.dims().instances;
        let (mut p, mut has) = (Posterior::zeros(n, a.dims().classes), vec![false; n]);
        for (i, has) in has.iter_mut().enumerate() {
            if let Some(row) = row(i) {
                p.row_mut(i).copy_from_slice(row);
                *has = true;
            }
        }
        Self { p, has }
    }

    fn row(&self, i: usize) -> Option<&[f64]> {
        self.has[i].then(|| self.p.row(i))
    }
}

/// The weights that follow from a consensus.
pub(super) struct CrowdlabWeights {
    /// The weight of the classifier, and of each annotator.
    pub(super) classifier: f64,
    pub(super) annotators: Vec<f64>,
    /// The mean share of annotations that equal the consensus, and the part of the rest for each other class.
    right: f64,
    wrong: f64,
}

/// The annotations with what no consensus changes.
pub(super) struct CrowdlabAnnotations<'a> {
    a: &'a Annotations,
    predictions: &'a Predictions,
    n_classes: usize,
    /// The weight of the annotations of each instance that name a class.
    n_of_instance: Vec<f64>,
    /// Whether an instance has two annotators or more.
    pub(super) shared: Vec<bool>,
    /// The share of the other annotators' annotations that equal those of each annotator.
    agreement: Vec<f64>,
    /// The mean number of annotations of annotated instances.
    mean_n: f64,
}

/// A mean of numbers with weights.
#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    sum: f64,
    weight: f64,
}

impl Mean {
    fn add(&mut self, value: f64, weight: f64) {
        self.sum += weight * value;
        self.weight += weight;
    }

    /// `None` without a weight.
    fn value(self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }

    fn compute(values: impl Iterator<Item = f64>) -> Option<f64> {
        let mut mean = Self::default();
        values.for_each(|value| mean.add(value, 1.0));
        mean.value()
    }
}

impl<'a> CrowdlabAnnotations<'a> {
    pub(super) fn new(a: &'a Annotations, predictions: &'a Predictions) -> Self {
        let (n, n_classes) = (a.dims().instances, a.dims().classes);
        let mut crowd = Self {
            a,
            predictions,
            n_classes,
            n_of_instance: vec![0.0; n],
            shared: vec![false; n],
            agreement: Vec::new(),
            mean_n: 0.0,
        };
        let mut agreement = vec![Mean::default(); a.dims().annotators];
        for i in 0..n {
            let votes = crowd.votes_of(i);
            let all: f64 = votes.iter().sum();
            crowd.n_of_instance[i] = all;
            let triples: Vec<(u32, u32, f64)> = crowd.triples(i).collect();
            // Those of one annotator are adjacent.
            for own in triples.chunk_by(|one, next| one.0 == next.0) {
                let others = all - own.iter().map(|(.., w)| w).sum::<f64>();
                if own.len() == triples.len() {
                    continue;
                }
                crowd.shared[i] = true;
                for (r, y, weight) in own {
                    let of_own = own.iter().filter(|(_, label, _)| label == y);
                    let equal = votes[*y as usize] - of_own.map(|(.., w)| w).sum::<f64>();
                    agreement[*r as usize].add(equal / others, weight * others);
                }
            }
        }
        let known = agreement.iter().filter_map(|mean| mean.value());
        let mean = Mean::compute(known).unwrap_or(1.0);
        crowd.agreement = agreement.iter().map(|own| own.value().unwrap_or(mean)).collect();
        let annotated = crowd.n_of_instance.iter().copied().filter(|n| *n > 0.0);
        crowd.mean_n = Mean::compute(annotated).unwrap_or(1.0);
        crowd
    }

    /// (annotator, class, weight) of the annotations of instance `i` that name a class.
    fn triples(&self, i: usize) -> impl Iterator<Item = (u32, u32, f64)> {
        self.a.triples_of_instance(i).filter(|(_, y, _)| (*y as usize) < self.n_classes)
    }

    fn votes_of(&self, i: usize) -> Vec<f64> {
        let mut votes = vec![0.0; self.n_classes];
        self.triples(i).for_each(|(_, y, weight)| votes[y as usize] += weight);
        votes
    }

    /// The majority vote of each instance that has evidence, ties broken.
    pub(super) fn votes(&self) -> Vec<Option<u32>> {
        let n = self.a.dims().instances;
        let mut frequency = vec![0.0; self.n_classes];
        // Those among whom the votes are tied; none where the class is known.
        let mut open: Vec<Vec<usize>> = vec![Vec::new(); n];
        let mut votes = vec![None; n];
        for i in 0..n {
            let own = self.votes_of(i);
            frequency.iter_mut().zip(&own).for_each(|(sum, vote)| *sum += vote);
            let best: Vec<usize> = tied(&own).collect();
            match (self.a.trusted_class(i), best.as_slice()) {
                (Some(class), _) => votes[i] = Some(class),
                (None, [only]) if self.n_of_instance[i] > 0.0 => votes[i] = Some(*only as u32),
                (None, _) if self.n_of_instance[i] > 0.0 => open[i] = best,
                (None, _) => {}
            }
        }
        let mut agreement = vec![Mean::default(); self.a.dims().annotators];
        for (i, vote) in votes.iter().enumerate().filter_map(|(i, vote)| Some((i, (*vote)?))) {
            for (r, y, weight) in self.triples(i) {
                agreement[r as usize].add(f64::from(u8::from(y == vote)), weight);
            }
        }
        let mean = Mean::compute(agreement.iter().filter_map(|mean| mean.value())).unwrap_or(1.0);
        let agreement: Vec<f64> = agreement.iter().map(|own| own.value().unwrap_or(mean)).collect();
        for (i, classes) in open.iter().enumerate().filter(|(_, classes)| !classes.is_empty()) {
            let quality = |k: usize| {
                let own = self.triples(i).filter(|(_, y, _)| *y as usize == k);
                Mean::compute(own.map(|(r, ..)| agreement[r as usize])).unwrap_or(0.0)
            };
            let mut left = classes.clone();
            if let Some(p) = self.predictions.row(i) {
                keep_largest(&mut left, |k| p[k]);
            }
            keep_largest(&mut left, |k| 1.0 / frequency[k]);
            keep_largest(&mut left, quality);
            votes[i] = left.first().map(|k| *k as u32);
        }
        votes
    }

    /// The weights that follow from a consensus.
    pub(super) fn weights(&self, consensus: &[Option<u32>]) -> CrowdlabWeights {
        let known = consensus.iter().enumerate().filter_map(|(i, class)| Some((i, (*class)?)));
        let (mut right, mut error, mut counts) =
            (Mean::default(), Mean::default(), vec![0.0; self.n_classes]);
        for (i, class) in known.filter(|(i, _)| self.shared[*i]) {
            right.add(self.share_of(i, class), 1.0);
            counts[class as usize] += 1.0;
            if let Some(p) = self.predictions.row(i) {
                let best = tied(p).next().is_some_and(|k| k == class as usize);
                error.add(if best { 0.0 } else { 1.0 }, 1.0);
            }
        }
        let n_classes = self.n_classes.max(2) as f64;
        let Some(right_share) = right.value() else {
            return CrowdlabWeights {
                classifier: 1.0,
                annotators: vec![1.0; self.agreement.len()],
                right: 1.0,
                wrong: 0.0,
            };
        };
        let most = counts.iter().copied().fold(0.0, f64::max);
        let e = (1.0 - most / right.weight).max(LEAST);
        let weight = |error: f64| (1.0 - error / e).max(LEAST);
        CrowdlabWeights {
            classifier: weight(error.value().unwrap_or(0.0)) * self.mean_n.sqrt(),
            annotators: self.agreement.iter().map(|s| weight(1.0 - s)).collect(),
            right: right_share,
            wrong: (1.0 - right_share) / (n_classes - 1.0),
        }
    }

    /// The share of the annotations of instance `i` that equal a class.
    fn share_of(&self, i: usize, class: u32) -> f64 {
        let equal = self.triples(i).filter(|(_, y, _)| *y == class);
        equal.map(|(.., weight)| weight).sum::<f64>() / self.n_of_instance[i]
    }

    /// The posteriors by these weights.
    pub(super) fn posterior(
        &self,
        consensus: &[Option<u32>],
        weights: &CrowdlabWeights,
    ) -> Posterior {
        let mut post = Posterior::zeros(self.a.dims().instances, self.n_classes);
        post.par_rows_mut(|i, row| {
            if let (Some(_), Some(class)) = (self.a.trusted_class(i), consensus[i]) {
                row[class as usize] = 1.0;
                return;
            }
            let mut all = 0.0;
            if let Some(p) = self.predictions.row(i) {
                row.iter_mut().zip(p).for_each(|(cell, p)| *cell += weights.classifier * p);
                all += weights.classifier;
            }
            for (r, y, weight) in self.triples(i) {
                let weight = weight * weights.annotators[r as usize];
                row.iter_mut().for_each(|cell| *cell += weight * weights.wrong);
                row[y as usize] += weight * (weights.right - weights.wrong);
                all += weight;
            }
            let share =
                |cell: &f64| if all > 0.0 { cell / all } else { 1.0 / self.n_classes as f64 };
            if self.n_classes == 1 {
                row.fill(1.0);
            } else {
                row.iter_mut().for_each(|cell| *cell = share(cell));
            }
        });
        post
    }

    pub(super) fn report(
        &self,
        consensus: &[Option<u32>],
        weights: &CrowdlabWeights,
        post: &Posterior,
    ) -> Report {
        let n = self.agreement.len();
        let (mut quality, mut agreement) = (vec![Mean::default(); n], vec![Mean::default(); n]);
        for (i, class) in consensus.iter().enumerate().filter_map(|(i, c)| Some((i, (*c)?))) {
            for (r, y, weight) in self.triples(i) {
                quality[r as usize].add(post.row(i)[y as usize], weight);
                if self.shared[i] {
                    agreement[r as usize].add(f64::from(u8::from(y == class)), weight);
                }
            }
        }
        let mean_weight = Mean::compute(weights.annotators.iter().copied()).unwrap_or(1.0);
        let of_classifier = weights.classifier / (weights.classifier + self.mean_n * mean_weight);
        let skill = |(quality, agreement): (&Mean, &Mean)| {
            let quality = quality.value()?;
            let agreement = agreement.value().unwrap_or(quality);
            Some(of_classifier * quality + (1.0 - of_classifier) * agreement)
        };
        let skills: Vec<Option<f64>> = quality.iter().zip(&agreement).map(skill).collect();
        // An annotator whose labels are no classes is taken for one of the others.
        let mean =
            Mean::compute(skills.iter().copied().flatten()).unwrap_or(1.0 / self.n_classes as f64);
        let of_instance = |value: &dyn Fn(usize, u32) -> f64| {
            let known = consensus.iter().enumerate();
            known.map(|(i, class)| class.map_or(f64::NAN, |class| value(i, class))).collect()
        };
        let share = |i: usize, class: u32| {
            if self.n_of_instance[i] > 0.0 { self.share_of(i, class) } else { f64::NAN }
        };
        Report {
            skill: skills.into_iter().map(|skill| skill.unwrap_or(mean)).collect(),
            annotator_parameters: vec![
                ("weight".to_owned(), weights.annotators.clone()),
                ("agreement".to_owned(), self.agreement.clone()),
            ],
            instance_parameters: vec![
                ("quality".to_owned(), of_instance(&|i, class| post.row(i)[class as usize])),
                ("agreement".to_owned(), of_instance(&share)),
            ],
            ..Report::default()
        }
    }
}

/// Keeps the classes for which a number is largest.
fn keep_largest(classes: &mut Vec<usize>, number: impl Fn(usize) -> f64) {
    let numbers: Vec<f64> = classes.iter().map(|k| number(*k)).collect();
    let best: Vec<usize> = tied(&numbers).map(|at| classes[at]).collect();
    *classes = best;
}
