//! Turns the locations that a user wrote into URLs.
//!
//! # Why
//! A location is copied into messages, logs, the `run` table and the digest of a job, where a password or a signature
//! would stay for good. So a URL that holds one is refused before anything is opened.

use std::borrow::Cow;
use std::path::{Component, Path as FilePath, PathBuf};

use object_store::path::Path;
use url::{Position, Url};

use crate::error::{Error, Problem, Result};
use crate::redact::{location, redacted, redacted_location, scheme_without_slashes};

pub(super) const URL_HELP: &str = "write a local path, or a URL such as s3://bucket/folder/";

/// Parses a URL or a local path. A relative path is resolved against the working folder.
///
/// # Errors
/// When the text is neither, or when it is a URL that contains a user, a password or a query.
pub fn parse_url(text: &str) -> Result<Url> {
    if let Some(problem) = secret_problem(text) {
        return Err(Error::spec_problems(vec![problem]));
    }
    let unusable =
        |what: String| Error::spec(what).found(format!("`{}`", redacted(text))).help(URL_HELP);
    if let Some(scheme) = scheme_without_slashes(text.trim_start()) {
        return Err(unusable(format!("a URL has :// after `{scheme}`")));
    }
    if text.contains("://") {
        let url = Url::parse(&named(text)).map_err(|e| unusable(format!("not a URL: {e}")))?;
        // Check what the parser found too, whatever the text looked like.
        // abfss:// names a container before the @.
        let has_user = !url.username().is_empty() && !url.scheme().starts_with("abfs");
        if has_user || url.password().is_some() {
            return Err(
                Error::spec("a URL with a user or a password in it is refused").help(URL_HELP)
            );
        }
        return Ok(url);
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

/// Percent-encodes `#` and `?` in a URL's path. Only in http(s) URLs do they begin a fragment or a query.
fn named(text: &str) -> Cow<'_, str> {
    let is_web = ["http://", "https://"].iter().any(|scheme| {
        text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    });
    if is_web || !text.contains(['#', '?']) {
        return text.into();
    }
    text.replace('#', "%23").replace('?', "%3F").into()
}

/// Resolves `..` as the system does: through links, as far as the folders exist.
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

/// The location of an object, as a person would write it.
#[must_use]
pub fn shown(store: &Url, object: &Path) -> String {
    match store.scheme() {
        "file" => format!("/{object}"),
        _ => format!("{}/{object}", &store[..Position::BeforePath]),
    }
}

/// The problem of a location that contains a secret, without repeating the secret; `None` if it contains none.
#[must_use]
pub fn secret_problem(text: &str) -> Option<Problem> {
    // URL parsers ignore these characters.
    let text = text.trim().replace(['\t', '\n', '\r'], "");
    let url = location(&text)?;
    let what = match (&url.user, &url.query) {
        (Some(_), _) => "a URL with a user or a password in it",
        (None, Some(_)) => "a URL with a query in it",
        (None, None) => return None,
    };
    Some(Problem::new(format!("{what} is refused")).found(format!("`{}`", redacted_location(&text))).help(
        "a URL is written to logs and tables: give credentials by the environment, such as AWS_ACCESS_KEY_ID, or by \
         the instance's role; in a pattern, write * for ?",
    ))
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
    fn a_secret_is_refused_whatever_else_the_location_holds_and_not_repeated() {
        for text in [
            "s3://b/my data?x=hunter2",
            "https://localhost:1/a;b.csv?sv=1&sig=hunter2",
            "https://localhost:1/a(1)?hunter2",
            "https://localhost:1/h\t/x?sig=hunter2",
            "https://us er:hunter2@h/x.csv",
            "https://us;er:hunter2@h/x.csv",
            "s3://us er:hunter2@b/x.csv",
            "https://u/s:hunter2@h/x.csv",
            "https://me:hun ter2@h/x.csv",
            "https:\\\\me:hun ter2@h\\x.csv",
            "https:me:hun ter2@h/x.csv",
            "https//me:hun ter2@h/x.csv",
            "//me:hun ter2@h/x.csv",
            "s3:me:hun ter2@b/x.csv",
            "x://me:hun ter2@b/x.csv",
            "http://[::1/me:hun ter2@h/x.csv",
            "me:hunter2@h/x.csv",
            "me:hun ter2@h:9000",
        ] {
            let problem = secret_problem(text).unwrap_or_else(|| panic!("{text}"));
            assert!(!format!("{problem} {problem:?}").contains("ter2"), "{problem}");
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
            "//data/a@b/x.csv",
            "src/file:12:see",
            "./me:file@home.csv",
            "C:/a@b.csv",
            "a:@b",
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
    fn a_url_without_its_slashes_is_no_local_path() {
        for text in
            ["s3:/b/x.csv", "s3:b/x.csv", "file:x.csv", "S3A:x", "https//h/x", "https:\\\\h\\x"]
        {
            let error = parse_url(text).unwrap_err().to_string();
            assert!(error.contains("a URL has :// after") && error.contains(text), "{error}");
        }
        assert_eq!(parse_url("s3//x.csv").unwrap_err().exit_code(), 2);
        assert!(parse_url("s3/x.csv").unwrap().path().ends_with("/s3/x.csv"));
    }

    #[test]
    fn a_location_with_a_secret_is_refused_and_not_repeated() {
        for text in [
            "https://me:hunter2@h/x.csv",
            "s3://b/x?X-Amz-Signature=hunter2",
            "https://h/x?hunter2",
            " https://me:hunter2@h/x.csv",
            "\thttps://h/x?hunter2",
        ] {
            let error = parse_url(text).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            let text = format!("{error} {error:?}");
            assert!(text.contains("is refused") && !text.contains("hunter2"), "{text}");
        }
    }
}
