//! The commit protocol as a model that is small enough to walk through whole.
//!
//! Two writers, A and B, publish one run, and a sweeper S, which publishes another, takes either of them for dead at
//! any moment, alive or not. A step is one request to the store. Between any two steps anybody may be suspended for
//! ever, or crash; a request to create a name may have been sent and arrive at any later time, even after its sender
//! is gone. The only primitive is "create where there is none".
//!
//! The search visits every state that can be reached, and asserts in each of them:
//! - a commit's files are all there;
//! - the run has at most one commit;
//! - a writer that reported success reported what is committed, and one that reported failure is not.
//!
//! Each rule of the protocol can be switched off, and the search must then find what the rule prevents.

use std::collections::{HashSet, VecDeque};

/// Names that the run can be committed under in the model.
const SLOTS: usize = 3;

/// Attempts in the model: the first of A, the first of B, and one more of each after it was swept.
const ATTEMPTS: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Slot {
    Free,
    Commit(u8),
    Tombstone,
}

/// Where a writer is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Step {
    /// Looks for the first name that can hold a commit.
    Look,
    /// Writes its files, having chosen a name.
    Write { slot: u8 },
    /// Asks the store to create the manifest.
    Commit { slot: u8 },
    /// Waits for the answer, or gives up waiting and reads the name.
    Answer { slot: u8 },
    /// Removes its own files: another commit or a tombstone has the name.
    Discard { joined: bool },
    /// It reported that the run is committed.
    Succeeded,
    /// It reported that it failed.
    Failed,
    /// It is gone, in the midst of whatever it did.
    Crashed,
}

/// What the sweeper is doing with one attempt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Reap {
    /// Nothing yet, or done.
    Idle,
    /// It found the name of the attempt free and creates a tombstone.
    Tombstone { attempt: u8 },
    /// The attempt cannot be committed any more: its files go.
    Remove { attempt: u8 },
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    slots: [Slot; SLOTS],
    /// Whether each attempt's files are there.
    files: [bool; ATTEMPTS],
    /// The name that each attempt's lease tells; `None` without a lease.
    leases: [Option<u8>; ATTEMPTS],
    writers: [Step; 2],
    /// The attempt that each writer is at: its first or its second.
    tries: [u8; 2],
    /// Requests to commit that were sent and have not arrived: (attempt, name).
    in_flight: [Option<(u8, u8)>; 2],
    sweeper: Reap,
}

/// The rules of the protocol; the search must find a fault when one is switched off.
#[allow(clippy::struct_excessive_bools)]
#[derive(Clone, Copy)]
struct Rules {
    /// A commit is created only where there is nothing.
    create_only: bool,
    /// The sweeper creates a tombstone before it removes files.
    tombstone_first: bool,
    /// A name that holds a tombstone is used up for good.
    tombstones_stay: bool,
    /// Who finds its answer lost asks what the name holds.
    asks_again: bool,
}

const ALL: Rules =
    Rules { create_only: true, tombstone_first: true, tombstones_stay: true, asks_again: true };

impl State {
    fn start() -> Self {
        Self {
            slots: [Slot::Free; SLOTS],
            files: [false; ATTEMPTS],
            leases: [None; ATTEMPTS],
            writers: [Step::Look; 2],
            tries: [0; 2],
            in_flight: [None; 2],
            sweeper: Reap::Idle,
        }
    }

    fn attempt(&self, writer: usize) -> u8 {
        writer as u8 + 2 * self.tries[writer]
    }

    /// A request to create a commit arrives.
    fn arrive(&mut self, (attempt, slot): (u8, u8), rules: Rules) {
        let slot = &mut self.slots[slot as usize];
        if *slot == Slot::Free || !rules.create_only {
            *slot = Slot::Commit(attempt);
        }
    }

