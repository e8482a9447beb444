//! EM with learned functions of instances and annotators: the class of an instance, how difficult it is, and how
//! competent each annotator is.
//!
//! ```text
//! h[i] = softmax(classifier(x_i))    D[i] = difficulty(x_i)    K[r] = competence(e_r)    G: shared by all pairs
//! Q[i,r][k][l] = softmax over l of ln sum_m exp(G[k][l][m] + D[i][k][l][m] + K[r][k][l][m])
//! start     T = shares of the votes
//! round     epochs on T:  loss = -(1/B) sum_i ( sum_k T[i][k] ln h[i][k] + sum over (r, y) of i sum_k T[i][k] ln Q[i,r][k][y] )
//!           E   T[i][k] ~ h[i][k] prod over annotations (r, y) of i of Q[i,r][k][y]
//! marginal  joint      loss = -(1/B) sum_i ln sum_k h[i][k] prod over (r, y) of i of Q[i,r][k][y]
//!           composite  loss = -(1/B) sum_i sum over (r, y) of i ln sum_k h[i][k] Q[i,r][k][y]
//! ```
//! D and the classifier share all layers but the last; K is linear in e, a learned embedding of the annotator, and in
//! the annotator's features, where there are any. `train.epochs` are those of the marginal likelihood; `marginal = "none"`
//! is EM alone. The posteriors are those of a last E-step.
//!
//! LIA-E: without features, or with `embed_instances`, x_i is a learned embedding of the instance. Nothing but the
//! annotations of i has trained it, and as a prior h would count them twice; so the mean of T over the instances is the
//! prior there, in the E-step and in the marginal likelihood (`e_step_prior`).
//!
//! The reported matrix of an annotator is the mean of Q over the instances that the annotator labelled, each row
//! weighted by T; `competence` of a pair is sum_k h[i][k] Q[i,r][k][k], the probability of a right answer:
//! `annotator_parameters` has its mean over the annotator's instances, `instance_parameters` its mean over the instance's
//! annotators.
//!
//! E. A. Platanios, M. Al-Shedivat, E. Xing, T. Mitchell: Learning from Imperfect Annotations: An End-to-End Approach.
//! ICLR 2020 submission. Equations 1, 4, 7 and 9; Q is that of the authors' public code.
//!
//! Differs from the paper in the marginal likelihood, which is joint over the annotations of an instance, where the
//! paper's equation 9 is composite; in G, which is the sum of the paper's biases, starts at the votes, and is the one that
//! is free of penalties: D is drawn to 0 as by a normal prior of each instance, K as by one of each annotator; in the
//! prior without features; in batches, which are of instances; in the learning rate of embeddings and of G, 0.01
//! (`annotator_learning_rate`); and in network and training, which are labelmill's
//! defaults. `preset = "paper"` has the paper's settings, with 1000 steps of each act for 1024 instances or fewer;
//! `preset = "code"` those of the authors' code for images of birds, without its weights of entropies and of squared
//! logarithms.

mod joint_counts;
pub(crate) mod lia_multi;
mod objective;
mod pairs;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use joint_counts::{START_COUNT, counts_of_questions, priors_of_questions};
use pairs::PairMatrices;

