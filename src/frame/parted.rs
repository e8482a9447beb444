//! Annotations parted in two, so that what is learned from one part can be judged on the other.

use super::annotations::Annotations;
use super::build::Rows;
use super::said::{Duplicates, Repeated};

impl Annotations {
    /// The annotator that each column belongs to.
    #[must_use]
    pub fn annotators_of_columns(&self) -> Vec<u32> {
        let mut owners = vec![0; self.n_columns()];
        for (r, owner) in (0..self.dims.annotators).zip(0..) {
            owners[self.columns_of(r)].fill(owner);
        }
        owners
    }

    /// The annotations for which `first(annotator)` holds, and the others, with the same instances, annotators and
    /// trusted classes on both sides. It is asked of one instance after the other.
    ///
    /// # Errors
    /// As [`Annotations::build`]; repeated answers were settled before.
    pub fn parted(&self, mut first: impl FnMut(u32) -> bool) -> Result<[Self; 2], Repeated> {
        let annotators = self.annotators_of_columns();
        let mut parts = [Rows::default(), Rows::default()];
        for (i, instance) in (0..self.dims.instances).zip(0..) {
            let weights = self.weights_of(i);
            for (n, column) in self.said_of(i).iter().enumerate() {
                let annotator = annotators[*column as usize];
                let rows = &mut parts[usize::from(!first(annotator))];
                rows.instance.push(instance);
                rows.annotator.push(annotator);
                rows.label.push(self.label_of(*column));
                rows.weight.extend(weights.map(|w| w[n]));
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
    use super::super::annotations::Dims;
    use super::*;

    #[test]
    fn every_annotation_is_in_one_part_with_its_weight() {
        let dims = Dims { instances: 3, annotators: 2, classes: 2, labels: 2 };
        let rows = Rows {
            instance: vec![0, 0, 1, 2],
            annotator: vec![0, 1, 1, 0],
            label: vec![0, 1, 1, 1],
            weight: vec![0.5, 2.0, 3.0, 4.0],
        };
        let mut whole = Annotations::build(dims, rows, Duplicates::Keep).unwrap();
        whole.trusted = Some(vec![None, Some(1), None]);
        let [own, others] = whole.parted(|annotator| annotator == 0).unwrap();
        let told = |part: &Annotations| {
            let owners = part.annotators_of_columns();
            let mut told = Vec::new();
            for i in 0..3 {
                for (column, weight) in part.said_of(i).iter().zip(part.weights_of(i).unwrap()) {
                    told.push((i, owners[*column as usize], part.label_of(*column), *weight));
                }
            }
            told
        };
        assert_eq!(told(&own), [(0, 0, 0, 0.5), (2, 0, 1, 4.0)]);
        assert_eq!(told(&others), [(0, 1, 1, 2.0), (1, 1, 1, 3.0)]);
        assert_eq!(
            (own.dims(), own.trusted_class(1), others.trusted_class(1)),
            (dims, Some(1), Some(1))
        );
    }
}
