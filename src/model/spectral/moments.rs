//! Moments of three groups of annotators, and the matrices that follow from them: see
//! [`SpectralDawidSkene`](super::SpectralDawidSkene), whose file has the formulas.

use std::ops::Range;

use rand::seq::SliceRandom as _;
use rayon::prelude::*;

use super::tensor::{Square, Tensor, add_product};
use crate::frame::{Annotations, ITEMS_PER_BLOCK};
use crate::job_context::{JobContext, Rng};
use crate::model::numerics::at_least;

/// What follows from the moments, or why nothing does.
pub(super) type Found<T> = Result<T, &'static str>;

const RANK: &str = "some class is never told apart from the others";

/// The blocks of instances whose moments are in memory at once, which may have a cell for each three classes.
const BLOCKS_AT_ONCE: usize = 32;

/// The least probability of a label in the matrices of the start.
const MIN_CELL: f64 = 1e-6;

pub(super) const N_GROUPS: usize = 3;

/// What moments tell of a group of annotators.
pub(super) struct AnnotatorGroup {
    /// M, `[label, class]`
    means: Square,
    /// w
    shares: Vec<f64>,
}

/// The group of each annotator: they are dealt in the order of their annotations, those with as many in a random one.
fn groups(a: &Annotations, job: &JobContext) -> Vec<usize> {
    // Of equal weights, the iterator has no end.
    let weight_of = |column: usize| -> f64 {
        let weights = a.weights_of_pair(column).iter();
        a.instances_of_pair(column).iter().zip(weights).map(|(_, weight)| weight).sum()
    };
    let weight = |r: usize| -> f64 { a.pairs_of_annotator(r).map(weight_of).sum() };
    let weights: Vec<f64> = (0..a.dims().annotators).into_par_iter().map(weight).collect();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.shuffle(&mut job.rng("groups"));
    order.sort_by(|r, s| weights[*s].total_cmp(&weights[*r]));
    let mut groups = vec![0; weights.len()];
    for (at, r) in order.into_iter().enumerate() {
        let (round, turn) = (at / N_GROUPS, at % N_GROUPS);
        // Back and forth, so that no group is first each time.
        groups[r] = if round.is_multiple_of(2) { turn } else { N_GROUPS - 1 - turn };
    }
    groups
}

/// The sums of labels by group.
pub(super) struct GroupSums<'a> {
    a: &'a Annotations,
    groups: Vec<usize>,
    n: usize,
}

impl<'a> GroupSums<'a> {
    pub(super) fn new(a: &'a Annotations, job: &JobContext) -> Self {
        Self { a, groups: groups(a, job), n: a.dims().classes }
    }

    /// M and w of all groups.
    pub(super) fn found(&self, n_starts: u32, job: &JobContext) -> Found<Vec<AnnotatorGroup>> {
        let cross = self.cross();
        let group =
            |c: usize| self.group(&cross, c, n_starts, &mut job.rng(&format!("tensor/{c}")));
        (0..N_GROUPS).map(group).collect()
    }

    /// M and w of a group; an error where a moment has no inverse, or two columns belong to one class.
    fn group(
        &self,
        cross: &[Square],
        own: usize,
        n_starts: u32,
        rng: &mut Rng,
    ) -> Found<AnnotatorGroup> {
        let (n, one, two) = (self.n, (own + 1) % N_GROUPS, (own + 2) % N_GROUPS);
        let of = |rows: usize, columns: usize| &cross[rows * N_GROUPS + columns];
        let by_one = of(own, two).times(&of(one, two).inverse().ok_or(RANK)?);
        let by_two = of(own, one).times(&of(two, one).inverse().ok_or(RANK)?);
        let second = by_one.times(of(one, two)).times(&by_two.transposed());
        let second = Square::from(n, |row, column| {
            f64::midpoint(second.at(row, column), second.at(column, row))
        });
        let lower = second.cholesky().ok_or(RANK)?;
        let whitening = lower.inverse().ok_or(RANK)?;
        let whitened = [&whitening.times(&by_one), &whitening.times(&by_two), &whitening];
        let mut third = self.third([one, two, own], whitened);
        let mut group = AnnotatorGroup { means: Square::zeros(n), shares: vec![0.0; n] };
        for _ in 0..n {
            let (lambda, v) = third.take_component(n_starts, rng);
            let mut column = vec![0.0; n];
            lower.apply(&v, &mut column);
            let class = (0..n).max_by(|k, l| column[*k].total_cmp(&column[*l])).ok_or(RANK)?;
            if group.shares[class] != 0.0 {
                return Err("two classes have the same label most often");
            }
            group.shares[class] = 1.0 / (lambda * lambda);
            column
                .iter()
                .enumerate()
                .for_each(|(l, x)| group.means.cells[l * n + class] = lambda * x);
        }
        Ok(group)
    }

