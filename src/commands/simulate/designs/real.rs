//! A real crowd with fewer annotations, and with annotators of whom it is known how good they are.
//!
//! E. A. Platanios, M. Al-Shedivat, E. Xing, T. Mitchell: Learning from Imperfect Annotations. 2020. Its experiments keep
//! 2, 5, 10 and more annotations of each instance, drawn at random; and of two annotators who are put beside the others, one
//! always right and one always wrong, it looks whether they are found to be the best and the worst.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Design;
use crate::commands::simulate::grammar::crowd;
use crate::commands::simulate::plan::{Given, Plan};
use crate::error::{Error, Result};

/// A crowd that is given, and annotators beside.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RealCrowd {
    /// Annotations of an instance that are kept at most, drawn at random, besides those of added annotators; left out, all.
    #[schemars(range(min = 1))]
    pub kept: Option<usize>,
    /// Annotators that are added and label every instance of the crowd, such as `right, wrong, 2*random`.
    pub added: String,
    /// Whether labels are drawn anew from the confusion matrix of each annotator, counted on the true classes.
    pub resample: bool,
    /// Different annotators an instance, drawn by how many annotations they made (`resample`); left out, those of the
    /// crowd.
    #[schemars(range(min = 1))]
    pub redundancy: Option<usize>,
    /// How many annotations of the whole crowd each class of an annotator's matrix is counted with, for annotators who
    /// made few. One who never met a class labels it as the whole crowd does.
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
        let given = Some(Given { draws_labels: self.resample, smoothing: self.smoothing });
        Ok(Plan { kept: self.kept, redundancy: self.redundancy, given, ..Plan::of(groups) })
    }
}
