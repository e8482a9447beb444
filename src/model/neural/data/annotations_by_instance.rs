//! Annotations by instance, whatever their columns.

use crate::frame::Annotations;

/// (annotator, label, weight)
pub(super) type WeightedLabel = (u32, u32, f64);

/// The rows of one annotator are adjacent.
pub(super) fn is_same_annotator(one: &WeightedLabel, next: &WeightedLabel) -> bool {
    one.0 == next.0
}

#[derive(Default)]
pub(super) struct AnnotationsByInstance {
    offsets: Vec<usize>,
    all: Vec<WeightedLabel>,
}

impl AnnotationsByInstance {
    pub(super) fn new(a: &Annotations) -> Self {
        let mut by_instance = Self { offsets: vec![0], all: Vec::with_capacity(a.len()) };
        for i in 0..a.dims().instances {
            by_instance.all.extend(a.triples_of_instance(i));
            by_instance.offsets.push(by_instance.all.len());
        }
        by_instance
    }

    pub(super) fn labels(&self, i: usize) -> &[WeightedLabel] {
        self.offsets.get(i..i + 2).map_or(&[], |bounds| &self.all[bounds[0]..bounds[1]])
    }
}