    /// Every state that one step of anybody leads to.
    fn next(&self, rules: Rules) -> Vec<Self> {
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
        next
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
            Step::Look => match self.first_open() {
                // Another's commit is joined; what is there was checked to be whole.
                Some(slot) if matches!(self.slots[slot], Slot::Commit(_)) => {
                    to(Step::Succeeded, &|_| {});
                }
                Some(slot) => {
                    let slot = slot as u8;
                    to(Step::Write { slot }, &|s| s.leases[own] = Some(slot));
                }
                None => to(Step::Failed, &|_| {}),
            },
            Step::Write { slot } => to(Step::Commit { slot }, &|s| s.files[own] = true),
            Step::Commit { slot } => {
                to(Step::Answer { slot }, &|s| s.in_flight[writer] = Some((attempt, slot)));
            }
            Step::Answer { slot } => match self.slots[slot as usize] {
                Slot::Commit(of) if of == attempt => {
                    to(Step::Succeeded, &|s| s.leases[own] = None);
                }
                Slot::Commit(_) => to(Step::Discard { joined: true }, &|_| {}),
                Slot::Tombstone => to(Step::Discard { joined: false }, &|_| {}),
                // No answer yet. It asks again, or gives up: by a tombstone of its own, so that its request, wherever
                // it is, can no longer be met.
                Slot::Free if rules.asks_again => {
                    to(Step::Discard { joined: false }, &|s| {
                        s.slots[slot as usize] = Slot::Tombstone;
                    });
                }
                Slot::Free => to(Step::Discard { joined: false }, &|_| {}),
            },
            Step::Discard { joined } => {
                let again = !joined && self.tries[writer] == 0;
                let then = match (joined, again) {
                    (true, _) => Step::Succeeded,
                    (false, true) => Step::Look,
                    (false, false) => Step::Failed,
                };
                to(then, &|s| {
                    s.files[own] = false;
                    s.leases[own] = None;
                    s.tries[writer] += u8::from(again);
                });
            }
            Step::Succeeded | Step::Failed | Step::Crashed => return,
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
                for attempt in 0..ATTEMPTS as u8 {
                    let Some(slot) = self.leases[attempt as usize] else { continue };
                    match self.slots[slot as usize] {
                        // It died after its commit: only its lease goes.
                        Slot::Commit(of) if of == attempt => {
                            to(Reap::Idle, &|s| s.leases[attempt as usize] = None);
                        }
                        Slot::Free if rules.tombstone_first => {
                            to(Reap::Tombstone { attempt }, &|_| {});
                        }
                        _ => to(Reap::Remove { attempt }, &|_| {}),
                    }
                }
            }
            Reap::Tombstone { attempt } => match self.leases[attempt as usize] {
                Some(slot) if self.slots[slot as usize] == Slot::Free => {
                    to(Reap::Remove { attempt }, &|s| s.slots[slot as usize] = Slot::Tombstone);
                }
                // Something was faster: it looks again.
                _ => to(Reap::Idle, &|_| {}),
            },
            Reap::Remove { attempt } => to(Reap::Idle, &|s| {
                s.files[attempt as usize] = false;
                if let Some(slot) = s.leases[attempt as usize].take()
                    && !rules.tombstones_stay
                {
                    s.slots[slot as usize] = Slot::Free;
                }
            }),
        }
    }

    fn first_open(&self) -> Option<usize> {
        self.slots.iter().position(|slot| *slot != Slot::Tombstone)
    }

    /// What is wrong here, if anything is.
    fn fault(&self) -> Option<&'static str> {
        let commits: Vec<u8> = self
            .slots
            .iter()
            .filter_map(|slot| if let Slot::Commit(attempt) = slot { Some(*attempt) } else { None })
            .collect();
        if commits.iter().any(|attempt| !self.files[*attempt as usize]) {
            return Some("a commit without files");
        }
        if commits.len() > 1 {
            return Some("two commits of one run");
        }
        let writers = || self.writers.iter().zip([0, 1]);
        if writers().any(|(step, _)| *step == Step::Succeeded) && commits.is_empty() {
            return Some("success without a commit");
        }
        let is_of = |writer: u8| commits.iter().any(|attempt| attempt % 2 == writer);
        if writers().any(|(step, writer)| *step == Step::Failed && is_of(writer)) {
            return Some("failure with a commit");
        }
        None
    }
}

/// Visits every reachable state, nearest first. Returns how many there are, or the first fault and the way to it.
fn search(rules: Rules) -> Result<usize, (&'static str, Vec<State>)> {
    let mut states: Vec<(State, usize)> = vec![(State::start(), 0)];
    let mut seen: HashSet<State> = HashSet::from([State::start()]);
    let mut open = VecDeque::from([0]);
    while let Some(at) = open.pop_front() {
        for after in states[at].0.next(rules) {
            if !seen.insert(after.clone()) {
                continue;
            }
            let fault = after.fault();
            states.push((after, at));
            let mut here = states.len() - 1;
            if let Some(fault) = fault {
                let mut way = Vec::new();
                while here != 0 {
                    way.push(states[here].0.clone());
                    here = states[here].1;
                }
                way.reverse();
                return Err((fault, way));
            }
            open.push_back(here);
        }
    }
    Ok(states.len())
}

#[test]
fn no_order_of_events_leads_to_a_commit_without_files_or_to_two_commits() {
    match search(ALL) {
        // Far fewer would mean that the model cannot move any more.
        Ok(states) => assert!(states > 10_000, "{states} states"),
        Err((fault, way)) => panic!("{fault}: {way:#?}"),
    }
}

#[test]
fn every_rule_is_needed() {
    for (rule, rules) in [
        ("create only", Rules { create_only: false, ..ALL }),
        ("tombstone first", Rules { tombstone_first: false, ..ALL }),
        ("tombstones stay", Rules { tombstones_stay: false, ..ALL }),
        ("asks again", Rules { asks_again: false, ..ALL }),
    ] {
        assert!(search(rules).is_err(), "nothing goes wrong without: {rule}");
    }
}
