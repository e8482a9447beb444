//! The README and the pages of `docs/`: their generated tables, their pipelines and their links.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use labelmill::job_context::WarningCode;
use labelmill::model::MODELS;
use labelmill::pipeline::{load, schema};
use labelmill::spec::Overrides;
use labelmill::sql::NAMED_QUERIES;
use labelmill::tables::{ColumnType, TABLES};

use crate::repository::root;
use crate::schema_keys::leaves;
use crate::support::{stderr, temporary_folder};

const MAX_README_BYTES: usize = 12 * 1024;

/// The README and the pages, with their texts.
fn pages() -> Vec<(PathBuf, String)> {
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = docs.chain([root().join("README.md")]).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// The part of a page between two markers, rewritten by `UPDATE=1 cargo test`.
fn generated(page: &str, marker: &str, want: &str) {
    let path = root().join(page);
    let text = fs::read_to_string(&path).unwrap();
    let (begin, end) = (format!("<!-- {marker}: generated -->\n"), format!("<!-- /{marker} -->"));
    let start = text.find(&begin).expect("the page has the marker") + begin.len();
    let stop = start + text[start..].find(&end).expect("the page has the closing marker");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, format!("{}{want}{}", &text[..start], &text[stop..])).unwrap();
        return;
    }
    assert_eq!(&text[start..stop], want, "`UPDATE=1 cargo test` rewrites the tables of {page}");
}

#[test]
fn the_readme_lists_the_models_and_a_page_their_sources() {
    let mut models = String::from("| kind | what it is |\n| --- | --- |\n");
    let mut sources = String::from("| kind | what it is | source |\n| --- | --- | --- |\n");
    for f in MODELS.iter() {
        // The page has the rest.
        let short = f.summary.split([';', ':']).next().unwrap();
        let _ = writeln!(models, "| `{}` | {short} |", f.kind);
        let limits = f.capabilities.limits().into_iter().map(|limit| format!("; {limit}"));
        let limits: String = limits.collect();
        let _ = writeln!(sources, "| `{}` | {}{limits} | {} |", f.kind, f.summary, f.source);
    }
    generated("README.md", "models", &models);
    generated("docs/models.md", "sources", &sources);
}

#[test]
fn the_outputs_list_the_queries_the_tables_and_the_warnings() {
    let mut queries = String::from("| query | its rows | parameters |\n| --- | --- | --- |\n");
    for query in NAMED_QUERIES {
        let parameters: Vec<String> =
            query.parameters().map(|p| format!("`{}={}`", p.name, p.default)).collect();
        let (name, summary) = (query.name, query.summary());
        let _ = writeln!(queries, "| `{name}` | {summary} | {} |", parameters.join(", "));
    }
    let mut tables =
        String::from("| table | column | type | meaning |\n| --- | --- | --- | --- |\n");
    for table in TABLES {
        for (n, column) in table.columns.iter().enumerate() {
            let name = if n == 0 { format!("`{}`", table.name) } else { String::new() };
            let kind = match &column.kind {
                ColumnType::Instance => "as the instances".to_owned(),
                ColumnType::Annotator => "as the annotators".to_owned(),
                ColumnType::Label => "as the labels".to_owned(),
                ColumnType::Texts => "list(utf8)".to_owned(),
                ColumnType::Fixed(fixed) => fixed.to_string().to_lowercase(),
            };
            let null = if column.nullable { ", nullable" } else { "" };
            let _ = writeln!(
                tables,
                "| {name} | `{}` | {kind}{null} | {} |",
                column.name, column.meaning
            );
        }
    }
    let mut warnings = String::from("| code | a run has it where |\n| --- | --- |\n");
    for code in WarningCode::ALL {
        let _ = writeln!(warnings, "| `{}` | {} |", code.name(), code.meaning());
    }
    // One after the other, because all rewrite the same file.
    generated("docs/outputs.md", "queries", &queries);
    generated("docs/outputs.md", "tables", &tables);
    generated("docs/outputs.md", "warnings", &warnings);
}