    /// Writes Z of all groups, `[group, label]`.
    fn write(&self, i: usize, z: &mut [f64]) {
        z.fill(0.0);
        for (r, label, weight) in
            self.a.triples_of_instance(i).filter(|(_, label, _)| (*label as usize) < self.n)
        {
            z[self.groups[r as usize] * self.n + label as usize] += weight;
        }
    }

    /// The mean over the annotated instances of what `add` adds for each, in a fixed order.
    fn mean(&self, n_cells: usize, add: impl Fn(usize, &[f64], &mut [f64]) + Sync) -> Vec<f64> {
        let n_instances = self.a.dims().instances;
        let of_block = |block: usize| {
            let (mut cells, mut z) = (vec![0.0; n_cells], vec![0.0; N_GROUPS * self.n]);
            let instances: Range<usize> =
                block * ITEMS_PER_BLOCK..((block + 1) * ITEMS_PER_BLOCK).min(n_instances);
            for i in instances {
                self.write(i, &mut z);
                add(i, &z, &mut cells);
            }
            cells
        };
        let n_blocks = n_instances.div_ceil(ITEMS_PER_BLOCK);
        let mut all = vec![0.0; n_cells];
        for start in (0..n_blocks).step_by(BLOCKS_AT_ONCE) {
            let blocks = (start..(start + BLOCKS_AT_ONCE).min(n_blocks)).into_par_iter();
            for block in blocks.map(of_block).collect::<Vec<Vec<f64>>>() {
                all.iter_mut().zip(block).for_each(|(all, cell)| *all += cell);
            }
        }
        let annotated =
            (0..n_instances).filter(|i| !self.a.pairs_of_instance(*i).is_empty()).count();
        all.iter_mut().for_each(|cell| *cell /= annotated.max(1) as f64);
        all
    }

    /// E(Z_x Z_y^T) of all pairs of groups.
    fn cross(&self) -> Vec<Square> {
        let (n, all) = (self.n, N_GROUPS * self.n);
        let sums = self.mean(all * all, |_, z, sums| {
            for (row, x) in sums.chunks_exact_mut(all).zip(z).filter(|(_, x)| **x != 0.0) {
                row.iter_mut().zip(z).for_each(|(sum, y)| *sum += x * y);
            }
        });
        let pairs = (0..N_GROUPS * N_GROUPS).map(|at| (at / N_GROUPS * n, at % N_GROUPS * n));
        pairs
            .map(|(x, y)| Square::from(n, |row, column| sums[(x + row) * all + y + column]))
            .collect()
    }

    /// E(F Z_a, G Z_b, H Z_c) of three groups and three factors.
    fn third(&self, groups: [usize; 3], factors: [&Square; 3]) -> Tensor {
        let n = self.n;
        let cells = self.mean(n * n * n, |_, z, cells| {
            let mut vectors = vec![0.0; 3 * n];
            for ((factor, group), out) in
                factors.iter().zip(groups).zip(vectors.chunks_exact_mut(n))
            {
                factor.apply(&z[group * n..(group + 1) * n], out);
            }
            let (x, rest) = vectors.split_at(n);
            add_product(cells, 1.0, [x, &rest[..n], &rest[n..]]);
        });
        Tensor { n, cells }
    }

