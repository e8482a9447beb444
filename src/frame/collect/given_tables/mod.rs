//! Reads the tables beside the annotations and matches them to the questions.

mod pairs;
mod table;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::RecordBatch;

use crate::error::{Error, Result, offenders};
use crate::frame::annotations::Dims;
use crate::frame::given::{GivenConfusion, GivenPredictions};
use crate::frame::question_frame::Frame;
use crate::job_context::JobContext;
use crate::source::Relation;
use table::{Cell, GivenTable, TOLERANCE};

/// Matches the rows of a table to the frames; `batch` holds all of them.
///
/// # Errors
/// When the table has no rows, shares no id with the annotations, or holds something else than probabilities of the run's
/// classes.
pub(in crate::frame) fn add_given(
    frames: &mut [Frame],
    (relation, batch): (Relation, RecordBatch),
    job: &mut JobContext,
) -> Result<()> {
    if batch.num_rows() == 0 {
        return Err(Error::no_input("the table has no rows").help("check its path"));
    }
    let table = GivenTable { relation, batch };
    if relation == Relation::Pairs {
        return pairs::add_pairs(frames, &table, job);
    }
    for frame in frames.iter_mut() {
        let subject = frame.subject();
        job.warn_about_question(subject.clone());
        let added = table.of_question(frame).and_then(|table| add(relation, &table, frame, job));
        job.warn_about(None);
        added.map_err(|e| e.about_some(subject))?;
    }
    Ok(())
}

fn add(
    relation: Relation,
    table: &GivenTable,
    frame: &mut Frame,
    job: &mut JobContext,
) -> Result<()> {
    if table.is_empty() {
        return Ok(());
    }
    let cells = table.cells(frame)?;
    if relation == Relation::Confusion {
        frame.annotations.given.confusion = Some(Arc::new(confusion(&cells, frame, job)?));
    } else {
        frame.annotations.given.predictions = Some(Arc::new(predictions(&cells, frame)?));
    }
    Ok(())
}

/// The rows of the instances, which sum to 1. A class without a cell has the probability 0.
fn predictions(cells: &[Cell], frame: &Frame) -> Result<GivenPredictions> {
    let Dims { instances, classes, .. } = frame.annotations.dims();
    let (mut row_of_instance, mut values) = (vec![None; instances], Vec::new());
    let mut odd = Vec::new();
    for (nth, cells) in cells.chunk_by(|one, next| one.id == next.id).enumerate() {
        let i = cells[0].id as usize;
        row_of_instance[i] = Some(nth as u32);
        let sum: f64 = cells.iter().map(|cell| cell.probability).sum();
        if (sum - 1.0).abs() > TOLERANCE {
            odd.push(format!("{}: {sum:.4}", frame.instances.text(i)));
        }
        values.resize((nth + 1) * classes, 0.0);
        cells.iter().for_each(|cell| values[nth * classes + cell.class] = cell.probability / sum);
    }
    if odd.is_empty() {
        return Ok(GivenPredictions::new(classes, row_of_instance, values));
    }
    Err(Error::data("the probabilities of an instance do not sum to 1")
        .found(offenders(odd))
        .help("give every class of an instance its probability"))
}

