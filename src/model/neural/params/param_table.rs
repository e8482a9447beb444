//! One table of parameters on the host, of which a step reads and updates only some rows.

use std::mem::take;

use rand::Rng as _;
use rayon::prelude::*;

use crate::job_context::JobContext;
use crate::model::neural::data::batch::Batch;
use crate::model::neural::net::optimiser::Optimiser;
use crate::model::neural::net::optimiser::moments::{Moments, MomentsMut};
use crate::prefetch::prefetch_all;

/// Rows that one task of the thread pool updates.
const ROWS_PER_TASK: usize = 128;

/// How many rows ahead memory is prefetched.
const PREFETCH_DISTANCE: usize = 8;

/// The owner of each row of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// One row for each annotator.
    Annotator,
    /// One row for each instance, such as a learned embedding.
    Instance,
    /// One row, of the whole model.
    Model,
}

impl Owner {
    /// The rows of a batch, ascending.
    pub(in crate::model::neural) fn rows(self, batch: &Batch) -> &[u32] {
        match self {
            Self::Annotator => &batch.annotators,
            Self::Instance => &batch.distinct_table_rows,
            Self::Model => &[0],
        }
    }
}

/// One kind of parameter: a row of numbers for each annotator or instance, or one of the whole model.
#[derive(Debug, Clone)]
pub struct ParamTable {
    /// The name of the table, unique in the model.
    pub name: String,
    /// The owner of each row.
    pub owner: Owner,
    /// The number of values in a row.
    pub width: usize,
    /// The rows, one after the other.
    pub values: Vec<f32>,
    /// Whether the running phase trains the table.
    pub trained: bool,
    /// Whether gradient descent never trains the table: it holds input data about annotators, or parameters that the
    /// M-step sets.
    pub is_fixed: bool,
    pub(super) moments: Moments,
    /// The number of updates of each row.
    pub(super) steps: Vec<u32>,
}

impl ParamTable {
    /// A table with the same row for each of `n` annotators.
    #[must_use]
    pub fn each(name: &str, n: usize, row: &[f32]) -> Self {
        Self::new(name, Owner::Annotator, row.len(), row.repeat(n))
    }

    /// One row, of the whole model.
    #[must_use]
    pub fn of_model(name: &str, row: Vec<f32>) -> Self {
        Self::new(name, Owner::Model, row.len(), row)
    }

    /// One row for each annotator.
    #[must_use]
    pub fn drawn(name: &str, width: usize, values: Vec<f32>) -> Self {
        Self::new(name, Owner::Annotator, width, values)
    }

    /// Learned embeddings of `n` annotators or instances, drawn within 1 / sqrt(width).
    #[must_use]
    pub fn embeddings(name: &str, owner: Owner, n: usize, width: usize, job: &JobContext) -> Self {
        let mut rng = job.rng(name);
        let bound = 1.0 / (width.max(1) as f32).sqrt();
        let draw = |_| (2.0 * rng.random::<f32>() - 1.0) * bound;
        Self::new(name, owner, width, (0..n * width).map(draw).collect())
    }

    /// The same table, never trained by gradient descent.
    #[must_use]
    pub fn fixed(self) -> Self {
        Self { is_fixed: true, ..self }
    }

    /// A table with these rows.
    #[must_use]
    pub fn new(name: &str, owner: Owner, width: usize, values: Vec<f32>) -> Self {
        let rows = values.len() / width.max(1);
        Self {
            name: name.to_owned(),
            owner,
            width,
            values,
            trained: true,
            is_fixed: false,
            moments: Moments::default(),
            steps: vec![0; rows],
        }
    }

    /// Sets moments and step counts to zero.
    pub(in crate::model::neural) fn reset_moments(&mut self) {
        self.moments = Moments::default();
        self.steps.fill(0);
    }

    /// Whether the optimiser updates the table in the running phase.
    pub(super) fn is_updated(&self) -> bool {
        self.trained && !self.is_fixed
    }

