//! Annotators belong to a few clusters, each of which has a confusion matrix: annotators with few annotations err as the
//! others of their cluster do.
//!
//! ```text
//! c[r] ~ Categorical(tau)                                the cluster of annotator r, one of M
//! z[i] ~ Categorical(rho);  y | z[i] = k, r ~ Categorical(lam[c[r]][k])
//! T[i][k]      ~ rho[k] exp(sum over the annotations (r, y) of i of sum_m phi[r][m] ln lam[m][k][y])
//! phi[r][m]    ~ tau[m] exp(sum_{k,l} n[r][k][l] ln lam[m][k][l])                            n: expected counts
//! lam[m][k][l] ~ sum_r phi[r][m] n[r][k][l];  rho = the mean of T, tau = the mean of phi
//! ELBO = sum_i logsumexp_k(the terms of T) + sum over r, m of phi[r][m] ln(tau[m] / phi[r][m])
//! ```
//! 1. T = the shares of the votes (trusted rows one-hot). Each annotator's own matrix follows; sorted by the sums of their
//!    singular values, the annotators are cut into M blocks of equal size, the clusters; lam[m] is the mean matrix of one.
//! 2. T; 3. phi; 4. lam, rho and tau; 5. repeat from 2 until the ELBO converges. None of the steps lowers it. 1e-10 is
//!    added to counts and to cells.
//!
//! The matrix of an annotator, and with it the skill, the mean of the diagonal, is that of the most probable cluster. The
//! parameter `cluster` is that cluster, and `cluster_0` and so on are phi. Clusters have no order; the ELBO of fits
//! with different `n_clusters` can be compared. It is not meant for crowds in which every annotator has many annotations:
//! with a matrix for each, `dawid_skene` and `ibcc` tell more of them apart.
//!
//! H. Imamura, I. Sato, M. Sugiyama: Analysis of Minimax Error Rate for Crowdsourcing and Its Application to Worker
//! Clustering Model. ICML 2018, PMLR 80:2147-2156.
//!
//! Differs from peerannot's `DawidSkeneClust` in that annotators with equal matrices start in one cluster, whatever their
//! order; in the loop's end, which theirs may never reach; and in that a fit whose instances all fall into one class does
//! not start again: `restarts` does, from votes mixed with noise.
//!
//! ```
//! use labelmill::model::{Model, em::{PairEm, WorkerClustering}};
//! use labelmill::testing::tiny;
//!
//! // Annotators 0 to 3 agree; annotators 4 and 5 always say 0.
//! let label = |i: u32, r: u32| if r > 3 { 0 } else { i % 2 };
//! let rows: Vec<_> = (0..60).map(|n| (n / 6, n % 6, label(n / 6, n % 6))).collect();
//! let fitted = PairEm(WorkerClustering::default()).fit((&tiny(2, &rows)).into(), &mut labelmill::job_context::JobContext::new(0)).unwrap();
//! let (_, cluster) = &fitted.report.annotator_parameters[0];
//! assert_eq!(cluster, &[0.0, 0.0, 0.0, 0.0, 1.0, 1.0]);
//! ```

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::frame::{Annotations, Dims, MemoryEstimate, QuestionSizes};
use crate::job_context::JobContext;
use crate::model::confusion::{Cells, Confusion};
use crate::model::em::kernels::{Estimator, PairCounts, PooledCounts, n_groups};
use crate::model::em::pairs::clusters::{self, ADDED, CountedMatrix, MAX_CLUSTERS, Membership};
use crate::model::em::{ClassPrior, Objective, PairFit, PairModel, StopRule};
use crate::model::fitted::Report;
use crate::model::numerics::{MIN_PROBABILITY, at_least, softmax};
use crate::model::{Capabilities, Spec};

