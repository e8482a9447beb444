//! The error for a required column that a relation lacks: it proposes the line of a pipeline file that the user can paste.

use super::contract::{ContractColumn, Origin, Relation, contract_columns, name_in};
use super::sample::Sample;
use super::synonyms::{is_id_name, synonym};
use crate::error::{Error, nearest, offenders};
use crate::source::spec::ColumnsSpec;

/// The columns of a relation's table, and the names that the user gave.
#[derive(Clone, Copy)]
pub(super) struct FoundColumns<'a> {
    pub(super) relation: Relation,
    pub(super) origin: Origin,
    pub(super) columns: &'a ColumnsSpec,
    pub(super) names: &'a [String],
    /// What the first rows show.
    pub(super) sample: &'a Sample,
}

/// The name in the table for a column of the contract.
type NewName<'a> = (&'static str, &'a str);

impl<'a> FoundColumns<'a> {
    /// The error for a column of the contract that is missing.
    pub(super) fn missing(self, contract: &str) -> Error {
        let wanted = self.columns.mapped(contract).unwrap_or(contract);
        let no_columns = self.names.is_empty();
        Error::data(format!("the column `{wanted}` is missing"))
            .at(format!("source.{}", self.relation.table()))
            .found(if no_columns { "no columns".to_owned() } else { offenders(self.names) })
            .help(self.help(contract, wanted))
    }

    fn help(self, contract: &str, wanted: &str) -> String {
        if let [header] = self.names
            && let Some(other) = header.chars().find(|c| ",;|\t".contains(*c))
        {
            return match other {
                ',' => "do commas separate the columns? Then the file's name must end in .csv"
                    .to_owned(),
                other => format!(
                    "do `{}` separate the columns? Write the file with commas, or as .tsv with tabs",
                    other.escape_default()
                ),
            };
        }
        let key = contract.trim_end_matches("_id");
        let found: Vec<&str> = self.found().filter_map(|(_, name)| name).collect();
        let free = || self.names.iter().filter(|name| !found.contains(&name.as_str()));
        let nearest = nearest(wanted, free().map(String::as_str));
        // A name that the user gave is more likely mistyped than superfluous.
        let is_mistyped = self.columns.mapped(contract).is_some() && nearest.is_some();
        if let Some(line) = self.proposal().filter(|_| !is_mistyped) {
            return format!("write `{line}`");
        }
        if let Some(unsure) = self.candidates().filter(|_| !is_mistyped) {
            return unsure;
        }
        let nearest = nearest
            .or_else(|| synonym(contract, free(), self.sample).map(String::as_str))
            .or_else(|| free().map(String::as_str).find(|n| n.contains(key)));
        let set = |name: &str| {
            if self.is_shared(contract) {
                let table = self.relation.table();
                format!("give it this name in source.sql.{table}: `{} as {contract}`", quoted(name))
            } else if self.columns == &ColumnsSpec::default() {
                format!("set source.columns.{key} = {}", toml_text(name))
            } else {
                format!("write `{}`", self.mapping(&[(key, name)]))
            }
        };
        match nearest {
            Some(name) => format!("did you mean `{name}`? {}", set(name)),
            None => set("<its name in your file>"),
        }
    }

