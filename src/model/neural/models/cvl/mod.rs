//! Two networks and naive Bayes label the instances for each other, and learn only from labels that are likely right.
//!
//! ```text
//! start      d = T = shares of the votes
//! round      pi[r][k][l] = annotations (i, r, l) of kept i with d_i = k, divided by the sum of the row;  kept are the
//!            (1 - beta_l eps_d) N instances of smallest loss - sum_k d_i[k] ln T[i][k], and the trusted ones
//!            T[i][k] ~ prod over annotations (r, y) of i of pi[r][k][y],  l_i = argmax T[i]
//!            epochs on l: in each batch of size B, each network picks the (1 - beta_d eps_l) B instances of its smallest
//!            losses - ln p_i[l_i], and the other network is trained on them:
//!            loss = sum over picked i of w[l_i] (- ln p_i[l_i]) / sum over picked i of w[l_i]
//!            d_i = the class that both networks predict; where they differ, d_i stays
//! ```
//! Before they pick, a network's losses at least rho standard deviations from the mean of the batch are left out. w[k] is one
//! over the number of kept instances with d_i = k. eps_d and eps_l are the errors of d and of naive Bayes on trusted
//! instances, on which no network is trained: naive Bayes answers each from matrices without its own annotations. Where
//! trusted instances have no features or no annotations, or there are none, the share of untrusted instances on which d and l
//! differ takes the place. The prediction is the mean of both networks, and the prior of the published posteriors, whose
//! likelihood is pi.
//!
//! S. Li, S. Ge, Y. Hua, C. Zhang, H. Wen, T. Liu, W. Wang: Coupled-View Deep Classifier Learning from Multiple Noisy
//! Annotators. AAAI 2020, pages 4667-4674. Co-teaching: B. Han et al., NeurIPS 2018.
//!
//! It is meant for annotations of which many are wrong, and a few trusted instances of each class. With few annotations of
//! each annotator, small losses say little about who is right; without trusted instances `max_mig` serves better.
//!
//! Differs from the paper in the constants, which it does not publish and which are ours: epochs of the rounds, beta 1 for
//! both, rho 3; in the start, where the networks learn the first naive Bayes and not the vote; in both networks reading the
//! same batches, as in the authors' code of co-teaching; in equal losses, which are kept together; in its posteriors, which
//! the paper has not; and in network and training, which are labelmill's defaults. `preset = "paper"` has the settings of Li
//! et al. 2022 for LabelMe.

pub(in crate::model::neural) mod co_teaching;
mod views;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use co_teaching::{cross_entropy, mean_of, picks, taught};
use views::CoupledViews;

use crate::error::Result;
use crate::frame::{Annotations, Evidence};
use crate::job_context::JobContext;
use crate::model::em::kernels::expected_counts_of;
use crate::model::fitted::Fitted;
use crate::model::neural::data::batching::InstanceSubset;
use crate::model::neural::data::inputs::LearnerInput;
use crate::model::neural::data::sizes::Sizes;
use crate::model::neural::net::heads::{Heads, Outputs};
use crate::model::neural::objective::batch_context::{BatchContext, BatchPrediction, Gradient};
use crate::model::neural::objective::crowd_net::CrowdNet;
use crate::model::neural::objective::given_matrices::first_targets;
use crate::model::neural::objective::network_spec::NetworkSpec;
use crate::model::neural::objective::schedule::{Act, Phase};
use crate::model::neural::objective::train_spec::{Reduction, TrainSpec};
use crate::model::neural::objective::train_state::{MAIN_TARGETS, TrainState};
use crate::model::neural::objective::training_objective::TrainingObjective;
use crate::model::neural::objective::{counted, paper};
use crate::model::neural::params::annotator_params::AnnotatorParams;
use crate::model::neural::train::learners::learner::LearnerSpec;
use crate::model::numerics::{MIN_PROBABILITY, at_least};
use crate::model::posterior::{best, hardened};

