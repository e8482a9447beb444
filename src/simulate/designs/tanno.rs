//! Groups of one skill, and four annotators with habits (Tanno et al. 2019, arXiv:1902.03680).
//!
//! The paper's numbers for CIFAR-10 are in a figure only. Ours, on ten balanced classes: a hammer-spammer of 0.4 (right
//! on 0.46), similar pairs 0.6, neighbours 0.5 and wrong names 0.24, which is 0.45 on average.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Design;
use crate::error::Result;
use crate::simulate::plan::Plan;
use crate::simulate::words::{crowd, kind};

/// Which annotators see an instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Labels {
    /// All of them.
    #[default]
    Dense,
    /// One, at random.
    One,
}

impl Labels {
    fn redundancy(self) -> Option<usize> {
        (self == Self::One).then_some(1)
    }
}

/// Annotators of one type and skill.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OneType {
    /// A type of annotators that has a skill.
    pub annotator: String,
    /// The skill: the chance to know the answer; below 0.3 some draws of flippers cannot be told from their mistakes.
    #[schemars(range(min = 0, max = 1))]
    pub p: f64,
    /// How many annotators.
    #[schemars(range(min = 1))]
    pub annotators: usize,
    /// Which annotators see an instance.
    pub labels: Labels,
}

impl Default for OneType {
    fn default() -> Self {
        let annotator = "hammer-spammer".to_owned();
        Self { annotator, p: 0.3, annotators: 5, labels: Labels::Dense }
    }
}

impl Design for OneType {
    fn plan(&self) -> Result<Plan> {
        // These two are written with the chance to be wrong.
        let is_error = matches!(self.annotator.as_str(), "symmetric" | "pair");
        let p = if is_error { 1.0 - self.p } else { self.p };
        let kind =
            kind(&format!("{}({p})", self.annotator)).map_err(|e| e.or_at("--set annotator"))?;
        let redundancy = self.labels.redundancy();
        Ok(Plan { redundancy, ..Plan::of(vec![(self.annotators, kind)]) })
    }
}

/// Four annotators, each with a habit of its own.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FourHabits {
    /// Which annotators see an instance.
    pub labels: Labels,
}

impl Design for FourHabits {
    fn plan(&self) -> Result<Plan> {
        let groups = crowd(
            "hammer-spammer(0.4), similar-pair(0.6 3-5 1-9 4-7 0-2 6-8), neighbour-confuser(0.5), adversarial(0.24)",
        )?;
        Ok(Plan { redundancy: self.labels.redundancy(), ..Plan::of(groups) })
    }
}
