//! Creates and replaces files on local disk atomically, and syncs files and folders.

use std::fs;
use std::io::{self, Write};
use std::path::Path as FilePath;

use crate::error::Error;

/// The prefix of the names of temporary files, before they are renamed or linked to their final name.
pub(in crate::sink::parquet) const STAGED: &str = "_staged-";

/// The outcome of a request to create an object.
pub(in crate::sink::parquet) enum Created {
    /// This request created the object.
    Yes,
    /// The object existed already.
    Exists,
    /// The object was not created, and no request for it is in flight: the disk could not write its bytes, or does not
    /// support creating files in this way.
    Refused(Error),
}

/// Creates a file if it does not exist.
pub(super) fn create_on_disk(
    target: &FilePath,
    bytes: &[u8],
    staging: &FilePath,
    sync: bool,
) -> io::Result<Created> {
    let staged = match staged(target, bytes, staging, sync) {
        Ok(staged) => staged,
        Err(e) => return Ok(Created::Refused(on_disk(target, e).into())),
    };
    match persist_new(staged, target) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(Created::Exists),
        Err(e) if is_refusal(e.kind()) => return Ok(Created::Refused(refused(target, &e))),
        Err(e) => return Err(e),
    }
    // The file exists and other processes can see it: it is too late to fail.
    if sync && let Err(e) = sync_folder_of(target) {
        tracing::warn!(file = %target.display(), error = %e, "the name may not survive a power loss");
    }
    Ok(Created::Yes)
}

/// Renames or links the temporary file to `target`, which must not exist.
fn persist_new(staged: tempfile::NamedTempFile, target: &FilePath) -> io::Result<()> {
    #[cfg(test)]
    tests::fail_as_asked(target)?;
    staged.persist_noclobber(target).map(drop).map_err(|e| e.error)
}

/// Whether this error means that the disk did not create the name and will not. Any other error, such as that of a
/// network share that no longer answers, leaves this open.
fn is_refusal(kind: io::ErrorKind) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        kind,
        Kind::CrossesDevices
            | Kind::InvalidInput
            | Kind::PermissionDenied
            | Kind::ReadOnlyFilesystem
            | Kind::Unsupported
    ) || is_full(kind)
}

/// Whether the disk is full, or a limit of this user is reached.
pub(in crate::sink::parquet) fn is_full(kind: io::ErrorKind) -> bool {
    use io::ErrorKind as Kind;
    matches!(kind, Kind::FileTooLarge | Kind::QuotaExceeded | Kind::StorageFull)
}

fn refused(target: &FilePath, e: &io::Error) -> Error {
    if is_full(e.kind()) {
        return Error::store(format!("cannot create the file: {e}"))
            .at(target.display().to_string());
    }
    Error::spec(format!("the disk does not create a file only where there is none: {e}"))
        .at(format!("sink.url: {}", target.display()))
        .help(
            "the run is not committed, as a commit rests on such files: publish to a folder that you may write to, on a \
             disk with hard links (SMB shares and some FUSE mounts have none), or to an object store",
        )
}

pub(in crate::sink::parquet) fn replace_on_disk(
    target: &FilePath,
    bytes: &[u8],
    staging: &FilePath,
    sync: bool,
) -> io::Result<()> {
    let staged = staged(target, bytes, staging, sync)?;
    #[cfg(test)]
    tests::fail_as_asked(target)?;
    staged.persist(target).map_err(|e| e.error)?;
    if sync { sync_folder_of(target) } else { Ok(()) }
}

/// Writes the bytes to a temporary file. It is deleted when it is dropped before it was renamed or linked.
fn staged(
    target: &FilePath,
    bytes: &[u8],
    staging: &FilePath,
    sync: bool,
) -> io::Result<tempfile::NamedTempFile> {
    let mut file = create_with_folders(|| new_file(target, staging))?;
    file.write_all(bytes)?;
    if sync {
        file.as_file().sync_all()?;
    }
    Ok(file)
}

/// Creates a file and its folders; a second time if a folder is missing, because another writer of the run may have just
/// removed the empty folder. A folder that is still missing cannot be created, such as one below `/proc`.
pub(in crate::sink::parquet) fn create_with_folders<T>(
    create: impl Fn() -> io::Result<T>,
) -> io::Result<T> {
    let is_missing = |e: &io::Error| e.kind() == io::ErrorKind::NotFound;
    match create() {
        Err(e) if is_missing(&e) => create().map_err(|e| {
            if is_missing(&e) {
                io::Error::other(format!("its folder cannot be created: {e}"))
            } else {
                e
            }
        }),
        created => created,
    }
}

