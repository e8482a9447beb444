//! Dawid-Skene whose matrices start from moments of three groups of annotators, and not from the votes.
//!
//! ```text
//! Z_g[i] = the labels that the annotators of group g gave instance i, as a sum of one-hot vectors;   N instances
//! M_g[l][k] = E(Z_g[l] | class k),   w[k] = P(class k)
//! for each group c, with the other two a and b:
//!   P = E(Z_c Z_b^T) E(Z_a Z_b^T)^-1,   Q = E(Z_c Z_a^T) E(Z_b Z_a^T)^-1      P Z_a and Q Z_b behave as Z_c does
//!   E(P Z_a (Q Z_b)^T) = sum_k w[k] M_c[.][k] M_c[.][k]^T = L L^T               (Cholesky)
//!   E(L^-1 P Z_a, L^-1 Q Z_b, L^-1 Z_c) = sum_k w[k]^(-1/2) v_k v_k v_k         orthonormal v_k, by the power method
//!   M_c[.][k] = w[k]^(-1/2) L v_k,   where k is the label of the largest element
//! annotator r of group c:   (the others' mean w) diag, M = M_a + M_b:   E(1[r says l] (Z_a + Z_b)^T) (diag(w) M^T)^-1
//! ```
//! 1. Annotators are dealt into three groups at random, so that each has as many annotations as possible.
//! 2. The matrices above; elements below 1e-6 are raised to it, and what an annotator says given a class sums to 1.
//! 3. T from these matrices and uniform P(class).
//! 4. EM as in [`DawidSkene`](crate::model::em::DawidSkene), by maximum likelihood with uniform P(class).
//!
//! The moments determine the matrices, where EM from the votes may end in another optimum. If the matrices cannot be had from
//! them, EM starts at the votes, and a warning says so: if there are fewer than three annotators, a class that
//! nobody tells apart from others, two columns with the largest element at the same label, or more than 32 classes.
//!
//! Y. Zhang, X. Chen, D. Zhou, M. I. Jordan: Spectral Methods Meet EM: A Provably Optimal Algorithm for Crowdsourcing. JMLR 17,
//! 2016. arXiv:1406.3824
//!
//! It is meant for many instances and few classes: the moments are means over instances, of which each class needs hundreds.
//!
//! Differs from the authors' Matlab code in the groups, which there are every third annotator; in columns with the largest element
//! at the same label, of which there one takes a label that is left; in EM, which there skips the labels that an
//! annotator never gave for a class, and stops after ten rounds; and in a Cholesky factor in place of a singular value
//! decomposition, from which the same matrices follow.
//!
//! ```
//! use labelmill::model::{Model, spectral::SpectralDawidSkene};
//! use labelmill::testing::synth::CrowdShape;
//! use labelmill::testing::tiny;
//!
//! let drawn = CrowdShape { classes: 2, ..CrowdShape::default() }.draw(1);
//! let a = tiny(2, &drawn.rows);
//! let fitted = SpectralDawidSkene::default().fit((&a).into(), &mut labelmill::run::Run::new(0)).unwrap();
//! let right = (0..200).filter(|i| fitted.posterior.row(*i)[drawn.truth[*i] as usize] > 0.5);
//! assert!(right.count() > 180);
//! ```

use std::ops::Range;

use rand::seq::SliceRandom as _;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::PairLogs;
use super::tensor::{Square, Tensor, add_product};
use crate::error::Result;
use crate::frame::{Annotations, Dims, Evidence, FitBytes, ITEMS_PER_BLOCK, QuestionSizes};
use crate::model::em::kernels::{self, Prior, log_domain};
use crate::model::em::{self, ColumnEm, DawidSkene, EmModel, EmSteps, Objective, StopRule};
use crate::model::fitted::{Fitted, Report};
use crate::model::fitted_posterior::FittedPosterior;
use crate::model::numerics::at_least;
use crate::model::posterior::Posterior;
use crate::model::{Capabilities, Model, Spec};
use crate::run::{Cancel, Run, WarningCode};

/// Dawid-Skene from the matrices of moments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SpectralDawidSkene {
    /// From how many random vectors each column is looked for. Raising it makes it less likely to take a lesser column for
    /// the largest one, where there are many classes.
    #[schemars(range(min = 1))]
    pub n_starts: u32,
    /// Added to every cell of a confusion matrix before its rows are normalised, in EM. Raising it pulls annotators with few
    /// annotations towards chance.
    #[schemars(range(min = 0.0))]
    pub smoothing: f64,
    /// When to stop.
    pub stop: StopRule,
}

