//! The commands other than `run`, one file or folder each; `cli` reads the arguments and prints.

pub mod evaluate;
pub mod explain;
pub mod predict;
pub mod published;
pub mod simulate;
pub mod test;
