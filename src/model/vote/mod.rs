//! Models that count votes: no latent variables, one pass over the annotations.

mod majority;

#[cfg(feature = "neural")]
pub(crate) use majority::agreement;
pub use majority::{MajorityVote, VoteMode};

use super::ModelKind;
use super::fitted_posterior::FittedPosterior;

/// The models of this folder.
pub static KINDS: &[ModelKind] = &[ModelKind {
    fit_bytes: FittedPosterior::fit_bytes_of_votes,
    ..ModelKind::of::<MajorityVote>()
}];
