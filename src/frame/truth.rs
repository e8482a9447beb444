//! A table of true classes on its own, without annotations: instances and classes numbered in sorted order.

use arrow::array::RecordBatch;

use super::ids::{Ids, Interner, NULL};
use crate::error::{Error, Result, offenders};

/// The class of each instance.
pub struct Truth {
    /// Instances by number.
    pub instances: Ids,
    /// Classes by number: those that occur.
    pub classes: Ids,
    /// The class's number, by instance.
    pub class: Vec<u32>,
    /// Rows without an instance or a class, which were left out.
    pub skipped: usize,
}

impl Truth {
    /// Numbers the rows of a batch whose first columns are instance and class.
    ///
    /// # Errors
    /// When an instance has two classes, or no row can be used.
    pub fn of(batch: &RecordBatch) -> Result<Self> {
        let schema = batch.schema();
        let number = |column: usize| -> Result<(Interner, Vec<u32>)> {
            let (mut interner, mut numbers) = (Interner::new(schema.field(column)), Vec::new());
            interner.intern(batch.column(column), &mut numbers)?;
            Ok((interner, numbers))
        };
        let ((instances, instance), (classes, class)) = (number(0)?, number(1)?);
        let mut class_of = vec![NULL; instances.len()];
        let mut occurs = vec![false; classes.len()];
        let (mut contradicted, mut skipped) = (Vec::new(), 0);
        for (i, k) in instance.into_iter().zip(class) {
            if i == NULL || k == NULL {
                skipped += 1;
                continue;
            }
            let own = &mut class_of[i as usize];
            if *own != NULL && *own != k {
                contradicted.push(i);
            }
            *own = k;
            occurs[k as usize] = true;
        }
        let (instances, place) = instances.finish(|i| class_of[i as usize] != NULL)?;
        let (classes, rank) = classes.finish(|k| occurs[k as usize])?;
        if !contradicted.is_empty() {
            let names = contradicted.iter().map(|i| instances.text(place[*i as usize] as usize));
            return Err(Error::data("the truth gives an instance two classes")
                .found(offenders(names))
                .help("keep one class an instance"));
        }
        if instances.is_empty() {
            return Err(Error::data("the truth has no row with an instance and a class")
                .found(format!("{skipped} rows")));
        }
        let mut class = vec![0; instances.len()];
        for (place, k) in place.into_iter().zip(class_of).filter(|(place, _)| *place != NULL) {
            class[place as usize] = rank[k as usize];
        }
        Ok(Self { instances, classes, class, skipped })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use arrow::array::{ArrayRef, StringArray};

    fn truth(rows: &[(Option<&str>, Option<&str>)]) -> Result<Truth> {
        let ids: ArrayRef = Arc::new(rows.iter().map(|r| r.0).collect::<StringArray>());
        let classes: ArrayRef = Arc::new(rows.iter().map(|r| r.1).collect::<StringArray>());
        Truth::of(&RecordBatch::try_from_iter([("instance_id", ids), ("class", classes)])?)
    }

    #[test]
    fn rows_are_numbered_in_sorted_order_and_nulls_are_left_out() {
        let rows =
            [("j", "y"), ("i", "x"), ("i", "x"), ("k", "x")].map(|(i, k)| (Some(i), Some(k)));
        let truth = truth(&[&rows[..], &[(None, Some("z")), (Some("l"), None)]].concat()).unwrap();
        assert_eq!((truth.instances.len(), truth.classes.len(), truth.skipped), (3, 2, 2));
        assert_eq!(truth.class, [0, 1, 0]);
        assert_eq!(truth.instances.text(2), "k");
    }

    #[test]
    fn two_classes_for_an_instance_are_refused() {
        let error = truth(&[(Some("i"), Some("x")), (Some("i"), Some("y"))]).err().unwrap();
        assert!(error.to_string().contains("`i`"), "{error}");
    }
}
