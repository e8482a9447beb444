//! Who is writing a run, and whether they still live.
//!
//! A writer leaves `_lease.json` in its run's folder and touches it again and again. A lease is dead when its process
//! is known to be gone (same kernel, same process namespace, no such process), or when the store's own clock says that
//! it was not touched for too long. The store's clock is read off a lease that we just wrote: no clock of two machines
//! is compared.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// The content of `_lease.json`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Lease {
    /// The kernel's boot and process namespace: within one, process numbers mean the same.
    realm: Option<String>,
    /// The process.
    pid: u32,
    /// When the process started, in the kernel's ticks: a number that is used again has another.
    started: Option<u64>,
    /// Which of the process's own runs it is.
    serial: u64,
}

static SERIAL: AtomicU64 = AtomicU64::new(0);

impl Lease {
    /// A new lease of this process.
    pub(super) fn own() -> Self {
        let (pid, serial) = (std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
        Self { realm: realm(), pid, started: started(pid), serial }
    }

    /// A name that no other lease has.
    pub(super) fn name(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }

    /// Whether the writer is known to be gone.
    fn is_gone(&self) -> bool {
        let here = realm();
        here.is_some() && self.realm == here && started(self.pid) != self.started
    }

    /// Whether the writer counts as dead: gone, or silent since `touched` for longer than `patience`.
    pub(super) fn is_dead(
        &self,
        touched: DateTime<Utc>,
        now: DateTime<Utc>,
        patience: Duration,
    ) -> bool {
        let silent = (now - touched).to_std().unwrap_or_default();
        self.is_gone() || silent > patience
    }
}

fn realm() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{} {}", boot.trim(), namespace.display()))
}

/// The start time of a living process: field 22 of its stat line, counted after the name in parentheses.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_living_writer_is_dead_only_after_silence() {
        let (own, now) = (Lease::own(), Utc::now());
        assert!(!own.is_dead(now, now, Duration::from_secs(1)));
        assert!(own.is_dead(now - Duration::from_secs(9), now, Duration::from_secs(1)));
    }

    #[test]
    fn a_process_that_is_gone_or_another_is_dead_at_once() {
        let now = Utc::now();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        let gone = Lease { pid, started: Some(1), ..Lease::own() };
        let reused = Lease { started: Some(1), ..Lease::own() };
        assert!(gone.is_dead(now, now, Duration::from_mins(1)));
        assert!(reused.is_dead(now, now, Duration::from_mins(1)));
    }
}