use crate::error::Result;
use crate::frame::{Annotations, Dims};
use crate::model::FeatureUse;
use crate::model::em::kernels::expected_counts_of;
use crate::model::neural::data::batch::BatchAnnotation;
use crate::model::neural::data::inputs::{EmbeddingInput, LearnerInput};
use crate::model::neural::data::sizes::Sizes;
use crate::model::neural::net::backbone::{Architecture, BackboneSpec, Scaling};
use crate::model::neural::net::heads::{Head, HeadInput, Heads};
use crate::model::neural::net::optimiser::optimiser_spec::{
    LrSchedule, OptimiserKind, OptimiserSpec,
};
use crate::model::neural::net::parameters::Initialisation;
use crate::model::neural::objective::batch_context::{BatchContext, BatchPrediction, Gradient};
use crate::model::neural::objective::crowd_net::{AnnotatorReport, CrowdNet, Task};
use crate::model::neural::objective::network_spec::NetworkSpec;
use crate::model::neural::objective::schedule::Act;
use crate::model::neural::objective::train_spec::{Reduction, TrainSpec};
use crate::model::neural::objective::train_state::{MAIN_TARGETS, TrainState};
use crate::model::neural::objective::training_objective::TrainingObjective;
use crate::model::neural::objective::{counted, paper};
use crate::model::neural::params::annotator_params::AnnotatorParams;
use crate::model::neural::params::param_table::{Owner, ParamTable};
use crate::model::neural::train::learners::learner::LearnerSpec;
use crate::model::posterior::Posterior;

/// The likelihood of the last phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Marginal {
    /// That of all annotations of an instance together.
    #[default]
    Joint,
    /// That of each annotation by itself, as in the paper. Where the classifier knows little, it says little about the
    /// annotators.
    Composite,
    /// None: EM alone, and `train.epochs` changes nothing.
    None,
}

/// P(class) before the annotations of an instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EStepPrior {
    /// `classifier` with features, `classes` with learned embeddings of instances.
    #[default]
    Auto,
    /// The classifier's probabilities, as in the paper.
    Classifier,
    /// The mean posterior of all instances.
    Classes,
    /// The same for each class, as in the authors' code, whose marginal likelihood has the classifier's probabilities.
    Uniform,
}

/// The weight of an instance in the classifier's loss.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClassifierWeight {
    /// One, as in the paper.
    #[default]
    Instance,
    /// The weight of its annotations, as in the authors' code.
    Annotations,
}

/// LIA and LIA-E.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Lia {
    /// Rounds of EM before the marginal likelihood.
    #[schemars(range(min = 1))]
    pub rounds: u32,
    /// Epochs of each round.
    #[schemars(range(min = 1))]
    pub round_epochs: u32,
    /// The likelihood of the last phase, whose epochs are `train.epochs`.
    pub marginal: Marginal,
    /// P(class) before the annotations of an instance.
    pub e_step_prior: EStepPrior,
    /// The weight of an instance in the classifier's loss.
    pub classifier_weight: ClassifierWeight,
    /// Whether embeddings of instances are learned though there are features (LIA-E).
    pub embed_instances: bool,
    /// The length of learned embeddings of instances.
    #[schemars(range(min = 1))]
    pub instance_embedding: usize,
    /// The length of embeddings of annotators.
    #[schemars(range(min = 1))]
    pub annotator_embedding: usize,
    /// The length of the latent axis of difficulty and competence.
    #[schemars(range(min = 1))]
    pub latent: usize,
    /// How strongly the difficulty of each instance is drawn to zero: the precision of a normal prior of each number.
    #[schemars(range(min = 0.0))]
    pub difficulty_penalty: f64,
    /// How strongly the competence of each annotator is drawn to that of the crowd, in the same way.
    #[schemars(range(min = 0.0))]
    pub competence_penalty: f64,
}

impl Default for Lia {
    fn default() -> Self {
        Self {
            rounds: 10,
            round_epochs: 10,
            marginal: Marginal::Joint,
            e_step_prior: EStepPrior::Auto,
            classifier_weight: ClassifierWeight::Instance,
            embed_instances: false,
            instance_embedding: 16,
            annotator_embedding: 16,
            latent: 1,
            difficulty_penalty: 4.0,
            competence_penalty: 3.0,
        }
    }
}

/// The names of the phases.
pub(crate) const EM: &str = "em";
pub(crate) const MARGINAL: &str = "marginal";

/// The names of the learners that give an annotator's competence, and of the table that the first of them reads.
const COMPETENCE: &str = "competence";
const FEATURES: &str = "competence_by_features";
const EMBEDDING: &str = "annotator_embedding";

