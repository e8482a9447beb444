//! The parameters of annotators: tables on the host. A training step reads and updates only the rows of the annotators
//! in its batch.
//!
//! # Why
//! Fifty thousand annotators with ten classes have five million such parameters, and a batch contains a few hundred
//! annotators. So the tables stay on the host, whatever device the classifier is on: a batch gathers the rows of its
//! annotators, the loss and its derivatives are written by hand over the flat list of annotations, and the optimiser
//! updates only the gathered rows, with moments and a step count for each row. A step does not depend on annotators
//! outside the batch, and no array of size batch x annotators x classes exists.

use std::mem::take;

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::model::neural::data::batch::Batch;
use crate::model::neural::train::moments::{Moments, MomentsMut};
use crate::model::neural::train::optimiser::Optimiser;
use crate::model::snapshot::Snapshot;
use crate::prefetch::prefetch_all;

/// Rows that one task of the thread pool updates.
const ROWS_PER_TASK: usize = 128;

/// How many rows ahead memory is prefetched.
const PREFETCH_DISTANCE: usize = 8;

/// Whether each annotator has a row of a table, or all share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// One row for each annotator.
    Annotator,
    /// One row that all annotators share.
    Shared,
}

/// One kind of parameter, a row of numbers for each annotator or one shared row.
#[derive(Debug, Clone)]
pub struct ParamTable {
    /// The name of the table, unique in the model.
    pub name: String,
    /// Whether annotators have rows of their own.
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
    moments: Moments,
    steps: Vec<u32>,
}

impl ParamTable {
    /// A table with the same row for each of `n` annotators.
    #[must_use]
    pub fn each(name: &str, n: usize, row: &[f32]) -> Self {
        Self::new(name, Owner::Annotator, row.len(), row.repeat(n))
    }

    /// One row that all annotators share.
    #[must_use]
    pub fn shared(name: &str, row: Vec<f32>) -> Self {
        Self::new(name, Owner::Shared, row.len(), row)
    }

    /// One row for each annotator.
    #[must_use]
    pub fn drawn(name: &str, width: usize, values: Vec<f32>) -> Self {
        Self::new(name, Owner::Annotator, width, values)
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
    pub(super) fn reset_moments(&mut self) {
        self.moments = Moments::default();
        self.steps.fill(0);
    }

    /// Whether the optimiser updates the table in the running phase.
    fn is_updated(&self) -> bool {
        self.trained && !self.is_fixed
    }

    /// Splits the table into disjoint parts that threads can update in parallel; `rows` are the ascending rows of `gradient`.
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
        rows.chunks(ROWS_PER_TASK).zip(gradient.chunks(ROWS_PER_TASK * width)).map(part).collect()
    }