/// Coupled-view learning.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Cvl {
    /// Epochs of the first round; the other rounds share the rest of `train.epochs`.
    #[schemars(range(min = 1))]
    pub first_epochs: u32,
    /// Epochs of each other round.
    #[schemars(range(min = 1))]
    pub round_epochs: u32,
    /// The share of a batch that a network leaves out, as a multiple of the error of the labels by annotations.
    #[schemars(range(min = 0.0))]
    pub beta_d: f64,
    /// The share of instances whose annotations are not counted, as a multiple of the error of the networks' labels.
    #[schemars(range(min = 0.0))]
    pub beta_l: f64,
    /// Losses so many standard deviations from the mean of a batch are left out.
    #[schemars(range(min = 1.1))]
    pub rho: f64,
    /// Whether the loss weighs each class by one over its number of instances.
    pub balance: bool,
}

impl Default for Cvl {
    fn default() -> Self {
        Self { first_epochs: 5, round_epochs: 5, beta_d: 1.0, beta_l: 1.0, rho: 3.0, balance: true }
    }
}

/// The name of the second network.
const SECOND: &str = "second";

/// The name of the targets d, the labels by the networks.
const BY_NETWORKS: &str = "by networks";

/// The names of the estimates: the share of a batch that is picked, and the weight of each class.
const PICKED: &str = "picked";
const WEIGHTS: &str = "weights";

/// The least share of instances that is kept, whatever the error.
const MIN_KEPT: f64 = 0.1;

impl Cvl {
    /// All acts, one after the other.
    fn acts(&self, train: &TrainSpec) -> impl Iterator<Item = Act> {
        let (epochs, first, each) = (train.epochs, self.first_epochs, self.round_epochs);
        let next = move |end: &u32| (*end < epochs).then(|| end.saturating_add(each).min(epochs));
        let ends = std::iter::successors(Some(first.min(epochs)), next);
        let starts = std::iter::once(0).chain(ends.clone());
        let rounds = starts.zip(ends).flat_map(move |(start, end)| {
            let phase = Phase {
                act: start..end,
                instances: InstanceSubset::Untrusted,
                ..Phase::joint("co-teaching", epochs)
            };
            let label = [Act::MStep(MAIN_TARGETS), Act::EStep(MAIN_TARGETS)];
            label.into_iter().chain([Act::Train(phase), Act::EStep(BY_NETWORKS)])
        });
        rounds.chain([Act::Select])
    }

    /// The share that is kept of labels with this error.
    fn kept(beta: f64, error: f64) -> f64 {
        (1.0 - beta * error).clamp(MIN_KEPT, 1.0)
    }
}

impl CrowdNet for Cvl {
    const KIND: &'static str = "cvl";
    const SUMMARY: &'static str =
        "two networks and naive Bayes teach each other the labels that are likely right";
    const SOURCE: &'static str = "Li et al. 2020, AAAI";
    const STARTS_AT_MATRICES: bool = true;

    /// The settings of Li et al. 2022 for LabelMe.
    fn paper() -> (NetworkSpec, Self) {
        (paper::classifier(30, Some(128), 1e-4), Self::default())
    }

    fn other_learners(&self, network: &NetworkSpec, _sizes: &Sizes) -> Vec<LearnerSpec> {
        let input = LearnerInput::Features;
        vec![LearnerSpec::new(SECOND, &network.backbone, Heads::CLASSIFIER, input)]
    }

    fn aggregate(&self, evidence: Evidence<'_>, job: &mut JobContext) -> Result<Option<Fitted>> {
        if evidence.annotations.trusted.iter().flatten().flatten().next().is_none() {
            job.warn(
                "no instance is trusted: the errors of networks and annotations are taken to be the share of instances on \
                 which they differ (give gold of the role `train`)",
            );
        }
        first_targets(evidence, job).map(Some)
    }
}

impl TrainingObjective for Cvl {
    const REDUCTION: Option<Reduction> = None;
    const TRAINS_ON_TARGETS: bool = true;
    const COUNTS_CONFUSION: bool = true;

    fn next_act(&self, train: &TrainSpec, state: &TrainState) -> Option<Act> {
        self.acts(train).nth(state.acts)
    }

    /// What the networks say of trusted instances is their error.
    fn keeps_trusted(&self, name: &'static str) -> bool {
        name != BY_NETWORKS
    }