fn new_file(target: &FilePath, staging: &FilePath) -> io::Result<tempfile::NamedTempFile> {
    fs::create_dir_all(staging)?;
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut builder = tempfile::Builder::new();
    builder.prefix(STAGED);
    // The same permissions as any other new file: 0666 without the bits of the umask.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(staging)
}

/// The error of an object store for an I/O error on local disk.
pub(in crate::sink::parquet) fn on_disk(file: &FilePath, e: io::Error) -> object_store::Error {
    let path = file.display().to_string();
    match e.kind() {
        io::ErrorKind::NotFound => object_store::Error::NotFound { path, source: e.into() },
        io::ErrorKind::AlreadyExists => {
            object_store::Error::AlreadyExists { path, source: e.into() }
        }
        _ => object_store::Error::Generic {
            store: "local disk",
            source: format!("{path}: {e}").into(),
        },
    }
}

/// Makes the names in a file's folder durable.
pub(in crate::sink::parquet) fn sync_folder_of(file: &FilePath) -> io::Result<()> {
    file.parent().map_or(Ok(()), sync)
}

/// As [`sync`], for a folder above the sink's root: one that may not be opened is not new.
pub(in crate::sink::parquet) fn sync_if_readable(folder: &FilePath) -> io::Result<()> {
    match sync(folder) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        synced => synced,
    }
}

/// The error for a file or folder that cannot be synced.
pub(in crate::sink::parquet) fn not_synced(location: &FilePath, e: &io::Error) -> Error {
    let message = format!("cannot sync: {e}");
    let (error, help) = if e.kind() == io::ErrorKind::PermissionDenied {
        (Error::spec(message), "make it readable, because a sync opens it")
    } else {
        (Error::store(message), "check the disk")
    };
    let failed = error.at(location.display().to_string()).help(format!(
        "{help}; or set sink.sync = false: then a power cut may damage what was published last"
    ));
    Error::of_io(e, failed)
}

/// Makes a file's content, or the names in a folder, durable.
pub(in crate::sink::parquet) fn sync(file: &FilePath) -> io::Result<()> {
    #[cfg(test)]
    tests::note_sync(file)?;
    fs::File::open(file)?.sync_all()
}