/// Worker clustering: clusters of annotators share confusion matrices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WorkerClustering {
    /// The number of clusters. More of them tell annotators apart better, and need more annotations.
    #[schemars(range(min = 1, max = MAX_CLUSTERS))]
    pub n_clusters: u32,
    /// How many more times to start, from votes mixed with noise; the best ELBO wins. A later start must be better by more
    /// than `stop.tol` for each annotation.
    pub restarts: u32,
    /// When to stop.
    pub stop: StopRule,
}

impl Default for WorkerClustering {
    fn default() -> Self {
        let stop = StopRule { max_iter: 1000, tol: 1e-8, ..StopRule::default() };
        Self { n_clusters: 2, restarts: 0, stop }
    }
}

impl Spec for WorkerClustering {
    const KIND: &'static str = "worker_clustering";
    const SUMMARY: &'static str = "a confusion matrix for each of a few clusters of annotators";
    const SOURCE: &'static str = "Imamura et al. 2018, ICML";
    const CAPABILITIES: Capabilities = Capabilities::EM;

    fn estimates_prior(&self) -> bool {
        true
    }
}

impl PairModel for WorkerClustering {
    type Rows = ClusterEstimator;

    fn estimator(&self, a: &Annotations) -> ClusterEstimator {
        let n_clusters = self.n_clusters as usize;
        let shares = vec![0.0; a.dims().annotators * n_clusters];
        ClusterEstimator {
            members: Membership { n_clusters, shares },
            sizes: Vec::new(),
            logs: Vec::new(),
            counts: Vec::new(),
            term: 0.0,
        }
    }

    fn class_prior(&self, _: &Annotations) -> ClassPrior {
        ClassPrior::Shares
    }

    /// The evidence lower bound.
    fn objective(&self, marginal: f64, terms: f64) -> Objective {
        (marginal + terms).into()
    }

    fn report(&self, a: &Annotations, fit: PairFit<ClusterEstimator>) -> Report {
        let Dims { classes, labels, .. } = a.dims();
        let PairFit { prior, estimator: ClusterEstimator { members, logs, counts, .. }, .. } = fit;
        let of_cluster = logs.chunks_exact((classes * labels).max(1));
        let cells: Vec<f64> =
            of_cluster.flat_map(|logs| clusters::transposed(logs, classes)).map(f64::exp).collect();
        let clusters = clusters::matrices(&cells, &counts, (classes, labels));
        let cells = Cells::Clustered { cluster: members.best(), cells };
        let confusion = Confusion { cells, expected_count: fit.expected_count };
        let annotator_parameters = members.parameters();
        Report {
            skill: confusion.skill(a),
            prior: Some(prior),
            confusion: Some(confusion),
            clusters,
            annotator_parameters,
            ..Report::default()
        }
    }

    fn caution(&self, a: &Annotations, job: &JobContext) -> Option<String> {
        clusters::too_few_annotators(a, self.n_clusters, &job.model_key("n_clusters"))
    }

    fn stop(&self) -> &StopRule {
        &self.stop
    }

    fn restarts(&self) -> u32 {
        self.restarts
    }

    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        clusters::memory_estimate(sizes, 0)
    }
}

/// Estimates the clusters of annotators and the matrices of clusters, both from the counts of all.
pub struct ClusterEstimator {
    /// phi
    members: Membership,
    /// The expected number of annotators, `[cluster]`.
    sizes: Vec<f64>,
    /// ln lam, `[cluster, label, class]`; empty before the start.
    logs: Vec<f64>,
    /// The expected counts, `[cluster, label, class]`.
    counts: Vec<f64>,
    /// The term of the ELBO over r and m.
    term: f64,
}

impl ClusterEstimator {
    /// ln tau
    fn log_shares(&self) -> Vec<f64> {
        let all: f64 = self.sizes.iter().sum();
        self.sizes.iter().map(|n| at_least(n / all.max(1.0), MIN_PROBABILITY).ln()).collect()
    }

