//! The parameters of recipes, and the plan that each makes from them; one file per paper.

mod conal;
mod lia;
mod max_mig;
mod mbem;
mod real;
mod tanno;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use conal::{ConfusionMixture, OnBlobs};
pub use lia::Predictors;
pub use max_mig::SeniorityDesign;
pub use mbem::FixedBudget;
pub use real::RealCrowd;
pub use tanno::{FourAnnotatorTypes, OneType};

use super::conal::GaussianBlobs;
use super::grammar::crowd;
use super::plan::Plan;
use crate::error::Result;

/// Parameters that make a plan.
pub trait Design {
    /// The plan for this many classes, at least two.
    ///
    /// # Errors
    /// When a parameter cannot be parsed, or does not go with the others.
    fn plan(&self, classes: usize) -> Result<Plan>;
    /// The instances to draw, for recipes that draw their own.
    fn blobs(&self) -> Option<GaussianBlobs> {
        None
    }
}

/// Any groups of annotators.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Groups {
    /// The annotators, such as `10*symmetric(0.8), 10*pair(0.45), imitative(a00)`.
    pub groups: String,
    /// Number of different annotators for each instance; if not set, all of them.
    #[schemars(range(min = 1))]
    pub redundancy: Option<usize>,
    /// The share of the instances that is annotated.
    #[schemars(range(min = 0, max = 1))]
    pub annotated: f64,
    /// The share of each class that goes to the table `gold`.
    #[schemars(range(min = 0, max = 1))]
    pub trusted: f64,
    /// Whether trusted instances are annotated too.
    pub annotate_trusted: bool,
    /// The most annotations kept for an instance, chosen at random after all are drawn; if not set, all are kept.
    #[schemars(range(min = 1))]
    pub kept: Option<usize>,
}

impl Default for Groups {
    fn default() -> Self {
        Self {
            groups: "5*hammer-spammer(0.6)".to_owned(),
            redundancy: None,
            annotated: 1.0,
            trusted: 0.0,
            annotate_trusted: false,
            kept: None,
        }
    }
}

impl Design for Groups {
    fn plan(&self, _classes: usize) -> Result<Plan> {
        let groups = crowd(&self.groups).map_err(|e| e.or_at("--set groups"))?;
        Ok(Plan {
            redundancy: self.redundancy,
            annotated: self.annotated,
            trusted: self.trusted,
            annotates_trusted: self.annotate_trusted,
            kept: self.kept,
            ..Plan::new(groups)
        })
    }
}
