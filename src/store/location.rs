//! Locations as text: what a user wrote becomes a URL here, and no other place decides what of a URL may be shown.
//!
//! # Why
//! A location is copied into messages, logs, the `run` table and the digest of a job, where a password or a signature
//! would stay for good. So a URL that holds one is refused before anything is opened, and whatever text leaves the
//! process goes through [`redacted`], because the text of a refused URL can be part of any message.

use std::ops::Range;
use std::path::{Component, Path as FilePath, PathBuf};

use object_store::path::Path;
use url::{Position, Url};

use crate::error::{Error, Problem, Result};

pub(super) const URL_HELP: &str = "write a local path, or a URL such as s3://bucket/folder/";

/// Turns what a user wrote, a URL or a local path, into a URL; a local path is taken from the working folder.
///
/// # Errors
/// When it is neither, or a URL that holds a user, a password or a query.
pub fn parse_url(text: &str) -> Result<Url> {
    if let Some(problem) = secret_problem(text) {
        return Err(Error::spec_problems(vec![problem]));
    }
    let unusable =
        |what: String| Error::spec(what).found(format!("`{}`", redacted(text))).help(URL_HELP);
    if text.contains("://") {
        return Url::parse(text).map_err(|e| unusable(format!("not a URL: {e}")));
    }
    let absolute = std::path::absolute(FilePath::new(text))
        .map_err(|e| unusable(format!("not a path: {e}")))?;
    let absolute = without_parents(&absolute);
    let url = if text.ends_with('/') {
        Url::from_directory_path(&absolute)
    } else {
        Url::from_file_path(&absolute)
    };
    url.map_err(|()| unusable("not a path".to_owned()))
}

/// The path without `..`: as the system goes it, through links, as far as folders exist.
fn without_parents(path: &FilePath) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            plain = plain.canonicalize().unwrap_or(plain);
            plain.pop();
        } else {
            plain.push(part);
        }
    }
    plain
}

/// An object of a store as a person would write its location.
#[must_use]
pub fn shown(store: &Url, object: &Path) -> String {
    match store.scheme() {
        "file" => format!("/{object}"),
        _ => format!("{}/{object}", &store[..Position::BeforePath]),
    }
}

/// What is wrong with a location that holds a secret, without repeating it.
#[must_use]
pub fn secret_problem(text: &str) -> Option<Problem> {
    let url = urls(text).next().filter(|url| url.scheme.start == 0)?;
    let what = match (&url.user, &url.query) {
        (Some(_), _) => "a URL with a user or a password in it",
        (None, Some(_)) => "a URL with a query in it",
        (None, None) => return None,
    };
    Some(Problem::new(format!("{what} is refused")).found(format!("`{}`", redacted(text))).help(
        "a URL is written to logs and tables: give credentials by the environment, such as AWS_ACCESS_KEY_ID, or by \
         the instance's role; in a pattern, write * for ?",
    ))
}

/// The text with `***` for the user part and the query of every URL in it.
#[must_use]
pub fn redacted(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut from = 0;
    for url in urls(text) {
        for secret in [url.user, url.query].into_iter().flatten() {
            out.push_str(&text[from..secret.start]);
            out.push_str("***");
            from = secret.end;
        }
    }
    out.push_str(&text[from..]);
    out
}

/// Where a URL's parts are in a text.
struct Parts {
    scheme: Range<usize>,
    /// All before the `@`.
    user: Option<Range<usize>>,
    /// All behind the `?`.
    query: Option<Range<usize>>,
    end: usize,
}

/// The URLs in a text, from left to right.
fn urls(text: &str) -> impl Iterator<Item = Parts> {
    let mut from = 0;
    std::iter::from_fn(move || {
        loop {
            let colon = from + text[from..].find(":/")?;
            let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+.-".contains(c);
            let scheme = text[from..colon].rfind(|c| !is_scheme(c)).map_or(from, |last| {
                from + last + text[from + last..].chars().next().map_or(1, char::len_utf8)
            });
            if colon - scheme >= 2 {
                let parts = parts(text, scheme..colon);
                from = parts.end;
                return Some(parts);
            }
            from = colon + 2;
        }
    })
}

/// How far behind a word a password may reach that holds what ends a word.
const LONGEST_PASSWORD: usize = 512;

