//! Annotators belong to communities: each has a confusion matrix of his own, which resembles that of his community.
//!
//! ```text
//! h ~ Dirichlet(pseudo_count, ...);  c[r] ~ Categorical(h)     the community of annotator r, one of M
//! S[m][k] ~ Normal(mu[k], I)                                   scores of a community
//! s[r][k] ~ Normal(S[c[r]][k], I / precision);  pi[r][k] = softmax(s[r][k])
//! mu[k][k] = ln((L - 1) prior_accuracy / (1 - prior_accuracy)), mu[k][l] = 0 else                    L labels
//! q ~ Dirichlet(1, ..., 1);  z[i] ~ Categorical(q);  y | z[i] = k, r ~ Categorical(pi[r][k])
//! ```
//! Posteriors T of z, phi of c, and the Dirichlets of q and h are found by variational Bayes, the scores s and S by their
//! maximum:
//!
//! 1. T = the shares of the votes (trusted rows one-hot), s = S = mu. Annotators are sorted by how often they agree with T,
//!    (agreed + 1) / (all + 2), and cut into M blocks of equal size; equal ones are in one block. phi = 0.9 there + 0.1 / M.
//! 2. s: three steps of Newton for n[r][k] . ln softmax(s[r][k]) - precision / 2 |s[r][k] - sum_m phi[r][m] S[m][k]|^2 each,
//!    where n are the expected counts; a step that lowers it is halved.
//! 3. S = (mu + precision sum_r phi[r][m] s[r]) / (1 + precision sum_r phi[r][m]);  e[m] = pseudo_count + sum_r phi[r][m].
//! 4. phi[r] = softmax_m(digamma(e[m]) - digamma(sum e) - precision / 2 |s[r] - S[m]|^2).
//! 5. T with E ln q and ln pi, as in `ibcc`; 6. repeat from 2 until the objective converges. No step lowers it, but for
//!    the rounding of s and S to multiples of 2^-20, which keeps ties:
//!
//! ```text
//! sum_i logsumexp_k(the terms of T) - KL(Dir(nu) | Dir(1)) + sum_r logsumexp_m(the terms of phi[r])
//!   - KL(Dir(e) | Dir(pseudo_count)) - sum_m |S[m] - mu|^2 / 2
//! ```
//! A skill is the mean diagonal of pi. The parameter `cluster` is the most probable community, `cluster_0` and so on are
//! phi; the matrices of the scope `cluster` are softmax(S). Communities have no order, and some may be empty. The objective
//! tells starts apart, and not numbers of communities. It is not meant for many classes: every annotator has a score for
//! each class and label.
//!
//! M. Venanzi, J. Guiver, G. Kazai, P. Kohli, M. Shokouhi: Community-Based Bayesian Aggregation Models for Crowdsourcing.
//! WWW 2014. doi:10.1145/2566486.2567989
//!
//! Differs from the paper, which passes messages with a bound of the softmax, in that scores are point estimates; in the
//! start, which is random there, and so decides instances that tie; and in that the prior of S is a normal one with the
//! variance 1 about mu, where theirs is fitted to Dirichlet rows.
//!
//! ```
//! use labelmill::model::{Model, em::{PairEm, CommunityBcc}};
//! use labelmill::testing::tiny;
//!
//! // Annotators 0 to 3 agree; annotators 4 and 5 always say 0.
//! let label = |i: u32, r: u32| if r > 3 { 0 } else { i % 2 };
//! let rows: Vec<_> = (0..120).map(|n| (n / 6, n % 6, label(n / 6, n % 6))).collect();
//! let spec = CommunityBcc { n_communities: 2, ..CommunityBcc::default() };
//! let fitted = PairEm(spec).fit((&tiny(2, &rows)).into(), &mut labelmill::job_context::JobContext::new(0)).unwrap();
//! let (_, community) = &fitted.report.annotator_parameters[0];
//! assert!(community[..4] == [community[0]; 4] && community[4..] == [1.0 - community[0]; 2]);
//! ```

mod estimator;

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::frame::{Annotations, Dims, MemoryEstimate, QuestionSizes};
use crate::job_context::{JobContext, WarningCode};
use crate::model::confusion::{Cells, Confusion};
use crate::model::em::pairs::clusters::{self, MAX_CLUSTERS};
use crate::model::em::{ClassPrior, Objective, PairFit, PairModel, StopRule};
use crate::model::fitted::Report;
use crate::model::numerics::softmax;
use crate::model::{Capabilities, Spec};
use estimator::CommunityEstimator;

