//! The prior: P(class) of an instance before its annotations.

use std::ops::Range;

/// P(class) before any annotation, shared by all instances or one for each. A probability must be 0, which excludes the
/// class, or at least 1e-27, because the products of the E-step may underflow with a smaller one.
#[derive(Debug, Clone, Copy)]
pub enum Prior<'a> {
    /// `[class]`
    Class(&'a [f64]),
    /// `[instance, class]`, such as the output of a classifier
    Instance(&'a [f64]),
}

/// The least probability that is not 0.
const MIN_PRIOR: f64 = 1e-27;

impl<'a> Prior<'a> {
    /// Whether each probability is 0 or large enough.
    pub(super) fn is_usable(self) -> bool {
        let (Self::Class(prior) | Self::Instance(prior)) = self;
        prior.iter().all(|p| *p == 0.0 || *p >= MIN_PRIOR)
    }

    /// The prior of the `i`-th instance, of `n` classes.
    #[inline(always)]
    pub(super) fn of(self, i: usize, n: usize) -> &'a [f64] {
        match self {
            Self::Class(prior) => prior,
            Self::Instance(rows) => &rows[i * n..(i + 1) * n],
        }
    }

    pub(super) fn range(self, instances: &Range<usize>, n: usize) -> Self {
        match self {
            Self::Class(prior) => Self::Class(prior),
            Self::Instance(rows) => Self::Instance(&rows[instances.start * n..instances.end * n]),
        }
    }
}

/// The logarithm of the prior.
pub(super) struct LogPrior<'a> {
    prior: Prior<'a>,
    /// The logarithms for the instance of the last call; for all instances, if they share a prior.
    logs: Vec<f64>,
}

impl<'a> LogPrior<'a> {
    pub(super) fn new(prior: Prior<'a>, n: usize) -> Self {
        let logs = match prior {
            Prior::Class(prior) => prior.iter().map(|p| p.ln()).collect(),
            Prior::Instance(_) => vec![0.0; n],
        };
        Self { prior, logs }
    }

    /// The log-prior of the `i`-th instance.
    #[inline(always)]
    pub(super) fn of(&mut self, i: usize) -> &[f64] {
        let n = self.logs.len();
        if let Prior::Instance(_) = self.prior {
            self.logs.iter_mut().zip(self.prior.of(i, n)).for_each(|(log, p)| *log = p.ln());
        }
        &self.logs
    }
}
