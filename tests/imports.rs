//! Which files import from which: no files import each other in a circle, and no stage imports from a later one.

use std::collections::{BTreeMap, BTreeSet};

use crate::repository::{root, rust_files};

/// The top-level modules of `src`; each may import from the ones before it.
const STAGES: [&str; 26] = [
    "escape",
    "redact",
    "panics",
    "prefetch",
    "error",
    "regular_file",
    "job_context",
    "process",
    "spec",
    "engine",
    "sql",
    "store",
    "source",
    "frame",
    "model",
    "agreement",
    "decide",
    "diagnose",
    "tables",
    "metrics",
    "gate",
    "sink",
    "pipeline",
    "simulate",
    "commands",
    "cli",
];

/// The module for the tests of users: it may import from every module, and only tests import from it.
const TESTING: &str = "testing";

/// `crate::frame::ids` is `["frame", "ids"]`.
type Module = Vec<String>;

/// Every module of the crate with its source text, without comments and tests.
fn modules() -> BTreeMap<Module, String> {
    let src = root().join("src");
    let mut modules = BTreeMap::new();
    for (path, text) in rust_files("src") {
        let below = path.strip_prefix(&src).unwrap().with_extension("");
        let mut module: Module =
            below.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
        module.pop_if(|last| last == "mod");
        if ["main", "lib", "tests"].iter().any(|name| module.iter().any(|part| part == name)) {
            continue;
        }
        modules.insert(module, without_comments_and_tests(&text));
    }
    modules
}

/// The tests of a file are its last item; `mod tests;` only declares a file of tests, and items may follow it.
fn without_comments_and_tests(text: &str) -> String {
    let is_start = |(at, _): &(usize, &str)| {
        let next = text[*at..].lines().nth(1);
        next.is_some_and(|line| !line.starts_with(' ') && line.ends_with("mod tests {"))
    };
    let end = text.match_indices("#[cfg(test)]\n").find(is_start).map_or(text.len(), |(at, _)| at);
    let lines = text[..end].lines().map(|line| line.split("//").next().unwrap());
    lines.collect::<Vec<_>>().join("\n")
}

/// A path that a module imports, and whether it exports it again (`pub use`).
struct Import {
    path: Vec<String>,
    is_public: bool,
}

fn imports(module: &Module, text: &str) -> Vec<Import> {
    let mut found = Vec::new();
    let mut rest = String::new();
    let mut statement: Option<(bool, String)> = None;
    for line in text.lines() {
        let start = line.trim_start();
        if statement.is_none()
            && let Some((visibility, tree)) = start.split_once("use ")
            && (visibility.is_empty() || visibility.starts_with("pub"))
        {
            statement = Some((!visibility.is_empty(), tree.to_owned()));
        } else if let Some((_, tree)) = &mut statement {
            tree.push_str(start);
        } else {
            rest.push_str(line);
            rest.push('\n');
        }
        if let Some((is_public, tree)) = statement.take_if(|(_, tree)| tree.contains(';')) {
            let paths = leaves(tree.split(';').next().unwrap());
            found.extend(paths.into_iter().map(|path| Import { path, is_public }));
        }
    }
    for keyword in ["crate::", "super::"] {
        // `pub(in crate::...)` imports nothing.
        for (at, _) in rest.match_indices(keyword).filter(|(at, _)| !rest[..*at].ends_with("(in "))
        {
            let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            let end = rest[at..].find(|c| !is_path(c)).map_or(rest.len(), |n| at + n);
            let path = rest[at..end].split("::").map(str::to_owned).collect();
            found.push(Import { path, is_public: false });
        }
    }
    for import in &mut found {
        import.path = absolute(module, std::mem::take(&mut import.path));
    }
    found
}

/// `a::{b, c::{d, e}}` is `a::b`, `a::c::d` and `a::c::e`.
fn leaves(tree: &str) -> Vec<Vec<String>> {
    let Some((head, inner)) = tree.split_once('{') else {
        let name = tree.split(" as ").next().unwrap();
        return vec![name.split("::").map(|part| part.trim().to_owned()).collect()];
    };
    let inner = &inner[..inner.rfind('}').unwrap()];
    let head: Vec<String> =
        head.split("::").map(|part| part.trim().to_owned()).filter(|p| !p.is_empty()).collect();
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inner[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inner[start..]);
    let parts = parts.into_iter().filter(|part| !part.trim().is_empty());
    parts.flat_map(leaves).map(|leaf| [head.clone(), leaf].concat()).collect()
}

