//! The split of training data into batches, and the subset of instances that a phase uses.

/// The default batch size for large data.
const DEFAULT_BATCH: usize = 128;

/// The least number of batches in an epoch with the default size.
const MIN_BATCHES: usize = 8;

/// The split of training data into batches.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Batching {
    /// The number of rows in a batch; `None` for a default that depends on the size of the data.
    pub batch_size: Option<usize>,
    /// Whether the example of a batch is an annotation instead of an instance.
    pub by_annotation: bool,
    /// Whether an incomplete last batch is left out.
    pub drops_last: bool,
}

impl Batching {
    /// The batch size for `examples` examples. The default is small enough for an epoch over few data to have several
    /// batches.
    pub(super) fn size(self, examples: usize) -> usize {
        let default = DEFAULT_BATCH.min(examples.div_ceil(MIN_BATCHES));
        self.batch_size.unwrap_or(default).max(1)
    }

    /// The number of batches in an epoch of `examples` examples.
    pub(super) fn batches(self, examples: usize) -> usize {
        let size = self.size(examples);
        if self.drops_last && examples >= size { examples / size } else { examples.div_ceil(size) }
    }
}

/// The training instances that a phase uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum InstanceSubset {
    /// All training instances.
    #[default]
    All,
    /// The instances without a trusted class.
    Untrusted,
    /// The instances with a trusted class.
    Trusted,
}

impl InstanceSubset {
    /// Whether an instance with this trusted class belongs to the subset.
    pub(super) fn has(self, trusted: Option<u32>) -> bool {
        match self {
            Self::All => true,
            Self::Untrusted => trusted.is_none(),
            Self::Trusted => trusted.is_some(),
        }
    }
}
