//! The states of the model of the commit protocol, and the steps between them.

use super::rules::Rules;

/// Names that the run can be committed under in the model.
const NAMES: usize = 3;

/// How often a writer writes its files: once more after it was swept.
const TRIES: usize = 2;

/// Attempts in the model: of A, of B, of A again, of B again.
pub(super) const MOST_ATTEMPTS: usize = 2 * TRIES;

/// Stands in a tombstone that does not say whom it stopped.
pub(super) const NOBODY: u8 = u8::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Name {
    Absent,
    Commit(u8),
    /// What stopped this attempt, and lets its files go.
    Tombstone(u8),
    /// A commit that was revoked: its files may go.
    Revoked(u8),
}

/// Where a writer is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Step {
    /// Looks for the first name that can hold a commit.
    FindName,
    /// Revokes a commit whose files it found missing.
    Revoke { name: u8, attempt: u8 },
    /// Removes what is left of the files of a commit that was revoked.
    RemoveRevoked { attempt: u8 },
    /// Writes its files, having chosen a name.
    Write { name: u8 },
    /// Asks the store to create the manifest.
    Commit { name: u8 },
    /// Waits for the answer and reads the name.
    Answer { name: u8 },
    /// Knows nothing of its request, and asks for a tombstone under the name.
    GiveUp { name: u8 },
    /// Removes its own files: another commit or a tombstone has the name.
    Discard,
    /// It reported that the run is committed.
    Succeeded,
    /// It reported that it failed.
    Failed,
    /// It reported that nobody knows; its files and its lease stay.
    Unknown,
    /// It is gone, in the midst of whatever it did.
    Crashed,
}

/// What S is doing with one attempt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Reap {
    /// Nothing yet, or done.
    Idle,
    /// It found the name of the attempt free and creates a tombstone.
    Tombstone {
        attempt: u8,
    },
    /// The attempt cannot be committed any more: its files go.
    Remove {
        attempt: u8,
    },
    /// It collects the run: its commit is revoked, and then its files go.
    Revoke {
        name: u8,
        attempt: u8,
    },
    RemoveRevoked {
        attempt: u8,
    },
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct State {
    pub(super) names: [Name; NAMES],
    /// Whether each attempt's files are there.
    pub(super) files: [bool; MOST_ATTEMPTS],
    /// The attempt whose files the accident deleted.
    pub(super) lost: Option<u8>,
    /// Whether a writer reported a commit whose files were not there.
    pub(super) trusted_blindly: bool,
    /// The name in each attempt's lease; `None` without a lease.
    pub(super) leases: [Option<u8>; MOST_ATTEMPTS],
    /// Attempts whose lease was removed because another attempt had their name: only their writer knows of files that
    /// it writes from then on.
    pub(super) superseded: [bool; MOST_ATTEMPTS],
    pub(super) writers: [Step; 2],
    /// How many of its attempts each writer has given up.
    pub(super) tries: [u8; 2],
    /// The name of each attempt's request to commit, while it was sent and has not arrived. An attempt that asks again
    /// asks the same: of its requests all but the first to arrive find the name taken.
    pub(super) in_flight: [Option<u8>; MOST_ATTEMPTS],
    pub(super) sweeper: Reap,
}

impl State {
    pub(super) fn start() -> Self {
        Self {
            names: [Name::Absent; NAMES],
            files: [false; MOST_ATTEMPTS],
            lost: None,
            trusted_blindly: false,
            leases: [None; MOST_ATTEMPTS],
            superseded: [false; MOST_ATTEMPTS],
            writers: [Step::FindName; 2],
            tries: [0; 2],
            in_flight: [None; MOST_ATTEMPTS],
            sweeper: Reap::Idle,
        }
    }

    pub(super) fn attempt(&self, writer: usize) -> u8 {
        writer as u8 + 2 * self.tries[writer]
    }

    /// A request to create a commit arrives.
    fn arrive(&mut self, (attempt, name): (u8, u8), rules: Rules) {
        let name = &mut self.names[name as usize];
        if *name == Name::Absent || !rules.create_only {
            *name = Name::Commit(attempt);
        }
    }