    /// Row `r` in f64.
    #[must_use]
    pub fn row(&self, r: usize) -> Vec<f64> {
        let r = if self.owner == Owner::Shared { 0 } else { r };
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

/// The parameters of all annotators: every table of a model.
#[derive(Debug, Clone, Default)]
pub struct AnnotatorParams {
    /// The tables, in the order in which the model creates them.
    pub tables: Vec<ParamTable>,
}

/// The rows of a batch: for each table `[annotator of the batch, width]`, or `[1, width]` where it is shared.
pub type Gathered = Vec<Vec<f64>>;

impl AnnotatorParams {
    /// Copies the rows of these annotators.
    #[must_use]
    pub fn gather(&self, annotators: &[u32]) -> Gathered {
        let rows = |table: &ParamTable| {
            if table.owner == Owner::Shared {
                return table.row(0);
            }
            let mut rows = Vec::with_capacity(annotators.len() * table.width);
            let row = |r: &u32| &table.values[*r as usize * table.width..][..table.width];
            for (n, r) in annotators.iter().enumerate() {
                if let Some(later) = annotators.get(n + PREFETCH_DISTANCE) {
                    prefetch_all(row(later));
                }
                rows.extend(row(r).iter().map(|v| f64::from(*v)));
            }
            rows
        };
        self.tables.iter().map(rows).collect()
    }

    /// Updates the rows of a batch's annotators by the optimiser's rule.
    pub(super) fn step(
        &mut self,
        batch: &Batch,
        gradient: &Gathered,
        optimiser: &Optimiser,
        rate: f64,
    ) {
        for (table, gradient) in self.tables.iter_mut().zip(gradient) {
            if !table.is_updated() {
                continue;
            }
            table.moments.fit(optimiser.kind(), table.values.len());
            let shared_row = [0];
            let rows =
                if table.owner == Owner::Shared { &shared_row[..] } else { &batch.annotators };
            let parts = table.parts(rows, gradient);
            parts.into_par_iter().for_each(|part| part.step(optimiser, rate));
        }
    }

    /// The sum of the squared gradients of all trained parameters.
    pub(super) fn squared_norm(&self, gradient: &Gathered) -> f64 {
        let updated = self.tables.iter().zip(gradient).filter(|(table, _)| table.is_updated());
        updated.flat_map(|(_, gradient)| gradient).map(|g| g * g).sum()
    }

    /// Whether all parameters outside fixed tables are finite numbers.
    pub(crate) fn is_finite(&self) -> bool {
        let trained = self.tables.iter().filter(|table| !table.is_fixed);
        trained.flat_map(|table| &table.values).all(|value| value.is_finite())
    }

    /// Sets the parameters of annotators without training data to the mean over all other annotators.
    pub(super) fn average_unknown(&mut self, unknown: &[bool]) {
        let known = unknown.iter().filter(|unknown| !**unknown).count();
        if known == 0 || known == unknown.len() {
            return;
        }
        let own = |table: &&mut ParamTable| table.owner == Owner::Annotator && !table.is_fixed;
        for table in self.tables.iter_mut().filter(own) {
            let mut mean = vec![0.0_f64; table.width];
            let rows = table.values.chunks_exact(table.width).zip(unknown);
            for (row, _) in rows.filter(|(_, unknown)| !**unknown) {
                mean.iter_mut().zip(row).for_each(|(m, v)| *m += f64::from(*v) / known as f64);
            }
            let rows = table.values.chunks_exact_mut(table.width).zip(unknown);
            for (row, _) in rows.filter(|(_, unknown)| **unknown) {
                row.iter_mut().zip(&mean).for_each(|(v, m)| *v = *m as f32);
            }
        }
    }

    /// Adds the values to a snapshot, in the order of the tables.
    pub(super) fn save(&self, to: &mut Snapshot) {
        for (n, table) in self.tables.iter().enumerate() {
            let shape = match table.owner {
                Owner::Shared => vec![table.width],
                Owner::Annotator => vec![table.steps.len(), table.width],
            };
            to.f32s(saved_name(n, &table.name), shape, table.values.clone());
        }
    }

    /// Adds moments and step counts, which only a resumed training needs.
    pub(super) fn save_moments(&self, to: &mut Snapshot) {
        for table in &self.tables {
            let name = format!("optimiser.crowd.{}", table.name);
            table.moments.save(&name, to);
            to.u32s(format!("{name}.steps"), table.steps.clone());
        }
    }

    /// Takes the values from a snapshot.
    ///
    /// # Errors
    /// When the snapshot belongs to another model.
    pub(super) fn load(&mut self, from: &Snapshot) -> Result<()> {
        for (n, table) in self.tables.iter_mut().enumerate() {
            table.values = from.take_f32s(&saved_name(n, &table.name), table.values.len())?;
        }
        Ok(())
    }

    /// Takes moments and steps from a snapshot.
    ///
    /// # Errors
    /// When the snapshot belongs to another model.
    pub(super) fn load_moments(&mut self, from: &Snapshot) -> Result<()> {
        for table in &mut self.tables {
            let name = format!("optimiser.crowd.{}", table.name);
            table.moments = Moments::load(&name, from);
            table.steps = from.take_u32s(&format!("{name}.steps"), table.steps.len())?;
        }
        Ok(())
    }

    /// The tables that [`AnnotatorParams::save`] wrote to a snapshot.
    ///
    /// # Errors
    /// When a table has a shape that [`AnnotatorParams::save`] never writes.
    pub(super) fn saved(from: &Snapshot) -> Result<Self> {
        let tables = from.f32s_with_prefix("crowd.").map(|(name, shape, values)| {
            let name = name.split_once('.').map_or(name, |(_, name)| name);
            match shape {
                [_] => Ok(ParamTable::shared(name, values.to_vec())),
                [_, width] if *width > 0 => {
                    Ok(ParamTable::new(name, Owner::Annotator, *width, values.to_vec()))
                }
                _ => Err(Error::data("not a table of annotators")
                    .at("model.safetensors")
                    .found(format!("`{name}` of shape {shape:?}"))),
            }
        });
        Ok(Self { tables: tables.collect::<Result<_>>()? })
    }
}

/// The name of a table in a snapshot; names sort in the order of the tables.
fn saved_name(n: usize, name: &str) -> String {
    format!("crowd.{n:02}.{name}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::neural::train::optimiser_spec::{OptimiserKind, OptimiserSpec};

    /// Every seventh row is not in the batch. Updating the others in parts of [`ROWS_PER_TASK`] equals updating each
    /// row by itself.
    #[test]
    fn rows_move_as_they_would_alone() {
        const ROWS: usize = 400;
        const WIDTH: usize = 3;
        let value = |n: usize| (n as f32).sin();
        for rule in [OptimiserKind::Adam, OptimiserKind::Amsgrad, OptimiserKind::Sgd] {
            let optimiser = Optimiser::new(&OptimiserSpec { rule, ..OptimiserSpec::default() });
            let moved: Vec<u32> = (0..ROWS as u32).filter(|row| row % 7 != 0).collect();
            let batch = Batch { annotators: moved.clone(), ..Batch::default() };
            let gradient: Vec<f64> = (0..moved.len() * WIDTH).map(|n| (n as f64).cos()).collect();
            let table = ParamTable::drawn("table", WIDTH, (0..ROWS * WIDTH).map(value).collect());
            let mut annotator_params = AnnotatorParams { tables: vec![table] };
            let mut alone: Vec<f32> = (0..ROWS * WIDTH).map(value).collect();
            let mut moments = vec![Moments::default(); ROWS];
            for step in 1..=2 {
                annotator_params.step(&batch, &vec![gradient.clone()], &optimiser, 0.1);
                for (row, gradient) in moved.iter().zip(gradient.chunks(WIDTH)) {
                    let row = *row as usize;
                    moments[row].fit(rule, WIDTH);
                    let gradient: Vec<f32> = gradient.iter().map(|g| *g as f32).collect();
                    let values = &mut alone[row * WIDTH..(row + 1) * WIDTH];
                    optimiser.update(values, &gradient, moments[row].all(), step, 0.1, 0.0);
                }
            }
            assert_eq!(annotator_params.tables[0].values, alone, "{rule:?}");
        }
    }
}
