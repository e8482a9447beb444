//! Hammers and spammers for a fixed number of annotations (Khetan, Lipton and Anandkumar 2018, arXiv:1712.04577).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Design;
use crate::error::Result;
use crate::simulate::annotators::AnnotatorType;
use crate::simulate::plan::Plan;

/// Hammers among spammers, for a fixed number of annotations.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FixedBudget {
    /// How many annotators.
    #[schemars(range(min = 1))]
    pub annotators: usize,
    /// The probability of being a hammer.
    #[schemars(range(min = 0, max = 1))]
    pub g: f64,
    /// Whether each annotator is a hammer or a spammer for each class separately.
    pub class_wise: bool,
    /// Number of different annotators for each instance.
    #[schemars(range(min = 1))]
    pub redundancy: usize,
    /// The total number of annotations: the more for each instance, the fewer instances are annotated. If not set, all
    /// instances are.
    #[schemars(range(min = 1))]
    pub budget: Option<usize>,
}

impl Default for FixedBudget {
    fn default() -> Self {
        Self { annotators: 100, g: 0.2, class_wise: false, redundancy: 1, budget: None }
    }
}

impl Design for FixedBudget {
    fn plan(&self, _classes: usize) -> Result<Plan> {
        let kind = if self.class_wise {
            AnnotatorType::ClassWiseHammerSpammer(self.g)
        } else {
            AnnotatorType::HammerOrSpammer(self.g)
        };
        Ok(Plan {
            redundancy: Some(self.redundancy),
            at_most: self.budget.map(|answers| answers / self.redundancy),
            ..Plan::new(vec![(self.annotators, kind)])
        })
    }
}
