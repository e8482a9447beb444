//! Expected counts of every confusion column and of the classes: what an M-step is made of.

use std::ops::Range;

use rayon::prelude::*;

use super::fetched::Fetched;
use super::kernel::{FLOOR, for_classes, normalise, width};
use super::notes::{Entry, Notes, fetch};
use crate::frame::{Annotations, BLOCK, split_by};
use crate::model::fitted::Posterior;

/// Expected counts, gathered while posteriors pass by.
///
/// # Why
/// An E-step has each posterior row in its registers; adding it to the counts there and then saves two passes over all
/// rows. Each of a fixed number of instance ranges adds to a table of its own, and the tables are summed in order. That
/// is worth it where annotations are many times the columns. Else a range notes the few entries of each row that can
/// change a count, and every column gathers those of its own instances: with fifty classes that is a twentieth of the
/// memory to wait for. Which way is taken depends on the data alone.
pub struct Counts {
    /// The first cell of each annotator, and one past the last.
    offsets: Vec<usize>,
    parts: Vec<Part>,
    /// Whether parts have tables.
    tabled: bool,
}

/// What the instances of one range add.
pub struct Part {
    instances: Range<usize>,
    /// The sum of the rows of annotated instances, `[class]`.
    classes: Vec<f64>,
    /// `[column, class]`, or empty.
    table: Vec<f64>,
    /// Of the range's rows, where there is no table.
    notes: Notes,
}

/// Tables are worth their zeroing and summing when there are so many annotations to a column, and there is one for
/// every half of that.
const ANNOTATIONS_PER_COLUMN: usize = 48;

/// More ranges than this keep no more processors busy.
const MOST_RANGES: usize = 32;

/// Fewer ranges than this leave processors idle.
const LEAST_RANGES: usize = 4;

/// Annotators in one unit of parallel work: few enough to share out evenly, many enough to be worth handing over.
fn annotators_at_once(a: &Annotations) -> usize {
    (a.dims().annotators / 512).clamp(8, 4096)
}

impl Part {
    fn clear(&mut self) {
        self.classes.fill(0.0);
        self.table.fill(0.0);
        self.notes.clear();
    }

    /// The instances of the range.
    #[must_use]
    pub fn instances(&self) -> Range<usize> {
        self.instances.clone()
    }

    /// Adds the posterior rows of the instances from `first` on, which come in their order.
    #[inline(always)]
    pub fn add<const K: usize>(&mut self, a: &Annotations, first: usize, rows: &[f64]) {
        if self.table.is_empty() {
            return self.note(a, first, rows);
        }
        let n = width::<K>(self.classes.len()).max(1);
        for (i, row) in (first..).zip(rows.chunks_exact(n)) {
            let said = a.said_of(i);
            if !said.is_empty() {
                self.classes[..n].iter_mut().zip(row).for_each(|(sum, p)| *sum += p);
            }
            match (a.weights_of(i), <[f64; K]>::try_from(row)) {
                (None, Ok(row)) if K > 0 => {
                    let columns = self.table.as_chunks_mut::<K>().0;
                    for column in said {
                        let counts = &mut columns[*column as usize];
                        for k in 0..K {
                            counts[k] += row[k];
                        }
                    }
                }
                (weights, _) => {
                    for (at, column) in said.iter().enumerate() {
                        let weight = weights.map_or(1.0, |w| w[at]);
                        let counts =
                            &mut self.table[*column as usize * n..(*column as usize + 1) * n];
                        counts.iter_mut().zip(row).for_each(|(c, p)| *c += weight * p);
                    }
                }
            }
        }
    }

    /// Notes what in these rows can change a count.
    fn note(&mut self, a: &Annotations, first: usize, rows: &[f64]) {
        for (i, row) in (first..).zip(rows.chunks_exact(self.classes.len().max(1))) {
            if !a.said_of(i).is_empty() {
                self.classes.iter_mut().zip(row).for_each(|(sum, p)| *sum += p);
            }
            self.notes.add(row);
        }
    }
}

impl Counts {
    /// Chooses the way for these annotations, and allocates once for all iterations.
    #[must_use]
    pub fn new(a: &Annotations) -> Self {
        let ranges = 2 * a.len() / (ANNOTATIONS_PER_COLUMN * a.n_columns()).max(1);
        Self::by_ranges(a, if ranges < 2 { 0 } else { ranges.clamp(LEAST_RANGES, MOST_RANGES) })
    }

    /// Whether ranges note entries instead of adding to tables.
    #[must_use]
    pub fn are_noted(&self) -> bool {
        !self.tabled
    }

    /// By so many tables; with none, every column gathers.
    pub(super) fn by_ranges(a: &Annotations, ranges: usize) -> Self {
        let (instances, classes) = (a.dims().instances, a.dims().classes);
        let tabled = ranges > 0;
        let parts = if tabled { ranges } else { instances.div_ceil(BLOCK) };
        let bound =
            |n: usize| if tabled { n * instances / ranges } else { (n * BLOCK).min(instances) };
        let part = |n: usize| Part {
            instances: bound(n)..bound(n + 1),
            classes: vec![0.0; classes],
            table: vec![0.0; if tabled { a.n_columns() * classes } else { 0 }],
            notes: Notes::default(),
        };
        Self {
            offsets: a.column_offsets().iter().map(|c| c * classes).collect(),
            parts: (0..parts).map(part).collect(),
            tabled,
        }
    }

