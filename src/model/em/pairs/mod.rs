//! Models whose likelihood is a product over (annotator, label) pairs, one a file, and what they share.

pub(super) mod assignments;
pub(super) mod clusters;
pub(super) mod conal_em;
pub(super) mod crowd_rows;
pub(super) mod dawid_skene;
pub(super) mod fast_dawid_skene;
pub(super) mod ibcc;
pub(super) mod known_confusion;
pub(super) mod mace;
pub(super) mod one_coin;
pub(super) mod pair_em;
pub(super) mod snorkel;
