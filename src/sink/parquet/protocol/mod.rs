//! A model of the commit protocol that is small enough for an exhaustive search.
//!
//! Two writers, A and B, publish one run. A third process, S, publishes another run. At any moment S may consider A or
//! B dead, whether they are or not, and it may collect the run that they committed. Once, an accident deletes the files
//! of a commit. Each step either reads something that other processes can change, or makes one change that they can
//! see. Between any two steps a process may be suspended for ever, or crash. Requests to create a name may be in flight
//! and arrive at any later time, even after their sender has ended.
//!
//! There are two primitive operations. "Create if absent" makes commits and tombstones. "Replace" turns a commit into
//! its tombstone: on a store only if the commit is still the version that was read, on local disk unconditionally. The
//! model uses the weaker, unconditional one: every process that replaces a commit replaces it by the same tombstone.
//!
//! The search visits every reachable state, and asserts in each of them:
//! - the files of a commit all exist, unless the accident deleted them;
//! - the run has at most one commit;
//! - the names are used in their order, and none after a commit, so that the last one can be searched in few steps;
//! - if a writer reported success, the run was committed (it may have been collected since), and its files existed;
//! - a writer that reported failure has no commit;
//! - files that no commit names are known to a lease, to a tombstone or to the writer that is working on them, unless
//!   another attempt took the manifest name that their attempt wanted.
//!
//! Each rule of the protocol can be switched off: the search must then find a violation.

mod invariants;
mod rules;
mod state;

use std::collections::{HashSet, VecDeque};

use rules::{ALL, Rules};
use state::State;

/// Visits every reachable state, breadth first. Returns the number of states, or the first violation and the path to
/// it.
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
        // Far fewer states would mean that the model is stuck; far more would take too long.
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