    /// ln P(label given class) of every pair, `[pair, class]`, from the moments with the other two groups.
    pub(super) fn logs(&self, found: &[AnnotatorGroup]) -> Found<Vec<f64>> {
        let (a, n, mut annotated) = (self.a, self.n, 0.0);
        let (mut rows, mut z) = (vec![0.0; a.n_pairs() * n], vec![0.0; N_GROUPS * n]);
        for i in (0..a.dims().instances).filter(|i| !a.pairs_of_instance(*i).is_empty()) {
            annotated += 1.0;
            self.write(i, &mut z);
            for (pair, weight) in a.annotations_of_instance(i) {
                let group = self.groups[a.annotator_of_pair(pair) as usize];
                let row = &mut rows[pair as usize * n..(pair as usize + 1) * n];
                for other in (0..N_GROUPS).filter(|other| *other != group) {
                    row.iter_mut().zip(&z[other * n..]).for_each(|(sum, z)| *sum += weight * z);
                }
            }
        }
        let inverse_without = |c: usize| {
            let (one, two) = (&found[(c + 1) % N_GROUPS], &found[(c + 2) % N_GROUPS]);
            let cell = |k: usize, l: usize| {
                f64::midpoint(one.shares[k], two.shares[k])
                    * (one.means.at(l, k) + two.means.at(l, k))
            };
            Ok(Square::from(n, cell).inverse().ok_or(RANK)?.transposed())
        };
        let inverses: Vec<Square> = (0..N_GROUPS).map(inverse_without).collect::<Found<_>>()?;
        let mut probability = vec![0.0; n];
        for (r, group) in self.groups.iter().enumerate() {
            let pairs = a.pairs_of_annotator(r);
            let mut sums = vec![(a.dims().labels - pairs.len()) as f64 * MIN_CELL; n];
            let rows = &mut rows[pairs.start * n..pairs.end * n];
            for row in rows.chunks_exact_mut(n) {
                inverses[*group].apply(row, &mut probability);
                row.iter_mut()
                    .zip(&probability)
                    .for_each(|(p, x)| *p = at_least(x / annotated, MIN_CELL));
                sums.iter_mut().zip(row).for_each(|(sum, p)| *sum += *p);
            }
            for row in rows.chunks_exact_mut(n) {
                row.iter_mut().zip(&sums).for_each(|(p, sum)| *p = (*p / sum).ln());
            }
        }
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, tiny};

    /// The moments of a crowd without noise: each group has one annotator, and each combination of labels occurs as often as
    /// its probability says. Classes are equally likely; annotator r is right with 3/4, 7/8 and 5/8.
    fn exact() -> Annotations {
        let right = [6, 7, 5];
        let (mut rows, mut i) = (Vec::new(), 0);
        for class in 0..2 {
            for labels in 0..8_u32 {
                let label = |r: usize| labels >> r & 1;
                let times = |r: usize| if label(r) == class { right[r] } else { 8 - right[r] };
                for _ in 0..times(0) * times(1) * times(2) {
                    rows.extend((0..3).map(|r| (i, r as u32, label(r))));
                    i += 1;
                }
            }
        }
        tiny(2, &rows)
    }

    #[test]
    fn matrices_of_exact_moments_are_those_that_made_the_crowd() {
        let a = exact();
        let sums = GroupSums { a: &a, groups: vec![0, 1, 2], n: 2 };
        let found = sums.found(20, &JobContext::new(0)).unwrap();
        for (group, p) in found.iter().zip([0.75, 0.875, 0.625]) {
            assert_close(&group.shares, &[0.5, 0.5], 1e-9, "w");
            assert_close(&group.means.cells, &[p, 1.0 - p, 1.0 - p, p], 1e-9, "M");
        }
        let logs = sums.logs(&found).unwrap();
        let pairs =
            [0.75_f64, 0.25, 0.25, 0.75, 0.875, 0.125, 0.125, 0.875, 0.625, 0.375, 0.375, 0.625];
        assert_close(&logs, &pairs.map(f64::ln), 1e-9, "ln P");
    }
}
