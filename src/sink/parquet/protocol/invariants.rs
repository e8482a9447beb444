//! The invariants of every state of the model.

use super::state::{MAX_ATTEMPTS, Name, State, Step};

impl State {
    /// The invariant that this state violates, if any.
    pub(super) fn fault(&self) -> Option<&'static str> {
        let commits: Vec<u8> = self
            .names
            .iter()
            .filter_map(|name| if let Name::Commit(attempt) = name { Some(*attempt) } else { None })
            .collect();
        let is_torn = |of: &u8| !self.files[*of as usize] && self.lost != Some(*of);
        if commits.iter().any(is_torn) {
            return Some("a commit without files");
        }
        if commits.len() > 1 {
            return Some("two commits of one run");
        }
        // Processes search the last name in steps that double: they need not read every name.
        let is_used = |name: &Name| *name != Name::Absent;
        if self.names.windows(2).any(|pair| !is_used(&pair[0]) && is_used(&pair[1])) {
            return Some("a name was used before an earlier one");
        }
        let is_commit = |name: &Name| matches!(name, Name::Commit(_));
        if self.names.windows(2).any(|pair| is_commit(&pair[0]) && is_used(&pair[1])) {
            return Some("a name was used after a commit");
        }
        let writers = || self.writers.iter().zip([0, 1]);
        let was_committed =
            self.names.iter().any(|n| matches!(n, Name::Commit(_) | Name::Revoked(_)));
        if self.trusted_blindly {
            return Some("a commit was trusted without its files");
        }
        if writers().any(|(step, _)| *step == Step::Succeeded) && !was_committed {
            return Some("success without a commit");
        }
        let is_of = |writer: u8| commits.iter().any(|attempt| attempt % 2 == writer);
        if writers().any(|(step, writer)| *step == Step::Failed && is_of(writer)) {
            return Some("failure with a commit");
        }
        (0..MAX_ATTEMPTS).any(|attempt| self.is_orphan(attempt)).then_some("files of nobody")
    }

    /// Whether an attempt has files that nobody will delete, and that no commit names.
    fn is_orphan(&self, attempt: usize) -> bool {
        let (of, writer) = (attempt as u8, attempt % 2);
        let is_at_work = self.attempt(writer) == of
            && !matches!(self.writers[writer], Step::Crashed | Step::Failed | Step::Unknown);
        let is_named =
            |name: &Name| [Name::Commit(of), Name::Tombstone(of), Name::Revoked(of)].contains(name);
        let is_known = is_at_work
            || self.leases[attempt].is_some()
            || self.names.iter().any(is_named)
            || self.superseded[attempt];
        self.files[attempt] && !is_known
    }
}