fn absolute(module: &Module, path: Vec<String>) -> Vec<String> {
    match path[0].as_str() {
        "crate" => path[1..].to_vec(),
        "super" => {
            let ups = path.iter().take_while(|part| *part == "super").count();
            [&module[..module.len().saturating_sub(ups)], &path[ups..]].concat()
        }
        "self" => [module, &path[1..]].concat(),
        _ => [module, &path[..]].concat(),
    }
}

/// The pairs of files of which the first imports from the second, each with one of the imported names. A name that a
/// `mod.rs` exports again counts as a name of the file that defines it, and is no import of the `mod.rs`.
fn graph() -> BTreeMap<(Module, Module), String> {
    let modules = modules();
    let all: Vec<(Module, Import)> = modules
        .iter()
        .flat_map(|(m, text)| imports(m, text).into_iter().map(|import| (m.clone(), import)))
        .collect();
    let handed_on: BTreeMap<(Module, String), Vec<String>> = all
        .iter()
        .filter(|(_, import)| import.is_public)
        .map(|(m, import)| ((m.clone(), import.path.last().unwrap().clone()), import.path.clone()))
        .collect();
    let defines = |path: &[String]| -> Option<Module> {
        let mut path = path.to_vec();
        for _ in 0..8 {
            let length = (1..=path.len()).rev().find(|n| modules.contains_key(&path[..*n]))?;
            let module = path[..length].to_vec();
            let name = path.get(length).cloned();
            match name.and_then(|name| handed_on.get(&(module.clone(), name))) {
                Some(target) => path = [target, &path[length + 1..]].concat(),
                None => return Some(module),
            }
        }
        None
    };
    let mut graph = BTreeMap::new();
    for (from, import) in all {
        let Some(to) = defines(&import.path) else { continue };
        if from != to && !(import.is_public && to.starts_with(&from)) {
            graph.insert((from, to), import.path.join("::"));
        }
    }
    graph
}

/// The files that each file imports from.
struct Imports<'a>(BTreeMap<&'a Module, Vec<&'a Module>>);

impl<'a> Imports<'a> {
    fn new(graph: &'a BTreeMap<(Module, Module), String>) -> Self {
        let mut of: BTreeMap<_, Vec<_>> = BTreeMap::new();
        graph.keys().for_each(|(from, to)| of.entry(from).or_default().push(to));
        Self(of)
    }

    /// Whether imports lead from one file to another.
    fn lead(&self, from: &'a Module, to: &Module) -> bool {
        let (mut open, mut seen) = (vec![from], BTreeSet::new());
        while let Some(from) = open.pop() {
            let next = self.0.get(from).into_iter().flatten().copied();
            open.extend(next.filter(|to| seen.insert(*to)));
        }
        seen.contains(to)
    }
}

#[test]
fn imports_below_the_declaration_of_a_tests_file_are_seen() {
    let graph = graph();
    for (from, to) in [
        ("model/em/kernels", "model/posterior"),
        ("model/neural/net", "model/neural/device"),
        ("simulate", "simulate/recipes"),
    ] {
        let module = |path: &str| path.split('/').map(str::to_owned).collect::<Module>();
        assert!(graph.contains_key(&(module(from), module(to))), "{from} -> {to}");
    }
    let text =
        "use a::B;\n#[cfg(test)]\nmod tests;\nuse c::D; // e\n#[cfg(test)]\nmod tests {\nuse f::G;";
    let seen: Vec<_> = imports(&Vec::new(), &without_comments_and_tests(text))
        .into_iter()
        .map(|import| import.path.join("::"))
        .collect();
    assert_eq!(seen, ["a::B", "c::D"]);
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let graph = graph();
    assert!(graph.len() > 400, "only {} imports were found", graph.len());
    let imports = Imports::new(&graph);
    let left: Vec<String> = graph
        .iter()
        .filter(|((from, to), _)| imports.lead(to, from))
        .map(|((from, to), name)| format!("{} -> {} ({name})", from.join("/"), to.join("/")))
        .collect();
    assert!(left.is_empty(), "{}", left.join("\n"));
}

#[test]
fn no_stage_imports_from_a_later_one() {
    let location = |module: &Module| STAGES.iter().position(|stage| *stage == module[0]);
    let mut upward = Vec::new();
    for ((from, to), name) in graph() {
        let is_upward = match (location(&from), location(&to)) {
            (Some(from), Some(to)) => from < to,
            (None, _) => from[0] != TESTING,
            (_, None) => true,
        };
        if is_upward {
            upward.push(format!("{} -> {} ({name})", from.join("/"), to.join("/")));
        }
    }
    assert!(upward.is_empty(), "{}", upward.join("\n"));
}
