//! A table of true classes, alone or with a crowd's annotations: instances and classes are numbered in sorted order.

use arrow::array::RecordBatch;
use arrow::datatypes::Field;

use crate::error::{Error, Result, offenders};
use crate::frame::ids::{Ids, Interner, NULL};

/// The class of each instance.
pub struct Truth {
    /// Instances by number.
    pub instances: Ids,
    /// Classes by number: those that occur.
    pub classes: Ids,
    /// The class number of each instance.
    pub class: Vec<u32>,
    /// The number of rows left out, because they have no instance or no class.
    pub skipped: usize,
}

/// The annotations of a crowd, numbered together with the true classes of its instances.
pub struct TrueCrowd {
    /// The instances that have a class. The classes are the true ones and the labels that annotators gave.
    pub truth: Truth,
    /// Annotators by number.
    pub annotators: Ids,
    /// Instance, annotator and label of each annotation, sorted. Repeated annotations are kept.
    pub annotations: Vec<[u32; 3]>,
    /// The number of annotations left out, because they have no annotator, no label, or no instance with a class.
    pub skipped: usize,
}

impl Truth {
    /// Numbers the rows of a batch whose first columns are instance and class.
    ///
    /// # Errors
    /// When an instance has two classes, or no row can be used.
    pub fn from_batch(batch: &RecordBatch) -> Result<Self> {
        Ok(TruthRows::read(batch)?.finish()?.0)
    }
}

impl TrueCrowd {
    /// Numbers the rows of a truth as [`Truth::from_batch`], and those of a batch whose first columns are instance, annotator and
    /// label.
    ///
    /// # Errors
    /// As [`Truth::from_batch`]; when ids or labels are of another type than in the truth, where text of a format without types
    /// may stand for integers; or when no annotation can be used.
    pub fn from_batches(truth: &RecordBatch, annotations: &RecordBatch) -> Result<Self> {
        let mut rows = TruthRows::read(truth)?;
        let schema = truth.schema();
        let instance = numbers_in(&mut rows.instances, schema.field(0), annotations, 0)?;
        let label = numbers_in(&mut rows.classes, schema.field(1), annotations, 2)?;
        rows.class_of.resize(rows.instances.len(), NULL);
        rows.occurs.resize(rows.classes.len(), false);
        let (annotators, annotator) = interned(annotations, 1)?;
        let given = instance.into_iter().zip(annotator).zip(label).map(|((i, r), l)| [i, r, l]);
        let is_usable = |[i, r, l]: &[u32; 3]| {
            ![*i, *r, *l].contains(&NULL) && rows.class_of[*i as usize] != NULL
        };
        let mut given: Vec<[u32; 3]> = given.filter(is_usable).collect();
        let skipped = annotations.num_rows() - given.len();
        if given.is_empty() {
            return Err(Error::data("no annotation is of an instance with a true class")
                .found(format!("{skipped} annotations"))
                .help("do the ids have the same form?"));
        }
        let mut has_annotations = vec![false; annotators.len()];
        for [_, r, l] in &given {
            rows.occurs[*l as usize] = true;
            has_annotations[*r as usize] = true;
        }
        let (annotators, of_annotator) = annotators.finish(|r| has_annotations[r as usize])?;
        let (truth, of_instance, of_class) = rows.finish()?;
        for [i, r, l] in &mut given {
            (*i, *r) = (of_instance[*i as usize], of_annotator[*r as usize]);
            *l = of_class[*l as usize];
        }
        given.sort_unstable();
        Ok(Self { truth, annotators, annotations: given, skipped })
    }
}

/// The rows of a truth, by provisional numbers of instances and classes.
struct TruthRows {
    instances: Interner,
    classes: Interner,
    /// The class of each instance; [`NULL`] for one that has none.
    class_of: Vec<u32>,
    /// Whether each class stays.
    occurs: Vec<bool>,
    /// Instances with two classes.
    contradicted: Vec<u32>,
    skipped: usize,
}

/// The interned values of a column, and the number of the value of each row.
fn interned(batch: &RecordBatch, column: usize) -> Result<(Interner, Vec<u32>)> {
    let mut numbers = Vec::new();
    let mut interner = Interner::new(batch.schema().field(column));
    interner.intern(batch.column(column), &mut numbers)?;
    Ok((interner, numbers))
}

/// Interns a column of annotations among the values of a column of the truth; returns the number of each row.
fn numbers_in(
    values: &mut Interner,
    of_truth: &Field,
    annotations: &RecordBatch,
    column: usize,
) -> Result<Vec<u32>> {
    let (schema, mut numbers) = (annotations.schema(), Vec::new());
    let field = schema.field(column);
    match values.intern_other(field, annotations.column(column), &mut numbers) {
        Ok(()) => Ok(numbers),
        Err(e) if field.data_type() == of_truth.data_type() => Err(e),
        Err(e) => Err(e
            .what(format!("`{}` has another type than the truth has", field.name()))
            .help("the same value in two types is two values: write both with one type")),
    }
}

impl TruthRows {
    fn read(batch: &RecordBatch) -> Result<Self> {
        let ((instances, instance), (classes, class)) = (interned(batch, 0)?, interned(batch, 1)?);
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
        Ok(Self { instances, classes, class_of, occurs, contradicted, skipped })
    }

