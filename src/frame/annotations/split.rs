//! Splits annotations into two parts, to train on one and evaluate on the other.

use std::mem::replace;

use super::offsets::number;
use super::{AnnotationRows, Annotations, Duplicates};
use crate::error::{Error, Result};

impl Annotations {
    /// The annotations whose flag is set, and the other annotations; both parts have the same instances, annotators and
    /// trusted classes. There is one flag for each annotation, in the order of the instances and of their annotations.
    ///
    /// # Errors
    /// A bug if the number of flags is not that of the annotations, or if one part repeats an annotation.
    pub fn split(&self, is_first: &[bool]) -> Result<[Self; 2]> {
        if is_first.len() != self.len() {
            return Err(Error::bug("a split has one flag for each annotation"));
        }
        let mut flags = is_first.iter();
        let mut parts = [AnnotationRows::default(), AnnotationRows::default()];
        for i in 0..self.dims.instances {
            for ((annotator, label, weight), is_first) in
                self.triples_of_instance(i).zip(flags.by_ref())
            {
                let rows = &mut parts[usize::from(!is_first)];
                rows.instance.push(number(i));
                rows.annotator.push(annotator);
                rows.label.push(label);
                rows.weight.push(weight);
            }
        }
        let build = |rows| -> Result<Self> {
            let repeated = |_| Error::bug("resolved annotations repeat themselves");
            let part = Self::build(self.dims, rows, Duplicates::Keep).map_err(repeated)?;
            let (trusted, joint) = (self.trusted.clone(), self.joint.clone());
            Ok(Self { trusted, joint, given: self.given.clone(), ..part })
        };
        let [one, other] = parts;
        Ok([build(one)?, build(other)?])
    }

    /// The training annotations and the held-out annotations. `is_drawn(instance)` is called once for each annotator of
    /// an instance, because a soft annotation is held out as a whole. The first annotation of each annotator is never
    /// held out, so that every annotator has parameters.
    ///
    /// # Errors
    /// As [`Annotations::split`].
    pub fn hold_out(&self, mut is_drawn: impl FnMut(usize) -> bool) -> Result<[Self; 2]> {
        let mut is_known = vec![false; self.dims.annotators];
        let mut is_training = Vec::with_capacity(self.len());
        for i in 0..self.dims.instances {
            // An annotator's rows of one instance are adjacent.
            let pairs = self.pairs_of_instance(i);
            let same = |one: &u32, next: &u32| {
                self.annotator_of_pair(*one) == self.annotator_of_pair(*next)
            };
            for rows in pairs.chunk_by(same) {
                let held_out = is_drawn(i);
                let was_known =
                    replace(&mut is_known[self.annotator_of_pair(rows[0]) as usize], true);
                is_training.extend(rows.iter().map(|_| !was_known || !held_out));
            }
        }
        self.split(&is_training)
    }

    /// The annotations of which [`Annotations::hold_out`] drew a `share`, for the error that this was none.
    pub(crate) fn text_of_share(&self, share: f64) -> String {
        let n = self.len();
        format!("a share of {share} of {n} annotations, without the first of each annotator")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::annotations::Dims;
    use crate::testing::tiny;

    #[test]
    fn the_first_annotation_of_each_annotator_and_halves_of_a_soft_one_are_not_held_out() {
        let dims = Dims { instances: 3, annotators: 2, classes: 2, labels: 2 };
        let rows = AnnotationRows {
            instance: vec![0, 1, 1, 1, 2],
            annotator: vec![0, 0, 0, 1, 1],
            label: vec![0, 0, 1, 1, 0],
            weight: vec![1.0, 0.3, 0.7, 1.0, 1.0],
        };
        let whole = Annotations::build(dims, rows, Duplicates::Keep).unwrap();
        let mut asked = Vec::new();
        let [training, held_out] = whole
            .hold_out(|i| {
                asked.push(i);
                i < 2
            })
            .unwrap();
        let of = |part: &Annotations| -> Vec<usize> {
            (0..3).map(|i| part.triples_of_instance(i).len()).collect()
        };
        assert_eq!(asked, [0, 1, 1, 2]);
        assert_eq!((of(&training), of(&held_out)), (vec![1, 1, 1], vec![0, 2, 0]));
    }

    #[test]
    fn every_annotation_is_in_one_part_with_its_weight() {
        let dims = Dims { instances: 3, annotators: 2, classes: 2, labels: 2 };
        let rows = AnnotationRows {
            instance: vec![0, 0, 1, 2],
            annotator: vec![0, 1, 1, 0],
            label: vec![0, 1, 1, 1],
            weight: vec![0.5, 2.0, 3.0, 4.0],
        };
        let mut whole = Annotations::build(dims, rows, Duplicates::Keep).unwrap();
        whole.trusted = Some(vec![None, Some(1), None]);
        let [first, second] = whole.split(&[true, false, false, true]).unwrap();
        let all = |part: &Annotations| -> Vec<(usize, (u32, u32, f64))> {
            (0..3)
                .flat_map(|i| part.triples_of_instance(i).map(move |triple| (i, triple)))
                .collect()
        };
        assert_eq!(all(&first), [(0, (0, 0, 0.5)), (2, (0, 1, 4.0))]);
        assert_eq!(all(&second), [(0, (1, 1, 2.0)), (1, (1, 1, 3.0))]);
        assert_eq!(
            (first.dims(), first.trusted_class(1), second.trusted_class(1)),
            (dims, Some(1), Some(1))
        );
    }
    #[test]
    fn a_split_without_a_flag_for_each_annotation_is_a_defect() {
        let a = tiny(2, &[(0, 0, 0), (0, 1, 1), (1, 1, 1)]);
        for flags in [&[true, false][..], &[true; 4]] {
            let error = a.split(flags).unwrap_err().to_string();
            assert!(error.contains("one flag for each annotation"), "{error}");
        }
    }
}