    /// Every state that one step of anybody leads to.
    pub(super) fn next(&self, rules: Rules) -> Vec<Self> {
        let mut next = Vec::new();
        for writer in 0..2 {
            self.step_of_writer(writer, rules, &mut next);
        }
        for (attempt, name) in self.in_flight.into_iter().enumerate() {
            if let Some(name) = name {
                let mut after = self.clone();
                after.in_flight[attempt] = None;
                after.arrive((attempt as u8, name), rules);
                next.push(after);
            }
        }
        self.step_of_sweeper(rules, &mut next);
        self.accident(&mut next);
        if rules.create_only && rules.tombstones_stay {
            next.iter_mut().for_each(Self::forget_vain_requests);
        }
        next
    }

    /// A request for a name that is taken changes nothing, whenever it arrives: states that differ in it alone are one.
    fn forget_vain_requests(&mut self) {
        for request in &mut self.in_flight {
            *request = request.filter(|name| self.names[*name as usize] == Name::Absent);
        }
    }

    /// Somebody deletes the files of a commit.
    fn accident(&self, next: &mut Vec<Self>) {
        for name in self.names {
            if let Name::Commit(of) = name
                && self.lost.is_none()
            {
                let mut after = self.clone();
                after.files[of as usize] = false;
                after.lost = Some(of);
                next.push(after);
            }
        }
    }

    /// The attempts whose files tombstones let go and that have some: those of commits that were revoked, and those
    /// that came late.
    fn leftovers(&self, rules: Rules) -> Vec<usize> {
        let is_let_go = |attempt: &usize| {
            let of = *attempt as u8;
            let is_named = self.names.contains(&Name::Tombstone(of))
                || self.names.contains(&Name::Revoked(of));
            // Without the rule, all that has no lease.
            is_named || !rules.leftovers_are_named && self.leases[*attempt].is_none()
        };
        (0..MOST_ATTEMPTS).filter(|attempt| self.files[*attempt]).filter(is_let_go).collect()
    }

    fn tombstone(of: u8, rules: Rules) -> Name {
        Name::Tombstone(if rules.tombstones_name_attempts { of } else { NOBODY })
    }

    fn step_of_writer(&self, writer: usize, rules: Rules, next: &mut Vec<Self>) {
        let attempt = self.attempt(writer);
        let mut to = |step: Step, change: &dyn Fn(&mut Self)| {
            let mut after = self.clone();
            after.writers[writer] = step;
            change(&mut after);
            next.push(after);
        };
        let own = attempt as usize;
        match self.writers[writer] {
            Step::FindName => {
                for leftover in self.leftovers(rules) {
                    to(Step::FindName, &|s| s.files[leftover] = false);
                }
                match self.first_open() {
                    Some(name) => match self.names[name] {
                        // Another's commit is joined where its files are there.
                        Name::Commit(of) if self.files[of as usize] || !rules.checks_files => {
                            to(Step::Succeeded, &|s| s.trusted_blindly |= !s.files[of as usize]);
                        }
                        Name::Commit(attempt) => {
                            to(Step::Revoke { name: name as u8, attempt }, &|_| {});
                        }
                        _ if usize::from(self.tries[writer]) == TRIES => to(Step::Failed, &|_| {}),
                        _ => {
                            let name = name as u8;
                            to(Step::Write { name }, &|s| s.leases[own] = Some(name));
                        }
                    },
                    None => to(Step::Failed, &|_| {}),
                }
            }
            Step::Revoke { name, attempt } => to(Step::RemoveRevoked { attempt }, &|s| {
                s.names[name as usize] = Name::Revoked(attempt);
            }),
            Step::RemoveRevoked { attempt } => {
                to(Step::FindName, &|s| s.files[attempt as usize] = false);
            }
            Step::Write { name } => {
                to(Step::Commit { name }, &|s| s.files[own] = true);
                // A writer that finds its lease gone writes no more.
                if self.leases[own].is_none() {
                    to(Step::Discard, &|s| s.files[own] = true);
                }
            }
            Step::Commit { name } => {
                to(Step::Answer { name }, &|s| s.in_flight[own] = Some(name));
            }
            Step::Answer { name } => {
                // The look may be answered by nothing, whatever is there.
                to(Step::GiveUp { name }, &|_| {});
                match self.names[name as usize] {
                    Name::Commit(of) if of == attempt => {
                        to(Step::Succeeded, &|s| s.leases[own] = None);
                    }
                    Name::Absent => {}
                    _ => to(Step::Discard, &|_| {}),
                }
            }
            Step::GiveUp { .. } if !rules.gives_up_by_tombstone => to(Step::Discard, &|_| {}),
            Step::GiveUp { name } => match self.names[name as usize] {
                Name::Absent => {
                    to(Step::Discard, &|s| {
                        s.names[name as usize] = Self::tombstone(attempt, rules);
                    });
                    // A store may refuse while another request for the name is under way.
                    let seen = if rules.absence_is_unknown { Step::Unknown } else { Step::Discard };
                    to(seen, &|_| {});
                }
                state => {
                    to(Step::Unknown, &|_| {});
                    match state {
                        Name::Commit(of) if of == attempt => {
                            to(Step::Succeeded, &|s| s.leases[own] = None);
                        }
                        _ => to(Step::Discard, &|_| {}),
                    }
                }
            },
            // It looks again: another's commit is joined, if its files are there.
            Step::Discard => to(Step::FindName, &|s| {
                s.files[own] = false;
                s.leases[own] = None;
                s.superseded[own] = false;
                s.tries[writer] += 1;
            }),
            Step::Succeeded | Step::Failed | Step::Unknown | Step::Crashed => return,
        }
        to(Step::Crashed, &|_| {});
    }