/// Those of a model are in `labelmill models KIND`.
#[test]
fn a_page_names_every_key_that_is_not_one_of_a_model_and_its_words() {
    let mut keys = Vec::new();
    leaves(schema(), schema(), "", &mut keys);
    let texts: String = pages().into_iter().map(|(_, text)| text).collect();
    let named: BTreeSet<&str> =
        texts.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-').collect();
    let missing: Vec<String> = keys
        .into_iter()
        .filter(|(key, _)| !key.starts_with("model"))
        .flat_map(|(key, words)| {
            [vec![key.split('.').next_back().unwrap().to_owned()], words].concat()
        })
        .filter(|word| !named.contains(word.trim_matches('\'')))
        .collect();
    assert!(missing.is_empty(), "no page names {missing:?}");
}

#[test]
fn the_readme_is_short() {
    let bytes = fs::metadata(root().join("README.md")).unwrap().len();
    assert!(bytes <= MAX_README_BYTES as u64, "the README has {bytes} bytes: move a part to docs/");
}

/// The blocks of a page in a language.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let begin = format!("```{language}\n");
    text.split(&begin).skip(1).map(|block| block.split("```").next().unwrap()).collect()
}

/// The commands under a heading of the README run in a shell, in a folder that has the repository's pipelines; their output.
fn run_commands(folder: &Path, heading: &str) -> String {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let (_, section) = readme.split_once(&format!("\n## {heading}\n")).expect("the heading");
    let section = section.split("\n## ").next().unwrap();
    let [commands] = blocks(section, "sh")[..] else { panic!("{heading}: not one block") };
    let program = Path::new(env!("CARGO_BIN_EXE_labelmill")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-ec", commands]).current_dir(folder).env("PATH", path).env("NO_COLOR", "1");
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{commands}\n{}", stderr(&output));
    stderr(&output)
}

#[test]
fn the_first_labels_of_the_readme_print_what_it_explains() {
    let folder = temporary_folder();
    symlink(root().join("pipelines"), folder.path().join("pipelines")).unwrap();
    let printed = run_commands(folder.path(), "First labels");
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    for line in printed.lines().filter(|line| !line.starts_with("tables")) {
        assert!(readme.contains(&format!("| `{line}` |")), "the README does not explain `{line}`");
    }
    assert_eq!(printed.lines().count(), 8, "{printed}");
    run_commands(folder.path(), "Who is bad, and what to look at again");
}

/// A block that shows some keys alone gets the sources that they need.
#[test]
fn the_pipelines_of_the_pages_are_valid() {
    let mut n = 0;
    for (path, text) in pages() {
        for block in blocks(&text, "toml") {
            let table: toml::Table = block.parse().unwrap();
            let source = table.get("source").and_then(toml::Value::as_table);
            let lacks = |key: &&str| source.is_none_or(|source| !source.contains_key(*key));
            let missing = ["annotations", "features", "gold"].into_iter().filter(lacks);
            let set = missing.map(|key| format!("source.{key}='{key}.csv'")).collect();
            let has_date = block.contains("${ds}");
            let var = has_date.then(|| "ds=2026-01-02".to_owned()).into_iter().collect();
            let overrides = Overrides { set, var, ..Overrides::default() };
            let location = path.display().to_string();
            if let Err(error) = load(block, &location, &overrides) {
                panic!("{error}\n{block}");
            }
            n += 1;
        }
    }
    assert!(n >= 10, "{n}");
}

#[test]
fn links_lead_somewhere_and_the_readme_to_every_page() {
    let mut linked = Vec::new();
    for (path, text) in pages() {
        for link in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = path.parent().unwrap().join(file).canonicalize();
            let target = target.unwrap_or_else(|e| panic!("{}: {link}: {e}", path.display()));
            let text = fs::read_to_string(&target).unwrap().to_lowercase().replace(' ', "-");
            assert!(
                heading.is_empty() || text.contains(&format!("#-{heading}\n")),
                "{}: {link}",
                path.display()
            );
            if path.ends_with("README.md") {
                linked.push(target);
            }
        }
    }
    for (path, _) in pages() {
        let is_linked = linked.contains(&path.canonicalize().unwrap());
        assert!(is_linked || path.ends_with("README.md"), "no link to {}", path.display());
    }
}