    /// T, or d: the class that both networks predict. Where they differ, or one predicts none, d stays; for a trusted
    /// instance it is the prediction of their mean.
    fn e_step(&self, context: &BatchContext<'_>, name: &'static str) -> Vec<f64> {
        let n = context.dims.classes;
        if name == MAIN_TARGETS {
            let uniform = vec![1.0 / n as f64; n * context.batch.len()];
            return context.posterior_from(&uniform, |_, a, k| counted::cell(context, a, k));
        }
        let (mut labels, mean) = (context.batch.targets.clone(), mean_of(context));
        for (b, row) in labels.chunks_exact_mut(n).enumerate() {
            let [one, two, both] = [context.out.p(b), context.others[0].p(b), mean.p(b)].map(best);
            let is_trusted = context.batch.trusted[b].is_some();
            if let Some((class, is_tied)) = both
                && (is_trusted || (one == two && !is_tied))
            {
                row.fill(0.0);
                row[class] = f64::from(u8::from(!is_tied));
            }
        }
        labels
    }

    /// The matrices from d of the kept instances, the share that the networks pick, and the weights of the classes.
    fn m_step(
        &self,
        a: &Annotations,
        _counts: &[f64],
        state: &mut TrainState,
        params: &mut AnnotatorParams,
    ) {
        let Some(by_annotations) = state.targets(MAIN_TARGETS) else { return };
        let predicted = state.targets(BY_NETWORKS);
        let views =
            CoupledViews { a, by_annotations, by_networks: predicted.unwrap_or(by_annotations) };
        // The votes at the start are nobody's error.
        let error = predicted.map_or(0.0, |_| views.error_of_networks());
        let kept = views.kept(Self::kept(self.beta_l, error));
        let counts = expected_counts_of(a, &kept);
        let picked = Self::kept(self.beta_d, views.error_of_annotations(&counts));
        let mut of_class = vec![0.0; a.dims().classes];
        let rows = kept.values().chunks_exact(of_class.len().max(1));
        rows.for_each(|row| of_class.iter_mut().zip(row).for_each(|(n, t)| *n += t));
        let weights = of_class.into_iter().map(|n| 1.0 / at_least(n, 1.0)).collect();
        counted::count(a, &counts, MIN_PROBABILITY, params);
        state.estimates.numbers.insert(PICKED.to_owned(), vec![picked]);
        state.estimates.numbers.insert(WEIGHTS.to_owned(), weights);
    }

    /// The sum of the losses of both networks.
    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> Result<f64> {
        let (n, numbers) = (context.dims.classes, &context.estimates.numbers);
        let targets: Vec<f64> = context.batch.targets.chunks_exact(n).flat_map(hardened).collect();
        let share = numbers.get(PICKED).map_or(1.0, |picked| picked[0]);
        let weights = numbers.get(WEIGHTS).filter(|_| self.balance);
        let weight = |row: &[f64]| {
            let of_class = |weights: &Vec<f64>| row.iter().zip(weights).map(|(t, w)| t * w).sum();
            weights.map_or(1.0, of_class)
        };
        let weights_for = |teacher: &Outputs| -> Vec<f64> {
            let rows = || targets.chunks_exact(n).enumerate();
            let loss =
                |(b, row): (usize, &[f64])| cross_entropy(row, teacher.p(b), f64::MIN_POSITIVE);
            let picks = picks(&rows().map(loss).collect::<Vec<_>>(), share, self.rho);
            rows().zip(picks).map(|((_, row), is)| if is { weight(row) } else { 0.0 }).collect()
        };
        let (one, two) = (context.out, &context.others[0]);
        let of_one = taught(one, &targets, &weights_for(two), &mut gradient.out);
        Ok(of_one + taught(two, &targets, &weights_for(one), &mut gradient.others[0]))
    }

    fn predict(&self, context: &BatchContext<'_>) -> BatchPrediction {
        let mean = mean_of(context);
        let context = BatchContext { out: &mean, ..*context };
        context.predict_by_bayes(|_, a, k| counted::cell(&context, a, k))
    }
}
