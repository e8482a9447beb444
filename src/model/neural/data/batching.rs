//! How training data become batches, and which of them are trained on.

/// The default size of a batch where there are many units.
const DEFAULT_BATCH: usize = 128;

/// The least number of batches in an epoch with the default size.
const MIN_BATCHES: usize = 8;

/// How training data become batches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Batching {
    /// Rows in a batch; `None` for a default that suits the data.
    pub batch_size: Option<usize>,
    /// Whether the unit of a batch is an annotation instead of an instance.
    pub by_annotation: bool,
    /// Whether an incomplete last batch is left out.
    pub drops_last: bool,
}

impl Batching {
    /// The size of a batch of so many units: small enough for an epoch to have several batches where the data are few.
    pub(super) fn size(self, units: usize) -> usize {
        let default = DEFAULT_BATCH.min(units.div_ceil(MIN_BATCHES));
        self.batch_size.unwrap_or(default).max(1)
    }

    /// The number of batches in an epoch of so many units.
    pub(super) fn batches(self, units: usize) -> usize {
        let size = self.size(units);
        if self.drops_last && units >= size { units / size } else { units.div_ceil(size) }
    }
}

/// The instances that are trained on, of those that have something to learn from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum InstanceSubset {
    /// All of them.
    #[default]
    All,
    /// Those without a trusted class.
    Untrusted,
    /// Those with a trusted class.
    Trusted,
}

impl InstanceSubset {
    /// Whether an instance with this trusted class is among them.
    pub(super) fn has(self, trusted: Option<u32>) -> bool {
        match self {
            Self::All => true,
            Self::Untrusted => trusted.is_none(),
            Self::Trusted => trusted.is_some(),
        }
    }
}
