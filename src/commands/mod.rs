//! The commands other than `run` and `schema`, one file or folder each; they return values, and `cli` prints them.

pub mod aggregate;
pub mod check;
pub mod evaluate;
pub mod explain;
pub mod models;
pub mod predict;
pub mod simulate;
pub mod sql;
pub mod test;
