//! The statistics of a sweep as Arrow: what another process that has the annotations of a range returns to the EM.
//!
//! One row for each range, with lists, as the state of an aggregate function is; of the expected counts, only those of pairs
//! that occur in the range.

use std::sync::Arc;

use arrow::array::{
    Array as _, ArrayRef, AsArray as _, BooleanArray, Float64Array, LargeListArray, RecordBatch,
    UInt32Array, UInt64Array,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Float64Type, Schema, UInt32Type, UInt64Type};

use crate::error::{Error, Result};
use crate::model::em::kernels::Statistics;

/// The columns: the range, the number of all pairs, the pairs that occur with their counts `[pair, class]`, the counts of
/// the classes, the term of the log-likelihood, and whether assignments were counted.
#[must_use]
pub fn schema() -> Schema {
    let list = |of: DataType| DataType::LargeList(Arc::new(Field::new_list_field(of, false)));
    let columns = [
        ("start", DataType::UInt64),
        ("end", DataType::UInt64),
        ("n_pairs", DataType::UInt64),
        ("pairs", list(DataType::UInt32)),
        ("counts", list(DataType::Float64)),
        ("class_counts", list(DataType::Float64)),
        ("log_likelihood", DataType::Float64),
        ("hard", DataType::Boolean),
    ];
    Schema::new(columns.map(|(name, of)| Field::new(name, of, false)).to_vec())
}

/// The row of a range's statistics.
///
/// # Errors
/// A bug, when the columns do not fit the schema.
pub fn to_arrow(statistics: &Statistics, n_classes: usize) -> Result<RecordBatch> {
    let Statistics { instances, counts, class_counts, log_likelihood, are_hard } = statistics;
    let (mut pairs, mut cells, mut n_pairs) = (Vec::new(), Vec::new(), 0);
    for row in counts.cells().chunks_exact(counts.stride()) {
        if row.iter().any(|count| *count != 0.0) {
            pairs.push(n_pairs);
            cells.extend_from_slice(&row[..n_classes]);
        }
        n_pairs += 1;
    }
    let number = |n: usize| Arc::new(UInt64Array::from(vec![n as u64])) as ArrayRef;
    let list = |values: ArrayRef| {
        let field = Arc::new(Field::new_list_field(values.data_type().clone(), false));
        let offsets = OffsetBuffer::from_lengths([values.len()]);
        Arc::new(LargeListArray::new(field, offsets, values, None)) as ArrayRef
    };
    let columns = vec![
        number(instances.start),
        number(instances.end),
        number(n_pairs as usize),
        list(Arc::new(UInt32Array::from(pairs))),
        list(Arc::new(Float64Array::from(cells))),
        list(Arc::new(Float64Array::from(class_counts[..n_classes].to_vec()))),
        Arc::new(Float64Array::from(vec![*log_likelihood])),
        Arc::new(BooleanArray::from(vec![*are_hard])),
    ];
    Ok(RecordBatch::try_new(Arc::new(schema()), columns)?)
}

/// Sets the sums of `part` to those of a row, which are of the same range, pairs and classes, and the same count of
/// assignments or posteriors.
///
/// # Errors
/// A bug, when they are not.
pub fn from_arrow(
    rows: &RecordBatch,
    row: usize,
    n_classes: usize,
    part: &mut Statistics,
) -> Result<()> {
    read(rows, row, n_classes, part).ok_or_else(|| {
        Error::bug("the statistics of a sweep are not those that were asked for").found(format!(
            "row {row} of {}, for {:?}",
            rows.schema(),
            part.instances
        ))
    })
}

