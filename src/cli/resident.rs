//! What the process holds in all, looked at while it works.
//!
//! # Why
//! [`super::allocator`] counts large allocations alone: a million small ones, what an allocator keeps of what was freed, and
//! pages of files on their way are counted nowhere, and a container kills without a word whatever reaches its limit. The
//! system knows what the process holds; asked a hundred times in a second, it costs less than a thousandth of a core.

#[cfg(target_os = "linux")]
use std::{fs::File, os::unix::fs::FileExt, thread, time::Duration};

use super::allocator::refuse;

/// How often the system is asked.
#[cfg(target_os = "linux")]
const PAUSE: Duration = Duration::from_millis(10);

/// What may come between two looks.
const MARGIN: usize = 32 << 20;

/// From now on, ends the process before it holds `limit` bytes; does nothing where the system does not say what it holds.
pub(super) fn watch(limit: usize) {
    #[cfg(target_os = "linux")]
    {
        let Ok(file) = File::open("/proc/self/statm") else { return };
        let most = below(limit);
        let look = move || {
            while let Some(held) = resident(&file) {
                if held > most {
                    refuse(format_args!("the process holds {held} bytes, and may hold {limit}"));
                }
                thread::sleep(PAUSE);
            }
        };
        // Without a thread for it, the bound of the allocator is left.
        drop(thread::Builder::new().name("resident".to_owned()).stack_size(64 << 10).spawn(look));
    }
    #[cfg(not(target_os = "linux"))]
    let _ = limit;
}

/// What may be held of so much.
fn below(limit: usize) -> usize {
    limit - (limit / 16).max(MARGIN).min(limit / 4)
}

/// Bytes that belong to the process alone; pages of files do not, which the system takes back as it likes.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn resident(file: &File) -> Option<usize> {
    let mut text = [0; 128];
    let n = file.read_at(&mut text, 0).ok()?;
    let mut pages = std::str::from_utf8(&text[..n]).ok()?.split_ascii_whitespace().skip(1);
    let mut next = || pages.next()?.parse::<usize>().ok();
    let (all, of_files) = (next()?, next()?);
    // SAFETY: asks for a constant of the system.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    Some(all.saturating_sub(of_files) * page)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_to_is_held() {
        let file = File::open("/proc/self/statm").unwrap();
        let bytes = vec![1_u8; 256 << 20];
        let held = resident(&file).unwrap();
        assert!(held >= bytes.len() && held < 64 << 30, "{held}");
    }

    #[test]
    fn a_part_of_the_limit_is_left() {
        let of = |mib: usize| below(mib << 20) >> 20;
        assert_eq!([of(64), of(200), of(1024)], [48, 168, 960]);
    }
}
