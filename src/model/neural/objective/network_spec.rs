//! The sections that every neural model has.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::train_spec::TrainSpec;
use crate::model::neural::device::auto;
use crate::model::neural::net::backbone::BackboneSpec;
use crate::model::settings::preset::Preset;

/// The sections that every neural model has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkSpec {
    /// The settings that the other keys start from: `labelmill`, `paper`, or `code` (`lia`, `lia_multi`). A key that is given always wins.
    pub preset: Preset,
    /// The device that the network runs on: `auto`, `cpu` or `cuda:0`. `auto` is a GPU if there is one and the forward
    /// pass of a step has at least 20 million multiply-adds (rows of a batch times products of a row), else the CPU:
    /// smaller networks gain nothing from a GPU.
    pub device: String,
    /// The classifier before its last layer.
    pub backbone: BackboneSpec,
    /// How it is trained.
    pub train: TrainSpec,
    /// Epochs after the training in which the classifier learns from trusted classes alone (gold of the role `train`); its
    /// batch norm keeps its statistics. With `train.select = "valid"` the best of these epochs is kept.
    pub fine_tune: u32,
    /// Whether trusted classes wait for the fine-tuning: until then their instances are like all others, and without
    /// `fine_tune` they train nothing.
    pub hold_back_gold: bool,
    /// Whether the fit starts at the confusion matrices that the annotations of trusted instances give, one added to each
    /// count. Models of targets start at the posteriors that follow from them; `dl` with an aggregator that has no such
    /// start leaves out annotators who are worse than the most frequent trusted class, by five or more answers, where
    /// others answered. Gold that is held back counts too.
    pub init_from_gold: bool,
}

impl Default for NetworkSpec {
    fn default() -> Self {
        Self {
            preset: Preset::Labelmill,
            device: auto(),
            backbone: BackboneSpec::default(),
            train: TrainSpec::default(),
            fine_tune: 0,
            hold_back_gold: false,
            init_from_gold: false,
        }
    }
}