/// The index of the table of annotators' embeddings.
const EMBEDDINGS: usize = 1;

impl Lia {
    /// The epochs of all rounds.
    fn em_epochs(&self) -> u32 {
        self.rounds.saturating_mul(self.round_epochs)
    }

    /// The number of difficulties of an instance, and of competences of an annotator: those of each question.
    fn width_of(&self, sizes: &Sizes) -> usize {
        sizes.n_questions() * sizes.classes * sizes.labels * self.latent
    }
}

/// A network without hidden layers, which leaves its input as it is.
fn linear() -> BackboneSpec {
    BackboneSpec { kind: Architecture::Linear, batch_norm: false, ..BackboneSpec::default() }
}

impl CrowdNet for Lia {
    const KIND: &'static str = "lia";
    const SUMMARY: &'static str = "EM with learned functions: the class and difficulty of an instance, by its features or a learned embedding, and the competence of an annotator";
    const SOURCE: &'static str = "LIA, LIA-E: Platanios et al. 2020, ICLR submission";
    const FEATURES: FeatureUse = FeatureUse::Optional;
    const TRAINING: &'static str =
        "How it is trained; `epochs` are those of the marginal likelihood, after EM.";
    const NEEDS_ANNOTATOR_FEATURES: bool = false;
    const HAS_MATRICES_OF_PAIRS: bool = true;

    /// The paper's settings: four layers of 16 units, and 1000 steps of AMSGrad in each act.
    fn paper() -> (NetworkSpec, Self) {
        let mut network = paper::network(125, None, 1e-3);
        network.backbone = BackboneSpec {
            hidden: vec![16; 4],
            dropout: 0.0,
            initialisation: Initialisation::Glorot,
            scaling: Scaling::GlobalMaxAbs,
            ..network.backbone
        };
        network.train.optimiser.rule = OptimiserKind::Amsgrad;
        let model = Self {
            round_epochs: 125,
            marginal: Marginal::Composite,
            e_step_prior: EStepPrior::Classifier,
            difficulty_penalty: 0.0,
            competence_penalty: 0.0,
            ..Self::default()
        };
        (network, model)
    }

    /// The settings of the authors' code for their images of birds: one layer of 512 units, 512 numbers in each embedding,
    /// two rounds, and a rate that falls by 0.3 % in each of eight steps of an epoch.
    fn code() -> Option<(NetworkSpec, Self)> {
        let (mut network, model) = Self::paper();
        network.backbone.hidden = vec![512];
        network.train.optimiser = OptimiserSpec {
            rule: OptimiserKind::Adam,
            beta2: 0.99,
            schedule: LrSchedule::Exponential,
            gamma: 0.976,
            ..network.train.optimiser
        };
        let model = Self {
            rounds: 2,
            e_step_prior: EStepPrior::Uniform,
            classifier_weight: ClassifierWeight::Annotations,
            instance_embedding: 512,
            annotator_embedding: 512,
            ..model
        };
        Some((network, model))
    }

    fn instance_embedding(&self, has_features: bool) -> Option<usize> {
        (self.embed_instances || !has_features).then_some(self.instance_embedding)
    }

    fn heads(&self, sizes: &Sizes) -> Heads {
        let widths = vec![self.width_of(sizes)];
        let difficulty = Head { name: "difficulty", from: HeadInput::Hidden, widths };
        Heads { named: vec![difficulty], ..Heads::CLASSIFIER }
    }

    fn other_learners(&self, _network: &NetworkSpec, sizes: &Sizes) -> Vec<LearnerSpec> {
        let width = self.width_of(sizes);
        let learner = |name, input| LearnerSpec {
            name,
            backbone: linear(),
            heads: Heads {
                named: vec![Head { name, from: HeadInput::Features, widths: vec![width] }],
                ..Heads::default()
            },
            input,
            optimiser: None,
        };
        let (table, owner) = (EMBEDDING, Owner::Annotator);
        let embedding = EmbeddingInput { table, owner, width: self.annotator_embedding };
        vec![
            learner(COMPETENCE, LearnerInput::Embedding(embedding)),
            learner(FEATURES, LearnerInput::Annotators),
        ]
    }

