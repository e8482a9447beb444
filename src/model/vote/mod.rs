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
use crate::frame::FitBytes;

/// The models of this folder.
pub static KINDS: &[ModelKind] = &[
    // Its rows are computed when they are read.
    ModelKind { fit_bytes: |_| Some(FitBytes::default()), ..ModelKind::of::<MajorityVote>() },
    ModelKind::of::<Wawa>(),
    ModelKind::of::<Iwmv>(),
    ModelKind::of::<ZeroBasedSkill>(),
    ModelKind::of::<Crh>(),
];
