//! The lease of an attempt: which process writes, which files are its own, and whether it is still alive.
//!
//! A writer creates `_leases/<attempt>.json` before its first file and touches it at regular intervals.
//!
//! # Why
//! On the same machine the kernel decides: a writer is dead if its process has ended, and alive while the process
//! exists, however long it is suspended. Of a process on another machine only its lease is known: it counts as dead if,
//! by the store's own clock, it has not touched its lease for longer than the lease's `silence_seconds`. The store's
//! clock is the modification time of a lease that the reader has just written, so the clocks of two machines are never
//! compared.

pub(super) mod folders;
pub(super) mod removal;
pub(super) mod retention;
pub(super) mod sweep;

use std::fs;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::manifest::ManifestNumber;

/// The content of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lease {
    /// The attempt: also the name of its folder below the run's folder.
    pub(super) attempt: String,
    /// The run that it wants to commit.
    pub(super) run_id: String,
    /// The manifest name that it wants to commit the run under.
    pub(super) manifest_number: ManifestNumber,
    /// The tables that it writes. Only their files and the model's files belong to the attempt.
    pub(super) tables: Vec<String>,
    /// Whether the run's folder on local disk did not exist before: only then is it deleted with the files.
    #[serde(default)]
    pub(super) made_folder: bool,
    /// Seconds without a touch of the lease after which processes on other machines may consider the writer dead.
    pub(super) silence_seconds: u64,
    /// The process that writes.
    pub(super) process: Process,
}

impl Lease {
    /// Whether both leases want to commit the same run under the same name.
    pub(super) fn commits_as(&self, other: &Self) -> bool {
        (&self.run_id, self.manifest_number) == (&other.run_id, other.manifest_number)
    }

    /// Whether the writer counts as dead: its process has ended; or this machine cannot see the process, and the lease
    /// was last `touched` more than `silence_seconds` ago.
    pub(super) fn is_dead(&self, touched: DateTime<Utc>, now: DateTime<Utc>) -> bool {
        match self.process.state() {
            ProcessState::Gone => true,
            ProcessState::Alive => false,
            ProcessState::Elsewhere => {
                let silent = (now - touched).to_std().unwrap_or_default();
                silent > Duration::from_secs(self.silence_seconds)
            }
        }
    }
}

/// Identifies a process to other processes on the same machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Process {
    /// The host name, the boot id and the pid namespace: a process id is unique only within these. `None` if the system
    /// does not report them.
    pid_namespace: Option<String>,
    /// The process id.
    pid: u32,
    /// When the process started, in kernel ticks: this distinguishes it from a later process with the same id.
    started: Option<u64>,
}

impl Process {
    /// This process.
    pub(super) fn own() -> Self {
        let pid = std::process::id();
        let started = match pid_entry(pid) {
            PidEntry::Running { started } => Some(started),
            PidEntry::Gone | PidEntry::Hidden => None,
        };
        Self { pid_namespace: pid_namespace(), pid, started }
    }

    /// A process on another machine.
    #[cfg(test)]
    pub(super) fn elsewhere() -> Self {
        Self { pid_namespace: Some("other".into()), pid: 0, started: None }
    }

    /// Whether the process has certainly ended.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self.state(), ProcessState::Gone)
    }

    fn state(&self) -> ProcessState {
        let here = pid_namespace();
        if here.is_none() || self.pid_namespace != here {
            return ProcessState::Elsewhere;
        }
        match (pid_entry(self.pid), self.started) {
            (PidEntry::Gone, _) => ProcessState::Gone,
            (PidEntry::Running { started }, Some(own)) if started != own => ProcessState::Gone,
            (PidEntry::Running { .. } | PidEntry::Hidden, _) => ProcessState::Alive,
        }
    }
}

/// The state of a process, as far as this machine can see it.
enum ProcessState {
    /// It has ended.
    Gone,
    /// It exists. It may be suspended, or belong to another user and not be readable.
    Alive,
    /// It belongs to another machine or container, and this one does not know whether it still runs.
    Elsewhere,
}

fn pid_namespace() -> Option<String> {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{} {} {}", host.trim(), boot.trim(), namespace.display()))
}

/// The kernel's entry for a process id.
enum PidEntry {
    /// There is no such process, or it is a zombie.
    Gone,
    /// The process exists, and started at this tick.
    Running { started: u64 },
    /// The process may exist, but nothing more is known about it.
    Hidden,
}

/// Asks the kernel whether there is such a process: `/proc` alone may hide the processes of other users.
#[cfg(unix)]
fn pid_entry(pid: u32) -> PidEntry {
    use rustix::process::{Pid, test_kill_process};
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return PidEntry::Hidden;
    };
    if test_kill_process(number) == Err(rustix::io::Errno::SRCH) {
        return PidEntry::Gone;
    }
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|stat| of_stat_line(&stat))
        .unwrap_or(PidEntry::Hidden)
}

#[cfg(not(unix))]
fn pid_entry(_pid: u32) -> PidEntry {
    PidEntry::Hidden
}

/// Parses a line of `/proc/<pid>/stat`, starting after the name in parentheses: the state is field 3, the number of
/// threads field 20 and the start time field 22.
#[cfg(unix)]
fn of_stat_line(stat: &str) -> Option<PidEntry> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    match fields.next()? {
        // A thread of a killed process may still be in a call to a slow disk.
        "Z" | "X" => match fields.nth(16)?.parse::<u32>().ok()? {
            0 | 1 => Some(PidEntry::Gone),
            _ => Some(PidEntry::Hidden),
        },
        _ => Some(PidEntry::Running { started: fields.nth(18)?.parse().ok()? }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(silence_seconds: u64, process: Process) -> Lease {
        let (attempt, run_id) = ("a".to_owned(), "r".to_owned());
        Lease {
            attempt,
            run_id,
            manifest_number: 1,
            tables: Vec::new(),
            made_folder: false,
            silence_seconds,
            process,
        }
    }

    #[test]
    fn a_writer_elsewhere_is_dead_after_the_silence_that_it_promised_itself() {
        let now = Utc::now();
        let (patient, hasty) = (lease(10, Process::elsewhere()), lease(1, Process::elsewhere()));
        let before = now - Duration::from_secs(9);
        assert!(!hasty.is_dead(now, now) && hasty.is_dead(before, now));
        assert!(!patient.is_dead(before, now));
    }

    #[test]
    fn a_writer_on_this_machine_is_alive_however_silent_it_is() {
        let now = Utc::now();
        let unknown = Process { started: None, ..Process::own() };
        for process in [Process::own(), unknown] {
            assert!(!lease(1, process).is_dead(now - Duration::from_hours(24), now));
        }
    }

    #[test]
    fn a_process_that_is_gone_or_another_is_dead_at_once() {
        let now = Utc::now();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        let gone = Process { pid, started: Some(1), ..Process::own() };
        let reused = Process { started: Some(1), ..Process::own() };
        assert!(lease(60, gone).is_dead(now, now));
        assert!(lease(60, reused).is_dead(now, now));
    }

    #[test]
    fn a_process_that_has_ended_and_was_not_waited_for_is_gone() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let ended = Process { pid: child.id(), started: Some(1), ..Process::own() };
        while !ended.is_gone() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }

    #[test]
    fn a_process_of_another_namespace_is_not_known_to_be_gone() {
        let nowhere = Process { pid_namespace: None, ..Process::elsewhere() };
        assert!(!Process::elsewhere().is_gone() && !nowhere.is_gone());
    }
}