    fn tables(&self, task: &Task<'_>) -> Result<Vec<ParamTable>> {
        let Dims { annotators, classes, labels, .. } = task.dims;
        let a = task.evidence.annotations;
        let crowds = if let Some(joint) = &a.joint {
            counts_of_questions(a, joint)
        } else {
            let counts = expected_counts_of(a, &Posterior::from_votes(a));
            let mut crowd = vec![START_COUNT; classes * labels];
            for r in 0..annotators {
                let own = counted::of_annotator(a, &counts, r);
                crowd.iter_mut().zip(own).for_each(|(sum, count)| *sum += count);
            }
            crowd
        };
        let mut common = Vec::with_capacity(crowds.len() * self.latent);
        for row in crowds.chunks_exact(labels.max(1)) {
            let sum: f64 = row.iter().sum();
            let cells = row.iter().flat_map(|c| vec![(c / sum).ln() as f32; self.latent]);
            common.extend(cells);
        }
        Ok(vec![
            ParamTable::of_model("common", common),
            ParamTable::embeddings(
                EMBEDDING,
                Owner::Annotator,
                annotators,
                self.annotator_embedding,
                task.job,
            ),
        ])
    }

    fn instance_parameters(&self) -> Vec<String> {
        vec!["competence".to_owned()]
    }

    fn pair_matrices(&self, context: &BatchContext<'_>) -> Option<Vec<f64>> {
        let pairs = PairMatrices::new(context, self.latent);
        let of_pair = |(b, a): (usize, &BatchAnnotation)| {
            pairs.log_matrix(b, a.annotator as usize).into_iter().map(f64::exp)
        };
        Some(context.annotations().flat_map(of_pair).collect())
    }

    fn report(&self, task: &Task<'_>, annotator_params: &AnnotatorParams) -> AnnotatorReport {
        let table = &annotator_params.tables[EMBEDDINGS];
        let rows: Vec<Vec<f64>> = (0..task.dims.annotators).map(|r| table.row(r)).collect();
        let column = |j: usize| rows.iter().map(|row| row[j]).collect();
        let embeddings =
            (0..self.annotator_embedding).map(|j| (format!("embedding_{j}"), column(j)));
        AnnotatorReport { parameters: embeddings.collect(), ..AnnotatorReport::default() }
    }
}

impl TrainingObjective for Lia {
    const REDUCTION: Option<Reduction> = None;
    const TRAINS_ON_TARGETS: bool = true;
    const ANNOTATOR_RATE: f64 = 0.01;
    const DELAYS_ANNOTATORS: bool = false;

    fn weighs_annotations(&self) -> bool {
        true
    }

    fn next_act(&self, train: &TrainSpec, state: &TrainState) -> Option<Act> {
        self.acts(train).nth(state.acts)
    }

    fn epochs(&self, train: &TrainSpec) -> u32 {
        let marginal = if self.marginal == Marginal::None { 0 } else { train.epochs };
        self.em_epochs().saturating_add(marginal)
    }

    /// The prior of the classes; all other parameters follow from gradients.
    fn m_step(
        &self,
        a: &Annotations,
        _counts: &[f64],
        state: &mut TrainState,
        _params: &mut AnnotatorParams,
    ) {
        let of_questions = |t: &Posterior| match &a.joint {
            Some(joint) => priors_of_questions(t, a, joint),
            None => t.mean_of_annotated(a),
        };
        state.estimates.prior = state.targets(MAIN_TARGETS).map(of_questions);
    }

    fn loss(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> Result<f64> {
        Ok(self.loss_of(context, gradient))
    }

    fn predict(&self, context: &BatchContext<'_>) -> BatchPrediction {
        self.e_step_of(context)
    }
}
