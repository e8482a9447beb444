//! The commit protocol as a model that is small enough to walk through whole.
//!
//! Two writers, A and B, publish one run, and a third one, S, publishes another: at any moment it takes either of them
//! for dead, alive or not, and collects the run that they committed. Once, an accident deletes the files of a commit. A
//! step is a look at what others can change, or one change that they can see. Between any two steps anybody may be
//! suspended for ever, or crash; a request to create a name may have been sent and arrive at any later time, even after
//! its sender is gone. The only primitive is "create where there is none".
//!
//! The search visits every state that can be reached, and asserts in each of them:
//! - a commit's files are all there, but for the accident;
//! - the run has at most one commit;
//! - a writer that reported success reported what is committed, or was until it was collected, and its files were
//!   there;
//! - a writer that reported failure has no commit.
//!
//! Each rule of the protocol can be switched off, and the search must then find what the rule prevents.

mod state;

use std::collections::{HashSet, VecDeque};

use state::{ALL, Rules, State};

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
        ("gives up by a tombstone", Rules { gives_up_by_tombstone: false, ..ALL }),
        ("absence is unknown", Rules { absence_is_unknown: false, ..ALL }),
        ("revoke first", Rules { revoke_first: false, ..ALL }),
        ("checks files", Rules { checks_files: false, ..ALL }),
    ] {
        assert!(search(rules).is_err(), "nothing goes wrong without: {rule}");
    }
}
