//! The commit protocol as a model that is small enough to walk through whole.
//!
//! Two writers, A and B, publish one run, and a third one, S, publishes another: at any moment it takes either of them
//! for dead, alive or not, and collects the run that they committed. Once, an accident deletes the files of a commit. A
//! step is a look at what others can change, or one change that they can see. Between any two steps anybody may be
//! suspended for ever, or crash; requests to create a name may have been sent and arrive at any later time, even after
//! their sender is gone.
//!
//! There are two primitives. "Create where there is none" makes commits and tombstones. "Replace" turns a commit into
//! its tombstone: on a store on condition that it still is what was read, on local disk without. The model has the
//! weaker one, without: whoever replaces a commit replaces it by the same tombstone.
//!
//! The search visits every state that can be reached, and asserts in each of them:
//! - a commit's files are all there, but for the accident;
//! - the run has at most one commit;
//! - a writer that reported success reported what is committed, or was until it was collected, and its files were
//!   there;
//! - a writer that reported failure has no commit;
//! - files that no commit names are known to a lease, to a tombstone or to the writer that is at work on them, unless
//!   the name that their attempt wanted went to another attempt.
//!
//! Each rule of the protocol can be switched off, and the search must then find what the rule prevents.

mod invariants;
mod rules;
mod state;

use std::collections::{HashSet, VecDeque};

use rules::{ALL, Rules};
use state::State;

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
        // Far fewer would mean that the model cannot move any more; more take too long.
        Ok(states) => assert!((10_000..1_000_000).contains(&states), "{states} states"),
        Err((fault, way)) => panic!("{fault}: {way:#?}"),
    }
}

#[test]
fn every_rule_is_needed() {
    for (rule, rules) in [
        ("create only", Rules { create_only: false, ..ALL }),
        ("tombstone first", Rules { tombstone_first: false, ..ALL }),
        ("tombstones stay", Rules { tombstones_stay: false, ..ALL }),
        ("gives up by a tombstone", Rules { gives_up_by_tombstone: false, ..ALL }),
        ("absence is unknown", Rules { absence_is_unknown: false, ..ALL }),
        ("revoke first", Rules { revoke_first: false, ..ALL }),
        ("checks files", Rules { checks_files: false, ..ALL }),
        ("tombstones name attempts", Rules { tombstones_name_attempts: false, ..ALL }),
        ("leftovers are named", Rules { leftovers_are_named: false, ..ALL }),
    ] {
        assert!(search(rules).is_err(), "nothing goes wrong without: {rule}");
    }
}
