//! The states of the model of the commit protocol, and the steps between them.

use super::rules::Rules;

/// The number of names that the run can be committed under in the model.
const NAMES: usize = 3;

/// How often a writer writes its files: a second time if its first attempt was swept.
const TRIES: usize = 2;

/// Attempts in the model: of A, of B, of A again, of B again.
pub(super) const MAX_ATTEMPTS: usize = 2 * TRIES;

/// The attempt in a tombstone that does not name the attempt that it stopped.
const NOBODY: u8 = u8::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Name {
    Absent,
    Commit(u8),
    /// A tombstone that stops this attempt: its files may be deleted.
    Tombstone(u8),
    /// A revoked commit: its files may be deleted.
    Revoked(u8),
}

/// The step that a writer is at.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Step {
    /// Looks for the first name that can hold a commit.
    FindName,
    /// Revokes a commit whose files it found missing.
    Revoke { name: u8, attempt: u8 },
    /// Removes the remaining files of a revoked commit.
    RemoveRevoked { attempt: u8 },
    /// Writes its files, having chosen a name.
    Write { name: u8 },
    /// Asks the store to create the manifest.
    Commit { name: u8 },
    /// Waits for the answer and reads the name.
    Answer { name: u8 },
    /// Does not know the outcome of its request, and tries to create a tombstone under the name.
    GiveUp { name: u8 },
    /// Removes its own files: another commit or a tombstone has the name.
    Discard,
    /// It reported that the run is committed.
    Succeeded,
    /// It reported that it failed.
    Failed,
    /// It reported that the outcome is unknown; its files and its lease stay.
    Unknown,
    /// It crashed, at any step.
    Crashed,
}

/// The step that S is at, with the attempt that it deals with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Reap {
    /// Nothing yet, or done.
    Idle,
    /// It found the name of the attempt free and creates a tombstone.
    Tombstone {
        attempt: u8,
    },
    /// The attempt can no longer be committed: S removes its files.
    Remove {
        attempt: u8,
    },
    /// It collects the run: it revokes the commit, and then removes its files.
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
    /// Whether each attempt's files exist.
    pub(super) files: [bool; MAX_ATTEMPTS],
    /// The attempt whose files the accident deleted.
    pub(super) lost: Option<u8>,
    /// Whether a writer reported a commit whose files were not there.
    pub(super) trusted_blindly: bool,
    /// The name in each attempt's lease; `None` without a lease.
    pub(super) leases: [Option<u8>; MAX_ATTEMPTS],
    /// Whether each attempt's lease was removed because another attempt took its name: only the writer knows of files
    /// that it writes from then on.
    pub(super) superseded: [bool; MAX_ATTEMPTS],
    pub(super) writers: [Step; 2],
    /// How many attempts each writer has given up.
    pub(super) tries: [u8; 2],
    /// The name in each attempt's commit request that was sent and has not arrived. One request is enough: an attempt
    /// only repeats the same request, and all but the first to arrive find the name taken.
    pub(super) in_flight: [Option<u8>; MAX_ATTEMPTS],
    pub(super) sweeper: Reap,
}

impl State {
    pub(super) fn start() -> Self {
        Self {
            names: [Name::Absent; NAMES],
            files: [false; MAX_ATTEMPTS],
            lost: None,
            trusted_blindly: false,
            leases: [None; MAX_ATTEMPTS],
            superseded: [false; MAX_ATTEMPTS],
            writers: [Step::FindName; 2],
            tries: [0; 2],
            in_flight: [None; MAX_ATTEMPTS],
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

    /// Every state that one step of any process leads to.
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

    /// Drops the requests for names that are taken. They change nothing whenever they arrive, so states that differ
    /// only in them are equivalent.
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

    /// The attempts whose files still exist although a tombstone names them: files of revoked commits, and files that
    /// arrived late.
    fn leftovers(&self, rules: Rules) -> Vec<usize> {
        let is_released = |attempt: &usize| {
            let of = *attempt as u8;
            let is_named = self.names.contains(&Name::Tombstone(of))
                || self.names.contains(&Name::Revoked(of));
            // Without the rule: every attempt that has no lease.
            is_named || !rules.leftovers_are_named && self.leases[*attempt].is_none()
        };
        (0..MAX_ATTEMPTS).filter(|attempt| self.files[*attempt]).filter(is_released).collect()
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
                        // The writer joins another writer's commit if its files exist.
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
                // The read may fail, whatever the name holds.
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
            // The writer starts again: it joins another writer's commit if its files exist.
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
                for attempt in 0..MAX_ATTEMPTS as u8 {
                    let Some(name) = self.leases[attempt as usize] else { continue };
                    match self.names[name as usize] {
                        // The writer died after its commit: only its lease is removed.
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
                    // S does not collect a commit whose writer still has a lease.
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
                // Another process was faster: S starts again.
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
