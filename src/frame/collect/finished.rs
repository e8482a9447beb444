//! What finishing a question gives: its frame, or what is known where no row can be used.

use std::collections::BTreeSet;

use crate::error::Overlap;
use crate::frame::gold::GoldNumber;
use crate::frame::gold::role::Role;
use crate::frame::ids::NULL;
use crate::frame::question_frame::Frame;
use crate::frame::rejects::Rejects;

/// The result of finishing a question.
pub(super) enum Finished {
    /// A frame.
    Frame(Box<Frame>),
    /// No row can be used.
    Nothing(Unlabelled),
}

/// A question without a row that can be used.
pub(super) struct Unlabelled {
    pub(super) rejects: Rejects,
    /// The number of its instances.
    pub(super) instances: u64,
    /// The number of its instances with gold of the role `holdout`.
    pub(super) n_holdout: u64,
    /// The labels, where classes are listed.
    pub(super) listed: Option<Overlap>,
}

impl Unlabelled {
    /// The rejects of a question, and the number of its instances: those for which `stays` is true.
    pub(super) fn new(rejects: Rejects, stays: &[bool], gold: &[GoldNumber]) -> Self {
        let holds_out = |g: &&GoldNumber| {
            g.role == Role::Holdout && g.class != NULL && stays[g.instance as usize]
        };
        let holdout: BTreeSet<u32> = gold.iter().filter(holds_out).map(|g| g.instance).collect();
        Self {
            rejects,
            instances: stays.iter().filter(|stays| **stays).count() as u64,
            n_holdout: holdout.len() as u64,
            listed: None,
        }
    }
}

/// Whether each of `n` instances is one of the frame. An instance whose rows were all rejected stays, without a label;
/// only gold that trains adds one. A value that another one of `same` stands for is none.
pub(super) fn instances_that_stay(n: usize, same: &[u32], gold: &[GoldNumber]) -> Vec<bool> {
    let mut stays = vec![true; n];
    gold.iter().filter(|g| g.is_new).for_each(|g| stays[g.instance as usize] = false);
    gold.iter().filter(|g| g.role.trains()).for_each(|g| stays[g.instance as usize] = true);
    let replaced = (0..).zip(same).filter(|(n, other)| n != *other);
    replaced.for_each(|(n, _)| stays[n as usize] = false);
    stays
}
