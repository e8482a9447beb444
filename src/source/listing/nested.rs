//! Whether a source would read what a sink writes.

use std::path::{Path as FilePath, PathBuf};

use glob::Pattern;
use object_store::path::Path;
use url::Url;

use super::pattern::split_glob;
use crate::store::parse_url;

/// Whether the location `outer` could name files below the folder `inner`.
pub(in crate::source) fn could_match_below(outer: &str, inner: &str) -> bool {
    // A folder's own name may hold glob characters.
    let is_there = !outer.contains("://") && FilePath::new(outer).exists();
    let glob = split_glob(outer).filter(|_| !is_there);
    let (base, pattern) = glob.map_or((outer, None), |(base, p)| (base, Some(p)));
    let (Ok(outer), Ok(inner)) = (parse_url(base), parse_url(inner)) else { return false };
    let parts = |url: &Url| -> Vec<String> {
        let local = url.to_file_path().ok().map(|path| real(&path, MAX_LINKS));
        let url =
            local.and_then(|path| Url::from_file_path(path).ok()).unwrap_or_else(|| url.clone());
        // Decoded names, as a pattern spells them.
        let path = Path::from_url_path(url.path()).unwrap_or_else(|_| Path::from(url.path()));
        path.parts().map(|part| part.as_ref().to_owned()).collect()
    };
    let store =
        |url: &Url| (same_scheme(url.scheme()).to_owned(), url.host_str().map(str::to_owned));
    let same_store = store(&outer) == store(&inner);
    let (outer, inner) = (parts(&outer), parts(&inner));
    let Some(below) = inner.strip_prefix(outer.as_slice()).filter(|_| same_store) else {
        return false;
    };
    let Some(pattern) = pattern else { return true };
    // The sink writes below its own folder: the pattern must have more names than the path to it.
    let names: Vec<&str> = pattern.split('/').collect();
    let fits = |(name, part): (&&str, &String)| Pattern::new(name).is_ok_and(|p| p.matches(part));
    names.contains(&"**") || (names.len() > below.len() && names.iter().zip(below).all(fits))
}

/// One name for the schemes that lead to the same store.
fn same_scheme(scheme: &str) -> &str {
    match scheme {
        "s3a" => "s3",
        "abfss" | "adl" | "az" | "azure" => "abfs",
        other => other,
    }
}

/// The most links that are followed in a chain.
const MAX_LINKS: usize = 40;

/// The path with all links resolved in the part that exists; the rest is appended as it is.
fn real(path: &FilePath, links: usize) -> PathBuf {
    if let Ok(real) = path.canonicalize() {
        return real;
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return path.to_owned();
    };
    match path.read_link() {
        Ok(target) if links > 0 => real(&folder.join(target), links - 1),
        _ => real(folder, links).join(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sink_that_would_be_read_is_found() {
        assert!(could_match_below("s3://b/crowd", "s3://b/crowd/out"));
        assert!(could_match_below("s3://b/crowd/", "s3://b/crowd"));
        assert!(could_match_below("s3://b/crowd/**/*.parquet", "s3://b/crowd/out"));
        assert!(could_match_below("s3://b/*/*/*.parquet", "s3://b/out"));
        assert!(!could_match_below("s3://b/crowd/*.parquet", "s3://b/crowd/out"));
        assert!(!could_match_below("s3://b/crowd/2026-*/*/*/*.parquet", "s3://b/crowd/out"));
        assert!(could_match_below("s3a://b/crowd", "s3://b/crowd/out"));
        assert!(!could_match_below("s3://b/crowd", "s3://b/crowd2"));
        assert!(!could_match_below("s3://b/crowd", "s3://c/crowd/out"));
        assert!(!could_match_below("s3://b/out/latest/labels/", "s3://b/out"));
        assert!(could_match_below("data/crowd", "data/../data/crowd/out"));
    }

    #[test]
    fn a_sink_that_would_be_read_through_links_is_found_before_it_exists() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        std::fs::create_dir_all(path("crowd/2026")).unwrap();
        std::os::unix::fs::symlink(path("crowd"), path("link")).unwrap();
        std::os::unix::fs::symlink("crowd/later", path("early")).unwrap();
        std::fs::create_dir_all(path("crowd[1]")).unwrap();
        assert!(could_match_below(&path("crowd[1]"), &path("crowd[1]/out")));
        assert!(could_match_below(&path("crowd"), &path("link/out")));
        assert!(could_match_below(&path("crowd"), &path("link/2026/not/yet/there")));
        assert!(could_match_below(&path("link"), &path("crowd/out")));
        assert!(could_match_below(&path("crowd"), &path("early")));
        assert!(!could_match_below(&path("crowd/2026"), &path("link/out")));
    }
}
