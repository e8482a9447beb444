//! Writing a run: attempts, the files of each, and the commit of one.

pub(super) mod attempt;
pub(super) mod commit;
pub(super) mod encode;
pub(super) mod write;