    /// For a table of which several columns, or its labels, have no known name: what is likely, and a choice for the
    /// rest; `None` where one nearest name is the better help.
    fn candidates(self) -> Option<String> {
        let missing: Vec<&str> = self
            .found()
            .filter(|(column, name)| column.required && name.is_none())
            .map(|(column, _)| column.name)
            .collect();
        if self.relation != Relation::Annotations || !self.sample.is_known {
            return None;
        }
        let mut taken: Vec<&str> = self.found().filter_map(|(_, name)| name).collect();
        let (mut likely, mut open) = (Vec::new(), Vec::new());
        for contract in missing {
            let free = self.names.iter().filter(|name| !taken.contains(&name.as_str()));
            let key = contract.trim_end_matches("_id");
            match synonym(contract, free, self.sample) {
                Some(name) => {
                    taken.push(name);
                    likely.push(format!("{key} = {}", toml_text(name)));
                }
                None => open.push(key),
            }
        }
        let is_free = |name: &&String| !taken.contains(&name.as_str());
        let free: Vec<&String> = self.names.iter().filter(is_free).collect();
        let is_label = |name: &&&String| {
            let is_item = synonym("instance_id", std::iter::once(**name), self.sample).is_some();
            self.sample.may_be_label(name) && !is_item && !is_id_name(name)
        };
        let labels: Vec<&&String> = free.iter().filter(|name| is_label(name)).collect();
        // An instance has several rows: of its candidates, those of which all values differ are none.
        let mut instances: Vec<&&String> =
            free.iter().filter(|name| self.sample.may_be_label(name)).collect();
        if instances.is_empty() {
            instances = free.iter().collect();
        }
        instances.sort_by_key(|name| !is_id_name(name));
        let mut parts = Vec::new();
        if !likely.is_empty() {
            parts.push(format!("likely are {}", likely.join(", ")));
        }
        for key in &open {
            let choice = match (*key, labels.is_empty()) {
                ("label", true) => "none looks like labels".to_owned(),
                ("label", false) => offenders(&labels),
                ("instance", _) => offenders(&instances),
                _ => offenders(&free),
            };
            parts.push(format!("source.columns.{key} is one of: {choice}"));
        }
        if open.contains(&"annotator") && labels.len() > 1 {
            parts.push(
                "where each annotator has a column of its own, the table is wide: write one row for each annotation, as \
                 pandas.melt does, or with union all in source.sql.annotations"
                    .to_owned(),
            );
        }
        (!open.is_empty() && !parts.is_empty()).then(|| parts.join("; "))
    }

    /// The line that lets every required column be found; `None` where one has no known synonym. It keeps what the user
    /// has set, and changes nothing that another relation reads.
    fn proposal(self) -> Option<String> {
        let reads = |(column, name): (&ContractColumn, Option<&'a str>)| {
            name.filter(|_| column.required || column.name != "question")
        };
        let taken: Vec<&str> = self.found().filter_map(|(_, name)| name).collect();
        if let Some(new) = self.new_names(&taken) {
            let is_shared = new.iter().any(|(contract, _)| self.is_shared(contract));
            if !is_shared {
                let key =
                    |(contract, name): &NewName<'a>| (contract.trim_end_matches("_id"), *name);
                return Some(self.mapping(&new.iter().map(key).collect::<Vec<_>>()));
            }
            return self.query(&new);
        }
        // A column `question` may name the instances: but under this name it is read as the question, too.
        let taken: Vec<&str> = self.found().filter_map(reads).collect();
        self.query(&self.new_names(&taken)?)
    }

    /// Whether the user's name for this column would be that of the annotations too.
    fn is_shared(self, contract: &str) -> bool {
        let of_annotations = ["instance_id", "annotator_id", "label"];
        self.relation != Relation::Annotations && of_annotations.contains(&contract)
    }

    /// The columns of the contract, each with its name in the table.
    fn found(self) -> impl Iterator<Item = (&'static ContractColumn, Option<&'a str>)> {
        let Self { relation, origin, columns, names, .. } = self;
        let all = contract_columns(relation).iter();
        all.map(move |column| (column, name_in((relation, origin), column, columns, names)))
    }

