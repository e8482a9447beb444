//! The repository's own rules, checked by reading its files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use labelmill::model::MODELS;

use crate::repository::{root, rust_files};
use crate::support::trains_network;

/// Every Rust file below a folder of `src`.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    rust_files(&format!("src/{folder}"))
}

fn offending(folder: &str, words: &[&str], allowed: &[&str]) -> Vec<String> {
    let is_allowed = |path: &Path| allowed.iter().any(|a| path.ends_with(a));
    sources(folder)
        .into_iter()
        .filter(|(path, _)| !is_allowed(path))
        .flat_map(|(path, text)| {
            let lines = text.lines().enumerate();
            let found = lines.filter(|(_, line)| words.iter().any(|w| line.contains(w)));
            found
                .map(|(n, line)| format!("{}:{}: {line}", path.display(), n + 1))
                .collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn models_know_neither_arrow_nor_datafusion() {
    let found = offending("model", &["use datafusion", "datafusion::", "arrow::"], &[]);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn only_models_with_features_know_candle() {
    let found = offending("", &["candle_core"], &[]);
    let strangers: Vec<_> =
        found.iter().filter(|line| !line.contains("/src/model/neural/")).collect();
    assert!(!found.is_empty() && strangers.is_empty(), "{strangers:?}");
}

#[test]
fn async_stops_at_the_frame_and_starts_again_in_the_sink() {
    for folder in ["model", "tables"] {
        let found = offending(folder, &["async ", ".await"], &[]);
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
    let found = offending(
        "frame",
        &["async ", ".await"],
        &["relations.rs", "gold/mod.rs", "read_all.rs", "frame/mod.rs"],
    );
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn only_the_command_line_prints() {
    let words = ["println!", "eprintln!", "std::io::stderr", "std::io::stdout", "dbg!"];
    // The tests of `process` run as processes of their own.
    let may = |line: &String| ["/src/cli/", "/src/process/"].iter().any(|room| line.contains(room));
    let found: Vec<String> =
        offending("", &words, &[]).into_iter().filter(|line| !may(line)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn no_file_is_longer_than_four_hundred_lines() {
    let long: Vec<String> = sources("")
        .iter()
        .filter(|(_, text)| text.lines().count() > 400)
        .map(|(path, text)| format!("{} {}", path.display(), text.lines().count()))
        .collect();
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// A reader sees what a folder holds at a glance. The folders `tests` have a file for each thing tested.
#[test]
fn no_folder_has_more_than_fourteen_entries() {
    let mut folders = BTreeMap::<PathBuf, BTreeSet<PathBuf>>::new();
    for (path, _) in sources("") {
        let inside = path.ancestors().skip(1).take_while(|folder| !folder.ends_with("src"));
        let children = path.ancestors().take(inside.clone().count());
        for (folder, child) in inside.zip(children) {
            folders.entry(folder.to_owned()).or_default().insert(child.to_owned());
        }
    }
    folders.retain(|folder, children| !folder.ends_with("tests") && children.len() > 14);
    assert!(folders.is_empty(), "{:?}", folders.keys());
}

/// A second version of Arrow would be a second, incompatible type system.
#[test]
fn the_lock_file_has_one_version_of_what_tables_are_made_of() {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let names: Vec<&str> = lock
        .lines()
        .filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))
        .filter(|name| {
            let is_alone = ["arrow", "datafusion", "object_store", "parquet"].contains(name);
            is_alone || name.starts_with("arrow-") || name.starts_with("parquet-")
        })
        .collect();
    assert!(names.len() > 10 && names.contains(&"arrow-data"), "{names:?}");
    let twice: Vec<_> = names.windows(2).filter(|pair| pair[0] == pair[1]).collect();
    assert!(twice.is_empty(), "the lock file has two versions of {twice:?}");
}

/// This includes the frozen start and the learning rate of the annotators' parameters, where the defaults have them.
#[test]
fn every_network_says_where_it_differs_from_its_paper() {
    let models = sources("model/neural/models").into_iter();
    let models: Vec<_> =
        models.filter(|(_, text)| text.contains("const KIND: &'static str")).collect();
    assert_eq!(models.len(), MODELS.iter().filter(|model| trains_network(model)).count());
    for (path, text) in models {
        let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
        let docs = lines.map(str::trim).collect::<Vec<_>>().join(" ");
        let differs = docs.split_once("Differs from").map_or("", |(_, differs)| differs);
        let mut wanted = vec!["preset = \"paper\"", "etwork and training", "labelmill's defaults"];
        let is_exempt = ["DELAYS_ANNOTATORS: bool = false", "TRAINS_ON_TARGETS: bool = true"];
        if !is_exempt.iter().any(|constant| text.contains(constant)) {
            wanted.extend(["annotator_delay", "annotator_learning_rate", "0.1"]);
        }
        let missing: Vec<_> = wanted.iter().filter(|word| !differs.contains(**word)).collect();
        assert!(missing.is_empty(), "{}: {missing:?}", path.display());
    }
}

/// One name, one type, in tests and benchmarks too. A few names are those of traits of other crates, or of pairs that
/// belong together.
#[test]
fn no_type_name_stands_for_two_things() {
    // The estimates of an EM model, and what estimates its rows; an associated type of pulp; the same operation on the host and on a device; associated
    // types of object_store, serde and sqllogictest; that of Deref.
    let shared =
        ["Params", "Rows", "Output", "Relu", "Dropout", "Error", "Value", "ColumnType", "Target"];
    let mut files: BTreeMap<String, BTreeSet<PathBuf>> = BTreeMap::new();
    for (path, text) in ["src", "tests", "benches"].iter().flat_map(|folder| rust_files(folder)) {
        for line in text.lines() {
            let line = line.trim_start();
            let public = line.strip_prefix("pub").unwrap_or(line);
            let bare = if public.starts_with('(') {
                public.split_once(')').map_or("", |(_, l)| l)
            } else {
                public
            };
            let mut words = bare.split_whitespace();
            let is_type = ["struct", "enum", "trait", "type"].contains(&words.next().unwrap_or(""));
            let name = words.next().unwrap_or("").split(|c: char| !c.is_alphanumeric()).next();
            if let (true, Some(name)) = (is_type, name.filter(|name| !name.is_empty())) {
                files.entry(name.to_owned()).or_default().insert(path.clone());
            }
        }
    }
    assert!(files.len() > 300, "{}", files.len());
    files.retain(|name, files| files.len() > 1 && !shared.contains(&name.as_str()));
    assert!(files.is_empty(), "{files:#?}");
}
