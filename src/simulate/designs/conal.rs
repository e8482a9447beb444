//! Common and individual noise (Chu, Ma and Wang 2021, arXiv:2012.13052).
//!
//! Read literally, the paper's individual strength is 0.7, but its text calls these annotators good: 0.3 is the other
//! reading.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Design;
use crate::error::{Error, Result};
use crate::simulate::annotators::AnnotatorType;
use crate::simulate::conal::GaussianBlobs;
use crate::simulate::grammar::links;
use crate::simulate::plan::{CommonNoise, Plan};

/// The target of the common mistakes of a class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Noise {
    /// A target that is drawn for each class.
    #[default]
    Asymmetric,
    /// The partner of the class: two partners are taken for each other.
    Symmetric,
}

/// Common and individual noise.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ConfusionMixture {
    /// How many annotators.
    #[schemars(range(min = 1))]
    pub annotators: usize,
    /// Number of different annotators for each instance.
    #[schemars(range(min = 1))]
    pub redundancy: usize,
    /// The target of the common mistakes of a class.
    pub noise: Noise,
    /// The probability of a mistake where the common noise applies.
    #[schemars(range(min = 0, max = 1))]
    pub common_strength: f64,
    /// The mean probability that the common noise applies; 0 for none.
    #[schemars(range(min = 0, max = 1))]
    pub proportion: f64,
    /// The probability of a mistake where the annotator's own noise applies; the paper's text fits 0.3 better.
    #[schemars(range(min = 0, max = 1))]
    pub individual_strength: f64,
    /// Partners for symmetric noise, such as `3-5 1-9`; drawn if empty.
    pub pairs: String,
    /// The share of the instances that is annotated; the class of the others goes to the table `gold`.
    #[schemars(range(min = 0, max = 1))]
    pub annotated: f64,
    /// The share of those others with role `valid`, for choosing the epoch; the rest has role `holdout`, for scoring.
    #[schemars(range(min = 0, max = 1))]
    pub valid: f64,
}

impl Default for ConfusionMixture {
    fn default() -> Self {
        Self {
            annotators: 30,
            redundancy: 3,
            noise: Noise::Asymmetric,
            common_strength: 0.4,
            proportion: 0.5,
            individual_strength: 0.7,
            pairs: String::new(),
            annotated: 1.0,
            valid: 0.5,
        }
    }
}

impl Design for ConfusionMixture {
    fn plan(&self, _classes: usize) -> Result<Plan> {
        let right = 1.0 - self.common_strength;
        let pairs = links(&self.pairs).map_err(|e| e.at("--set pairs"))?;
        let kind = match self.noise {
            Noise::Asymmetric if pairs.is_empty() => AnnotatorType::PairwiseFlipper(right),
            Noise::Asymmetric => {
                return Err(Error::spec("asymmetric noise draws its targets and has no partners")
                    .at("--set pairs")
                    .found(format!("`{}`", self.pairs))
                    .help("set noise=symmetric, or leave the pairs empty: --set pairs="));
            }
            Noise::Symmetric => AnnotatorType::SimilarPair(right, pairs),
        };
        let own = AnnotatorType::PairwiseFlipper(1.0 - self.individual_strength);
        Ok(Plan {
            redundancy: Some(self.redundancy),
            annotated: self.annotated,
            valid: Some(self.valid),
            common: Some(CommonNoise { kind, proportion: self.proportion }),
            ..Plan::new(vec![(self.annotators, own)])
        })
    }
}

/// Common and individual noise on instances that are drawn.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct OnBlobs {
    /// The noise.
    #[serde(flatten)]
    pub noise: ConfusionMixture,
    /// Instances to draw.
    #[schemars(range(min = 1))]
    pub instances: usize,
    /// Classes to draw.
    #[schemars(range(min = 2))]
    pub classes: usize,
    /// Features of an instance.
    #[schemars(range(min = 1))]
    pub width: usize,
    /// The standard deviation of features around the mean of their class; that of the means is 1. Features
    /// are 32-bit floats, and with the largest deviation they are still finite.
    #[schemars(range(min = 0, max = 1e30))]
    pub deviation: f64,
}

impl Default for OnBlobs {
    fn default() -> Self {
        Self {
            noise: ConfusionMixture::default(),
            instances: 10_000,
            classes: 6,
            width: 32,
            deviation: 2.0,
        }
    }
}

impl Design for OnBlobs {
    fn plan(&self, classes: usize) -> Result<Plan> {
        self.noise.plan(classes)
    }

    fn blobs(&self) -> Option<GaussianBlobs> {
        let Self { instances, classes, width, deviation, .. } = *self;
        Some(GaussianBlobs { classes, instances, width, deviation })
    }
}