impl Default for SpectralDawidSkene {
    fn default() -> Self {
        Self { n_starts: 20, smoothing: 0.0, stop: StopRule::default() }
    }
}

impl Spec for SpectralDawidSkene {
    const KIND: &'static str = "spectral_dawid_skene";
    const SUMMARY: &'static str =
        "dawid_skene without prior, from matrices of moments, for many instances of few classes";
    const SOURCE: &'static str = "Zhang et al. 2016, JMLR 17, arXiv:1406.3824";
    const CAPABILITIES: Capabilities =
        Capabilities { random_start: true, max_classes: Some(MAX_CLASSES), ..Capabilities::LABELS };
}

/// The moments of more classes take too long: their third ones have as many cells as the cube of this.
const MAX_CLASSES: u32 = 32;

/// The least probability of a label in the matrices of the start.
const MIN_CELL: f64 = 1e-6;

const N_GROUPS: usize = 3;

impl SpectralDawidSkene {
    /// The memory of its fit: that of other models of pairs, and the matrices and posteriors of the start.
    pub(super) fn fit_bytes(sizes: &QuestionSizes) -> Option<FitBytes> {
        let own = kernels::fit_bytes(sizes)?;
        let rows = sizes.columns.checked_mul(2)?.checked_add(sizes.dims.instances)?;
        let start = rows.checked_mul(sizes.dims.classes)?.checked_mul(size_of::<f64>())?;
        Some(FitBytes { working: own.working.checked_add(start)?, ..own })
    }
}

impl Model for SpectralDawidSkene {
    fn fit(&self, evidence: Evidence<'_>, run: &mut Run) -> Result<Fitted> {
        let a = evidence.annotations;
        let start = match self.start(a, run) {
            Ok(start) => Some(start),
            Err(why) => {
                run.warn_code(
                    WarningCode::NotMeantFor,
                    format_args!("EM starts at the votes, since moments give no matrices: {why}; dawid_skene has a prior too"),
                );
                None
            }
        };
        let Self { smoothing, stop, .. } = self.clone();
        let inner =
            DawidSkene { smoothing, stop, fixed_prior: true, ..DawidSkene::maximum_likelihood() };
        em::fit(&FromPosteriors { inner: ColumnEm(inner), start }, Self::KIND, a, run)
    }
}

/// Dawid-Skene that starts at these posteriors, or at the votes.
struct FromPosteriors {
    inner: ColumnEm<DawidSkene>,
    start: Option<Posterior>,
}

impl EmSteps for FromPosteriors {
    type Params = <ColumnEm<DawidSkene> as EmSteps>::Params;

    fn params(&self, a: &Annotations) -> Self::Params {
        self.inner.params(a)
    }

    fn start(
        &self,
        a: &Annotations,
        attempt: u32,
        params: &mut Self::Params,
        run: &Run,
    ) -> Option<f64> {
        match &self.start {
            Some(t) => params.count(a, t),
            None => return self.inner.start(a, attempt, params, run),
        }
        None
    }

    fn m_step(&self, a: &Annotations, params: &mut Self::Params, cancel: &Cancel) -> Result<()> {
        self.inner.m_step(a, params, cancel)
    }

    fn e_step(&self, a: &Annotations, params: &mut Self::Params) -> Objective {
        self.inner.e_step(a, params)
    }

    fn caution(&self, a: &Annotations, run: &Run) -> Option<String> {
        self.inner.caution(a, run)
    }

    fn stop(&self) -> &StopRule {
        self.inner.stop()
    }
}

impl EmModel for FromPosteriors {
    fn finish(
        &self,
        a: &Annotations,
        params: Self::Params,
        cancel: &Cancel,
    ) -> Result<(FittedPosterior, Report)> {
        self.inner.finish(a, params, cancel)
    }
}

/// What moments tell of a group of annotators.
struct Group {
    /// M, `[label, class]`
    means: Square,
    /// w
    shares: Vec<f64>,
}