    /// Updates these rows, ascending, by the optimiser's rule.
    pub(super) fn step(
        &mut self,
        rows: &[u32],
        gradient: &[f64],
        optimiser: &Optimiser,
        rate: f64,
    ) {
        self.moments.fit(optimiser.kind(), self.values.len());
        let parts = self.parts(rows, gradient);
        parts.into_par_iter().for_each(|part| part.step(optimiser, rate));
    }

    /// The mean of all rows.
    pub(in crate::model::neural) fn mean(&self) -> Vec<f64> {
        self.mean_where(|_| true)
    }

    /// The mean of some rows.
    fn mean_where(&self, is_in: impl Fn(usize) -> bool) -> Vec<f64> {
        let n = (0..self.steps.len()).filter(|row| is_in(*row)).count() as f64;
        let mut mean = vec![0.0; self.width];
        let rows = self.values.chunks_exact(self.width.max(1)).enumerate();
        for (_, row) in rows.filter(|(row, _)| is_in(*row)) {
            mean.iter_mut().zip(row).for_each(|(m, v)| *m += f64::from(*v) / n);
        }
        mean
    }

    /// Sets rows without training data to the mean of all others, unless there are no others.
    pub(super) fn average_unknown(&mut self, unknown: &[bool]) {
        if unknown.iter().all(|unknown| *unknown) {
            return;
        }
        let mean = self.mean_where(|row| !unknown[row]);
        let rows = self.values.chunks_exact_mut(self.width.max(1)).zip(unknown);
        for (row, _) in rows.filter(|(_, unknown)| **unknown) {
            row.iter_mut().zip(&mean).for_each(|(v, m)| *v = *m as f32);
        }
    }

    /// Splits the table into disjoint parts that threads can update in parallel; `rows` are the ascending rows of
    /// `gradient`.
    fn parts<'a>(&'a mut self, rows: &'a [u32], gradient: &'a [f64]) -> Vec<Part<'a>> {
        let width = self.width;
        let (mut values, mut moments) = (&mut self.values[..], self.moments.all());
        let (mut steps, mut first) = (&mut self.steps[..], 0);
        let part = |(rows, gradient): (&'a [u32], &'a [f64])| {
            let n = rows.last().map_or(first, |last| *last as usize + 1) - first;
            let (own, others) = take(&mut values).split_at_mut(n * width);
            let (own_moments, other_moments) = take(&mut moments).split_at(n * width);
            let (own_steps, other_steps) = take(&mut steps).split_at_mut(n);
            (values, moments, steps) = (others, other_moments, other_steps);
            first += n;
            Part {
                rows,
                first: first - n,
                width,
                gradient,
                values: own,
                moments: own_moments,
                steps: own_steps,
            }
        };
        let gradients = gradient.chunks((ROWS_PER_TASK * width).max(1));
        rows.chunks(ROWS_PER_TASK).zip(gradients).map(part).collect()
    }

    /// These rows in f64, one after the other.
    pub(super) fn gather(&self, ids: &[u32]) -> Vec<f64> {
        let mut rows = Vec::with_capacity(ids.len() * self.width);
        let row = |r: &u32| &self.values[*r as usize * self.width..][..self.width];
        for (n, r) in ids.iter().enumerate() {
            if let Some(later) = ids.get(n + PREFETCH_DISTANCE) {
                prefetch_all(row(later));
            }
            rows.extend(row(r).iter().map(|v| f64::from(*v)));
        }
        rows
    }

    /// Row `r` in f64.
    #[must_use]
    pub fn row(&self, r: usize) -> Vec<f64> {
        let r = if self.owner == Owner::Model { 0 } else { r };
        self.values[r * self.width..(r + 1) * self.width].iter().map(|v| f64::from(*v)).collect()
    }
}

/// A range of rows of a table, some of which the optimiser updates.
struct Part<'a> {
    /// The updated rows, ascending, and the first row of the range.
    rows: &'a [u32],
    first: usize,
    width: usize,
    gradient: &'a [f64],
    values: &'a mut [f32],
    moments: MomentsMut<'a>,
    steps: &'a mut [u32],
}

