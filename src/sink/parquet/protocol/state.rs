//! The states of the model of the commit protocol, and the steps between them.

/// Names that the run can be committed under in the model.
const NAMES: usize = 3;

/// How often a writer writes its files: once more after it was swept.
const TRIES: usize = 2;

/// Attempts in the model: of A, of B, of A again, of B again.
const MOST_ATTEMPTS: usize = 2 * TRIES;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Name {
    Absent,
    Commit(u8),
    Tombstone,
    /// A commit that was revoked: its files may go.
    Revoked(u8),
}

/// Where a writer is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Step {
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
enum Reap {
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
    names: [Name; NAMES],
    /// Whether each attempt's files are there.
    files: [bool; MOST_ATTEMPTS],
    /// The attempt whose files the accident deleted.
    lost: Option<u8>,
    /// Whether a writer reported a commit whose files were not there.
    trusted_blindly: bool,
    /// The name in each attempt's lease; `None` without a lease.
    leases: [Option<u8>; MOST_ATTEMPTS],
    writers: [Step; 2],
    /// How many of its attempts each writer has given up.
    tries: [u8; 2],
    /// Requests to commit that were sent and have not arrived: (attempt, name).
    in_flight: [Option<(u8, u8)>; 2],
    sweeper: Reap,
}

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
}

pub(super) const ALL: Rules = Rules {
    create_only: true,
    tombstone_first: true,
    tombstones_stay: true,
    gives_up_by_tombstone: true,
    absence_is_unknown: true,
    revoke_first: true,
    checks_files: true,
};

impl State {
    pub(super) fn start() -> Self {
        Self {
            names: [Name::Absent; NAMES],
            files: [false; MOST_ATTEMPTS],
            lost: None,
            trusted_blindly: false,
            leases: [None; MOST_ATTEMPTS],
            writers: [Step::FindName; 2],
            tries: [0; 2],
            in_flight: [None; 2],
            sweeper: Reap::Idle,
        }
    }

    fn attempt(&self, writer: usize) -> u8 {
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
            if let Some(request) = self.in_flight[writer] {
                let mut after = self.clone();
                after.in_flight[writer] = None;
                after.arrive(request, rules);
                next.push(after);
            }
        }
        self.step_of_sweeper(rules, &mut next);
        self.accident(&mut next);
        next
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
            Step::FindName => match self.first_open() {
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
            },
            Step::Revoke { name, attempt } => to(Step::RemoveRevoked { attempt }, &|s| {
                s.names[name as usize] = Name::Revoked(attempt);
            }),
            Step::RemoveRevoked { attempt } => {
                to(Step::FindName, &|s| s.files[attempt as usize] = false);
            }
            Step::Write { name } => to(Step::Commit { name }, &|s| s.files[own] = true),
            Step::Commit { name } => {
                to(Step::Answer { name }, &|s| s.in_flight[writer] = Some((attempt, name)));
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
                    to(Step::Discard, &|s| s.names[name as usize] = Name::Tombstone);
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
                    to(Reap::Remove { attempt }, &|s| s.names[name as usize] = Name::Tombstone);
                }
                // Something was faster: it looks again.
                _ => to(Reap::Idle, &|_| {}),
            },
            Reap::Remove { attempt } => to(Reap::Idle, &|s| {
                s.files[attempt as usize] = false;
                if let Some(name) = s.leases[attempt as usize].take()
                    && !rules.tombstones_stay
                {
                    s.names[name as usize] = Name::Absent;
                }
            }),
        }
    }

    fn first_open(&self) -> Option<usize> {
        let is_open = |name: &Name| matches!(name, Name::Absent | Name::Commit(_));
        self.names.iter().position(is_open)
    }

    /// What is wrong here, if anything is.
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
        None
    }
}
