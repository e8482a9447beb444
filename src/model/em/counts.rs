//! Expected counts of every confusion column and of the classes: what an M-step is made of.

use std::ops::Range;

use rayon::prelude::*;

use super::fetched::Fetched;
use super::kernel::{FLOOR, for_classes, normalise, width};
use super::notes::{Entry, Notes, fetch};
use crate::frame::{Annotations, BLOCK};
use crate::model::fitted::Posterior;

/// Expected counts, gathered while posteriors pass by.
///
/// # Why
/// An E-step has each posterior row in its registers; adding it to the counts there and then saves two passes over all
/// rows. Each of a fixed number of instance ranges adds to a table of its own, and the tables are summed in order. That
/// is worth it where annotations are many times the columns. Else every column gathers the rows of its own instances,
/// or, where rows are long, the few entries of each that can change a count: with fifty classes that is a twentieth of
/// the memory to wait for. Which way is taken depends on the data alone.
pub struct Counts {
    parts: Vec<Part>,
    /// Whether parts have tables.
    pub(super) tabled: bool,
}

/// What the instances of one range add.
pub struct Part {
    instances: Range<usize>,
    /// The sum of the rows of annotated instances, `[class]`.
    classes: Vec<f64>,
    kept: Kept,
}

/// What a range keeps of its rows.
enum Kept {
    /// Their sums, `[column, class]`.
    Table(Vec<f64>),
    /// Nothing: columns gather the rows.
    Nothing,
    /// Their entries, which columns gather.
    Notes(Notes),
}

/// Tables are worth their zeroing and summing when there are so many annotations to a column, and there is one for
/// every half of that.
const ANNOTATIONS_PER_COLUMN: usize = 48;

/// More ranges than this keep no more processors busy.
const MOST_RANGES: usize = 32;

/// Fewer ranges than this leave processors idle.
const LEAST_RANGES: usize = 4;

impl Part {
    fn clear(&mut self) {
        self.classes.fill(0.0);
        match &mut self.kept {
            Kept::Table(table) => table.fill(0.0),
            Kept::Notes(notes) => notes.clear(),
            Kept::Nothing => {}
        }
    }

    /// The instances of the range.
    #[must_use]
    pub fn instances(&self) -> Range<usize> {
        self.instances.clone()
    }

    /// Adds the posterior rows of the instances from `first` on, which come in their order.
    #[inline(always)]
    pub fn add<const K: usize>(&mut self, a: &Annotations, first: usize, rows: &[f64]) {
        let n = width::<K>(self.classes.len());
        let classes = &mut self.classes[..n];
        for (i, row) in (first..).zip(rows.chunks_exact(n.max(1))) {
            let said = a.said_of(i);
            if !said.is_empty() {
                classes.iter_mut().zip(row).for_each(|(sum, p)| *sum += p);
            }
            match &mut self.kept {
                Kept::Nothing => {}
                Kept::Notes(notes) => notes.add(row),
                Kept::Table(table) => add_row::<K>(table, row, said, a.weights_of(i)),
            }
        }
    }
}

/// Adds a row to every column that was said of its instance.
#[inline(always)]
fn add_row<const K: usize>(table: &mut [f64], row: &[f64], said: &[u32], weights: Option<&[f64]>) {
    match (weights, <[f64; K]>::try_from(row)) {
        (None, Ok(row)) if K > 0 => {
            let columns = table.as_chunks_mut::<K>().0;
            for column in said {
                let counts = &mut columns[*column as usize];
                for k in 0..K {
                    counts[k] += row[k];
                }
            }
        }
        _ => {
            let n = row.len();
            for (at, column) in said.iter().enumerate() {
                let weight = weights.map_or(1.0, |w| w[at]);
                let counts = &mut table[*column as usize * n..(*column as usize + 1) * n];
                counts.iter_mut().zip(row).for_each(|(c, p)| *c += weight * p);
            }
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

    /// How many columns need to be kept between the M-step and the E-step: not those of lone annotators, where an
    /// E-step has the row they follow from in its registers.
    #[must_use]
    pub fn kept(&self, a: &Annotations) -> usize {
        match self.parts.first() {
            Some(Part { kept: Kept::Nothing, .. }) => a.first_lone(),
            _ => a.n_columns(),
        }
    }

    /// Whether ranges note entries.
    #[must_use]
    pub fn are_noted(&self) -> bool {
        matches!(self.parts.first(), Some(Part { kept: Kept::Notes(_), .. }))
    }

    /// By so many tables; with none, every column gathers.
    pub(super) fn by_ranges(a: &Annotations, ranges: usize) -> Self {
        let (instances, classes) = (a.dims().instances, a.dims().classes);
        let has_kernel = for_classes!(classes, K => K) > 0;
        let (tabled, blocks) = (ranges > 0, instances.div_ceil(BLOCK));
        let bound =
            |n: usize| if tabled { n * instances / ranges } else { (n * BLOCK).min(instances) };
        let part = |n: usize| Part {
            instances: bound(n)..bound(n + 1),
            classes: vec![0.0; classes],
            kept: match (tabled, has_kernel) {
                (true, _) => Kept::Table(vec![0.0; a.n_columns() * classes]),
                (false, true) => Kept::Nothing,
                (false, false) => Kept::Notes(Notes::default()),
            },
        };
        Self { parts: (0..if tabled { ranges } else { blocks }).map(part).collect(), tabled }
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

    /// The mean posterior row over annotated instances, floored and normalised: the prior's M-step. Uniform where no
    /// instance is annotated.
    pub fn prior(&self, prior: &mut [f64]) {
        prior.fill(0.0);
        for part in &self.parts {
            prior.iter_mut().zip(&part.classes).for_each(|(p, s)| *p += s);
        }
        normalise(prior, |p| p.max(FLOOR));
    }

    /// `cells` = the sum over the tables of the cells from `first` on, in the order of the tables.
    #[inline(always)]
    pub(super) fn sum_tables(&self, first: usize, cells: &mut [f64]) {
        cells.fill(0.0);
        for part in &self.parts {
            if let Kept::Table(table) = &part.kept {
                cells.iter_mut().zip(&table[first..]).for_each(|(c, p)| *c += p);
            }
        }
    }

    /// Fetches the entries behind some neighbouring columns, where they are noted.
    pub fn fetch(&self, a: &Annotations, columns: Range<usize>, into: &mut Fetched<Entry>) {
        let notes = |block: usize| match &self.parts[block].kept {
            Kept::Notes(notes) => notes,
            Kept::Table(_) | Kept::Nothing => unreachable!("these counts are not noted"),
        };
        fetch(a, columns, notes, into);
    }
}

/// How often each column was said of each class by these posteriors, `[column, class]`.
#[must_use]
pub fn expected_counts(a: &Annotations, t: &Posterior) -> Vec<f64> {
    let mut columns = vec![0.0; a.n_columns() * a.dims().classes];
    // Once, so that nothing kept on the way would pay.
    Counts::by_ranges(a, 0).columns(a, t, &mut columns, &());
    columns
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
                counts.columns(&a, &t, &mut columns, &());
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
