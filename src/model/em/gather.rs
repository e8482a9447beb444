//! The M-step's pass: the counts of every column, brought together and finished.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::counts::Counts;
use super::kernel::{for_classes, width};
use crate::frame::{Annotations, split_by};
use crate::model::fitted::Posterior;

/// What becomes of an annotator's counts when they are there.
pub trait Finish: Sync {
    /// Changes the counts of one annotator, `[column, class]`, in place; `labels` are those of the columns, `scratch` is
    /// `[class]`. There are `K` classes, or any number where `K` is 0.
    fn finish<const K: usize>(
        &self,
        a: &Annotations,
        labels: &[u32],
        counts: &mut [f64],
        scratch: &mut [f64],
    );
}

/// They stay what they are.
impl Finish for () {
    fn finish<const K: usize>(&self, _: &Annotations, _: &[u32], _: &mut [f64], _: &mut [f64]) {}
}

/// Of so many annotators, those in one unit of parallel work: few enough to share out evenly, many enough to be worth
/// handing over.
fn at_once(annotators: usize) -> usize {
    (annotators / 512).clamp(8, 4096)
}

impl Counts {
    /// Puts the counts of as many columns as there is room for into `columns`, `[column, class]`, each annotator's
    /// finished; `t` is what was counted.
    pub fn columns(
        &self,
        a: &Annotations,
        t: &Posterior,
        columns: &mut [f64],
        finish: &impl Finish,
    ) {
        let n_classes = a.dims().classes;
        let (arch, scratch) = (Arch::new(), || vec![0.0; n_classes]);
        let room = columns.len() / n_classes.max(1);
        let annotators = a.column_offsets()[..a.dims().annotators].partition_point(|c| *c < room);
        let offsets = &a.column_offsets()[..=annotators];
        let work = split_by(columns, offsets, n_classes, at_once(annotators));
        work.into_par_iter().for_each_init(scratch, |scratch, (seats, columns)| {
            for_classes!(n_classes, K => {
                arch.dispatch(Gather::<K, _> { a, t, counts: self, finish, scratch, seats, columns });
            });
        });
    }
}

/// Counts the columns of some neighbouring annotators.
struct Gather<'a, const K: usize, F> {
    a: &'a Annotations,
    t: &'a Posterior,
    counts: &'a Counts,
    finish: &'a F,
    scratch: &'a mut [f64],
    seats: Range<usize>,
    /// Theirs, `[column, class]`.
    columns: &'a mut [f64],
}

impl<const K: usize, F: Finish> WithSimd for Gather<'_, K, F> {
    type Output = ();

    // Inlined with all that is called, for the vectors of the processor at hand.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { a, t, counts, finish, scratch, seats, mut columns } = self;
        let n = width::<K>(scratch.len()).max(1);
        let offsets = a.column_offsets();
        let first = offsets[seats.start];
        if counts.tabled {
            counts.sum_tables(first * n, columns);
        } else {
            for (column, cells) in (first..).zip(columns.chunks_exact_mut(n)) {
                sum_rows::<K>(a, t, column, cells);
            }
        }
        // In a loop of its own, so that the sums wait for memory together and not each for a finish.
        for seat in seats {
            let own = offsets[seat]..offsets[seat + 1];
            let (counts, rest) = columns.split_at_mut(own.len() * n);
            finish.finish::<K>(a, a.labels_in(own), counts, scratch);
            columns = rest;
        }
    }
}

/// Sums the rows of a column's instances.
#[inline(always)]
fn sum_rows<const K: usize>(a: &Annotations, t: &Posterior, column: usize, counts: &mut [f64]) {
    let instances = a.instances_of(column);
    match (a.column_weights_of(column), <&mut [f64; K]>::try_from(&mut *counts)) {
        (None, Ok(counts)) if K > 0 => {
            let rows = t.values().as_chunks::<K>().0;
            let mut sum = [0.0; K];
            for i in instances {
                let row = &rows[*i as usize];
                for k in 0..K {
                    sum[k] += row[k];
                }
            }
            *counts = sum;
        }
        (weights, _) => {
            counts.fill(0.0);
            for (at, i) in instances.iter().enumerate() {
                let weight = weights.map_or(1.0, |w| w[at]);
                counts.iter_mut().zip(t.row(*i as usize)).for_each(|(c, p)| *c += weight * p);
            }
        }
    }
}
