//! Every query that labelmill runs, one named result a file. Stock functions only: any DataFusion runs them.

/// How far estimated confusion matrices are from the true ones.
pub const CONFUSION_ERROR: &str = include_str!("../sql/confusion_error.sql");
/// The M-step of Dawid-Skene as group-bys: the class shares.
pub const DAWID_SKENE_PRIOR: &str = include_str!("../sql/dawid_skene_prior.sql");
/// The M-step of Dawid-Skene as group-bys: the confusion matrices.
pub const DAWID_SKENE_CONFUSION: &str = include_str!("../sql/dawid_skene_confusion.sql");
/// The E-step of Dawid-Skene as group-bys: the posteriors.
pub const DAWID_SKENE_POSTERIOR: &str = include_str!("../sql/dawid_skene_posterior.sql");
