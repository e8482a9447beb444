//! The posterior that a fit returns: every row, or what computes a row when it is read.
//!
//! # Why
//! A posterior has a number for each instance and class, and is the largest part of the memory of a fit. The rows of a vote
//! and of a model of pairs follow from the annotations, which are in memory anyway, in less time than it takes to read them
//! from there; so these fits hold none. An instance has votes for a few classes, however many there are: with 1000 classes
//! a row of a vote has a few entries, and is read as these.

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;

use crate::frame::Annotations;
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
    /// Writes the row of instance `i`, `[class]`, into zeros.
    fn write(&self, a: &Annotations, i: usize, row: &mut [f64]);
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
    fn write(&self, i: usize, row: &mut [f64]) {
        self.rows.write(&self.a, i, row);
        if is_calibrated(&self.a, i) {
            self.calibrators.iter().for_each(|map| map.apply(row));
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
        match self {
            Self::Dense(posterior) => Cow::Borrowed(posterior.row(i)),
            Self::OnDemand(_) => {
                let mut row = Vec::with_capacity(self.n_classes());
                self.extend_with_row(i, &mut row);
                Cow::Owned(row)
            }
        }
    }

    /// Appends the probability of every class for instance `i` to `values`.
    pub fn extend_with_row(&self, i: usize, values: &mut Vec<f64>) {
        match self {
            Self::Dense(posterior) => values.extend_from_slice(posterior.row(i)),
            Self::OnDemand(rows) => {
                let begin = values.len();
                values.resize(begin + self.n_classes(), 0.0);
                rows.write(i, &mut values[begin..]);
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
                posterior.par_rows_mut(|i, row| rows.write(i, row));
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
