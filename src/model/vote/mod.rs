//! Models that count votes: no latent annotators, one pass over the annotations.

mod majority;

pub use majority::{MajorityVote, VoteMode};