#[cfg(test)]
pub(in crate::sink::parquet) mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_sync_without_open_files_does_not_advise_against_syncing() {
        let error = |number| not_synced(FilePath::new("/x"), &io::Error::from_raw_os_error(number));
        let (lack, broken) = (error(libc::EMFILE), error(libc::EIO));
        assert_eq!((lack.exit_code(), broken.exit_code()), (2, 5));
        assert!(!lack.to_string().contains("sink.sync"), "{lack}");
        assert!(broken.to_string().contains("sink.sync = false"), "{broken}");
    }

    /// The paths that tests of this process synced.
    pub(in crate::sink::parquet) static SYNCED: std::sync::Mutex<Vec<std::path::PathBuf>> =
        std::sync::Mutex::new(Vec::new());

    /// The files and folders that tests of this process make impossible to sync.
    pub(in crate::sink::parquet) static UNSYNCED: std::sync::Mutex<Vec<std::path::PathBuf>> =
        std::sync::Mutex::new(Vec::new());

    pub(super) fn note_sync(file: &FilePath) -> io::Result<()> {
        SYNCED.lock().map_err(|_| io::ErrorKind::Other)?.push(file.to_owned());
        let unsynced = UNSYNCED.lock().map_err(|_| io::ErrorKind::Other)?;
        if unsynced.iter().any(|path| path == file) {
            return Err(io::Error::from_raw_os_error(5));
        }
        Ok(())
    }

    /// The folders in which tests of this process make creating or replacing a file fail, and the error number. A file
    /// or folder is missing (`ENOENT`) only once.
    pub(in crate::sink::parquet) static REFUSALS: std::sync::Mutex<Vec<(std::path::PathBuf, i32)>> =
        std::sync::Mutex::new(Vec::new());

    pub(in crate::sink::parquet) fn fail_as_asked(target: &FilePath) -> io::Result<()> {
        let mut refusals = REFUSALS.lock().map_err(|_| io::ErrorKind::Other)?;
        let asked = refusals.iter().rposition(|(folder, _)| target.starts_with(folder));
        let Some(at) = asked else { return Ok(()) };
        let e = io::Error::from_raw_os_error(refusals[at].1);
        if e.kind() == io::ErrorKind::NotFound {
            refusals.remove(at);
        }
        Err(e)
    }

    /// Makes creating or replacing a file in this folder fail.
    #[cfg(unix)]
    fn refuse(folder: &FilePath, number: rustix::io::Errno) {
        REFUSALS.lock().unwrap().push((folder.to_owned(), number.raw_os_error()));
    }

    #[cfg(unix)]
    fn is_refused(folder: &FilePath) -> bool {
        REFUSALS.lock().unwrap().iter().any(|(refused, _)| refused == folder)
    }

    #[cfg(unix)]
    fn sink_in(root: &FilePath) -> crate::sink::parquet::ParquetSink {
        use crate::sink::SinkSpec;
        use crate::sink::parquet::ParquetSink;
        let spec = SinkSpec { url: root.display().to_string(), ..SinkSpec::default() };
        ParquetSink::open(&spec, &crate::store::StoreSpec::default()).unwrap()
    }

    #[cfg(unix)]
    #[test]
    fn a_disk_that_refuses_is_told_from_one_that_does_not_answer() {
        use rustix::io::Errno;
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("manifest.json");
        let create = |number: Errno| {
            refuse(folder.path(), number);
            create_on_disk(&target, b"{}", folder.path(), false)
        };
        let refusals = [
            Errno::ACCESS,
            Errno::INVAL,
            Errno::NOSPC,
            Errno::NOSYS,
            Errno::NOTSUP,
            Errno::OPNOTSUPP,
            Errno::PERM,
            Errno::ROFS,
            Errno::XDEV,
        ];
        for number in refusals {
            let created = create(number);
            assert!(matches!(created, Ok(Created::Refused(_))), "{number}");
        }
        for number in [Errno::IO, Errno::TIMEDOUT, Errno::STALE] {
            assert!(create(number).is_err(), "{number}");
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "litter");
    }

    #[cfg(unix)]
    #[tokio::test(flavor = "multi_thread")]
    async fn a_writer_that_is_swept_while_it_tries_the_sink_tries_again() {
        use crate::sink::Publisher;
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        // Its temporary file is missing, or the folder of its lease.
        for swept in ["runs", "_leases"].map(|name| root.join(name)) {
            refuse(&swept, rustix::io::Errno::NOENT);
            sink_in(&root).expect_commits("r").await.unwrap();
            assert!(!is_refused(&swept), "{}", swept.display());
            assert_eq!(fs::read_dir(&root).unwrap().count(), 0, "litter");
        }
    }

    /// The tombstone that replaces a commit without its files has lost its temporary file: the commit is as it was.
    #[cfg(unix)]
    #[tokio::test(flavor = "multi_thread")]
    async fn a_writer_that_is_swept_while_it_revokes_a_commit_tries_again() {
        use crate::job_context::JobContext;
        use crate::sink::{CommittedRun, Contents, Publisher};
        use crate::testing::publishing::test_job;
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let (sink, identity) = (sink_in(&root), test_job("d"));
        let model = vec![("model/model.json".to_owned(), b"{}".to_vec())];
        let contents = Contents { model, ..Contents::default() };
        let run_folder = root.join("runs/r");
        let file = |manifest: &CommittedRun| run_folder.join(&manifest.model[0].path);
        let first = sink.publish("r", &identity, &contents, &JobContext::new(0)).await.unwrap();
        fs::remove_file(file(&first)).unwrap();
        refuse(&run_folder, rustix::io::Errno::NOENT);
        let second = sink.publish("r", &identity, &contents, &JobContext::new(0)).await.unwrap();
        assert!(!is_refused(&run_folder));
        assert_ne!(first.attempt, second.attempt);
        assert!(file(&second).is_file() && !file(&first).exists());
    }

    #[cfg(unix)]
    #[tokio::test(flavor = "multi_thread")]
    async fn a_disk_without_links_is_an_error_before_the_work_and_nothing_stays() {
        use crate::job_context::JobContext;
        use crate::sink::{Contents, Publisher};
        use crate::testing::publishing::test_job;
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let (sink, identity) = (sink_in(&root), test_job("d"));
        let (contents, context) = (Contents::default(), JobContext::new(0));
        refuse(&root.join("runs"), rustix::io::Errno::OPNOTSUPP);
        for _ in 0..2 {
            let early = sink.begin(&identity, false).await.err().unwrap();
            // A failure that shows only at the commit is reported in the same way.
            let late = sink.publish("r", &identity, &contents, &context).await.unwrap_err();
            for error in [early, late] {
                let message = error.to_string();
                assert_eq!(error.exit_code(), 2, "{message}");
                assert!(message.contains("only where there is none"), "{message}");
                assert!(message.contains("not committed"), "{message}");
                assert!(message.contains(&root.display().to_string()), "{message}");
            }
            for name in ["runs", "_leases"] {
                let left = fs::read_dir(root.join(name)).into_iter().flatten().count();
                assert_eq!(left, 0, "litter in {name}");
            }
        }
    }
}
