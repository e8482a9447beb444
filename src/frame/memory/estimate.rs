//! The memory of a fit, which is known from the sizes of a question before the model is fitted.

use crate::engine::bytes_in_words;
use crate::frame::annotations::{Annotations, Dims};
use crate::frame::gold::role::Role;

/// The sizes of a question that the memory of its fit follows from.
#[derive(Debug, Clone)]
pub struct QuestionSizes {
    /// The sizes of every axis.
    pub dims: Dims,
    /// The number of annotations.
    pub annotations: usize,
    /// The number of (annotator, label) pairs that occur.
    pub pairs: usize,
    /// The roles of the gold of instances that were read with annotations.
    pub gold_roles: Vec<Role>,
}

impl QuestionSizes {
    /// The sizes of a question with gold of these roles.
    pub(in crate::frame) fn new(annotations: &Annotations, gold_roles: Vec<Role>) -> Self {
        let (dims, pairs) = (annotations.dims(), annotations.n_pairs());
        Self { dims, annotations: annotations.len(), pairs, gold_roles }
    }
}

/// Bytes of a model's fit to a question.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// The posteriors, which are held until the tables are written; 0 where they are computed when they are read.
    pub posteriors: usize,
    /// The confusion matrices with their expected counts, which are held as long.
    pub matrices: usize,
    /// Everything else that grows with the data, and is held until the question is fitted and calibrated.
    pub working: usize,
}

/// The memory of a fit by one kind of model; `None` where it is too much to be counted.
pub type EstimateMemory = fn(&QuestionSizes) -> Option<MemoryEstimate>;

/// The memory of a fit as a pipeline asks for it; `None` where it is too much to be counted.
pub type EstimateOfJob = Box<dyn Fn(&QuestionSizes) -> Option<MemoryEstimate> + Send + Sync>;

impl MemoryEstimate {
    /// The bytes of posteriors alone.
    #[must_use]
    pub fn of_posteriors(posteriors: usize) -> Self {
        Self { posteriors, ..Self::default() }
    }

    /// The bytes that are held until the tables are written.
    #[must_use]
    pub fn kept(self) -> Option<usize> {
        self.posteriors.checked_add(self.matrices)
    }

    /// The memory of a fit that starts several times: the best fit is held beside the running one; `None` where it is too
    /// much to be counted.
    #[must_use]
    pub fn of_several_starts(self) -> Option<Self> {
        let both = self.working.checked_mul(2)?;
        Some(Self { working: both.checked_add(self.kept()?)?, ..self })
    }

    /// What takes the memory, in words. Parts of less than a MiB are left out.
    pub(super) fn text(self, dims: Dims) -> String {
        let Dims { instances, classes, .. } = dims;
        let posteriors = match self.posteriors {
            0 => format!("the fit of {instances} instances and {classes} classes"),
            _ => posteriors_in_words(dims),
        };
        let matrices = further_part(self.matrices, "confusion matrices");
        let others = matrices + &working_in_words(self.working);
        if others.is_empty() || self.posteriors == 0 {
            return posteriors + &others;
        }
        let own = bytes_in_words(self.posteriors as u64);
        format!("{posteriors} ({own}){others}")
    }
}

/// Working memory in words, to follow other parts; nothing for less than a MiB.
pub(super) fn working_in_words(bytes: usize) -> String {
    further_part(bytes, "working memory")
}

fn further_part(bytes: usize, what: &str) -> String {
    if bytes < 1 << 20 {
        return String::new();
    }
    format!(" and {what} ({})", bytes_in_words(bytes as u64))
}

/// The posteriors of a question in words, with their number.
pub(super) fn posteriors_in_words(dims: Dims) -> String {
    let Dims { instances, classes, .. } = dims;
    format!("posteriors of {instances} instances and {classes} classes")
}

/// [`EstimateMemory`] of models without expected counts: a probability for each instance and class, and a matrix that all
/// annotators share.
#[must_use]
pub fn dense_memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
    let Dims { instances, classes, labels, .. } = sizes.dims;
    let bytes = |rows: usize| rows.checked_mul(classes)?.checked_mul(size_of::<f64>());
    Some(MemoryEstimate { posteriors: bytes(instances)?, matrices: bytes(labels)?, working: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_the_memory_are_named_where_they_are_large() {
        let dims = Dims { instances: 7, annotators: 1, classes: 2, labels: 2 };
        let text = |matrices, working| {
            MemoryEstimate { posteriors: 30 << 20, matrices, working }.text(dims)
        };
        assert_eq!(text(1000, 0), "posteriors of 7 instances and 2 classes");
        let want =
            "posteriors of 7 instances and 2 classes (30 MiB) and confusion matrices (20 MiB)";
        assert_eq!(text(20 << 20, 1000), want);
        let working = text(20 << 20, 40 << 30);
        assert_eq!(working, format!("{want} and working memory (40 GiB)"));
        let without = MemoryEstimate { matrices: 20 << 20, ..MemoryEstimate::default() }.text(dims);
        assert_eq!(without, "the fit of 7 instances and 2 classes and confusion matrices (20 MiB)");
    }
}