    /// The blocks, and in the place of expected counts the sums of the matrices of their annotators.
    fn start(&mut self, counts: &PooledCounts<'_>) {
        let ((n, n_labels), m) = (counts.axes(), self.members.n_clusters);
        let blocks = clusters::blocks(counts.annotations(), m, |r| {
            CountedMatrix::new(counts, r).nuclear_norm(n, n_labels)
        });
        self.counts = vec![0.0; m * n_labels * n];
        for r in clusters::annotated(counts.annotations()) {
            let block = blocks[r] as usize;
            self.members.shares[r * m + block] = 1.0;
            let CountedMatrix { labels, cells, unused } = CountedMatrix::new(counts, r);
            let sums = &mut self.counts[block * n_labels * n..(block + 1) * n_labels * n];
            for (label, sums) in sums.chunks_exact_mut(n).enumerate() {
                let own = labels.binary_search(&label).map(|at| &cells[at * n..(at + 1) * n]);
                add(sums, own.unwrap_or(&unused));
            }
        }
    }

    /// phi, by tau and lam of the step before.
    fn assign(&mut self, counts: &PooledCounts<'_>) {
        let (n, n_labels) = counts.axes();
        let (log_shares, logs) = (self.log_shares(), &self.logs);
        self.members.estimate(counts.annotations(), |r, row| {
            let mut terms = log_shares.clone();
            for (label, counts) in counts.of_annotator(r) {
                for (term, logs) in terms.iter_mut().zip(logs.chunks_exact(n_labels * n)) {
                    let logs = &logs[label * n..(label + 1) * n];
                    *term += counts.iter().zip(logs).map(|(c, l)| c * l).sum::<f64>();
                }
            }
            softmax(&terms, row)
        });
        self.counts = counts.by_cluster(self.members.n_clusters, |r| self.members.row(r));
    }
}

impl Estimator for ClusterEstimator {
    fn pool(&mut self, counts: &PooledCounts<'_>) {
        let (n, n_labels) = counts.axes();
        let starts = self.logs.is_empty();
        if starts {
            self.start(counts);
        } else {
            self.assign(counts);
        }
        let annotated = clusters::annotated(counts.annotations());
        self.sizes = self.members.sizes(&annotated);
        self.logs.clone_from(&self.counts);
        // The matrices of a start have what is added, unless their cluster is empty.
        let in_count = if starts { f64::MIN_POSITIVE } else { ADDED };
        for cells in self.logs.chunks_exact_mut((n_labels * n).max(1)) {
            let mut sums = vec![n_labels as f64 * in_count; n];
            cells.chunks_exact(n).for_each(|row| add(&mut sums, row));
            for row in cells.chunks_exact_mut(n) {
                for (cell, sum) in row.iter_mut().zip(&sums) {
                    let share = (*cell + in_count) / sum;
                    *cell = ((share + ADDED) / (1.0 + n_labels as f64 * ADDED)).ln();
                }
            }
        }
        let log_shares = self.log_shares();
        let term = |(p, log_share): (&f64, &f64)| {
            if *p > 0.0 { p * (log_share - p.ln()) } else { 0.0 }
        };
        let of = |r: &usize| self.members.row(*r).iter().zip(&log_shares).map(term).sum::<f64>();
        self.term = annotated.par_iter().map(of).collect::<Vec<f64>>().iter().sum();
    }

    fn shared_term(&self) -> f64 {
        self.term
    }

    #[inline(always)]
    fn estimate<const W: usize>(&self, own: PairCounts<'_, W>) -> f64 {
        let PairCounts { index, labels, n_classes: n, rows, .. } = own;
        let cells = self.logs.len() / self.members.n_clusters;
        for (row, label) in rows.chunks_exact_mut(n_groups::<W>(n)).zip(labels) {
            let row = &mut row.as_flattened_mut()[..n];
            row.fill(0.0);
            let members = self.members.row(index as usize).iter().enumerate();
            for (m, share) in members.filter(|(_, share)| **share > 0.0) {
                let logs = &self.logs[m * cells + *label as usize * n..][..n];
                row.iter_mut().zip(logs).for_each(|(sum, log)| *sum += share * log);
            }
            row.iter_mut().for_each(|log| *log = log.exp());
        }
        0.0
    }
}

