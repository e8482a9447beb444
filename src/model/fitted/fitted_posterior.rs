//! The posterior that a fit returns: every row, or what computes a row when it is read.
//!
//! # Why
//! A posterior has a number for each instance and class, and is the largest part of the memory of a fit. The rows of a vote
//! and of a model of pairs follow from the annotations, which are in memory anyway, in less time than it takes to read them
//! from there; so these fits hold none. Blocks of rows are computed together: alone, each row would wait for the numbers that
//! it is made of. An instance has votes for a few classes, however many there are: with 1000 classes a row of a vote has a
//! few entries, and is read as these.

use std::borrow::Cow;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use crate::frame::{Annotations, ITEMS_PER_BLOCK};
use crate::model::calibration::calibrator::Calibrator;
use crate::model::posterior::{Posterior, best};

/// P(class given everything observed) of a fit, one row per instance.
#[derive(Debug, Clone)]
pub enum FittedPosterior {
    /// Every probability of every row.
    Dense(Posterior),
    /// Rows that are computed when they are read.
    OnDemand(RowsOnDemand),
}

/// What computes the rows of a posterior.
pub trait PosteriorRows: Debug + Send + Sync {
    /// Writes the rows of adjacent instances, `[instance, class]`, into zeros.
    fn write(&self, a: &Annotations, instances: Range<usize>, rows: &mut [f64]);
    /// The classes of instance `i` that have a probability above 0, ascending, with their probabilities, where these are
    /// few; they may be empty only if all classes are equally probable. `None` for a row that is read whole.
    fn entries(&self, _a: &Annotations, _i: usize) -> Option<(Vec<u32>, Vec<f64>)> {
        None
    }
    /// All numbers that rows are made of, for a check that they are finite.
    fn parts(&self) -> Vec<&[f64]> {
        Vec::new()
    }
}

/// Rows that are computed when they are read, and then calibrated.
#[derive(Debug, Clone)]
pub struct RowsOnDemand {
    a: Annotations,
    rows: Arc<dyn PosteriorRows>,
    calibrators: Vec<Calibrator>,
}

impl From<Posterior> for FittedPosterior {
    fn from(posterior: Posterior) -> Self {
        Self::Dense(posterior)
    }
}

/// Equal rows.
impl PartialEq for FittedPosterior {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && (0..self.len()).all(|i| self.row(i) == other.row(i))
    }
}

impl RowsOnDemand {
    fn write(&self, instances: Range<usize>, rows: &mut [f64]) {
        self.rows.write(&self.a, instances.clone(), rows);
        if self.calibrators.is_empty() {
            return;
        }
        for (i, row) in instances.zip(rows.chunks_exact_mut(self.a.dims().classes.max(1))) {
            if is_calibrated(&self.a, i) {
                self.calibrators.iter().for_each(|map| map.apply(row));
            }
        }
    }
}

/// Whether a calibration changes the row of this instance: trusted classes and rows without evidence stay.
fn is_calibrated(a: &Annotations, i: usize) -> bool {
    a.has_evidence(i) && a.trusted_class(i).is_none()
}

impl FittedPosterior {
    /// Rows that `rows` computes from these annotations.
    pub fn on_demand(a: &Annotations, rows: impl PosteriorRows + 'static) -> Self {
        let (a, rows) = (a.clone(), Arc::new(rows));
        Self::OnDemand(RowsOnDemand { a, rows, calibrators: Vec::new() })
    }

