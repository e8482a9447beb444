//! Models that count votes, with equal weights or with weights that follow from agreement: no latent variables.

mod crh;
mod iwmv;
mod majority;
mod rounds;
mod shares;
mod wawa;
mod zbs;

pub use crh::{Crh, LossNorm, VoteLoss};
pub use iwmv::{AgreementWeight, Iwmv};
#[cfg(feature = "neural")]
pub(crate) use majority::agreement;
pub use majority::{MajorityVote, VoteMode};
pub use wawa::Wawa;
pub use zbs::ZeroBasedSkill;

use super::ModelKind;

/// The models of this folder.
pub static KINDS: &[ModelKind] = &[
    ModelKind::new::<MajorityVote>(),
    ModelKind::new::<Wawa>(),
    ModelKind::new::<Iwmv>(),
    ModelKind::new::<ZeroBasedSkill>(),
    ModelKind::new::<Crh>(),
];
