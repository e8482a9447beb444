//! Reads a whole local file: a regular one of a bounded size, and nothing else.
//!
//! # Why
//! A pipe that nobody writes to blocks its reader for ever, and a device such as `/dev/zero` never ends.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// The most bytes of a text that a person writes, such as a pipeline or a query.
pub(crate) const TEXT_BYTES: u64 = 16 << 20;

/// The most bytes of a file that labelmill writes: a network has 16 GiB of numbers at most, and two moments of each.
pub(crate) const STATE_BYTES: u64 = 64 << 30;

/// The bytes of the file.
///
/// # Errors
/// When it is no regular file, has more than `most` bytes, or cannot be read.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    // Opening a pipe would already block.
    let found = fs::metadata(path)?;
    if found.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory));
    }
    if !found.is_file() {
        return Err(refused("it is no regular file, but a pipe, a socket or a device".to_owned()));
    }
    let too_large = || refused(format!("it is larger than the {most} bytes that it may have"));
    if found.len() > most {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    // The file may have grown.
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(too_large()) } else { Ok(bytes) }
}

/// The text of a file that a person writes.
///
/// # Errors
/// As [`read`]; and when the text is not UTF-8.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let not_utf8 = |_| io::Error::new(io::ErrorKind::InvalidData, "the text is not valid UTF-8");
    String::from_utf8(read(path, TEXT_BYTES)?).map_err(not_utf8)
}

fn refused(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_of_at_most_so_many_bytes_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x");
        fs::write(&file, "1234").unwrap();
        assert_eq!(read(&file, 4).unwrap(), b"1234");
        assert!(read(&file, 3).unwrap_err().to_string().contains("larger than the 3 bytes"));
        for other in ["/dev/zero", "/dev/null"] {
            let error = read(Path::new(other), 4).unwrap_err();
            assert!(error.to_string().contains("no regular file"), "{error}");
        }
        assert_eq!(read(folder.path(), 4).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert_eq!(read(&folder.path().join("y"), 4).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
