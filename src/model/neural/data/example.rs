//! What a network is trained on at once: an instance, or one annotation of it.

/// What a batch has several of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Example {
    /// An instance with all its annotations.
    Instance(u32),
    /// One annotation, which has a row for each of its labels.
    Annotation {
        instance: u32,
        /// The index of its first row among the rows of the instance.
        first: u32,
        /// The number of its rows.
        len: u32,
        /// The number of annotations of the instance.
        all: u32,
    },
}

impl Example {
    pub(super) fn instance(self) -> usize {
        match self {
            Self::Instance(instance) | Self::Annotation { instance, .. } => instance as usize,
        }
    }
}
