//! The parameters of annotators: tables on the host, of which a step touches the rows of its own annotators only.
//!
//! # Why
//! A crowd of fifty thousand annotators with ten classes has five million such parameters, and a batch knows a few
//! hundred annotators. So the tables stay on the host, whatever device the classifier is on; a batch gathers its rows,
//! the loss and its derivatives are written out by hand over the flat list of annotations, and the optimiser moves the
//! gathered rows alone, with moments and a count of steps for each row. Nothing depends on the annotators outside the
//! batch, and nothing of size batch x annotators x classes exists.

use std::mem::take;

use rayon::prelude::*;

use super::batch::Batch;
use super::moments::{Moments, MomentsMut};
use super::optimiser::Optimiser;
use super::prefetch::ask_for;
use super::snapshot::Snapshot;
use crate::error::Result;

/// Rows that are moved one after the other; others beside them.
const TOGETHER: usize = 128;

/// Rows that the memory is asked for before they are wanted.
const AHEAD: usize = 8;

/// Whose a table's rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// One row an annotator.
    Annotator,
    /// One row, everybody's.
    Shared,
}

/// One kind of parameter.
#[derive(Debug, Clone)]
pub struct Table {
    /// Its name, unique in the model.
    pub name: String,
    /// Whose its rows are.
    pub owner: Owner,
    /// Numbers in a row.
    pub width: usize,
    /// The rows, one after the other.
    pub values: Vec<f32>,
    /// Whether it is trained in the running phase.
    pub trained: bool,
    /// Whether it is never trained: what is given of annotators.
    pub is_fixed: bool,
    moments: Moments,
    steps: Vec<u32>,
}

impl Table {
    /// One row for each of `n` annotators, all alike.
    #[must_use]
    pub fn each(name: &str, n: usize, row: &[f32]) -> Self {
        Self::new(name, Owner::Annotator, row.len(), row.repeat(n))
    }

    /// One row for everybody.
    #[must_use]
    pub fn shared(name: &str, row: Vec<f32>) -> Self {
        Self::new(name, Owner::Shared, row.len(), row)
    }

    /// One row for each annotator.
    #[must_use]
    pub fn drawn(name: &str, width: usize, values: Vec<f32>) -> Self {
        Self::new(name, Owner::Annotator, width, values)
    }

    /// The same table, never trained.
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

    /// Whether steps move it now.
    fn moves(&self) -> bool {
        self.trained && !self.is_fixed
    }

    /// The table in parts that can be moved side by side, for a gradient by these rows, ascending.
    fn parts<'a>(&'a mut self, rows: &'a [u32], gradient: &'a [f64]) -> Vec<Part<'a>> {
        let width = self.width;
        let (mut values, mut moments) = (&mut self.values[..], self.moments.all());
        let (mut steps, mut first) = (&mut self.steps[..], 0);
        let cut = |(rows, gradient): (&'a [u32], &'a [f64])| {
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
        rows.chunks(TOGETHER).zip(gradient.chunks(TOGETHER * width)).map(cut).collect()
    }

    /// Row `r` in f64.
    #[must_use]
    pub fn row(&self, r: usize) -> Vec<f64> {
        let r = if self.owner == Owner::Shared { 0 } else { r };
        self.values[r * self.width..(r + 1) * self.width].iter().map(|v| f64::from(*v)).collect()
    }
}