    /// The truth, and the final number of each provisional instance and class number.
    fn finish(self) -> Result<(Truth, Vec<u32>, Vec<u32>)> {
        let Self { class_of, occurs, skipped, .. } = self;
        let (instances, position) = self.instances.finish(|i| class_of[i as usize] != NULL)?;
        let (classes, rank) = self.classes.finish(|k| occurs[k as usize])?;
        if !self.contradicted.is_empty() {
            let position = |i: &u32| position[*i as usize] as usize;
            let names = self.contradicted.iter().map(|i| instances.text(position(i)));
            return Err(Error::data("the truth gives an instance two classes")
                .found(offenders(names))
                .help("keep one class an instance"));
        }
        if instances.is_empty() {
            return Err(Error::data("the truth has no row with an instance and a class")
                .found(format!("{skipped} rows")));
        }
        let mut class = vec![0; instances.len()];
        for (position, k) in
            position.iter().zip(class_of).filter(|(position, _)| **position != NULL)
        {
            class[*position as usize] = rank[k as usize];
        }
        Ok((Truth { instances, classes, class, skipped }, position, rank))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::source::files::UNTYPED;
    use arrow::array::{ArrayRef, Int64Array, StringArray};
    use arrow::datatypes::{DataType, Schema};

    fn truth(rows: &[(Option<&str>, Option<&str>)]) -> Result<Truth> {
        let ids: ArrayRef = Arc::new(rows.iter().map(|r| r.0).collect::<StringArray>());
        let classes: ArrayRef = Arc::new(rows.iter().map(|r| r.1).collect::<StringArray>());
        Truth::from_batch(&RecordBatch::try_from_iter([("instance_id", ids), ("class", classes)])?)
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

    fn numbered(truth: &[[&str; 2]], given: &[[Option<&str>; 3]]) -> Result<TrueCrowd> {
        let text = |values: Vec<Option<&str>>| Arc::new(StringArray::from(values)) as ArrayRef;
        let column = |n: usize| text(truth.iter().map(|row| Some(row[n])).collect());
        let truth = RecordBatch::try_from_iter([("instance_id", column(0)), ("class", column(1))])?;
        let column = |n: usize| text(given.iter().map(|row| row[n]).collect());
        let names = ["instance_id", "annotator_id", "label"];
        let columns = names.into_iter().enumerate().map(|(n, name)| (name, column(n)));
        TrueCrowd::from_batches(
            &truth,
            &RecordBatch::try_from_iter_with_nullable(
                columns.map(|(name, column)| (name, column, true)),
            )?,
        )
    }

    /// The label `a` is no instance's class, and sorts first; annotator `q` labelled only `k`, which has no class.
    #[test]
    fn annotations_are_numbered_beside_the_truth_and_those_without_a_class_are_left_out() {
        let given =
            [["j", "r", "y"], ["i", "p", "a"], ["k", "q", "x"], ["i", "r", "x"], ["i", "p", "a"]];
        let mut given: Vec<_> = given.map(|row| row.map(Some)).to_vec();
        given.push([Some("i"), None, Some("x")]);
        let crowd = numbered(&[["j", "y"], ["i", "x"], ["l", "y"]], &given).unwrap();
        assert_eq!((crowd.truth.instances.len(), crowd.annotators.len(), crowd.skipped), (3, 2, 2));
        assert_eq!([0, 1, 2].map(|k| crowd.truth.classes.text(k)), ["a", "x", "y"]);
        assert_eq!(crowd.truth.class, [1, 2, 2]);
        assert_eq!(crowd.annotations, [[0, 0, 0], [0, 0, 0], [0, 1, 1], [1, 1, 2]]);
        let error = numbered(&[["z", "y"]], &given).err().unwrap().to_string();
        assert!(error.contains("no annotation is of an instance with a true class"), "{error}");
    }

    /// A truth from a CSV file, and annotations with typed instances and labels.
    fn of_csv(truth: &[[&str; 2]], [instance, label]: [ArrayRef; 2]) -> Result<TrueCrowd> {
        let column = |n: usize| {
            let texts = truth.iter().map(|row| Some(row[n]));
            Arc::new(texts.collect::<StringArray>()) as ArrayRef
        };
        let untyped = |name: &str| {
            let field = Field::new(name, DataType::Utf8, true);
            field.with_metadata([(UNTYPED.to_owned(), "true".to_owned())].into())
        };
        let schema = Schema::new(vec![untyped("instance_id"), untyped("class")]);
        let truth = RecordBatch::try_new(Arc::new(schema), vec![column(0), column(1)])?;
        let annotators: ArrayRef = Arc::new(StringArray::from(vec!["a"; instance.len()]));
        let columns = [("instance_id", instance), ("annotator_id", annotators), ("label", label)];
        TrueCrowd::from_batches(&truth, &RecordBatch::try_from_iter(columns)?)
    }

    #[test]
    fn integers_are_those_that_the_text_of_a_csv_stands_for() {
        let integers = |values: &[i64]| Arc::new(Int64Array::from(values.to_vec())) as ArrayRef;
        let truth = [["10", "1"], ["9", "0"], ["-1", "1"]];
        let crowd = of_csv(&truth, [integers(&[9, 10, 8]), integers(&[1, 1, 1])]).unwrap();
        assert_eq!([0, 1, 2].map(|i| crowd.truth.instances.text(i)), ["-1", "9", "10"]);
        assert_eq!(crowd.truth.classes.values().data_type(), &DataType::Int64);
        assert_eq!((crowd.annotations, crowd.skipped), (vec![[1, 0, 1], [2, 0, 1]], 1));
        let floats: ArrayRef = Arc::new(arrow::array::Float64Array::from(vec![9.0]));
        let error = of_csv(&truth, [floats, integers(&[1])]).err().unwrap().to_string();
        for part in
            ["`instance_id` has another type than the truth has", "Float64 here, Utf8 there"]
        {
            assert!(error.contains(part), "{error}");
        }
        assert!(!error.contains("source.sql"), "{error}");
    }
}