fn read(rows: &RecordBatch, row: usize, n_classes: usize, part: &mut Statistics) -> Option<()> {
    if *rows.schema() != schema() || row >= rows.num_rows() {
        return None;
    }
    let number = |name: &str| rows[name].as_primitive::<UInt64Type>().value(row);
    let list = |name: &str| rows[name].as_list::<i64>().value(row);
    let reals = |name| list(name).as_primitive::<Float64Type>().values().clone();
    let (pairs, counts, class_counts) = (list("pairs"), reals("counts"), reals("class_counts"));
    let pairs = pairs.as_primitive::<UInt32Type>().values();
    let stride = part.counts.stride();
    let (asked, n_pairs) = (&part.instances, part.counts.cells().len() / stride);
    let given = ["start", "end", "n_pairs"].map(number);
    let is_asked = given == [asked.start, asked.end, n_pairs].map(|n| n as u64)
        && rows["hard"].as_boolean().value(row) == part.are_hard
        && class_counts.len() == n_classes
        && counts.len() == pairs.len() * n_classes
        && pairs.is_sorted_by(|pair, next| pair < next)
        && pairs.last().is_none_or(|last| (*last as usize) < n_pairs);
    if !is_asked {
        return None;
    }
    let cells = part.counts.cells_mut();
    cells.fill(0.0);
    for (pair, counts) in pairs.iter().zip(counts.chunks_exact(n_classes.max(1))) {
        cells[*pair as usize * stride..][..n_classes].copy_from_slice(counts);
    }
    part.class_counts[..n_classes].copy_from_slice(&class_counts);
    part.log_likelihood = rows["log_likelihood"].as_primitive::<Float64Type>().value(row);
    Some(())
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
    use crate::testing::weighted;

    /// Annotations of another process, of which nothing but bytes of Arrow comes back.
    struct Remote<'a>(&'a Annotations);

    impl Remote<'_> {
        /// Has statistics computed elsewhere, and takes what the bytes hold.
        fn ask(&self, part: &mut Statistics, compute: impl FnOnce(&mut Statistics)) {
            let (n_pairs, Dims { classes, .. }) = (self.0.n_pairs(), self.0.dims());
            let mut own = Statistics::new(n_pairs, classes, part.instances.clone());
            own.are_hard = part.are_hard;
            compute(&mut own);
            let batch = to_arrow(&own, classes).unwrap();
            let mut stream = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
            stream.write(&batch).unwrap();
            let bytes = stream.into_inner().unwrap();
            let mut stream = StreamReader::try_new(bytes.as_slice(), None).unwrap();
            from_arrow(&stream.next().unwrap().unwrap(), 0, classes, part).unwrap();
        }
    }

    impl Crowd for Remote<'_> {
        fn dims(&self) -> Dims {
            self.0.dims()
        }

        fn count(&self, write: &(dyn Fn(Range<usize>, &mut [f64]) + Sync), part: &mut Statistics) {
            self.ask(part, |own| self.0.count(write, own));
        }

        fn sweep(&self, likelihood: &Likelihood, prior: Prior<'_>, part: &mut Statistics) {
            self.ask(part, |own| self.0.sweep(likelihood, prior, own));
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
        kernel.set_hard(is_hard);
        kernel.count(crowd, |instances, rows| {
            instances.zip(rows.chunks_exact_mut(n)).for_each(|(i, row)| write_votes(a, i, row));
        });
        let prior = Prior::Class(&[0.3, 0.2, 0.1, 0.2, 0.2]);
        let step = |_| {
            kernel.estimate(a, &mut Smoothing::new(a, 0.1, 0.0));
            kernel.sweep(crowd, prior)
        };
        let objectives = (0..5).map(step).collect();
        let posteriors = kernel.likelihood().posteriors(crowd, prior);
        (objectives, kernel.expected_counts(a), posteriors)
    }

    /// Each annotator has the instances of a few ranges; some annotations have a weight, one instance is trusted.
    #[test]
    fn an_em_whose_statistics_come_as_arrow_is_that_in_this_process_to_the_bit() {
        let row = |n: u32| (n / 4, n / 500 + n % 4 * 8, (n / 4 + n % 7 / 5) % 5);
        let rows: Vec<_> = (0..4000).map(row).collect();
        let weights = (0..4000).map(|n| if n % 50 == 3 { 0.5 } else { 1.0 }).collect();
        let dims = Dims { instances: 1000, annotators: 32, classes: 5, labels: 5 };
        let mut a = weighted(dims, &rows, weights);
        a.trusted = Some((0..1000).map(|i| (i == 7).then_some(2)).collect());
        for is_hard in [false, true] {
            assert_eq!(fitted(&a, &Remote(&a), is_hard), fitted(&a, &a, is_hard), "{is_hard}");
        }
    }

    #[test]
    fn statistics_that_were_not_asked_for_are_refused() {
        let of = |n_pairs, n_classes, instances| Statistics::new(n_pairs, n_classes, instances);
        let mut statistics = of(3, 2, 0..5);
        statistics.counts.cells_mut()[4] = 1.0;
        let row = to_arrow(&statistics, 2).unwrap();
        let mut part = of(3, 2, 0..5);
        from_arrow(&row, 0, 2, &mut part).unwrap();
        assert_eq!(part.counts.cells(), statistics.counts.cells());
        let hard = Statistics { are_hard: true, ..of(3, 2, 0..5) };
        for (mut part, n_classes) in [
            (of(2, 2, 0..5), 2),
            (of(4, 2, 0..5), 2),
            (of(3, 3, 0..5), 3),
            (of(3, 2, 0..6), 2),
            (hard, 2),
        ] {
            assert!(from_arrow(&row, 0, n_classes, &mut part).is_err(), "{part:?}");
        }
        assert!(from_arrow(&row, 1, 2, &mut part).is_err());
        assert!(from_arrow(&row.project(&[0, 1, 2]).unwrap(), 0, 2, &mut part).is_err());
    }
}
