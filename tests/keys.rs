//! Every key of a pipeline file has an effect, and a test asserts it.
//!
//! The line `// keys: decide.ties, sink.tables` right above a test's attributes names the keys whose effect the test
//! asserts. What is checked is that the last word of each key occurs in the test, or in a function or constant of the
//! same file that the test uses; that its value is not the default, and that the assertion depends on it, is up to the
//! author. A key that only one model has is `KIND.key`; a key that models share is `model.key`.

use std::collections::{BTreeMap, BTreeSet};

use labelmill::model::MODELS;
use labelmill::pipeline::schema;

use crate::repository::{root, rust_files};
use crate::schema_keys::leaves;

/// The sections and keys that models share, because shared code reads them.
const SHARED: [&str; 9] = [
    "backbone",
    "classifier",
    "device",
    "fine_tune",
    "hold_back_gold",
    "init_from_gold",
    "preset",
    "stop",
    "train",
];

/// Keys whose effect no test can observe, and why.
const UNSEEN: [(&str, &str); 3] = [
    ("sink.sync", "what a disk has after a power cut is not seen by a process"),
    ("model.train.precision", "only a GPU computes in another precision than f32"),
    ("model.classifier.network.precision", "only a GPU computes in another precision than f32"),
];

/// Every key of a pipeline file that is not a section.
fn keys() -> BTreeSet<String> {
    let root = schema();
    let mut found = Vec::new();
    leaves(root, root, "", &mut found);
    let mut keys: BTreeSet<String> =
        found.into_iter().map(|(key, _)| key).filter(|key| key != "model").collect();
    for model in MODELS.iter() {
        let root = (model.schema)().to_value();
        let mut found = Vec::new();
        leaves(&root, &root, "model", &mut found);
        // A model without keys is a leaf itself.
        keys.extend(found.iter().filter_map(|(key, _)| {
            let own = key.strip_prefix("model.")?;
            let is_shared = SHARED.contains(&own.split('.').next()?);
            Some(if is_shared { key.clone() } else { format!("{}.{own}", model.kind) })
        }));
    }
    keys
}

/// A key that a test names, its place, and the test with all that it uses of its file.
struct Named {
    key: String,
    location: String,
    test: String,
}

/// The keys that tests name, and the places of such comments that are not above a test.
fn named() -> (Vec<Named>, Vec<String>) {
    let (mut named, mut misplaced) = (Vec::new(), Vec::new());
    for (file, text) in ["src", "tests"].iter().flat_map(|folder| rust_files(folder)) {
        let lines: Vec<&str> = text.lines().collect();
        let items = items(&lines);
        for (n, line) in lines.iter().enumerate() {
            let Some(keys) = line.trim_start().strip_prefix("// keys: ") else { continue };
            let location = format!("{}:{}", file.strip_prefix(root()).unwrap().display(), n + 1);
            let is_code = |n: &usize| !lines[*n].trim_start().starts_with("//");
            let start = (n..lines.len()).find(is_code).unwrap();
            let attribute = lines[start].trim_start();
            if !attribute.starts_with("#[test]") && !attribute.starts_with("#[tokio::test") {
                misplaced.push(location.clone());
            }
            let test = with_used(item(&lines, start), &items);
            named.extend(keys.split(',').map(|key| Named {
                key: key.trim().to_owned(),
                location: location.clone(),
                test: test.clone(),
            }));
        }
    }
    (named, misplaced)
}

/// The item that begins at line `start` and ends with a line of the same indentation, without attributes and comments.
fn item(lines: &[&str], start: usize) -> String {
    let indentation = |line: &str| line.len() - line.trim_start().len();
    let is_last = |line: &&str| {
        indentation(line) == indentation(lines[start])
            && (line.trim_start() == "}" || line.ends_with(';'))
    };
    let n = lines[start..].iter().position(is_last).map_or(lines.len() - start, |last| last + 1);
    let is_code =
        |line: &&&str| !["//", "#["].iter().any(|mark| line.trim_start().starts_with(mark));
    lines[start..start + n].iter().filter(is_code).copied().collect::<Vec<_>>().join("\n")
}

/// The functions and constants of a file, by name.
fn items(lines: &[&str]) -> BTreeMap<String, String> {
    let name = |line: &str| {
        let declaration = line.trim_start();
        let declaration = declaration.strip_prefix("pub ").unwrap_or(declaration);
        let declaration = declaration.strip_prefix("async ").unwrap_or(declaration);
        let name = declaration.strip_prefix("fn ").or(declaration.strip_prefix("const "))?;
        name.split(|c: char| !c.is_alphanumeric() && c != '_').next().map(str::to_owned)
    };
    let all = lines.iter().enumerate();
    all.filter_map(|(n, line)| Some((name(line)?, item(lines, n)))).collect()
}

/// The text with all items that it uses, and those that these use.
fn with_used(mut text: String, items: &BTreeMap<String, String>) -> String {
    let mut used = BTreeSet::new();
    while let Some((name, item)) =
        items.iter().find(|(name, _)| !used.contains(*name) && has_word(&text, name))
    {
        used.insert(name);
        text.push_str(item);
    }
    text
}

/// Whether the text has this word, alone or after an escaped end of a line, as in `"\\nkey = 1"`.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        (before.ends_with("\\n") || !before.ends_with(is_part)) && !after.starts_with(is_part)
    })
}

#[test]
fn every_key_has_a_test_that_names_it() {
    let keys = keys();
    assert!(keys.len() > 120, "{}", keys.len());
    let (named, misplaced) = named();
    assert!(misplaced.is_empty(), "keys are named above a test's attributes: {misplaced:#?}");
    let locations = |is_wrong: &dyn Fn(&Named) -> bool| -> Vec<String> {
        let wrong = named.iter().filter(|named| is_wrong(named));
        wrong.map(|Named { key, location, .. }| format!("{location}: {key}")).collect()
    };
    let unknown = locations(&|named| !keys.contains(&named.key));
    assert!(unknown.is_empty(), "the schema has no such key: {unknown:#?}");
    let unused = locations(&|named| {
        let word = named.key.rsplit('.').next().unwrap();
        !has_word(&named.test, word)
    });
    assert!(unused.is_empty(), "the test does not use the key: {unused:#?}");
    let is_named = |key: &str| named.iter().any(|named| named.key == key);
    let is_unseen = |key: &str| UNSEEN.iter().any(|(unseen, _)| *unseen == key);
    let stale: Vec<_> =
        UNSEEN.iter().filter(|(key, _)| is_named(key) || !keys.contains(*key)).collect();
    assert!(stale.is_empty(), "these are no exceptions any more: {stale:?}");
    let silent: Vec<_> = keys.iter().filter(|key| !is_named(key) && !is_unseen(key)).collect();
    assert!(silent.is_empty(), "no test names the keys {silent:#?}");
}