    /// The number of instances.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Dense(posterior) => posterior.len(),
            Self::OnDemand(rows) => rows.a.dims().instances,
        }
    }

    /// Whether there are no instances.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of classes.
    #[must_use]
    pub fn n_classes(&self) -> usize {
        match self {
            Self::Dense(posterior) => posterior.n_classes(),
            Self::OnDemand(rows) => rows.a.dims().classes,
        }
    }

    /// The probability of every class for instance `i`, `[class]`.
    #[must_use]
    pub fn row(&self, i: usize) -> Cow<'_, [f64]> {
        self.rows(i..i + 1)
    }

    /// The probability of every class for adjacent instances, `[instance, class]`.
    #[must_use]
    pub fn rows(&self, instances: Range<usize>) -> Cow<'_, [f64]> {
        let n = self.n_classes();
        match self {
            Self::Dense(posterior) => {
                Cow::Borrowed(&posterior.values()[instances.start * n..instances.end * n])
            }
            Self::OnDemand(on_demand) => {
                let mut rows = vec![0.0; instances.len() * n];
                on_demand.write(instances, &mut rows);
                Cow::Owned(rows)
            }
        }
    }

    /// Hands the probabilities of adjacent instances to `read`, one after the other, as [`FittedPosterior::entries`].
    pub fn for_each(&self, instances: Range<usize>, mut read: impl FnMut(usize, RowEntries<'_>)) {
        let n = self.n_classes();
        if n == 0 || (!instances.is_empty() && self.entries(instances.start).classes.is_some()) {
            instances.for_each(|i| read(i, self.entries(i)));
            return;
        }
        for start in instances.clone().step_by(ITEMS_PER_BLOCK) {
            let block = start..(start + ITEMS_PER_BLOCK).min(instances.end);
            let rows = self.rows(block.clone());
            for (i, row) in block.zip(rows.chunks_exact(n)) {
                read(i, RowEntries { classes: None, values: Cow::Borrowed(row) });
            }
        }
    }

    /// The probabilities of instance `i`, without the classes that are known to have none.
    #[must_use]
    pub fn entries(&self, i: usize) -> RowEntries<'_> {
        if let Self::OnDemand(rows) = self
            && rows.calibrators.is_empty()
            && let Some((classes, values)) = rows.rows.entries(&rows.a, i)
        {
            return RowEntries { classes: Some(classes), values: Cow::Owned(values) };
        }
        RowEntries { classes: None, values: self.row(i) }
    }

    /// All numbers that rows are made of, for a check that they are finite.
    pub(crate) fn parts(&self) -> Vec<&[f64]> {
        match self {
            Self::Dense(posterior) => vec![posterior.values()],
            Self::OnDemand(rows) => rows.rows.parts(),
        }
    }

    /// Every probability of every row.
    #[must_use]
    pub fn dense(&self) -> Cow<'_, Posterior> {
        match self {
            Self::Dense(posterior) => Cow::Borrowed(posterior),
            Self::OnDemand(rows) => {
                let mut posterior = Posterior::zeros(self.len(), self.n_classes());
                let n = self.n_classes().max(1);
                let blocks = posterior.values_mut().par_chunks_mut(ITEMS_PER_BLOCK * n).enumerate();
                blocks.for_each(|(block, values)| {
                    let start = block * ITEMS_PER_BLOCK;
                    rows.write(start..start + values.len() / n, values);
                });
                Cow::Owned(posterior)
            }
        }
    }

    /// Calibrates the rows of instances with evidence that are not trusted.
    pub fn calibrate(&mut self, a: &Annotations, map: &Calibrator) {
        match self {
            Self::Dense(posterior) => map.apply_to(posterior, |i| is_calibrated(a, i)),
            Self::OnDemand(rows) => rows.calibrators.push(map.clone()),
        }
    }

    /// Makes the posterior dense and changes it.
    pub fn change(&mut self, change: impl FnOnce(&mut Posterior)) {
        let mut posterior = self.dense().into_owned();
        change(&mut posterior);
        *self = Self::Dense(posterior);
    }
}

/// The probabilities of one instance; other classes have the probability 0. They are empty only for an instance without a
/// vote for a class, whose classes are equally probable.
#[derive(Debug, Clone)]
pub struct RowEntries<'a> {
    /// The class of each probability, ascending; `None` where every class has one.
    classes: Option<Vec<u32>>,
    /// The probabilities.
    pub values: Cow<'a, [f64]>,
}

impl RowEntries<'_> {
    /// The class of the probability at this position.
    #[must_use]
    pub fn class(&self, at: usize) -> usize {
        self.classes.as_ref().map_or(at, |classes| classes[at] as usize)
    }

    /// The most probable class, as [`best`]; `None` without entries.
    #[must_use]
    pub fn best(&self) -> Option<(usize, bool)> {
        best(&self.values).map(|(at, is_tied)| (self.class(at), is_tied))
    }
}
