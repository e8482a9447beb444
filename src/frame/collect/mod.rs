//! From the batches of the queries to one frame a question: rows by question, spellings, numbers, classes and gold.

pub(super) mod annotation_columns;
pub(super) mod by_question;
pub(super) mod collector;
pub(super) mod finished;
pub(super) mod given_tables;
pub(super) mod optional_columns;
pub(super) mod overlaps;
pub(super) mod questions;
pub(super) mod relations;
pub(super) mod shape;
pub(super) mod spellings;
pub(super) mod with_features;