/// The matrices of the annotators, and one more for those who have none: the mean of the given ones, row by row.
fn confusion(cells: &[Cell], frame: &Frame, job: &mut JobContext) -> Result<GivenConfusion> {
    let Dims { annotators, classes, labels, .. } = frame.annotations.dims();
    let mut rows = Rows {
        frame,
        means: vec![0.0; classes * labels],
        counts: vec![0; classes],
        odd: Vec::new(),
        n_shared: 0,
    };
    let mut matrices = BTreeMap::new();
    for cells in cells.chunk_by(|one, next| one.id == next.id) {
        matrices.insert(cells[0].id as usize, rows.matrix(cells));
    }
    let Rows { mut means, counts, odd, n_shared, .. } = rows;
    if !odd.is_empty() {
        return Err(Error::data("the row of a confusion matrix does not sum to 1")
            .found(offenders(odd))
            .help("the probabilities of all labels given one class sum to 1: is the table transposed?"));
    }
    let absent = (0..classes).filter(|k| counts[*k] == 0).map(|k| frame.labels.text(k));
    let absent: Vec<String> = absent.collect();
    if !absent.is_empty() {
        return Err(Error::data("no confusion matrix has a row for a class of the run")
            .found(offenders(absent))
            .help("give the row of each class, or list fewer classes in frame.classes"));
    }
    for (row, n) in means.chunks_exact_mut(labels).zip(&counts) {
        row.iter_mut().for_each(|p| *p /= *n as f64);
    }
    let n_absent: usize = counts.iter().map(|n| matrices.len() - n).sum();
    let n_without = annotators - matrices.len();
    let of_mean = matrices.len() as u32;
    let (mut matrix_of_annotator, mut all) = (vec![of_mean; annotators], Vec::new());
    for (nth, (r, matrix)) in matrices.into_iter().enumerate() {
        matrix_of_annotator[r] = nth as u32;
        for (k, row) in matrix.into_iter().enumerate() {
            let mean = &means[k * labels..(k + 1) * labels];
            all.extend_from_slice(row.as_deref().unwrap_or(mean));
        }
    }
    all.extend_from_slice(&means);
    let position = "source.confusion";
    if n_without > 0 {
        job.warn(format!(
            "{n_without} of {annotators} annotators have no matrix in {position}: the mean of the others stands for theirs"
        ));
    }
    if n_absent > 0 {
        job.warn(format!(
            "rows that the matrices in {position} lack: {n_absent}; the mean of the other annotators' rows stands for them"
        ));
    }
    if n_shared > 0 {
        job.warn(format!(
            "rows in {position} that lack labels and do not sum to 1: {n_shared}; the labels without a number share the rest"
        ));
    }
    Ok(GivenConfusion::new((classes, labels), matrix_of_annotator, all))
}

/// The rows of the matrices of one question.
struct Rows<'a> {
    frame: &'a Frame,
    /// The sums of the rows of each class, `[class, label]`.
    means: Vec<f64>,
    /// How many rows of each class there are.
    counts: Vec<usize>,
    /// The rows whose sums are wrong.
    odd: Vec<String>,
    /// How many rows have shared the rest among labels without a number.
    n_shared: usize,
}

impl Rows<'_> {
    /// The rows of an annotator's matrix, where there are any, from his cells.
    ///
    /// # Why
    /// A run's table of matrices leaves out labels that an annotator of few annotations never gave. Their probabilities
    /// are what the others leave.
    fn matrix(&mut self, cells: &[Cell]) -> Vec<Option<Vec<f64>>> {
        let Dims { classes, labels, .. } = self.frame.annotations.dims();
        let mut matrix = vec![None; classes];
        for cells in cells.chunk_by(|one, next| one.class == next.class) {
            let (k, n_absent) = (cells[0].class, labels - cells.len());
            let sum: f64 = cells.iter().map(|cell| cell.probability).sum();
            let is_short = sum < 1.0 - TOLERANCE;
            if sum > 1.0 + TOLERANCE || (is_short && n_absent == 0) {
                let names = (&self.frame.annotators, &self.frame.labels);
                let (r, class) = (names.0.text(cells[0].id as usize), names.1.text(k));
                self.odd.push(format!("{r}, {class}: {sum:.4}"));
                continue;
            }
            self.n_shared += usize::from(is_short);
            let rest = if is_short { (1.0 - sum) / n_absent as f64 } else { 0.0 };
            let scale = if is_short { 1.0 } else { sum };
            let mut row = vec![rest; labels];
            cells.iter().for_each(|cell| row[cell.label] = cell.probability / scale);
            let means = &mut self.means[k * labels..(k + 1) * labels];
            means.iter_mut().zip(&row).for_each(|(mean, p)| *mean += p);
            self.counts[k] += 1;
            matrix[k] = Some(row);
        }
        matrix
    }
}