fn add(sums: &mut [f64], row: &[f64]) {
    sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model as _;
    use crate::model::em::PairEm;
    use crate::testing::{assert_close, erring_half, fit, iterations, objectives, tiny};

    /// The votes for instances 0 and 1 are (1, 0) and (1/2, 1/2). Annotator 0: (1, 0), (1/2, 1/2) to labels 0 and 1, so that
    /// the matrix is \[\[2/3, 1/3\], \[0, 1\]\]; annotator 1: \[\[1, 0\], \[1, 0\]\]. The nuclear norms are 1.53 and 1.41: two
    /// clusters of one annotator each. T of instance 1 ~ (3/4 1/3 1, 1/4 1 1) = (1/2, 1/2).
    // keys: worker_clustering.n_clusters
    #[test]
    fn an_iteration_is_the_one_worked_out_by_hand() {
        let a = tiny(2, &[(0, 0, 0), (0, 1, 0), (1, 0, 1), (1, 1, 0)]);
        let spec = WorkerClustering { stop: iterations(1), ..WorkerClustering::default() };
        let fitted = fit(spec.clone(), &a);
        assert_close(&fitted.posterior.row(0), &[1.0, 0.0], 1e-9, "T0");
        assert_close(&fitted.posterior.row(1), &[0.5, 0.5], 1e-9, "T1");
        // ln(3/4 2/3) + ln(1/4 + 1/4), and each annotator is in one of two clusters.
        let elbo = -4.0 * 2.0_f64.ln();
        assert_close(&objectives(&fitted), &[elbo], 1e-8, "ELBO");
        // With one cluster, all share one matrix: that of the mean.
        let fitted = fit(WorkerClustering { n_clusters: 1, ..spec }, &a);
        let skill = &fitted.report.skill;
        assert!((skill[0] - skill[1]).abs() < 1e-15, "{skill:?}");
        assert_eq!(fitted.report.clusters.len(), 1);
    }

    // keys: worker_clustering.restarts
    #[test]
    fn the_bound_never_falls_from_any_start_with_any_number_of_clusters() {
        for n_clusters in [1, 2, 3, 7] {
            let spec = WorkerClustering { n_clusters, restarts: 2, stop: iterations(60) };
            let fitted = fit(spec, &erring_half());
            for row in &fitted.trace {
                assert!(row.change.is_none_or(|c| c > -1e-8), "{n_clusters} {row:?}");
            }
        }
    }

    #[test]
    fn more_clusters_than_annotators_are_a_warning() {
        let a = tiny(2, &[(0, 0, 0), (0, 1, 1)]);
        let mut job = JobContext::new(0);
        for (n_clusters, n_warnings) in [(2, 0), (3, 1)] {
            let spec = WorkerClustering { n_clusters, ..WorkerClustering::default() };
            PairEm(spec).fit((&a).into(), &mut job).unwrap();
            assert_eq!(job.warnings().len(), n_warnings, "{n_clusters}");
        }
        let want = "3 clusters are more than the annotators: lower model.n_clusters to at most 2";
        assert_eq!(job.warnings(), [want]);
    }

    #[test]
    fn annotators_with_equal_matrices_start_in_one_cluster() {
        let rows: Vec<_> = (0..40).map(|n| (n / 4, n % 4, n / 4 % 2)).collect();
        let fitted = fit(WorkerClustering { n_clusters: 3, ..Default::default() }, &tiny(2, &rows));
        assert_eq!(fitted.report.annotator_parameters[0].1, [0.0; 4]);
        assert!(fitted.posterior.row(1)[1] > 1.0 - 1e-9);
    }
}