    fn step_of_sweeper(&self, rules: Rules, next: &mut Vec<Self>) {
        let mut to = |sweeper: Reap, change: &dyn Fn(&mut Self)| {
            let mut after = self.clone();
            after.sweeper = sweeper;
            change(&mut after);
            next.push(after);
        };
        match self.sweeper {
            Reap::Idle => {
                for attempt in 0..MOST_ATTEMPTS as u8 {
                    let Some(name) = self.leases[attempt as usize] else { continue };
                    match self.names[name as usize] {
                        // It died after its commit: only its lease goes.
                        Name::Commit(of) if of == attempt => {
                            to(Reap::Idle, &|s| s.leases[attempt as usize] = None);
                        }
                        Name::Absent if rules.tombstone_first => {
                            to(Reap::Tombstone { attempt }, &|_| {});
                        }
                        _ => to(Reap::Remove { attempt }, &|_| {}),
                    }
                }
                for leftover in self.leftovers(rules) {
                    to(Reap::Idle, &|s| s.files[leftover] = false);
                }
                for (name, state) in self.names.into_iter().enumerate() {
                    // A commit whose writer has a lease is left to its writer.
                    if let Name::Commit(attempt) = state
                        && self.leases[attempt as usize].is_none()
                    {
                        let name = name as u8;
                        to(Reap::Revoke { name, attempt }, &|s| {
                            s.files[attempt as usize] &= rules.revoke_first;
                        });
                    }
                }
            }
            Reap::Revoke { name, attempt } => to(Reap::RemoveRevoked { attempt }, &|s| {
                s.names[name as usize] = Name::Revoked(attempt);
            }),
            Reap::RemoveRevoked { attempt } => {
                to(Reap::Idle, &|s| s.files[attempt as usize] = false);
            }
            Reap::Tombstone { attempt } => match self.leases[attempt as usize] {
                Some(name) if self.names[name as usize] == Name::Absent => {
                    to(Reap::Remove { attempt }, &|s| {
                        s.names[name as usize] = Self::tombstone(attempt, rules);
                    });
                }
                // Something was faster: it looks again.
                _ => to(Reap::Idle, &|_| {}),
            },
            Reap::Remove { attempt } => to(Reap::Idle, &|s| {
                s.files[attempt as usize] = false;
                let Some(name) = s.leases[attempt as usize].take() else { return };
                let is_others = |of: u8| ![attempt, NOBODY].contains(&of);
                s.superseded[attempt as usize] = match s.names[name as usize] {
                    Name::Commit(of) | Name::Tombstone(of) | Name::Revoked(of) => is_others(of),
                    Name::Absent => false,
                };
                if !rules.tombstones_stay {
                    s.names[name as usize] = Name::Absent;
                }
            }),
        }
    }

    fn first_open(&self) -> Option<usize> {
        let is_open = |name: &Name| matches!(name, Name::Absent | Name::Commit(_));
        self.names.iter().position(is_open)
    }
}
