//! Numbers that other programs and papers publish, retyped, with their origin.

mod agreement;
mod crowd_kit;
mod mace;
mod peerannot;
mod rater;
