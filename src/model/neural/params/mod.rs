//! What annotators and instances have of their own: tables of parameters, and confusion matrices made of them.

pub(super) mod annotator_matrices;
pub(super) mod annotator_params;
pub(super) mod pair_means;
pub(super) mod param_table;
