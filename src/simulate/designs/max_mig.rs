//! Independent senior annotators, and juniors who guess or copy (Cao et al. 2019, arXiv:1905.13436), with the numbers
//! of the authors' program for CIFAR-10.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Design;
use crate::error::Result;
use crate::simulate::grammar::crowd;
use crate::simulate::plan::Plan;

/// How good the seniors are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Expertise {
    /// Ten, each right on one instance in five.
    #[default]
    Low,
    /// Five who confuse only similar classes.
    High,
}

/// The annotators in addition to the seniors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JuniorKind {
    /// There are no annotators but the seniors.
    #[default]
    None,
    /// Five who always give class 0.
    Constant,
    /// Some who copy the senior a00, and some who copy a02.
    Copies,
}

/// Seniors and juniors.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SeniorityDesign {
    /// How good the seniors are.
    pub expertise: Expertise,
    /// The annotators in addition to the seniors.
    pub juniors: JuniorKind,
}

/// In this order: always one class of each pair; either class of a pair at random; animals right; vehicles right; a
/// little better than at random within pairs.
const HIGH: &str = "confuser(0 2>0 9>1 5>3 7>4 8>6), similar-pair(0.5 0-2 1-9 3-5 4-7 6-8), \
                    confuser(0.5 0-2 1-9 6-8), confuser(0 5>3 7>4), similar-pair(0.6 0-2 1-9 3-5 4-7 6-8)";

impl Design for SeniorityDesign {
    fn plan(&self, _classes: usize) -> Result<Plan> {
        let (seniors, copies) = match self.expertise {
            Expertise::Low => ("10*symmetric(0.8)", "imitative(a00), imitative(a02)"),
            Expertise::High => (HIGH, "2*imitative(a00), 3*imitative(a02)"),
        };
        let juniors = match self.juniors {
            JuniorKind::None => return Ok(Plan::new(crowd(seniors)?)),
            JuniorKind::Constant => "5*constant(0)",
            JuniorKind::Copies => copies,
        };
        Ok(Plan::new(crowd(&format!("{seniors}, {juniors}"))?))
    }
}
