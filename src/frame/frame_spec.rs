//! The section `[frame]` of a pipeline file.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::annotations::Duplicates;
use crate::source::{Cleaning, Scalar};

/// How rows become annotations.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FrameSpec {
    /// The classes, in their order; classes that nobody chose stay. By default the labels that occur and the classes of
    /// gold, except gold of the role `holdout`, sorted.
    #[schemars(length(min = 1))]
    pub classes: Option<Vec<Scalar>>,
    /// Labels that annotators may give but that are not classes, such as "unsure".
    pub extra_labels: Vec<Scalar>,
    /// What to do with repeated annotations of one instance by one annotator.
    pub duplicates: Duplicates,
}

impl FrameSpec {
    /// The spec with its labels spelled as those of the annotations are.
    #[must_use]
    pub fn normalised(&self, cleaning: &Cleaning) -> Self {
        let normal = |label: &Scalar| match label {
            Scalar::Text(text) => Scalar::Text(cleaning.normalised(text)),
            other => other.clone(),
        };
        let all = |labels: &Vec<Scalar>| labels.iter().map(normal).collect();
        Self {
            classes: self.classes.as_ref().map(all),
            extra_labels: all(&self.extra_labels),
            duplicates: self.duplicates,
        }
    }
}