/// Community-based Bayesian classifier combination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CommunityBcc {
    /// The number of communities. Communities that the data do not need stay nearly empty.
    #[schemars(range(min = 1, max = MAX_CLUSTERS))]
    pub n_communities: u32,
    /// How close the scores of an annotator are to those of his community. Raising it makes them alike.
    #[schemars(range(min = 0.01, max = 1e6))]
    pub precision: f64,
    /// The Dirichlet parameter of every community's share. Raising it makes communities equally large.
    #[schemars(range(min = 0.05))]
    pub pseudo_count: f64,
    /// How often annotators are right before any annotation is seen.
    #[schemars(range(min = 0.01, max = 0.99))]
    pub prior_accuracy: f64,
    /// How many more times to start, from votes mixed with noise; the best objective wins. A later start must be better by
    /// more than `stop.tol` for each annotation.
    pub restarts: u32,
    /// When to stop.
    pub stop: StopRule,
}

impl Default for CommunityBcc {
    fn default() -> Self {
        Self {
            n_communities: 3,
            precision: 5.0,
            pseudo_count: 10.0,
            prior_accuracy: 0.7,
            restarts: 0,
            stop: StopRule::default(),
        }
    }
}

impl Spec for CommunityBcc {
    const KIND: &'static str = "community_bcc";
    const SUMMARY: &'static str =
        "a confusion matrix for each annotator, which resembles that of a community";
    const SOURCE: &'static str = "Venanzi et al. 2014, doi:10.1145/2566486.2567989";
    const CAPABILITIES: Capabilities = Capabilities { annotator_prior: true, ..Capabilities::EM };

    fn estimates_prior(&self) -> bool {
        true
    }
}

impl PairModel for CommunityBcc {
    type Rows = CommunityEstimator;

    fn estimator(&self, a: &Annotations) -> CommunityEstimator {
        let odds = self.prior_accuracy / (1.0 - self.prior_accuracy);
        let right = (odds * a.dims().labels.saturating_sub(1).max(1) as f64).ln();
        let parameters = [self.precision, self.pseudo_count];
        CommunityEstimator::new(a, self.n_communities as usize, right, parameters)
    }

    fn class_prior(&self, _: &Annotations) -> ClassPrior {
        ClassPrior::Dirichlet(1.0)
    }

    fn objective(&self, marginal: f64, terms: f64) -> Objective {
        (marginal + terms).into()
    }

    fn report(&self, a: &Annotations, fit: PairFit<CommunityEstimator>) -> Report {
        let Dims { classes, labels, .. } = a.dims();
        let CommunityEstimator { members, communities, mut scores, counts, .. } = fit.estimator;
        let shares = |scores: &mut [f64]| {
            let logs = scores.to_vec();
            softmax(&logs, scores);
        };
        scores.par_chunks_exact_mut(labels.max(1)).for_each(shares);
        let mut communities = communities;
        communities.chunks_exact_mut(labels.max(1)).for_each(shares);
        let confusion =
            Confusion { cells: Cells::Dense(scores), expected_count: fit.expected_count };
        Report {
            skill: confusion.skill(a),
            prior: Some(fit.prior),
            confusion: Some(confusion),
            clusters: clusters::matrices(&communities, &counts, (classes, labels)),
            annotator_parameters: members.parameters(),
            ..Report::default()
        }
    }

    /// The scores of all annotators, also once in the report.
    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        clusters::memory_estimate(sizes, sizes.dims.annotators.checked_mul(2)?)
    }

    fn caution(&self, a: &Annotations, job: &JobContext) -> Option<String> {
        let key = job.model_key("n_communities");
        let Dims { classes, labels, .. } = a.dims();
        let (n, m) = (a.len(), self.n_communities);
        let is_few = classes > 1 && n < m as usize * classes * labels;
        clusters::too_few_annotators(a, m, &key).or_else(|| {
            is_few.then(|| {
                format!(
                    "there are {n} annotations for {m} confusion matrices of {classes} x {labels}: lower {key}; one_coin \
                     has one number for an annotator [{}]",
                    WarningCode::FewAnnotations.name()
                )
            })
        })
    }

    fn stop(&self) -> &StopRule {
        &self.stop
    }

    fn restarts(&self) -> u32 {
        self.restarts
    }
}

#[cfg(test)]
mod tests;
