//! The input of a network: rows of features on the device, scaled, and what a row costs.

pub(crate) mod input_rows;
pub(crate) mod rows;
pub(crate) mod scaler;
