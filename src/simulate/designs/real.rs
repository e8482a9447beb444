//! A real crowd with fewer annotations, and with added annotators of known quality.
//!
//! E. A. Platanios, M. Al-Shedivat, E. Xing, T. Mitchell: Learning from Imperfect Annotations. 2020. Its experiments
//! keep 2, 5, 10 and more annotations of each instance, drawn at random. They also add two annotators, one always right
//! and one always wrong, and check that these are found to be the best and the worst.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Design;
use crate::error::{Error, Result};
use crate::simulate::grammar::crowd;
use crate::simulate::plan::{GivenCrowd, Plan};

/// A given crowd, and added annotators.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RealCrowd {
    /// The most annotations kept for an instance, chosen at random, without those of added annotators; if not set, all
    /// are kept.
    #[schemars(range(min = 1))]
    pub kept: Option<usize>,
    /// Annotators to add, who label every instance of the crowd, such as `right, wrong, 2*random`.
    pub added: String,
    /// Whether labels are redrawn from the confusion matrix of each annotator, counted on the true classes.
    pub resample: bool,
    /// Number of different annotators for each instance (with `resample`), drawn with weights that are their numbers of
    /// annotations; if not set, the same pairs as in the crowd.
    #[schemars(range(min = 1))]
    pub redundancy: Option<usize>,
    /// Pseudo-counts of the whole crowd's confusion matrix in each row of an annotator's, for annotators with few
    /// annotations. A class that an annotator never labelled gets the row of the whole crowd.
    #[schemars(range(min = 0.0))]
    pub smoothing: f64,
}

impl Design for RealCrowd {
    fn plan(&self, _classes: usize) -> Result<Plan> {
        let groups = match self.added.trim() {
            "" => Vec::new(),
            added => crowd(added).map_err(|e| e.or_at("--set added"))?,
        };
        if let Some(redundancy) = self.redundancy.filter(|_| !self.resample) {
            return Err(Error::spec("labels that are given come from who gave them")
                .at("--set redundancy")
                .found(redundancy.to_string())
                .help(
                    "set resample=true as well; or set kept, for fewer annotations an instance",
                ));
        }
        let given = Some(GivenCrowd { draws_labels: self.resample, smoothing: self.smoothing });
        Ok(Plan { kept: self.kept, redundancy: self.redundancy, given, ..Plan::new(groups) })
    }
}
