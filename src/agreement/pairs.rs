//! Which annotators of which instances are compared in pairs.

use rayon::prelude::*;

use crate::frame::Annotations;

/// The most annotators of an instance that are compared.
pub(crate) const MAX_ANNOTATORS: usize = 256;

/// The instances whose annotators are compared: all with two annotations or, where they have more than `at_most` pairs of
/// them, instances at equal distances in the order of their ids. Call it in the run's pool of threads.
pub(crate) fn instances_with_pairs(a: &Annotations, at_most: usize) -> Vec<u32> {
    let pairs = |i: usize| {
        let n = a.pairs_of_instance(i).len().min(MAX_ANNOTATORS);
        n * n.saturating_sub(1) / 2
    };
    let n = a.dims().instances;
    let total: usize = (0..n).into_par_iter().with_min_len(4096).map(pairs).sum();
    let every = total.div_ceil(at_most).max(1);
    (0..n).step_by(every).filter(|i| pairs(*i) > 0).map(|i| i as u32).collect()
}

/// (annotator, label) of each annotator of one instance who gave one label only, in the order of arrival. The labels of an
/// annotator arrive one after the other; a repeated one is no second opinion.
#[derive(Debug, Clone, Default)]
pub(crate) struct SingleAnswers {
    given: Vec<(u32, u32)>,
    /// The last annotator with several labels.
    several: Option<u32>,
}

impl SingleAnswers {
    pub(crate) fn clear(&mut self) {
        self.given.clear();
        self.several = None;
    }

    pub(crate) fn add(&mut self, annotator: u32, label: u32) {
        match self.given.last() {
            Some((last, other)) if *last == annotator => {
                if *other != label {
                    self.given.pop();
                    self.several = Some(annotator);
                }
            }
            _ if self.several == Some(annotator) => {}
            _ => self.given.push((annotator, label)),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.given.len()
    }

    /// Each label with the number of annotators who gave it; sorts the answers by label.
    pub(crate) fn counts(&mut self) -> impl Iterator<Item = (u32, f64)> {
        self.given.sort_unstable_by_key(|(_, label)| *label);
        let equal = self.given.chunk_by(|x, y| x.1 == y.1);
        equal.map(|equal| (equal[0].1, equal.len() as f64))
    }

    /// The first [`MAX_ANNOTATORS`] answers by annotator; sorts them.
    pub(super) fn by_annotator(&mut self) -> &[(u32, u32)] {
        self.given.sort_unstable();
        &self.given[..self.given.len().min(MAX_ANNOTATORS)]
    }
}
