//! What each verb of the command line does beside `run`, one file or folder a verb; `cli` reads the arguments and prints.

pub mod evaluate;
pub mod explain;
pub mod predict;
pub mod published;
pub mod simulate;
pub mod test;
