//! `labelmill schema`: the JSON Schema of a pipeline file.

pub use crate::pipeline::schema;