/// Neighbouring rows of a table, of which some are moved.
struct Part<'a> {
    /// Which, ascending, and the number of the first row.
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
        let ask = |part: &Self, row: &u32| {
            ask_for(&part.values[range(row)]);
            part.moments.ask_for(range(row));
        };
        self.rows.iter().take(AHEAD).for_each(|row| ask(&self, row));
        let mut gradient = vec![0.0; width];
        for (n, (row, of_row)) in
            self.rows.iter().zip(self.gradient.chunks_exact(width)).enumerate()
        {
            if let Some(later) = self.rows.get(n + AHEAD) {
                ask(&self, later);
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

/// Every table of a model.
#[derive(Debug, Clone, Default)]
pub struct Crowd {
    /// In the order that the model made them.
    pub tables: Vec<Table>,
}

/// The rows of a batch: for each table `[annotator of the batch, width]`, or `[1, width]` where it is shared.
pub type Gathered = Vec<Vec<f64>>;

impl Crowd {
    /// The rows of these annotators.
    #[must_use]
    pub fn gather(&self, annotators: &[u32]) -> Gathered {
        let rows = |table: &Table| {
            if table.owner == Owner::Shared {
                return table.row(0);
            }
            let mut rows = Vec::with_capacity(annotators.len() * table.width);
            let row = |r: &u32| &table.values[*r as usize * table.width..][..table.width];
            for (n, r) in annotators.iter().enumerate() {
                if let Some(later) = annotators.get(n + AHEAD) {
                    ask_for(row(later));
                }
                rows.extend(row(r).iter().map(|v| f64::from(*v)));
            }
            rows
        };
        self.tables.iter().map(rows).collect()
    }

    /// Moves the rows of a batch against their gradient.
    pub(super) fn step(
        &mut self,
        batch: &Batch,
        gradient: &Gathered,
        optimiser: &Optimiser,
        rate: f64,
    ) {
        for (table, gradient) in self.tables.iter_mut().zip(gradient) {
            if !table.moves() {
                continue;
            }
            table.moments.fit(optimiser.rule(), table.values.len());
            let everybody = [0];
            let rows =
                if table.owner == Owner::Shared { &everybody[..] } else { &batch.annotators };
            let parts = table.parts(rows, gradient);
            parts.into_par_iter().for_each(|part| part.step(optimiser, rate));
        }
    }

    /// The sum of the squares of the gradient of what moves.
    pub(super) fn squared_norm(&self, gradient: &Gathered) -> f64 {
        let moving = self.tables.iter().zip(gradient).filter(|(table, _)| table.moves());
        moving.flat_map(|(_, gradient)| gradient).map(|g| g * g).sum()
    }

    /// Gives annotators of whom nothing was learned the mean of what was learned of all others.
    pub(super) fn average_unknown(&mut self, unknown: &[bool]) {
        let known = unknown.iter().filter(|unknown| !**unknown).count();
        if known == 0 || known == unknown.len() {
            return;
        }
        let own = |table: &&mut Table| table.owner == Owner::Annotator && !table.is_fixed;
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

    /// Forgets all moments.
    pub(super) fn forget(&mut self) {
        for table in &mut self.tables {
            table.moments = Moments::default();
            table.steps.fill(0);
        }
    }

    /// Adds the values to a snapshot, in the order of the tables.
    pub(super) fn save(&self, to: &mut Snapshot) {
        for (n, table) in self.tables.iter().enumerate() {
            let shape = match table.owner {
                Owner::Shared => vec![table.width],
                Owner::Annotator => vec![table.steps.len(), table.width],
            };
            to.reals(saved_name(n, &table.name), shape, table.values.clone());
        }
    }

    /// Adds moments and steps, which only going on needs.
    pub(super) fn save_moments(&self, to: &mut Snapshot) {
        for table in &self.tables {
            let name = format!("optimiser.crowd.{}", table.name);
            table.moments.save(&name, to);
            to.counts(format!("{name}.steps"), table.steps.clone());
        }
    }

    /// Takes the values from a snapshot.
    ///
    /// # Errors
    /// When it is of another model.
    pub(super) fn load(&mut self, from: &Snapshot) -> Result<()> {
        for (n, table) in self.tables.iter_mut().enumerate() {
            table.values = from.take_reals(&saved_name(n, &table.name), table.values.len())?;
        }
        Ok(())
    }

    /// Takes moments and steps from a snapshot.
    ///
    /// # Errors
    /// When it is of another model.
    pub(super) fn load_moments(&mut self, from: &Snapshot) -> Result<()> {
        for table in &mut self.tables {
            let name = format!("optimiser.crowd.{}", table.name);
            table.moments = Moments::load(&name, from);
            table.steps = from.take_counts(&format!("{name}.steps"), table.steps.len())?;
        }
        Ok(())
    }

    /// The tables that [`Crowd::save`] put into a snapshot.
    #[must_use]
    pub(super) fn saved(from: &Snapshot) -> Self {
        let tables = from.reals_behind("crowd.").map(|(name, shape, values)| {
            let name = name.split_once('.').map_or(name, |(_, name)| name);
            match shape {
                [_] => Table::shared(name, values.to_vec()),
                _ => Table::new(name, Owner::Annotator, shape[1], values.to_vec()),
            }
        });
        Self { tables: tables.collect() }
    }
}

/// Names sort as the tables are ordered.
fn saved_name(n: usize, name: &str) -> String {
    format!("crowd.{n:02}.{name}")
}

#[cfg(test)]
mod tests {
    use super::super::optimiser::{OptimiserSpec, Rule};
    use super::*;

    /// Every seventh row stands still; the others move as they would alone, in parts of [`TOGETHER`].
    #[test]
    fn rows_move_as_they_would_alone() {
        const ROWS: usize = 400;
        const WIDTH: usize = 3;
        let value = |n: usize| (n as f32).sin();
        for rule in [Rule::Adam, Rule::Amsgrad, Rule::Sgd] {
            let optimiser = Optimiser::new(&OptimiserSpec { rule, ..OptimiserSpec::default() });
            let moved: Vec<u32> = (0..ROWS as u32).filter(|row| row % 7 != 0).collect();
            let batch = Batch { annotators: moved.clone(), ..Batch::default() };
            let gradient: Vec<f64> = (0..moved.len() * WIDTH).map(|n| (n as f64).cos()).collect();
            let table = Table::drawn("table", WIDTH, (0..ROWS * WIDTH).map(value).collect());
            let mut crowd = Crowd { tables: vec![table] };
            let mut alone: Vec<f32> = (0..ROWS * WIDTH).map(value).collect();
            let mut moments = vec![Moments::default(); ROWS];
            for step in 1..=2 {
                crowd.step(&batch, &vec![gradient.clone()], &optimiser, 0.1);
                for (row, gradient) in moved.iter().zip(gradient.chunks(WIDTH)) {
                    let row = *row as usize;
                    moments[row].fit(rule, WIDTH);
                    let gradient: Vec<f32> = gradient.iter().map(|g| *g as f32).collect();
                    let values = &mut alone[row * WIDTH..(row + 1) * WIDTH];
                    optimiser.update(values, &gradient, moments[row].all(), step, 0.1, 0.0);
                }
            }
            assert_eq!(crowd.tables[0].values, alone, "{rule:?}");
        }
    }
}