    /// Names for the required columns that are missing, none of which is among those `taken`; `None` if nothing is missing,
    /// or one has no known synonym.
    fn new_names(self, taken: &[&str]) -> Option<Vec<NewName<'a>>> {
        let mut new: Vec<NewName<'a>> = Vec::new();
        for (column, _) in self.found().filter(|(c, name)| c.required && name.is_none()) {
            let is_free = |name: &&String| {
                !taken.contains(&name.as_str()) && new.iter().all(|(_, other)| other != name)
            };
            new.push((
                column.name,
                synonym(column.name, self.names.iter().filter(is_free), self.sample)?,
            ));
        }
        (!new.is_empty()).then_some(new)
    }

    /// The whole line of the user's names, with these changed.
    fn mapping(self, new: &[(&str, &str)]) -> String {
        let pairs = self.columns.keys().into_iter().filter_map(|(key, name)| {
            let changed = new.iter().find(|(own, _)| *own == key).map(|(_, name)| *name);
            Some(format!("{key} = {}", toml_text(changed.or(name)?)))
        });
        format!("source.columns = {{ {} }}", pairs.collect::<Vec<_>>().join(", "))
    }

    /// The line with a query that gives the relation its columns.
    fn query(self, new: &[NewName<'a>]) -> Option<String> {
        if self.origin == Origin::Query {
            return None;
        }
        let name_of = |contract: &str| new.iter().find(|(own, _)| *own == contract).map(|n| n.1);
        let is_new = |name: &str| new.iter().any(|(_, other)| *other == name);
        let columns = self.found().filter_map(|(column, found)| {
            let name = name_of(column.name).or(found.filter(|name| !is_new(name)))?;
            // Of annotations, the columns of a query are mapped as those of the table are.
            let mapped = self.columns.mapped(column.name);
            let wanted = mapped.filter(|_| self.relation == Relation::Annotations);
            let wanted = wanted.unwrap_or(column.name);
            let is_plain = name == wanted;
            Some(if is_plain {
                quoted(name)
            } else {
                format!("{} as {}", quoted(name), quoted(wanted))
            })
        });
        let (columns, table) = (columns.collect::<Vec<_>>().join(", "), self.relation.table());
        let query = format!("select {columns} from {table}");
        Some(format!("source.sql.{table} = {}", toml_text(&query)))
    }
}

fn toml_text(text: &str) -> String {
    if text.contains(char::is_control) {
        // In one line, which has no line break of its own for the error's text to escape; JSON's escapes are TOML's.
        return serde_json::Value::from(text).to_string();
    }
    toml::Value::String(text.to_owned()).to_string()
}

