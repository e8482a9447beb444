//! Annotators of one type and skill, and four annotators with different habits (Tanno et al. 2019, arXiv:1902.03680).
//!
//! The paper gives its numbers for CIFAR-10 in a figure only. Ours, on ten balanced classes: a hammer-spammer of 0.4
//! (right on 0.46), similar pairs 0.6, neighbours 0.5 and adversarial 0.24, which is 0.45 on average.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Design;
use crate::error::Result;
use crate::simulate::annotators::{AnnotatorType, ClassShift};
use crate::simulate::grammar::{Group, crowd};
use crate::simulate::plan::Plan;

/// How many annotators label an instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LabelDensity {
    /// All of them.
    #[default]
    Dense,
    /// One, at random.
    One,
}

impl LabelDensity {
    fn redundancy(self) -> Option<usize> {
        (self == Self::One).then_some(1)
    }
}

/// A type of annotators whose parameter is their skill.
///
/// `HammerOrSpammer` is not among them: its parameter is the probability of having all the skill or none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SkilledAnnotator {
    /// All wrong classes equally likely.
    Symmetric,
    /// The next class.
    Pair,
    /// Any class at random where the annotator does not know the class.
    #[default]
    HammerSpammer,
    /// A target that is drawn for each class.
    PairwiseFlipper,
    /// The previous or the next class.
    NeighbourConfuser,
    /// The partner of the class; pairs are drawn.
    SimilarPair,
    /// The class half of the number of classes further on, cyclically.
    Adversarial,
}

impl SkilledAnnotator {
    /// The type with skill `p`.
    fn with(self, p: f64) -> AnnotatorType {
        match self {
            Self::Symmetric => AnnotatorType::Symmetric(1.0 - p),
            Self::Pair => AnnotatorType::Pair(1.0 - p, Vec::new()),
            Self::HammerSpammer => AnnotatorType::HammerSpammer(p),
            Self::PairwiseFlipper => AnnotatorType::PairwiseFlipper(p),
            Self::NeighbourConfuser => AnnotatorType::Neighbour(p),
            Self::SimilarPair => AnnotatorType::SimilarPair(p, Vec::new()),
            Self::Adversarial => AnnotatorType::Adversarial(p, ClassShift::HalfOfClasses),
        }
    }
}

/// Annotators of one type and skill.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OneType {
    /// Their type: which label they give when they are wrong.
    pub annotator: SkilledAnnotator,
    /// The skill: the probability of knowing the class. Below 0.3, right and wrong labels of some flippers cannot be
    /// told apart.
    #[schemars(range(min = 0, max = 1))]
    pub p: f64,
    /// How many annotators.
    #[schemars(range(min = 1))]
    pub annotators: usize,
    /// How many annotators label an instance.
    pub labels: LabelDensity,
    /// The share of the instances that nobody annotates; their classes go to the table `gold` with role `valid`, for
    /// choosing the epoch.
    #[schemars(range(min = 0, max = 1))]
    pub valid: f64,
}

impl Default for OneType {
    fn default() -> Self {
        Self {
            annotator: SkilledAnnotator::default(),
            p: 0.3,
            annotators: 5,
            labels: LabelDensity::Dense,
            valid: 0.0,
        }
    }
}

impl Design for OneType {
    fn plan(&self, _classes: usize) -> Result<Plan> {
        let groups = vec![(self.annotators, self.annotator.with(self.p))];
        Ok(held_out(self.valid, self.labels, groups))
    }
}

/// Four annotators with different habits.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FourAnnotatorTypes {
    /// How many annotators label an instance.
    pub labels: LabelDensity,
    /// The share of the instances that nobody annotates; their classes go to the table `gold` with role `valid`, for
    /// choosing the epoch.
    #[schemars(range(min = 0, max = 1))]
    pub valid: f64,
}

impl Design for FourAnnotatorTypes {
    fn plan(&self, _classes: usize) -> Result<Plan> {
        let groups = crowd(
            "hammer-spammer(0.4), similar-pair(0.6 3-5 1-9 4-7 0-2 6-8), neighbour-confuser(0.5), adversarial(0.24)",
        )?;
        Ok(held_out(self.valid, self.labels, groups))
    }
}

/// The plan whose held-out instances all have role `valid`.
fn held_out(valid: f64, labels: LabelDensity, groups: Vec<Group>) -> Plan {
    Plan {
        redundancy: labels.redundancy(),
        annotated: 1.0 - valid,
        valid: Some(1.0),
        ..Plan::new(groups)
    }
}
