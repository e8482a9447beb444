//! Removes secrets from the URLs in a text. No other module decides which part of a URL may be shown.
//!
//! # Why
//! A URL that contains a password or a signature is refused, but by then its text may be part of any message. So every
//! text that leaves the process goes through [`redacted`].

use std::ops::Range;

use serde_json::Value;

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

/// Like [`redacted`], for each string in a JSON value: a secret never reaches beyond its string.
#[must_use]
pub fn redacted_json(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(redacted(&text)),
        Value::Array(values) => values.into_iter().map(redacted_json).collect(),
        Value::Object(fields) => {
            let fields = fields.into_iter();
            fields.map(|(name, value)| (redacted(&name), redacted_json(value))).collect()
        }
        other => other,
    }
}

/// Like [`redacted`], for a text that is a single location, whatever characters it contains.
pub(crate) fn redacted_location(text: &str) -> String {
    let Some(url) = location(text) else { return redacted(text) };
    let secret = url.user.or(url.query);
    secret.map_or_else(|| text.to_owned(), |secret| format!("{}***", &text[..secret.start]))
}

/// The parts of a text that is a single URL, whatever characters it contains. Its scheme may be missing, as in
/// `user:password@host`.
pub(crate) fn location(text: &str) -> Option<Parts> {
    let scheme = text.find(is_no_scheme).unwrap_or(text.len());
    if begins(text, 0..scheme) {
        return Some(parts(text, 0..scheme, true));
    }
    let colon = text.find([':', '/', '\\']).filter(|at| text[*at..].starts_with(':'))?;
    // After the slash of a drive or of a folder, an @ is part of a file name.
    let end = text[colon..].find(['/', '\\']).map_or(text.len(), |n| colon + n);
    let at = text[colon..end].rfind('@').filter(|n| *n > 1)?;
    Some(Parts { user: Some(0..colon + at), query: None, end: text.len() })
}

/// The scheme of a store in a location that lacks the `://`, as in `s3:bucket/x` and `https//host/x`.
pub(crate) fn scheme_without_slashes(text: &str) -> Option<&str> {
    let scheme = &text[..text.find(is_no_scheme)?];
    let rest = &text[scheme.len()..];
    let is_cut = (rest.starts_with(':') && !rest.starts_with("://")) || rest.starts_with("//");
    (is_cut && is_store(scheme)).then_some(scheme)
}

fn is_no_scheme(c: char) -> bool {
    !c.is_ascii_alphanumeric() && !"+.-".contains(c)
}

/// Whether this is the scheme of a store, whatever follows it.
fn is_store(scheme: &str) -> bool {
    const STORES: [&str; 12] =
        ["abfs", "abfss", "adl", "az", "azure", "file", "gs", "hdfs", "http", "https", "s3", "s3a"];
    STORES.iter().any(|store| scheme.eq_ignore_ascii_case(store))
}

/// Whether a URL begins with this scheme, including mistyped ones: `https:me@`, `https:\\me@`, `//me@`.
fn begins(text: &str, scheme: Range<usize>) -> bool {
    let rest = &text[scheme.end..];
    let name = &text[scheme];
    match rest.strip_prefix(':') {
        // One letter names a drive, unless two slashes follow.
        Some(rest) if name.len() >= 2 && rest.starts_with(['/', '\\']) => true,
        Some(rest) if name.len() == 1 && rest.starts_with("//") => true,
        Some(rest) => is_store(name) && rest.starts_with(|c: char| !c.is_whitespace()),
        None => rest.starts_with("//") && (name.is_empty() || is_store(name)),
    }
}

/// Whether the text before an `@` is a user name with a space in it and a password, as in `a b:password`.
fn is_spaced_user(text: &str) -> bool {
    let Some((name, password)) = text.split_once(':') else { return false };
    let is_name =
        name.contains(char::is_whitespace) && !name.contains(['/', '\\', '?', '#', '"', '\'', '`']);
    // In a sentence a space follows the colon, and in another URL a slash.
    is_name && !password.starts_with(|c: char| c.is_whitespace() || c == '/')
}

