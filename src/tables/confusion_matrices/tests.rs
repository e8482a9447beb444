//! Which rows the table has, and in which order.

use arrow::array::{AsArray, RecordBatch, UInt32Array};
use arrow::datatypes::{Float64Type, Int64Type, UInt32Type};

use super::super::{FilledTable, Outcome, RunRecord, Table};
use super::*;
use crate::decide::{DecideSpec, Tally, TieSeed};
use crate::diagnose::Diagnosis;
use crate::error::Result;
use crate::frame::Ids;
use crate::model::confusion::{Cells, CommonConfusion, Smoothing};
use crate::model::fitted::{Fitted, Report, Stop, on_cpu};
use crate::model::posterior::Posterior;
use crate::tables::rows::cut::{BATCH_ROWS, PART_BYTES, RowBytes};
use crate::testing::{frame_of, tiny, weighted};

/// One matrix has more rows than a batch.
const CLASSES: usize = 100;

/// The number of annotations of each annotator. The first has the whole matrix, although three labels are not used.
const ANNOTATIONS: [u32; 5] = [200, 1, 30, 95, 1];

fn outcome() -> Outcome {
    let of_annotator = |(r, n): (u32, u32)| (0..n).map(move |i| (i, r, (i + 5 * r) % (97 + r)));
    let rows: Vec<_> = (0..).zip(ANNOTATIONS).flat_map(of_annotator).collect();
    let annotations = tiny(CLASSES, &rows);
    let ids = |n: usize| Ids::in_order(Arc::new((0..n as u32).map(Some).collect::<UInt32Array>()));
    // Three quarters of the annotations with a label are of its class, and a quarter of the next class.
    let count = |(pair, k): (u32, usize)| match annotations.label_of_pair(pair) as usize {
        label if label == k => 0.75,
        label if (label + 1) % CLASSES == k => 0.25,
        _ => 0.0,
    };
    let cells =
        (0..annotations.n_pairs() as u32).flat_map(|pair| (0..CLASSES).map(move |k| (pair, k)));
    let expected_count: Vec<f64> = cells.map(count).collect();
    let common: Vec<f64> = (0..CLASSES * CLASSES).map(|cell| cell as f64).collect();
    let common = CommonConfusion::new(&annotations, common, &expected_count);
    let smoothing = Smoothing::new(&annotations, 0.25, 1.5);
    let confusion = Confusion { cells: Cells::Counted(smoothing), expected_count };
    let mut clusters = vec![common.clone(), common.clone()];
    clusters.iter_mut().zip([0.25, 0.5]).for_each(|(m, p)| m.probability.fill(p));
    let (confusion, common) = (Some(confusion), Some(common));
    let report = Report { confusion, common, clusters, ..Report::default() };
    let dims = annotations.dims();
    let fitted = Fitted {
        posterior: Posterior::zeros(dims.instances, CLASSES).into(),
        predictions: None,
        report,
        trace: Vec::new(),
        stop: Stop { converged: true, iterations: 1, objective: None, planned: None },
        model: None,
        device: on_cpu(),
    };
    let ids = [dims.instances, dims.annotators, dims.labels].map(ids);
    let frame = frame_of(ids, annotations);
    let tie_seed = TieSeed::new(&frame, 0);
    let (tally, diagnosis) = (Tally::default(), Diagnosis::default());
    Outcome {
        results: vec![QuestionResult { frame, fitted, tie_seed, tally, diagnosis }],
        decide: DecideSpec::default(),
        metrics: Vec::new(),
        run: RunRecord::default(),
    }
}

/// (scope, annotator or cluster, class, label, bits of the probability, bits of the expected count)
type CellRow = (String, Option<u32>, u32, u32, u64, u64);

/// The matrices that annotators share: that of all, and two of clusters.
const SHARED: usize = 3;

/// The rows of whole matrices, one after the other.
fn wanted(outcome: &Outcome) -> Vec<CellRow> {
    let QuestionResult { frame, fitted, .. } = &outcome.results[0];
    let (a, report) = (&frame.annotations, &fitted.report);
    let confusion = report.confusion.as_ref().unwrap();
    let row = |scope: &str, r: Option<usize>, k: usize, label: usize, (p, n): (f64, f64)| {
        let r = r.map(|r| r as u32);
        (scope.to_owned(), r, k as u32, label as u32, p.to_bits(), n.to_bits())
    };
    let mut rows = Vec::new();
    let scopes = [("common", None), ("cluster", Some(0)), ("cluster", Some(1))];
    for ((scope, cluster), shared) in scopes.into_iter().zip(report.shared()) {
        for cell in 0..CLASSES * CLASSES {
            let values = (shared.probability[cell], shared.expected_count[cell]);
            rows.push(row(scope, cluster, cell / CLASSES, cell % CLASSES, values));
        }
    }
    for (r, n) in ANNOTATIONS.into_iter().enumerate() {
        let mut sums = Vec::new();
        let matrix = confusion.matrix(a, r, &mut sums);
        let is_whole = n as usize >= CLASSES;
        for k in 0..CLASSES {
            let pairs = (0..CLASSES).map(|label| (label, a.pair_of(r, label)));
            let pairs = pairs.filter(|(_, pair)| is_whole || pair.is_some());
            let cells = pairs.map(|(label, pair)| (label, matrix.cell(k, label, pair)));
            let cells: Vec<(usize, (f64, f64))> = cells.collect();
            let expected: f64 = cells.iter().map(|(_, (_, count))| count).sum();
            if is_whole || expected >= MIN_OBSERVED_COUNT {
                let row = |(label, cell): &(usize, (f64, f64))| {
                    row("annotator", Some(r), k, *label, *cell)
                };
                rows.extend(cells.iter().map(row));
            }
        }
    }
    rows
}

