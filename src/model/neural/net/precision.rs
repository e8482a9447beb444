//! The floating-point type of a network's arithmetic.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The floating-point type of the network's matrix products and convolutions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// 32 bits.
    #[default]
    F32,
    /// bfloat16 in matrix products and convolutions on a GPU, f32 everywhere else.
    Bf16,
}