/// The positions of a URL's parts in a text.
pub(crate) struct Parts {
    /// Everything before the `@`.
    pub(crate) user: Option<Range<usize>>,
    /// Everything after the `?`.
    pub(crate) query: Option<Range<usize>>,
    end: usize,
}

/// The URLs in a text, from left to right.
pub(crate) fn urls(text: &str) -> impl Iterator<Item = Parts> {
    let mut from = 0;
    std::iter::from_fn(move || {
        loop {
            let end = from + text[from..].find([':', '/'])?;
            let before = text[from..end].char_indices().rev().find(|(_, c)| is_no_scheme(*c));
            let scheme = before.map_or(from, |(at, c)| from + at + c.len_utf8())..end;
            if begins(text, scheme.clone()) {
                let parts = parts(text, scheme, false);
                from = parts.end.max(end + 1);
                return Some(parts);
            }
            from = end + 1;
        }
    })
}

/// How many bytes to search for an `@`: a password may contain characters that otherwise end a URL.
const MAX_PASSWORD_CHARS: usize = 512;

/// The parts of the URL that begins with this scheme; `is_location` if the text contains nothing else.
fn parts(text: &str, scheme: Range<usize>, is_location: bool) -> Parts {
    let slashes = text[scheme.end + 1..].find(|c| c != '/' && c != '\\');
    let start = slashes.map_or(text.len(), |n| scheme.end + 1 + n);
    let word = |at: usize| {
        let ends =
            |c: char| c.is_whitespace() || c.is_control() || "\"'`<>()[]{}|\\^,;".contains(c);
        let end = text[at..].find(|c| !is_location && ends(c));
        end.map_or(text.len(), |n| at + n)
    };
    let mut end = word(start);
    let authority =
        &text[start..start + text[start..end].find(['/', '\\', '?', '#']).unwrap_or(end - start)];
    let kind = text[scheme.clone()].to_ascii_lowercase();
    let is_web = kind == "http" || kind == "https";
    // Only http(s) URLs have a port, which is a number. A password that is not encoded can contain anything, even a
    // slash at its beginning.
    let has_password =
        match authority.rsplit_once('@').map_or(authority, |(_, host)| host).rsplit_once(':') {
            Some((_, port)) if !port.chars().all(|c| c.is_ascii_digit()) => true,
            Some((_, port)) => {
                (port.is_empty() || !is_web) && text[start + authority.len()..end].contains('@')
            }
            // A user part that is not encoded can contain a slash.
            None => {
                let path = &text[start + authority.len()..end];
                is_location
                    && is_web
                    && path.find(':').is_some_and(|colon| path[colon..].contains('@'))
            }
        };
    // An opening bracket that is never closed does not begin an IPv6 address.
    let has_open_bracket = text[start..]
        .strip_prefix('[')
        .is_some_and(|rest| rest.find(['/', '@']).is_some_and(|n| !rest[..n].contains(']')));
    let far = text.floor_char_boundary(start + MAX_PASSWORD_CHARS);
    let far = text[start..far].find(['\n', '\r']).map_or(far, |n| start + n);
    let at = text[start..far.max(end)].rfind('@').map(|n| start + n);
    // Without `://` it may not be a URL, but for instance a file name and a line number.
    let is_url = at.is_some() || text[scheme.end..].starts_with("://");
    // `abfs` and `abfss` name a container before the @.
    let is_container = kind.starts_with("abfs") && !authority.contains(':');
    let mut user = None;
    if (has_password || has_open_bracket) && is_url {
        user = Some(start..at.unwrap_or(start + authority.len()));
        end = word(at.unwrap_or(start + authority.len()));
    } else if authority.contains('@') && !is_container {
        // A second @ may belong to the password or to the path: this is ambiguous.
        user = text[start..end].rfind('@').map(|n| start..start + n);
    } else if let Some(at) = at.filter(|at| is_spaced_user(&text[start..*at])) {
        user = Some(start..at);
        end = word(at);
    }
    let rest = user.as_ref().map_or(start, |user| user.end);
    let query = text[rest..end]
        .char_indices()
        .filter(|(_, c)| *c == '?' || (*c == '#' && is_web))
        .find_map(|(n, _)| {
            let query = rest + n + 1..end;
            // Outside http(s), `?` is part of a pattern, unless a name and a value follow.
            let name = &text[query.clone()];
            let name = name.find('=').map_or("", |n| &name[..n]);
            let is_query = is_web || (!name.is_empty() && !name.contains(['/', '?', '*']));
            (is_query && !query.is_empty()).then_some(query)
        });
    Parts { user, query, end }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            (
                "no file https://m e:hunter2@host/x.csv there",
                "no file https://***@host/x.csv there",
            ),
            ("https:/me:hunter2@host/x.csv", "https:/***@host/x.csv"),
            ("https:\\\\me:hunter2@host/x.csv", "https:\\\\***@host/x.csv"),
            ("https:me:hunter2@host/x.csv", "https:***@host/x.csv"),
            ("HTTPS:hunter2@host/x.csv", "HTTPS:***@host/x.csv"),
            ("https//me:hunter2@host/x.csv", "https//***@host/x.csv"),
            ("no file `//me:hunter2@host/x.csv`", "no file `//***@host/x.csv`"),
            ("s3:AKIA:hunter2@bucket/x", "s3:***@bucket/x"),
            ("x://me:hunter2@b/x", "x://***@b/x"),
            ("s3:me:hun ter2@b/x", "s3:***@b/x"),
            ("http://[::1/me:hunter2@h/x", "http://***@h/x"),
            ("http://[::1]:9000/x@y", "http://[::1]:9000/x@y"),
            ("https:host/x?hunter2", "https:host/x?***"),
            ("https://me:/hunter2@host/x.csv", "https://***@host/x.csv"),
            ("s3://AKIA:/hunter2@bucket/x.csv", "s3://***@bucket/x.csv"),
            ("s3://AKIA:7/hunter2@bucket/x.csv", "s3://***@bucket/x.csv"),
            ("s3://bucket: me@host", "s3://bucket: me@host"),
            ("s3://bucket is away: ask me@host", "s3://bucket is away: ask me@host"),
            ("http://host:80/a@b", "http://host:80/a@b"),
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
    fn a_long_secret_is_none_the_less_one() {
        let secret = format!("{}/{}", "a".repeat(400), "b".repeat(400));
        assert_eq!(redacted(&format!("s3://key:{secret}@b/x y")), "s3://***@b/x y");
    }

    #[test]
    fn a_secret_in_json_ends_with_its_text() {
        let spec = serde_json::json!({"a": "docker://repo:tag", "b": ["s3://k:hunter2@b/x", 1], "c": "label@x"});
        let want =
            serde_json::json!({"a": "docker://***", "b": ["s3://***@b/x", 1], "c": "label@x"});
        assert_eq!(redacted_json(spec), want);
    }

    #[test]
    fn a_secret_in_a_key_of_json_is_one_too() {
        let spec = serde_json::json!({"tables": {"s3://k:hunter2@b/x": 1, "plain": {"https://h/x?hunter2": []}}});
        let want =
            serde_json::json!({"tables": {"s3://***@b/x": 1, "plain": {"https://h/x?***": []}}});
        assert_eq!(redacted_json(spec), want);
    }

    #[test]
    fn a_text_of_many_urls_takes_time_by_its_length() {
        let text = "ab://x:y ".repeat(200_000);
        assert_eq!(redacted(&text), "ab://*** ".repeat(200_000));
    }
}