impl SpectralDawidSkene {
    /// Steps 1 to 3; else why the matrices cannot be had.
    fn start(&self, a: &Annotations, run: &Run) -> std::result::Result<Posterior, &'static str> {
        let Dims { annotators, classes, instances, .. } = a.dims();
        if annotators < N_GROUPS {
            return Err("there are fewer than three annotators");
        }
        if classes > MAX_CLASSES as usize {
            return Err("there are more than 32 classes");
        }
        let sums = GroupSums { a, groups: groups(a, run), n: classes };
        let rank = "some class is never told apart from the others";
        let cross = sums.cross();
        let mut found = Vec::with_capacity(N_GROUPS);
        for c in 0..N_GROUPS {
            found.push(self.group(&sums, &cross, c, run).ok_or(rank)??);
        }
        let logs = sums.logs(&found).ok_or(rank)?;
        let mut t = Posterior::zeros(instances, classes);
        let prior = vec![1.0 / classes as f64; classes];
        log_domain::e_step(a, Prior::Class(&prior), &PairLogs { a, logs: &logs }, &mut t);
        if t.values().iter().all(|p| p.is_finite()) { Ok(t) } else { Err("they are not finite") }
    }

    /// M and w of group `c`; `None` where a moment has no inverse.
    fn group(
        &self,
        sums: &GroupSums<'_>,
        cross: &[Square],
        c: usize,
        run: &Run,
    ) -> Option<std::result::Result<Group, &'static str>> {
        let (n, a, b) = (sums.n, (c + 1) % N_GROUPS, (c + 2) % N_GROUPS);
        let of = |x: usize, y: usize| &cross[x * N_GROUPS + y];
        let p = of(c, b).times(&of(a, b).inverse()?);
        let q = of(c, a).times(&of(b, a).inverse()?);
        let second = p.times(of(a, b)).times(&q.transposed());
        let second = Square::from(n, |row, column| {
            f64::midpoint(second.at(row, column), second.at(column, row))
        });
        let lower = second.cholesky()?;
        let whitening = lower.inverse()?;
        let mut third =
            sums.third(a, b, c, [&whitening.times(&p), &whitening.times(&q), &whitening]);
        let mut rng = run.rng(&format!("tensor/{c}"));
        let mut group = Group { means: Square::zeros(n), shares: vec![0.0; n] };
        for _ in 0..n {
            let (lambda, v) = third.take_component(self.n_starts, &mut rng);
            let mut column = vec![0.0; n];
            lower.apply(&v, &mut column);
            let class = (0..n).max_by(|k, l| column[*k].total_cmp(&column[*l]))?;
            if group.shares[class] != 0.0 {
                return Some(Err("two classes have the same label most often"));
            }
            group.shares[class] = 1.0 / (lambda * lambda);
            column
                .iter()
                .enumerate()
                .for_each(|(l, x)| group.means.cells[l * n + class] = lambda * x);
        }
        Some(Ok(group))
    }
}

/// The group of each annotator: they are dealt in the order of their annotations, those with as many in a random one.
fn groups(a: &Annotations, run: &Run) -> Vec<usize> {
    // Of equal weights, the iterator has no end.
    let weight_of = |column: usize| -> f64 {
        let weights = a.column_weights_of(column).iter();
        a.instances_of(column).iter().zip(weights).map(|(_, weight)| weight).sum()
    };
    let weight = |r: usize| -> f64 { a.columns_of(r).map(weight_of).sum() };
    let weights: Vec<f64> = (0..a.dims().annotators).into_par_iter().map(weight).collect();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.shuffle(&mut run.rng("groups"));
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
struct GroupSums<'a> {
    a: &'a Annotations,
    groups: Vec<usize>,
    n: usize,
}