    /// Counts posteriors that no E-step of this loop has made.
    pub fn count(&mut self, a: &Annotations, t: &Posterior) {
        let n_classes = a.dims().classes;
        self.parts.par_iter_mut().for_each(|part| {
            part.clear();
            let rows = part.instances();
            let rows = &t.values()[rows.start * n_classes..rows.end * n_classes];
            for_classes!(n_classes, K => part.add::<K>(a, part.instances().start, rows));
        });
    }

    /// Hands every range, cleared, and its rows of `t` to `fill`; the sum of what it returns, in the order of the ranges.
    pub fn fill(
        &mut self,
        t: &mut Posterior,
        fill: impl Fn(&mut Part, &mut [f64]) -> f64 + Sync,
    ) -> f64 {
        let n_classes = t.n_classes();
        let mut rest = t.values_mut();
        let mut work = Vec::with_capacity(self.parts.len());
        for part in &mut self.parts {
            let (rows, others) = rest.split_at_mut(part.instances.len() * n_classes);
            work.push((part, rows));
            rest = others;
        }
        let sums: Vec<f64> = work
            .into_par_iter()
            .map(|(part, rows)| {
                part.clear();
                fill(part, rows)
            })
            .collect();
        sums.iter().sum()
    }

    /// Puts the counts of every column into `columns`, `[column, class]`, then hands each annotator's to
    /// `finish(annotator, counts, scratch)`, which may turn them into probabilities in place. `scratch` makes what a
    /// worker keeps between annotators.
    pub fn columns<S>(
        &self,
        a: &Annotations,
        columns: &mut [f64],
        scratch: impl Fn() -> S + Sync + Send,
        finish: impl Fn(usize, &mut [f64], &mut S) + Sync + Send,
    ) {
        let offsets = &self.offsets;
        let work = split_by(columns, offsets, annotators_at_once(a));
        let room = || (scratch(), Fetched::default());
        work.into_par_iter().for_each_init(
            room,
            |(scratch, fetched), (annotators, mut columns)| {
                if !self.tabled {
                    let all =
                        a.columns_of(annotators.start).start..a.columns_of(annotators.end - 1).end;
                    self.fetch(a, all, fetched);
                }
                let mut fetched = fetched.groups();
                for r in annotators {
                    let (own, rest) = columns.split_at_mut(offsets[r + 1] - offsets[r]);
                    if self.tabled {
                        self.add_tables(offsets[r], own);
                    } else {
                        gather(own, a.dims().classes, &mut fetched);
                    }
                    finish(r, own, scratch);
                    columns = rest;
                }
            },
        );
    }

    /// The mean posterior row over annotated instances, floored and normalised: the prior's M-step. Uniform where no
    /// instance is annotated.
    pub fn prior(&self, prior: &mut [f64]) {
        prior.fill(0.0);
        for part in &self.parts {
            prior.iter_mut().zip(&part.classes).for_each(|(p, s)| *p += s);
        }
        normalise(prior, |p| p.max(FLOOR));
    }

    /// `own` = the sum over the tables of the cells from `first` on, in the order of the tables.
    fn add_tables(&self, first: usize, own: &mut [f64]) {
        own.fill(0.0);
        for part in &self.parts {
            own.iter_mut().zip(&part.table[first..]).for_each(|(c, p)| *c += p);
        }
    }

    /// Fetches the noted entries behind some neighbouring columns.
    pub fn fetch(&self, a: &Annotations, columns: Range<usize>, into: &mut Fetched<Entry>) {
        fetch(a, columns, |block| &self.parts[block].notes, into);
    }
}

/// `own[column][class]` = the sum of the entries of each column.
fn gather<'a>(own: &mut [f64], n_classes: usize, columns: &mut impl Iterator<Item = &'a [Entry]>) {
    for (counts, entries) in own.chunks_exact_mut(n_classes.max(1)).zip(columns) {
        counts.fill(0.0);
        entries.iter().for_each(|(class, p)| counts[*class as usize] += p);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tiny;

    #[test]
    fn every_way_to_count_gives_the_same_counts() {
        for n_classes in [2_u32, 5, 10, 11] {
            let rows: Vec<(u32, u32, u32)> =
                (0..6000).map(|n| (n / 6, n % 6, (n * n / 7) % n_classes)).collect();
            let a = tiny(n_classes as usize, &rows);
            let (n, t) = (n_classes as usize, Posterior::from_votes(&a));
            let count = |mut counts: Counts| {
                let mut columns = vec![0.0; a.n_columns() * n];
                counts.count(&a, &t);
                counts.columns(&a, &mut columns, || (), |_, _, ()| {});
                columns
            };
            let by_range = Counts::new(&a);
            assert!(by_range.tabled, "the test means to take this way");
            let (by_range, by_column) = (count(by_range), count(Counts::by_ranges(&a, 0)));
            let mut plain = vec![0.0; by_column.len()];
            for (column, counts) in plain.chunks_exact_mut(n).enumerate() {
                for i in a.instances_of(column) {
                    counts.iter_mut().zip(t.row(*i as usize)).for_each(|(c, p)| *c += p);
                }
            }
            for cell in 0..plain.len() {
                assert!((by_column[cell] - plain[cell]).abs() < 1e-12, "{cell}");
                assert!((by_range[cell] - plain[cell]).abs() < 1e-9, "{cell}");
            }
        }
    }
}
