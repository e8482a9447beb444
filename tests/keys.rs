//! Every key of a pipeline file has an effect, and a test asserts it.
//!
//! The line `// keys: decide.ties, sink.tables` right above a test's attributes names the keys whose effect the test
//! asserts, at other values than their defaults. A key that only one model has is `KIND.key`; a key that models share
//! is `model.key`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use labelmill::model::MODELS;
use labelmill::pipeline::schema;

use crate::digest::leaves;

/// The sections and keys that models share, because shared code reads them.
const SHARED: [&str; 5] = ["backbone", "device", "preset", "stop", "train"];

/// Keys whose effect no test can observe, and why.
const UNSEEN: [(&str, &str); 1] =
    [("sink.sync", "what a disk has after a power cut is not seen by a process")];

/// Every key of a pipeline file that is not a section.
fn keys() -> BTreeSet<String> {
    let root = schema();
    let mut found = Vec::new();
    leaves(&root, &root, "", &mut found);
    let mut keys: BTreeSet<String> =
        found.into_iter().map(|(key, _)| key).filter(|key| key != "model").collect();
    for model in MODELS.iter() {
        let root = (model.schema)().to_value();
        let mut found = Vec::new();
        leaves(&root, &root, "model", &mut found);
        keys.extend(found.iter().map(|(key, _)| {
            let own = key.strip_prefix("model.").unwrap();
            let section = own.split('.').next().unwrap();
            if SHARED.contains(&section) { key.clone() } else { format!("{}.{own}", model.kind) }
        }));
    }
    keys
}

/// Every Rust file below `folder`.
fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
}

/// The keys that tests name, each with its place, and the places of such comments that are not above a test.
fn named() -> (Vec<(String, String)>, Vec<String>) {
    let (mut files, mut named, mut astray) = (Vec::new(), Vec::new(), Vec::new());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    ["src", "tests"].iter().for_each(|folder| sources(&root.join(folder), &mut files));
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for (n, line) in lines.iter().enumerate() {
            let Some(keys) = line.strip_prefix("// keys: ") else { continue };
            let place = format!("{}:{}", file.strip_prefix(root).unwrap().display(), n + 1);
            let next = lines[n..].iter().find(|line| !line.starts_with("//"));
            if !next.is_some_and(|next| {
                next.starts_with("#[test]") || next.starts_with("#[tokio::test")
            }) {
                astray.push(place.clone());
            }
            named.extend(keys.split(',').map(|key| (key.trim().to_owned(), place.clone())));
        }
    }
    (named, astray)
}

#[test]
fn every_key_has_a_test_that_names_it() {
    let keys = keys();
    assert!(keys.len() > 120, "{}", keys.len());
    let (named, astray) = named();
    assert!(astray.is_empty(), "keys are named above a test's attributes: {astray:#?}");
    let unknown: Vec<_> = named.iter().filter(|(key, _)| !keys.contains(key)).collect();
    assert!(unknown.is_empty(), "the schema has no such key: {unknown:#?}");
    let is_named = |key: &str| named.iter().any(|(name, _)| name == key);
    let is_unseen = |key: &str| UNSEEN.iter().any(|(unseen, _)| *unseen == key);
    let stale: Vec<_> =
        UNSEEN.iter().filter(|(key, _)| is_named(key) || !keys.contains(*key)).collect();
    assert!(stale.is_empty(), "these are no exceptions any more: {stale:?}");
    let silent: Vec<_> = keys.iter().filter(|key| !is_named(key) && !is_unseen(key)).collect();
    assert!(silent.is_empty(), "no test names the keys {silent:#?}");
}
