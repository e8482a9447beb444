//! The rules of the protocol, each of which can be switched off.

/// The rules of the protocol; the search must find a fault when one is switched off.
#[allow(clippy::struct_excessive_bools)]
#[derive(Clone, Copy)]
pub(super) struct Rules {
    /// A commit is created only where there is nothing.
    pub(super) create_only: bool,
    /// The sweeper creates a tombstone before it removes files.
    pub(super) tombstone_first: bool,
    /// A name that holds a tombstone is used up for good.
    pub(super) tombstones_stay: bool,
    /// A writer that does not know the outcome of its request to commit first makes sure that the request can no longer
    /// succeed, and then deletes its files.
    pub(super) gives_up_by_tombstone: bool,
    /// A name that could not be taken, and yet holds nothing, decides nothing.
    pub(super) absence_is_unknown: bool,
    /// A commit is revoked before its files go.
    pub(super) revoke_first: bool,
    /// Who finds a commit looks whether its files are there.
    pub(super) checks_files: bool,
    /// A tombstone names the attempt that it stopped.
    pub(super) tombstones_name_attempts: bool,
    /// What tombstones let go is deleted by what they name, and nothing else is.
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