impl GroupSums<'_> {
    /// Writes Z of all groups, `[group, label]`.
    fn write(&self, i: usize, z: &mut [f64]) {
        z.fill(0.0);
        for (r, label, weight) in
            self.a.triples_of(i).filter(|(_, label, _)| (*label as usize) < self.n)
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
        let blocks: Vec<Vec<f64>> =
            (0..n_instances.div_ceil(ITEMS_PER_BLOCK)).into_par_iter().map(of_block).collect();
        let mut all = vec![0.0; n_cells];
        for block in blocks {
            all.iter_mut().zip(block).for_each(|(all, cell)| *all += cell);
        }
        let annotated =
            (0..n_instances).filter(|i| !self.a.columns_of_instance(*i).is_empty()).count();
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

    /// E(F Z_a, G Z_b, H Z_c).
    fn third(&self, a: usize, b: usize, c: usize, factors: [&Square; 3]) -> Tensor {
        let n = self.n;
        let cells = self.mean(n * n * n, |_, z, cells| {
            let mut vectors = vec![0.0; 3 * n];
            for ((factor, group), out) in
                factors.iter().zip([a, b, c]).zip(vectors.chunks_exact_mut(n))
            {
                factor.apply(&z[group * n..(group + 1) * n], out);
            }
            let (x, rest) = vectors.split_at(n);
            add_product(cells, 1.0, [x, &rest[..n], &rest[n..]]);
        });
        Tensor { n, cells }
    }

    /// ln P(label given class) of every pair, `[pair, class]`, from the moments with the other two groups; `None` where these
    /// have no inverse.
    fn logs(&self, found: &[Group]) -> Option<Vec<f64>> {
        let (a, n, mut annotated) = (self.a, self.n, 0.0);
        let (mut rows, mut z) = (vec![0.0; a.n_columns() * n], vec![0.0; N_GROUPS * n]);
        for i in (0..a.dims().instances).filter(|i| !a.columns_of_instance(*i).is_empty()) {
            annotated += 1.0;
            self.write(i, &mut z);
            for (pair, weight) in a.annotations_of(i) {
                let group = self.groups[a.annotator_of(pair) as usize];
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
            Some(Square::from(n, cell).inverse()?.transposed())
        };
        let inverses: Vec<Square> = (0..N_GROUPS).map(inverse_without).collect::<Option<_>>()?;
        let mut probability = vec![0.0; n];
        for (r, group) in self.groups.iter().enumerate() {
            let pairs = a.columns_of(r);
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
        Some(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Dims;
    use crate::testing::synth::CrowdShape;
    use crate::testing::{annotations, assert_close, fit, iterations, tiny};

    /// Nine annotators of whom each labels every instance, by the matrices below; as many instances as the product of
    /// all outcomes asks for would be too many, so that they are drawn.
    fn drawn(n: u32) -> (Annotations, Vec<u32>) {
        let shape = CrowdShape {
            instances: n,
            annotators: 9,
            classes: 3,
            redundancy: 9,
            accuracy: (0.55, 0.95),
        };
        let drawn = shape.draw(3);
        let dims = Dims { instances: n as usize, annotators: 9, classes: 3, labels: 3 };
        (annotations(dims, &drawn.rows), drawn.truth)
    }

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
        let cross = sums.cross();
        let (spec, run) = (SpectralDawidSkene::default(), Run::new(0));
        let found: Vec<Group> =
            (0..3).map(|c| spec.group(&sums, &cross, c, &run).unwrap().unwrap()).collect();
        for (group, p) in found.iter().zip([0.75, 0.875, 0.625]) {
            assert_close(&group.shares, &[0.5, 0.5], 1e-9, "w");
            assert_close(&group.means.cells, &[p, 1.0 - p, 1.0 - p, p], 1e-9, "M");
        }
        let logs = sums.logs(&found).unwrap();
        let pairs =
            [0.75_f64, 0.25, 0.25, 0.75, 0.875, 0.125, 0.125, 0.875, 0.625, 0.375, 0.375, 0.625];
        assert_close(&logs, &pairs.map(f64::ln), 1e-9, "ln P");
    }

    // keys: spectral_dawid_skene.n_starts, spectral_dawid_skene.smoothing
    #[test]
    fn the_start_is_right_before_any_iteration() {
        let (a, truth) = drawn(600);
        let start = SpectralDawidSkene { n_starts: 1, ..SpectralDawidSkene::default() }
            .start(&a, &Run::new(0))
            .unwrap();
        let right = (0..600).filter(|i| start.row(*i)[truth[*i] as usize] > 0.5).count();
        assert!(right > 560, "{right}");
        let skill = |smoothing| {
            let spec = SpectralDawidSkene {
                smoothing,
                stop: iterations(5),
                ..SpectralDawidSkene::default()
            };
            fit(spec, &a).report.skill[0]
        };
        assert!(skill(1e4) < 0.4 && skill(0.0) > 0.5);
    }

    #[test]
    fn crowds_without_such_moments_start_at_the_votes_and_say_so() {
        let tied = tiny(2, &[(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)]);
        let unused = tiny(
            3,
            &(0..60)
                .map(|n| (n / 4, n % 4, (n / 4 + u32::from(n % 7 == 0)) % 2))
                .collect::<Vec<_>>(),
        );
        let many = tiny(40, &[(0, 0, 0), (0, 1, 39), (0, 2, 0)]);
        for (a, why) in [
            (tied, "fewer than three annotators"),
            (unused, "never told apart"),
            (many, "more than 32 classes"),
        ] {
            let mut run = Run::new(0);
            let fitted = SpectralDawidSkene::default().fit((&a).into(), &mut run).unwrap();
            assert!(run.warnings()[0].contains(why), "{:?}", run.warnings());
            let dawid_skene = DawidSkene { fixed_prior: true, ..DawidSkene::maximum_likelihood() };
            assert_eq!(fitted.posterior, fit(dawid_skene, &a).posterior, "{why}");
        }
    }
}