/// The name of a column in SQL.
fn quoted(name: &str) -> String {
    let is_plain =
        name.strip_suffix("_id").is_some_and(|stem| stem.chars().all(|c| c.is_ascii_lowercase()));
    if is_plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn help(relation: Relation, columns: &ColumnsSpec, names: &[&str]) -> String {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let found = FoundColumns {
            relation,
            origin: Origin::Table,
            columns,
            names: &names,
            sample: &Sample::default(),
        };
        found.proposal().unwrap_or_default()
    }

    fn annotations(names: &[&str]) -> String {
        help(Relation::Annotations, &ColumnsSpec::default(), names)
    }

    #[test]
    fn the_files_of_other_tools_are_mapped_whole() {
        for (names, line) in [
            (&["task", "worker", "label"][..], r#"{ instance = "task", annotator = "worker" }"#),
            (
                &["item", "user", "answer"],
                r#"{ instance = "item", annotator = "user", label = "answer" }"#,
            ),
            (
                &["sample_id", "annotator", "label"],
                r#"{ instance = "sample_id", annotator = "annotator" }"#,
            ),
            (
                &["question_id", "worker_id", "answer"],
                r#"{ instance = "question_id", annotator = "worker_id", label = "answer" }"#,
            ),
            (&["i", "j", "y"], r#"{ instance = "i", annotator = "j", label = "y" }"#),
            (
                &["Task ID", "workerId", "Judgement", "time"],
                r#"{ instance = "Task ID", annotator = "workerId", label = "Judgement" }"#,
            ),
            (
                &["_unit_id", "_worker_id", "label"],
                r#"{ instance = "_unit_id", annotator = "_worker_id" }"#,
            ),
            (
                &["image_label", "image_id", "worker"],
                r#"{ instance = "image_id", annotator = "worker", label = "image_label" }"#,
            ),
            (
                &["HITId", "Input.text", "WorkerId", "Answer.label"],
                r#"{ instance = "HITId", annotator = "WorkerId", label = "Answer.label" }"#,
            ),
            (
                &["task_id", "worker_id", "label_id"],
                r#"{ instance = "task_id", annotator = "worker_id", label = "label_id" }"#,
            ),
            (
                &["INPUT:image", "OUTPUT:result", "ASSIGNMENT:worker_id"],
                r#"{ instance = "INPUT:image", annotator = "ASSIGNMENT:worker_id", label = "OUTPUT:result" }"#,
            ),
        ] {
            let proposed = annotations(names);
            assert_eq!(proposed, format!("source.columns = {line}"), "{names:?}");
            assert!(proposed.parse::<toml::Table>().is_ok(), "{proposed}");
        }
    }

    #[test]
    fn the_header_of_a_file_that_is_read_as_one_column_shows_what_separates_its_columns() {
        for (header, question) in [
            (
                "item,user,label",
                "do commas separate the columns? Then the file's name must end in .csv",
            ),
            (
                "item;user;label",
                "do `;` separate the columns? Write the file with commas, or as .tsv with tabs",
            ),
        ] {
            let (names, columns) = ([header.to_owned()], ColumnsSpec::default());
            let relation = Relation::Annotations;
            let found = FoundColumns {
                relation,
                origin: Origin::Table,
                columns: &columns,
                names: &names,
                sample: &Sample::default(),
            };
            let error = found.missing("instance_id").to_string();
            assert!(error.ends_with(&format!("help: {question}")), "{error}");
        }
    }

    #[test]
    fn nothing_is_proposed_where_a_column_is_not_known() {
        assert_eq!(annotations(&["task", "worker", "colour"]), "");
        assert_eq!(annotations(&["task", "label"]), "");
    }

    #[test]
    fn what_the_user_has_set_stays() {
        let set = ColumnsSpec {
            instance: Some("task".to_owned()),
            annotator: Some("worker".to_owned()),
            weight: Some("w".to_owned()),
            ..ColumnsSpec::default()
        };
        assert_eq!(
            help(Relation::Gold, &set, &["task", "true_label"]),
            r#"source.columns = { instance = "task", annotator = "worker", weight = "w", class = "true_label" }"#
        );
        assert_eq!(
            help(Relation::Annotations, &set, &["task", "user", "label", "w"]),
            r#"source.columns = { instance = "task", annotator = "user", weight = "w" }"#
        );
    }

    #[test]
    fn gold_with_another_id_gets_a_query_as_the_mapping_serves_the_annotations_too() {
        let set = ColumnsSpec { instance: Some("task".to_owned()), ..ColumnsSpec::default() };
        for set in [&set, &ColumnsSpec::default()] {
            assert_eq!(
                help(Relation::Gold, set, &["item", "truth", "role"]),
                r#"source.sql.gold = 'select "item" as instance_id, "truth" as "class", "role" from gold'"#
            );
        }
    }

    #[test]
    fn a_column_question_that_names_the_instances_is_not_also_the_question() {
        let line = |label: &str| {
            format!(
                "source.sql.annotations = 'select \"question\" as instance_id, \"worker\" as annotator_id, \
                 \"answer\" as \"{label}\", \"weight\" from annotations'"
            )
        };
        let names = ["question", "worker", "answer", "weight"];
        assert_eq!(annotations(&names), line("label"));
        // The mapping is also that of the query's columns.
        let set = ColumnsSpec { label: Some("answer".to_owned()), ..ColumnsSpec::default() };
        let plain = line("label").replace(" as \"label\"", "");
        assert_eq!(help(Relation::Annotations, &set, &names), plain);
    }
}