fn rows(batch: &RecordBatch) -> Vec<CellRow> {
    let numbers = |name: &str| batch.column_by_name(name).unwrap().as_primitive::<UInt32Type>();
    let bits = |name: &str, row: usize| {
        let values = batch.column_by_name(name).unwrap().as_primitive::<Float64Type>();
        values.value(row).to_bits()
    };
    let row = |row: usize| {
        let scope = batch.column_by_name("scope").unwrap().as_string::<i32>().value(row);
        let clusters = batch.column_by_name("cluster").unwrap().as_primitive::<Int64Type>();
        let cluster = clusters.iter().nth(row).unwrap().map(|m| u32::try_from(m).unwrap());
        let of = numbers("annotator_id").iter().nth(row).unwrap().or(cluster);
        let (class, label) = (numbers("class").value(row), numbers("label").value(row));
        let (p, n) = (bits("probability", row), bits("expected_count", row));
        (scope.to_owned(), of, class, label, p, n)
    };
    (0..batch.num_rows()).map(row).collect()
}

#[test]
fn a_matrix_of_more_rows_than_a_batch_is_cut_and_has_the_same_rows() {
    let outcome = outcome();
    let table = FilledTable::new(&CONFUSION_MATRICES, &outcome);
    let batches: Vec<RecordBatch> =
        (0..table.n_parts()).flat_map(|part| table.batches(part)).collect::<Result<_>>().unwrap();
    let sizes: Vec<usize> = batches.iter().map(RecordBatch::num_rows).collect();
    assert!(sizes.iter().all(|rows| *rows <= BATCH_ROWS), "{sizes:?}");
    let found: Vec<CellRow> = batches.iter().flat_map(rows).collect();
    let wanted = wanted(&outcome);
    assert_eq!(found.len(), wanted.len());
    assert!(found.iter().zip(&wanted).all(|(found, wanted)| found == wanted));
}

#[test]
fn a_sample_has_rows_of_matrices_in_their_order() {
    let outcome = outcome();
    let table = FilledTable::new(&CONFUSION_MATRICES, &outcome);
    let sample: Vec<CellRow> = table.sample(0).flat_map(|batch| rows(&batch.unwrap())).collect();
    let wanted = wanted(&outcome);
    let mut rest = wanted.iter();
    assert!(sample.iter().all(|found| rest.any(|wanted| found == wanted)));
    assert!(sample.len() > 256 && sample.len() < wanted.len(), "{}", sample.len());
}

#[test]
fn long_ids_make_more_parts_of_the_same_rows() {
    const ROWS: usize = 8_000;
    let outcome = outcome();
    let parts = |mean: usize| -> Vec<Vec<CellRow>> {
        let row_bytes = RowBytes { longest: mean, mean };
        let table = FilledTable::with_row_bytes(&CONFUSION_MATRICES, &outcome, row_bytes);
        let of_part = |part| table.batches(part).flat_map(|batch| rows(&batch.unwrap()));
        (0..table.n_parts()).map(|part| of_part(part).collect()).collect()
    };
    let (one, several) = (parts(512), parts(PART_BYTES / ROWS));
    let sizes: Vec<usize> = several.iter().map(Vec::len).collect();
    assert!(one.len() == 1 && several.len() > 1, "{sizes:?}");
    assert!(sizes.iter().all(|rows| *rows <= ROWS), "{sizes:?}");
    assert!(one.concat() == several.concat());
}

#[test]
fn the_weights_of_an_annotator_are_added_whether_or_not_annotations_were_merged() {
    let rows = [(0, 0, 1), (1, 0, 0), (0, 1, 1)];
    for more in [&[][..], &[(0, 0, 1)], &[(0, 0, 0)]] {
        let a = tiny(2, &[&rows[..], more].concat());
        assert_eq!(weights_of_annotators(&a), [2.0, 1.0], "{more:?}");
    }
    let own = weighted(tiny(2, &rows).dims(), &rows, vec![0.5, 2.0, 1.0]);
    assert_eq!(weights_of_annotators(&own), [2.5, 1.0]);
}

#[test]
fn only_a_matrix_of_more_rows_than_a_batch_is_cut() {
    let outcome = outcome();
    let result = &outcome.results[0];
    let spans = (CONFUSION_MATRICES.block_spans)(result).unwrap();
    let span = |matrix: usize| spans(matrix * CLASSES);
    let row = UnitSpan { blocks: 1, rows: CLASSES };
    assert_eq!([0, SHARED].map(span), [row, row], "the common matrix, and a whole one");
    assert_eq!(span(SHARED + 1), UnitSpan { blocks: CLASSES, rows: 2 }, "one annotation");
    assert_eq!(span(SHARED + 2), UnitSpan { blocks: CLASSES, rows: 60 * 30 }, "30 annotations");
    // 95 annotations can be of all classes, which would be more than a batch: the classes are counted. This
    // annotator has observed all but those from 10 to 14.
    let blocks = BATCH_ROWS / 95;
    assert_eq!(span(SHARED + 3), UnitSpan { blocks, rows: (blocks - 5) * 95 });
    let rest = CLASSES - blocks;
    assert_eq!(spans((SHARED + 3) * CLASSES + blocks), UnitSpan { blocks: rest, rows: rest * 95 });
    let total = (CONFUSION_MATRICES.blocks)(result);
    assert_eq!(total, (SHARED + ANNOTATIONS.len()) * CLASSES);
}
