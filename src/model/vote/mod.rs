//! Models that count votes: no latent annotators, one pass over the annotations.

mod majority;

pub(crate) use majority::agreement;
pub use majority::{MajorityVote, VoteMode};
