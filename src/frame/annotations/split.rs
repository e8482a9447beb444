//! Annotations split in two, so that what is learned from one part can be judged on the other.

use super::{AnnotationRows, Annotations, Duplicates, Repeated};
use crate::frame::offsets::number;

impl Annotations {
    /// The annotations for which `first(annotator)` holds, and the others, with the same instances, annotators and
    /// trusted classes on both sides. It is asked of one instance after the other.
    ///
    /// # Errors
    /// As [`Annotations::build`]; repeated answers were settled before.
    pub fn split(&self, mut first: impl FnMut(u32) -> bool) -> Result<[Self; 2], Repeated> {
        let mut parts = [AnnotationRows::default(), AnnotationRows::default()];
        for i in 0..self.dims.instances {
            for (annotator, label, weight) in self.triples_of(i) {
                let rows = &mut parts[usize::from(!first(annotator))];
                rows.instance.push(number(i));
                rows.annotator.push(annotator);
                rows.label.push(label);
                rows.weight.push(weight);
            }
        }
        let build = |rows| {
            let part = Self::build(self.dims, rows, Duplicates::Keep)?;
            Ok(Self { trusted: self.trusted.clone(), ..part })
        };
        let [one, other] = parts;
        Ok([build(one)?, build(other)?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Dims;

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
        let [own, others] = whole.split(|annotator| annotator == 0).unwrap();
        let all = |part: &Annotations| -> Vec<(usize, (u32, u32, f64))> {
            (0..3).flat_map(|i| part.triples_of(i).map(move |triple| (i, triple))).collect()
        };
        assert_eq!(all(&own), [(0, (0, 0, 0.5)), (2, (0, 1, 4.0))]);
        assert_eq!(all(&others), [(0, (1, 1, 2.0)), (1, (1, 1, 3.0))]);
        assert_eq!(
            (own.dims(), own.trusted_class(1), others.trusted_class(1)),
            (dims, Some(1), Some(1))
        );
    }
}
