//! The statistics of a sweep as Arrow: what an executor that holds some of the instances returns to whoever runs the EM.
//!
//! One row with lists, as the state of an aggregate function has; of the expected counts, only those of pairs that occur
//! among the instances of the range.

use std::sync::Arc;

use arrow::array::{
    Array as _, AsArray as _, BooleanArray, Float64Array, LargeListArray, PrimitiveArray,
    RecordBatch, UInt32Array, UInt64Array,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{ArrowPrimitiveType, Field, Float64Type, UInt32Type, UInt64Type};

use crate::error::{Error, Result};
use crate::model::em::kernels::{Statistics, stride};

/// The statistics of a range of instances as one row.
///
/// # Errors
/// A bug, when the lists do not make a row.
pub fn to_arrow(statistics: &Statistics, n_classes: usize) -> Result<RecordBatch> {
    let Statistics { instances, counts, class_counts, log_likelihood, are_hard } = statistics;
    let (mut pairs, mut cells) = (Vec::new(), Vec::new());
    for (pair, row) in counts.cells().chunks_exact(counts.stride()).enumerate() {
        if row.iter().any(|count| *count != 0.0) {
            pairs.push(pair as u32);
            cells.extend_from_slice(&row[..n_classes]);
        }
    }
    let bound = |n: usize| Arc::new(UInt64Array::from(vec![n as u64]));
    Ok(RecordBatch::try_from_iter([
        ("first", bound(instances.start) as _),
        ("end", bound(instances.end) as _),
        ("pairs", list(UInt32Array::from(pairs)) as _),
        ("counts", list(Float64Array::from(cells)) as _),
        ("class_counts", list(Float64Array::from(class_counts[..n_classes].to_vec())) as _),
        ("log_likelihood", Arc::new(Float64Array::from(vec![*log_likelihood])) as _),
        ("hard", Arc::new(BooleanArray::from(vec![*are_hard])) as _),
    ])?)
}

/// One list of these values.
fn list<T: ArrowPrimitiveType>(values: PrimitiveArray<T>) -> Arc<LargeListArray> {
    let field = Arc::new(Field::new("item", T::DATA_TYPE, false));
    let offsets = OffsetBuffer::from_lengths([values.len()]);
    Arc::new(LargeListArray::new(field, offsets, Arc::new(values), None))
}

/// The statistics that [`to_arrow`] has written, of so many pairs and classes.
///
/// # Errors
/// When the row is none, or that of other pairs or classes.
pub fn from_arrow(row: &RecordBatch, n_pairs: usize, n_classes: usize) -> Result<Statistics> {
    read(row, n_pairs, n_classes).ok_or_else(|| {
        Error::data("these are not the statistics of this question")
            .found(format!("{} rows of {}", row.num_rows(), row.schema()))
            .help(format!("a row of `to_arrow`, of {n_pairs} pairs and {n_classes} classes"))
    })
}

fn read(row: &RecordBatch, n_pairs: usize, n_classes: usize) -> Option<Statistics> {
    if row.num_rows() != 1 || row.columns().iter().any(|column| column.null_count() > 0) {
        return None;
    }
    let bound = |name| {
        let bounds = row.column_by_name(name)?.as_primitive_opt::<UInt64Type>()?;
        usize::try_from(bounds.value(0)).ok()
    };
    let list = |name| Some(row.column_by_name(name)?.as_list_opt::<i64>()?.value(0));
    let (pairs, counts, class_counts) = (list("pairs")?, list("counts")?, list("class_counts")?);
    let pairs = pairs.as_primitive_opt::<UInt32Type>()?.values();
    let counts = counts.as_primitive_opt::<Float64Type>()?.values();
    let class_counts = class_counts.as_primitive_opt::<Float64Type>()?.values();
    if class_counts.len() != n_classes || counts.len() != pairs.len() * n_classes {
        return None;
    }
    let mut statistics = Statistics::new(n_pairs, n_classes, bound("first")?..bound("end")?);
    let mut rows: Vec<&mut [f64]> =
        statistics.counts.cells_mut().chunks_exact_mut(stride(n_classes)).collect();
    for (pair, counts) in pairs.iter().zip(counts.chunks_exact(n_classes.max(1))) {
        rows.get_mut(*pair as usize)?[..n_classes].copy_from_slice(counts);
    }
    statistics.class_counts[..n_classes].copy_from_slice(class_counts);
    let terms = row.column_by_name("log_likelihood")?.as_primitive_opt::<Float64Type>()?;
    statistics.log_likelihood = terms.value(0);
    statistics.are_hard = row.column_by_name("hard")?.as_boolean_opt()?.value(0);
    Some(statistics)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use arrow::ipc::reader::StreamReader;
    use arrow::ipc::writer::StreamWriter;

    use super::*;
    use crate::frame::{Annotations, Dims};
    use crate::model::confusion::Smoothing;
    use crate::model::em::kernels::{Crowd, Likelihood, PairKernel, Prior};
    use crate::model::posterior::{Posterior, write_votes};
    use crate::testing::tiny;

    fn bytes_of(batch: &RecordBatch) -> Vec<u8> {
        let mut stream = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        stream.write(batch).unwrap();
        stream.into_inner().unwrap()
    }

    fn from_bytes(bytes: &[u8], n_pairs: usize, n_classes: usize) -> Statistics {
        let mut stream = StreamReader::try_new(bytes, None).unwrap();
        from_arrow(&stream.next().unwrap().unwrap(), n_pairs, n_classes).unwrap()
    }

    /// Annotations of others, of which nothing but the bytes of statistics comes back.
    struct Remote<'a>(&'a Annotations);

    impl Remote<'_> {
        /// Runs a task with statistics of its own, and takes what the bytes hold.
        fn ask(&self, part: &mut Statistics, task: impl FnOnce(&mut Statistics)) {
            let (n_pairs, Dims { classes, .. }) = (self.0.n_pairs(), self.0.dims());
            let mut own = Statistics::new(n_pairs, classes, part.instances.clone());
            own.are_hard = part.are_hard;
            task(&mut own);
            *part = from_bytes(&bytes_of(&to_arrow(&own, classes).unwrap()), n_pairs, classes);
        }
    }

    impl Crowd for Remote<'_> {
        fn dims(&self) -> Dims {
            self.0.dims()
        }

        fn count(&self, write: &(dyn Fn(Range<usize>, &mut [f64]) + Sync), part: &mut Statistics) {
            self.ask(part, |own| self.0.count(write, own));
        }

        fn sweep(
            &self,
            likelihood: &Likelihood,
            prior: Prior<'_>,
            part: &mut Statistics,
            rows: Option<&mut [f64]>,
        ) {
            self.ask(part, |own| self.0.sweep(likelihood, prior, own, rows));
        }

        fn posteriors(
            &self,
            likelihood: &Likelihood,
            prior: Prior<'_>,
            instances: Range<usize>,
            rows: &mut [f64],
        ) {
            self.0.posteriors(likelihood, prior, instances, rows);
        }
    }

    /// The log-likelihoods of some iterations, the counts after them, and the posteriors.
    fn fitted(
        a: &Annotations,
        crowd: &impl Crowd,
        is_hard: bool,
    ) -> (Vec<f64>, Vec<f64>, Posterior) {
        let (mut kernel, n) = (PairKernel::new(a), a.dims().classes);
        let mut t = Posterior::zeros(a.dims().instances, n);
        kernel.count(crowd, |instances, rows| {
            instances.zip(rows.chunks_exact_mut(n)).for_each(|(i, row)| write_votes(a, i, row));
        });
        kernel.set_hard(is_hard);
        let mut step = |_| {
            kernel.estimate(a, &mut Smoothing::new(a, 0.1, 0.0));
            let sums: Vec<f64> = kernel.class_counts(n);
            let prior: Vec<f64> = sums.iter().map(|sum| sum / sums.iter().sum::<f64>()).collect();
            kernel.sweep(crowd, Prior::Class(&prior), Some(&mut t))
        };
        let objectives = (0..5).map(&mut step).collect();
        (objectives, kernel.expected_counts(a), t)
    }

    #[test]
    fn an_em_over_executors_that_return_arrow_is_that_in_this_process_to_the_bit() {
        let rows: Vec<_> =
            (0..4000).map(|n| (n / 4, n * n % 37, (n / 4 + n % 7 / 5) % 5)).collect();
        let a = tiny(5, &rows);
        for is_hard in [false, true] {
            assert_eq!(fitted(&a, &Remote(&a), is_hard), fitted(&a, &a, is_hard), "{is_hard}");
        }
    }

    #[test]
    fn statistics_of_other_pairs_or_classes_are_refused() {
        let mut statistics = Statistics::new(3, 2, 0..5);
        statistics.counts.cells_mut()[4] = 1.0;
        let row = to_arrow(&statistics, 2).unwrap();
        assert!(from_arrow(&row, 3, 2).is_ok());
        let two = arrow::compute::concat_batches(&row.schema(), [&row, &row]).unwrap();
        for refused in [
            from_arrow(&row, 2, 2),
            from_arrow(&row, 3, 3),
            from_arrow(&two, 3, 2),
            from_arrow(&row.project(&[0, 1, 2]).unwrap(), 3, 2),
        ] {
            assert_eq!(refused.unwrap_err().exit_code(), 3);
        }
    }
}
