//! Two labels of each instance, by the networks and by annotations, and what one says of the other.

use super::co_teaching::{cross_entropy, is_within, smallest};
use crate::frame::Annotations;
use crate::model::neural::objective::counted;
use crate::model::numerics::{MIN_PROBABILITY, at_least};
use crate::model::posterior::{Posterior, best};

/// The labels by the networks and by annotations, and what they say of each other.
pub(super) struct CoupledViews<'a> {
    pub(super) a: &'a Annotations,
    /// d, once the networks are trained; before, the votes.
    pub(super) by_networks: &'a Posterior,
    /// T.
    pub(super) by_annotations: &'a Posterior,
}

impl CoupledViews<'_> {
    fn annotated(&self, is_trusted: bool) -> impl Iterator<Item = usize> {
        (0..self.a.dims().instances).filter(move |i| {
            let is_annotated = !self.a.pairs_of_instance(*i).is_empty();
            is_annotated && self.a.trusted_class(*i).is_some() == is_trusted
        })
    }

    /// The share of annotated untrusted instances on which the two differ.
    fn disagreement(&self) -> f64 {
        let class = |t: &Posterior, i: usize| best(t.row(i)).map(|(k, _)| k);
        let differ = |i| class(self.by_networks, i) != class(self.by_annotations, i);
        share(self.annotated(false).map(differ)).unwrap_or_default()
    }

    /// The error of the networks' labels on trusted instances with features, else the disagreement.
    pub(super) fn error_of_networks(&self) -> f64 {
        let wrong = (0..self.a.dims().instances).filter_map(|i| {
            let (class, row) = (self.a.trusted_class(i)?, self.by_networks.row(i));
            // A row of zeros belongs to an instance without features.
            let is_predicted = row.iter().sum::<f64>() > 0.0;
            is_predicted.then(|| best(row).is_none_or(|(k, _)| k as u32 != class))
        });
        share(wrong).unwrap_or_else(|| self.disagreement())
    }

    /// The error of naive Bayes on trusted instances with annotations, each of which is taken out of the counts
    /// `[pair, class]`; else the disagreement.
    pub(super) fn error_of_annotations(&self, counts: &[f64]) -> f64 {
        let (n, labels) = (self.a.dims().classes, self.a.dims().labels as f64);
        let is_named = counted::named_classes(self.a);
        let of_annotator = |r: usize, k: usize| -> f64 {
            self.a.pairs_of_annotator(r).map(|pair| counts[pair * n + k]).sum()
        };
        let wrong = self.annotated(true).map(|i| {
            let class = self.a.trusted_class(i).map(|class| class as usize);
            let log = |k: usize| -> f64 {
                let term = |(pair, weight): (u32, f64)| {
                    let own = if class == Some(k) { weight } else { 0.0 };
                    let r = self.a.annotator_of_pair(pair) as usize;
                    let cell = at_least(counts[pair as usize * n + k] - own, MIN_PROBABILITY);
                    let all = at_least(of_annotator(r, k) - own, labels * MIN_PROBABILITY);
                    weight * if is_named[k] { cell / all } else { MIN_PROBABILITY }.ln()
                };
                self.a.annotations_of_instance(i).map(term).sum()
            };
            let logs: Vec<f64> = (0..n).map(log).collect();
            best(&logs).map(|(k, _)| k) != class
        });
        share(wrong).unwrap_or_else(|| self.disagreement())
    }

    /// d of the kept instances, and the classes of the trusted ones; zeros for the others.
    pub(super) fn kept(&self, share: f64) -> Posterior {
        let loss = |i: usize| {
            cross_entropy(self.by_networks.row(i), self.by_annotations.row(i), MIN_PROBABILITY)
        };
        let losses: Vec<(usize, f64)> = self.annotated(false).map(|i| (i, loss(i))).collect();
        let mut sorted: Vec<f64> = losses.iter().map(|(_, loss)| *loss).collect();
        let largest = smallest(&mut sorted, share * losses.len() as f64);
        let mut kept = Posterior::zeros(self.a.dims().instances, self.a.dims().classes);
        for (i, _) in losses.into_iter().filter(|(_, loss)| is_within(*loss, largest)) {
            kept.row_mut(i).copy_from_slice(self.by_networks.row(i));
        }
        for i in self.annotated(true) {
            if let Some(class) = self.a.trusted_class(i) {
                kept.row_mut(i)[class as usize] = 1.0;
            }
        }
        kept
    }
}

/// The share of true values; `None` without any.
fn share(all: impl Iterator<Item = bool>) -> Option<f64> {
    let (n, hits) =
        all.fold((0.0, 0.0), |(n, hits), hit| (n + 1.0, hits + f64::from(u8::from(hit))));
    (n > 0.0).then_some(hits / n)
}
