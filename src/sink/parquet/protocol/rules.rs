//! The rules of the protocol, each of which can be switched off.

/// The rules of the protocol; the search must find a fault when one is switched off.
#[allow(clippy::struct_excessive_bools)]
#[derive(Clone, Copy)]
pub(super) struct Rules {
    /// A commit is created only under a name that holds nothing.
    pub(super) create_only: bool,
    /// The sweeper creates a tombstone before it removes files.
    pub(super) tombstone_first: bool,
    /// A name that holds a tombstone is used up for good.
    pub(super) tombstones_stay: bool,
    /// A writer that does not know the outcome of its request to commit first makes sure that the request can no longer
    /// succeed, and then deletes its files.
    pub(super) gives_up_by_tombstone: bool,
    /// If the store refuses to create a name that nevertheless holds nothing, the outcome is unknown.
    pub(super) absence_is_unknown: bool,
    /// A commit is revoked before its files are deleted.
    pub(super) revoke_first: bool,
    /// A process that finds a commit checks that its files exist.
    pub(super) checks_files: bool,
    /// A tombstone names the attempt that it stopped.
    pub(super) tombstones_name_attempts: bool,
    /// A process deletes leftover files only if a tombstone names them.
    pub(super) leftovers_are_named: bool,
}

pub(super) const ALL: Rules = Rules {
    create_only: true,
    tombstone_first: true,
    tombstones_stay: true,
    gives_up_by_tombstone: true,
    absence_is_unknown: true,
    revoke_first: true,
    checks_files: true,
    tombstones_name_attempts: true,
    leftovers_are_named: true,
};