fn parts(text: &str, scheme: Range<usize>) -> Parts {
    let slashes = text[scheme.end + 1..].find(|c| c != '/');
    let start = slashes.map_or(text.len(), |n| scheme.end + 1 + n);
    let word = |at: usize| {
        let ends =
            |c: char| c.is_whitespace() || c.is_control() || "\"'`<>()[]{}|\\^,;".contains(c);
        text[at..].find(ends).map_or(text.len(), |n| at + n)
    };
    let mut end = word(start);
    let authority =
        &text[start..start + text[start..end].find(['/', '?', '#']).unwrap_or(end - start)];
    // What follows the colon of a host is a number; a password that is not encoded can hold anything.
    let has_password =
        match authority.rsplit_once('@').map_or(authority, |(_, host)| host).rsplit_once(':') {
            Some((_, port)) => !port.chars().all(|c| c.is_ascii_digit()),
            None => false,
        };
    let kind = text[scheme.clone()].to_ascii_lowercase();
    // These name a container before the @.
    let is_container = kind.starts_with("abfs") && !authority.contains(':');
    let mut user = None;
    if has_password {
        let line = text[start..].find(['\n', '\r']).map_or(text.len(), |n| start + n);
        let far = (start + LONGEST_PASSWORD).min(line);
        let far = (start..=far).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(start);
        let at = text[start..far].rfind('@').map(|n| start + n);
        user = Some(start..at.unwrap_or(start + authority.len()));
        end = word(at.unwrap_or(start + authority.len()));
    } else if authority.contains('@') && !is_container {
        // A second @ may belong to the password or to the path: nobody can tell.
        user = text[start..end].rfind('@').map(|n| start..start + n);
    }
    let rest = user.as_ref().map_or(start, |user| user.end);
    let is_web = kind == "http" || kind == "https";
    let query = text[rest..end]
        .char_indices()
        .filter(|(_, c)| *c == '?' || (*c == '#' && is_web))
        .find_map(|(n, _)| {
            let query = rest + n + 1..end;
            // Elsewhere than on the web `?` is a pattern's, unless a name and a value follow.
            let name = &text[query.clone()];
            let name = name.find('=').map_or("", |n| &name[..n]);
            let is_query = is_web || (!name.is_empty() && !name.contains(['/', '?', '*']));
            (is_query && !query.is_empty()).then_some(query)
        });
    Parts { scheme, user, query, end }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_path_becomes_an_absolute_file_url() {
        let url = parse_url("data/crowd.csv").unwrap();
        assert_eq!(url.scheme(), "file");
        assert!(url.path().ends_with("/data/crowd.csv"));
    }

    #[test]
    fn a_path_may_go_up_as_the_system_goes_it() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("far/away")).unwrap();
        std::os::unix::fs::symlink(root.join("far/away"), root.join("link")).unwrap();
        let url = |path: &str| parse_url(&format!("{}/{path}", root.display())).unwrap();
        let plain = |path: &str| Url::from_file_path(root.join(path)).unwrap();
        assert_eq!(url("far/away/../../crowd.csv"), plain("crowd.csv"));
        assert_eq!(url("link/../crowd.csv"), plain("far/crowd.csv"));
        assert_eq!(url("none/../crowd.csv"), plain("crowd.csv"));
    }

    #[test]
    fn nothing_of_a_user_or_a_query_is_left() {
        for (text, want) in [
            ("https://me:hunter2@host/x.csv", "https://***@host/x.csv"),
            ("https://hunter2@host/x.csv", "https://***@host/x.csv"),
            ("s3://AKIA:hunter2@bucket/x", "s3://***@bucket/x"),
            ("https://me:hun/ter2@host/x.csv", "https://***@host/x.csv"),
            ("https://me:hun ter2@host/x.csv", "https://***@host/x.csv"),
            ("https://me:hun)t,e'r2@host/x.csv", "https://***@host/x.csv"),
            ("https://me:hun@t/er2@host/x.csv", "https://***@host/x.csv"),
            ("https:/me:hunter2@host/x.csv", "https:/***@host/x.csv"),
            ("https://me:hunter2", "https://***"),
            ("HTTPS://me:hunter2@host", "HTTPS://***@host"),
            (
                "get http://h/k?X-Amz-Signature=hunter2 failed\nmore",
                "get http://h/k?*** failed\nmore",
            ),
            ("https://host/x?hunter2", "https://host/x?***"),
            ("https://host/x#hunter2", "https://host/x#***"),
            ("az://c/x?sv=1&sig=hunter2", "az://c/x?***"),
            ("file:///a/b?token=hunter2", "file:///a/b?***"),
            ("{\"url\":\"https://u:hunter2@h/?a=hunter2\"}", "{\"url\":\"https://***@h/?***\"}"),
            ("a https://u:hunter2@h b s3://hunter2@c/d e", "a https://***@h b s3://***@c/d e"),
            ("é://x https://ü:hunter2@é/ü", "é://x https://***@é/ü"),
        ] {
            assert_eq!(redacted(text), want);
            assert!(!want.contains("hunter2"));
        }
    }

    #[test]
    fn what_is_no_secret_stays() {
        for text in [
            "s3://bucket/a@b/part-?.parquet",
            "s3://bucket/day=2026-0?/hour=1?/x.csv",
            "http://127.0.0.1:9000/a@b.csv",
            "http://[::1]:9000/a",
            "abfss://container@account.dfs.core.windows.net/x",
            "C:/data?x=y",
            "pipeline.toml: source.annotations",
            "no: / url",
            "://",
            ":/",
            "s3://",
            "",
        ] {
            assert_eq!(redacted(text), text);
            assert!(secret_problem(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_location_with_a_secret_is_refused_and_not_repeated() {
        for text in [
            "https://me:hunter2@h/x.csv",
            "s3://b/x?X-Amz-Signature=hunter2",
            "https://h/x?hunter2",
        ] {
            let error = parse_url(text).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            let text = format!("{error} {error:?}");
            assert!(text.contains("is refused") && !text.contains("hunter2"), "{text}");
        }
    }
}