impl Part<'_> {
    fn step(mut self, optimiser: &Optimiser, rate: f64) {
        let (first, width) = (self.first, self.width);
        let range = |row: &u32| {
            let row = *row as usize - first;
            row * width..(row + 1) * width
        };
        let prefetch_row = |part: &Self, row: &u32| {
            prefetch_all(&part.values[range(row)]);
            part.moments.prefetch(range(row));
        };
        self.rows.iter().take(PREFETCH_DISTANCE).for_each(|row| prefetch_row(&self, row));
        let mut gradient = vec![0.0; width];
        for (n, (row, of_row)) in
            self.rows.iter().zip(self.gradient.chunks_exact(width)).enumerate()
        {
            if let Some(later) = self.rows.get(n + PREFETCH_DISTANCE) {
                prefetch_row(&self, later);
            }
            gradient.iter_mut().zip(of_row).for_each(|(to, g)| *to = *g as f32);
            let (range, row) = (range(row), *row as usize - first);
            self.steps[row] += 1;
            let moments = self.moments.slice(range.clone());
            optimiser.update(
                &mut self.values[range],
                &gradient,
                moments,
                self.steps[row],
                rate,
                0.0,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::neural::net::optimiser::optimiser_spec::{OptimiserKind, OptimiserSpec};

    /// Every seventh row is in no batch, and every second one not in the second batch. Updating rows in parts of
    /// [`ROWS_PER_TASK`] equals updating each row by itself, with a count of its own steps.
    #[test]
    fn rows_move_as_they_would_alone() {
        const ROWS: usize = 400;
        const WIDTH: usize = 3;
        let value = |n: usize| (n as f32).sin();
        for rule in [OptimiserKind::Adam, OptimiserKind::Amsgrad, OptimiserKind::Sgd] {
            let optimiser = Optimiser::new(&OptimiserSpec { rule, ..OptimiserSpec::default() });
            let mut table =
                ParamTable::drawn("table", WIDTH, (0..ROWS * WIDTH).map(value).collect());
            let mut alone: Vec<f32> = (0..ROWS * WIDTH).map(value).collect();
            let (mut moments, mut steps) = (vec![Moments::default(); ROWS], [0; ROWS]);
            for batch in 1..=3 {
                let is_moved =
                    |row: &u32| !row.is_multiple_of(7) && (batch != 2 || row.is_multiple_of(2));
                let moved: Vec<u32> = (0..ROWS as u32).filter(is_moved).collect();
                let gradient: Vec<f64> =
                    (0..moved.len() * WIDTH).map(|n| (n as f64 + f64::from(batch)).cos()).collect();
                table.step(&moved, &gradient, &optimiser, 0.1);
                for (row, gradient) in moved.iter().zip(gradient.chunks(WIDTH)) {
                    let row = *row as usize;
                    moments[row].fit(rule, WIDTH);
                    steps[row] += 1;
                    let gradient: Vec<f32> = gradient.iter().map(|g| *g as f32).collect();
                    let values = &mut alone[row * WIDTH..(row + 1) * WIDTH];
                    optimiser.update(values, &gradient, moments[row].all(), steps[row], 0.1, 0.0);
                }
            }
            assert_eq!(table.values, alone, "{rule:?}");
        }
    }

    #[test]
    fn a_table_without_columns_has_nothing_to_update() {
        for rule in [OptimiserKind::Adam, OptimiserKind::Amsgrad, OptimiserKind::Sgd] {
            let optimiser = Optimiser::new(&OptimiserSpec { rule, ..OptimiserSpec::default() });
            let mut table = ParamTable::drawn("table", 0, Vec::new());
            table.step(&[0, 2], &[], &optimiser, 0.1);
            assert!(table.values.is_empty(), "{rule:?}");
        }
    }
}
