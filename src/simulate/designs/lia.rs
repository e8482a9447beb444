//! Annotators who confuse known pairs of classes, with annotator features that show which pair (Platanios et al. 2020,
//! "Learning from Imperfect Annotations"; from the authors' program only).
//!
//! ```text
//! one way     always labels class k as l                   features -1 at k, +1 at C + l
//! both ways   labels k as l and l as k, half of the time   features -1/2 at k and l, +1/2 at C + k and C + l
//! ```
//! All other classes are labelled right. With C classes, annotator n confuses k = n mod C with the class 1 + n / C
//! places further on, so that every class is confused about as often, and no pair is repeated before all have been
//! used.
//!
//! Differs from the program: its pairs come from Cantor's numbering, which pairs some classes with themselves; and it
//! draws labels from the softmax of a matrix, where the mistake is only likely. Here it is certain.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Design;
use crate::error::{Error, Result};
use crate::simulate::annotators::{AnnotatorType, Link};
use crate::simulate::grammar::Group;
use crate::simulate::plan::Plan;

/// Annotators who confuse known classes.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Predictors {
    /// Number of annotators who always take one class for another.
    #[schemars(range(max = 1_000_000))]
    pub one_way: usize,
    /// Number of annotators who take two classes for each other, half of the time.
    #[schemars(range(max = 1_000_000))]
    pub both_ways: usize,
    /// The most annotations kept for an instance, chosen at random after all are drawn; if not set, all are kept.
    #[schemars(range(min = 1))]
    pub kept: Option<usize>,
}

impl Default for Predictors {
    /// Ten annotators. As in the program, those of one way are one more than half.
    fn default() -> Self {
        Self { one_way: 6, both_ways: 4, kept: None }
    }
}

impl Design for Predictors {
    fn plan(&self, classes: usize) -> Result<Plan> {
        let one_way =
            (0..self.one_way).map(|n| AnnotatorType::Confuser(0.0, vec![confused(n, classes)]));
        let both_ways = (0..self.both_ways).map(|n| {
            let (k, l) = confused(n, classes);
            AnnotatorType::Confuser(0.5, vec![(k, l), (l, k)])
        });
        let groups: Vec<Group> = one_way.chain(both_ways).map(|kind| (1, kind)).collect();
        if groups.is_empty() {
            return Err(Error::spec("a crowd needs an annotator")
                .at("--set one_way, both_ways")
                .found("0 and 0")
                .help("raise one of them"));
        }
        Ok(Plan { kept: self.kept, describes_annotators: true, ..Plan::new(groups) })
    }
}

/// The n-th pair of classes.
fn confused(n: usize, classes: usize) -> Link {
    let (k, locations) = (n % classes, 1 + n / classes % (classes - 1));
    (k, (k + locations) % classes)
}
