//! The `[source]` section of a pipeline file.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cleaning::{Cleaning, Normalisation};
use super::files::Format;
use super::listing::nested::could_match_below;
use super::relation::known_columns::KnownColumns;
use crate::error::Problem;
use crate::spec::Problems;
use crate::store::secret_problem;

/// The locations of the input and the names of its columns.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SourceSpec {
    /// The annotations: a file, a folder or a glob on local disk or an object store, or rows written here.
    pub annotations: Option<Location>,
    /// Trusted classes of some instances.
    pub gold: Option<Location>,
    /// Features of instances, for models that learn a classifier: a column of lists of numbers, or many columns of
    /// numbers. Instances without annotations are predicted.
    pub features: Option<Location>,
    /// Features of annotators, for models that use them.
    pub annotator_features: Option<Location>,
    /// P(class) of instances, from a classifier that did not learn from them, for models that use it.
    pub predictions: Option<Location>,
    /// The annotators' confusion matrices, P(label given class): `known_confusion` reads classes through them, and EM models of
    /// labels alone start at the posteriors that follow from them. A run's table `confusion_matrices` is one.
    pub confusion: Option<Location>,
    /// Pairs of an instance and an annotator, `instance_id` and `annotator_id`, whose competence is asked for although the
    /// annotator need not have labelled the instance: for the table `pair_competence`.
    pub pairs: Option<Location>,
    /// Any other tables that the SQL below wants to join, by name.
    pub tables: BTreeMap<String, Location>,
    /// What a job does where an input is missing or empty: it ends with exit code 8, or there is nothing to do.
    pub on_missing: OnMissing,
    /// The format, where the file names do not show it.
    pub format: Option<Format>,
    /// The columns' names in the files.
    pub columns: ColumnsSpec,
    /// Words that stand for a missing value in ids, labels, classes, questions and weights, such as "NA" or "-1" (of
    /// columns of numbers, the equal number). Rows with one are rejected as those with a null. Not in features: no model
    /// can read a row of features with a null, and a query in `source.sql.features` must say what stands in its place.
    pub null_values: Vec<String>,
    /// Steps that make spellings alike in all ids, labels, classes and questions that are text, those of gold, features and
    /// `frame.classes` too.
    pub normalise: Vec<Normalisation>,
    /// Queries that replace the default selection of a relation.
    pub sql: SqlSpec,
}

/// What a job does where an input is missing or empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnMissing {
    /// The job fails with exit code 8.
    #[default]
    Error,
    /// The job has nothing to do: it publishes nothing and ends with exit code 0.
    Skip,
}

/// A URL or a local path, or rows written in the file itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Location {
    /// A file, a folder (ends with `/`) or a glob.
    Url(String),
    /// Rows in the order of the relation's columns.
    Rows(InlineRows),
}

/// Rows of a relation, each with its values in the contract's order; columns at the end may be left out of all rows
/// alike.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct InlineRows(pub Vec<Vec<Scalar>>);

/// One value in a pipeline file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Scalar {
    /// true or false
    Bool(bool),
    /// a whole number
    Int(i64),
    /// a number
    Float(f64),
    /// text
    Text(String),
}

impl std::fmt::Display for Scalar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bool(v) => write!(f, "{v}"),
            Self::Int(v) => write!(f, "{v}"),
            Self::Float(v) => write!(f, "{v}"),
            Self::Text(v) => f.write_str(v),
        }
    }
}

/// The names of the contract's columns in your tables; by default the contract's own names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ColumnsSpec {
    /// The column that holds `instance_id`.
    pub instance: Option<String>,
    /// The column that holds `annotator_id`.
    pub annotator: Option<String>,
    /// The column that holds `label`.
    pub label: Option<String>,
    /// The column that holds `weight`.
    pub weight: Option<String>,
    /// The column that holds `annotated_at`.
    pub annotated_at: Option<String>,
    /// The column that holds `question`.
    pub question: Option<String>,
    /// The column that holds `class` (of gold, predictions and confusion matrices).
    pub class: Option<String>,
    /// The column that holds `role` (of gold).
    pub role: Option<String>,
    /// The column that holds `probability` (of predictions and confusion matrices).
    pub probability: Option<String>,
    /// The column that holds `features` as lists; annotators' features need not have it. Without one, every column of
    /// numbers is a feature.
    pub features: Option<String>,
}

/// SQL instead of the default selection: the query itself, or the path of a `.sql` file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SqlSpec {
    /// The query of the annotations relation.
    pub annotations: Option<String>,
    /// The query of the gold relation.
    pub gold: Option<String>,
    /// The query of the features relation.
    pub features: Option<String>,
    /// The query of the relation of annotators' features.
    pub annotator_features: Option<String>,
    /// The query of the relation of predictions.
    pub predictions: Option<String>,
    /// The query of the relation of confusion matrices.
    pub confusion: Option<String>,
    /// The query of the relation of pairs.
    pub pairs: Option<String>,
}

impl ColumnsSpec {
    /// Every name that a column of ids, labels or questions may have.
    pub(super) fn ids(&self) -> Vec<&str> {
        let mapped = [&self.instance, &self.annotator, &self.label, &self.class, &self.question];
        let own = ["instance_id", "annotator_id", "label", "class", "question"];
        own.into_iter().chain(mapped.into_iter().flatten().map(String::as_str)).collect()
    }

    /// The user's name for a column of the contract, where one is given.
    pub(super) fn mapped(&self, contract: &str) -> Option<&str> {
        let key = contract.trim_end_matches("_id");
        self.keys().into_iter().find(|(own, _)| *own == key).and_then(|(_, name)| name)
    }

    /// Whether a column has a name of the contract, or one that is mapped to it.
    pub(super) fn has(&self, column: &str) -> bool {
        self.keys().iter().any(|(key, name)| *key == column || *name == Some(column))
    }

    /// The keys of this section, each with the user's name where one is given.
    pub(super) fn keys(&self) -> [(&'static str, Option<&str>); 10] {
        [
            ("instance", &self.instance),
            ("annotator", &self.annotator),
            ("label", &self.label),
            ("weight", &self.weight),
            ("annotated_at", &self.annotated_at),
            ("question", &self.question),
            ("class", &self.class),
            ("role", &self.role),
            ("probability", &self.probability),
            ("features", &self.features),
        ]
        .map(|(key, name)| (key, name.as_deref()))
    }

    /// Both names of a column: the contract's, and the user's where one is given.
    fn names(own: &str, mapped: Option<&String>) -> Vec<String> {
        std::iter::once(own.to_owned()).chain(mapped.cloned()).collect()
    }
}

impl SourceSpec {
    /// Adds every problem of this section to `problems`.
    pub fn check(&self, location: &str, problems: &mut Problems) {
        if self.annotations.is_none() && self.sql.annotations.is_none() {
            problems.push(
                Problem::new("there are no annotations to read")
                    .at(format!("{location}: source.annotations"))
                    .help("set source.annotations to a file, a folder or a glob"),
            );
        }
        let [instance, annotator, label] = ["instance_id", "annotator_id", "label"]
            .map(|own| self.columns.mapped(own).unwrap_or(own));
        for (one, other, key) in [
            (instance, annotator, "annotator"),
            (instance, label, "label"),
            (annotator, label, "label"),
        ] {
            if one == other {
                problems.push(
                    Problem::new(format!("the column `{one}` is mapped twice"))
                        .at(format!("{location}: source.columns.{key}"))
                        .help("instances, annotators and labels are three columns; a query in source.sql.annotations can copy one"),
                );
            }
        }
        for (name, table) in self.all() {
            let Location::Url(url) = table else { continue };
            let problem =
                secret_problem(url).map(|p| p.at(format!("{location}: {}", self.key(name))));
            problem.into_iter().for_each(|p| problems.push(p));
        }
        let named = self.named();
        let is_taken = |name: &str| named.iter().any(|(own, _)| *own == name);
        for (name, problem) in name_problems(self.tables.keys().map(String::as_str), is_taken) {
            problems.push(problem.at(format!("{location}: source.tables.{name}")));
        }
    }

    /// Adds a problem for each source that would read the sink's own files.
    pub fn check_sink(&self, sink: &str, location: &str, problems: &mut Problems) {
        for (name, table) in self.all() {
            let Location::Url(url) = table else { continue };
            let problem = sink_problem(&self.key(name), url, sink);
            problem.into_iter().for_each(|p| problems.push(p.at(format!("{location}: sink.url"))));
        }
    }

    /// The rules for text values.
    #[must_use]
    pub fn cleaning(&self) -> Cleaning {
        Cleaning { null_values: self.null_values.clone(), normalise: self.normalise.clone() }
    }

    /// Whether features of instances are given.
    #[must_use]
    pub fn has_features(&self) -> bool {
        self.features.is_some() || self.sql.features.is_some()
    }

    /// Whether annotations are given.
    #[must_use]
    pub(crate) fn has_annotations(&self) -> bool {
        self.annotations.is_some() || self.sql.annotations.is_some()
    }

    /// Whether gold is given.
    #[must_use]
    pub fn has_gold(&self) -> bool {
        self.gold.is_some() || self.sql.gold.is_some()
    }

    /// Every table with its name.
    pub(super) fn all(&self) -> Vec<(&str, &Location)> {
        let extra = self.tables.iter().map(|(name, location)| (name.as_str(), location));
        self.named().into_iter().chain(extra).collect()
    }

    /// The key of the pipeline file that declares a table.
    pub(super) fn key(&self, table: &str) -> String {
        let tables = if self.tables.contains_key(table) { "tables." } else { "" };
        format!("source.{tables}{table}")
    }

    /// The columns of a table that are known before its files are opened.
    pub(super) fn known_columns(&self, table: &str) -> KnownColumns {
        let names = ColumnsSpec::names;
        let columns = &self.columns;
        let ids = columns.ids().into_iter().map(str::to_owned).collect();
        let has_sql = [
            &self.sql.annotations,
            &self.sql.gold,
            &self.sql.features,
            &self.sql.annotator_features,
            &self.sql.predictions,
            &self.sql.confusion,
            &self.sql.pairs,
        ];
        let has_sql = has_sql.into_iter().any(Option::is_some);
        match table {
            "annotations" => KnownColumns {
                ids,
                numbers: names("weight", columns.weight.as_ref()),
                null_values: self.null_values.clone(),
                times: names("annotated_at", columns.annotated_at.as_ref()),
                only_these: !has_sql,
                ..KnownColumns::default()
            },
            "gold" => KnownColumns {
                ids,
                roles: names("role", columns.role.as_ref()),
                only_these: !has_sql,
                ..KnownColumns::default()
            },
            "predictions" | "confusion" => KnownColumns {
                ids,
                numbers: names("probability", columns.probability.as_ref()),
                only_these: !has_sql,
                ..KnownColumns::default()
            },
            "pairs" => KnownColumns { ids, only_these: !has_sql, ..KnownColumns::default() },
            "features" | "annotator_features" => {
                KnownColumns { ids, are_features: true, ..KnownColumns::default() }
            }
            _ => KnownColumns { ids, ..KnownColumns::default() },
        }
    }

    fn named(&self) -> Vec<(&str, &Location)> {
        let fixed = [
            ("annotations", &self.annotations),
            ("gold", &self.gold),
            ("features", &self.features),
            ("annotator_features", &self.annotator_features),
            ("predictions", &self.predictions),
            ("confusion", &self.confusion),
            ("pairs", &self.pairs),
        ];
        fixed.into_iter().filter_map(|(name, l)| Some((name, l.as_ref()?))).collect()
    }
}

/// The tables whose names cannot be registered, each with its problem: a dot, or a name that is taken, by a table before
/// it or where `is_taken` holds for it in lower case.
pub fn name_problems<'a>(
    names: impl IntoIterator<Item = &'a str>,
    is_taken: impl Fn(&str) -> bool,
) -> Vec<(&'a str, Problem)> {
    let mut before = BTreeSet::new();
    let problem = |name: &'a str| {
        // SQL folds a table's name to lower case, and a dot separates the schema's name from it.
        let known = name.to_lowercase();
        let (what, help) = if name.is_empty() {
            ("a table has an empty name".to_owned(), "choose a name with a letter")
        } else if name.contains('.') {
            (format!("the table name `{name}` holds a dot"), "choose a name without one")
        } else if is_taken(&known) || !before.insert(known) {
            (
                format!("the table name `{name}` is taken"),
                "choose another name; upper case does not count",
            )
        } else {
            return None;
        };
        Some((name, Problem::new(what).help(help)))
    };
    names.into_iter().filter_map(problem).collect()
}

/// The problem of a sink whose files the source at `url` would read; `None` where it would not. `source` is the key or
/// option that gives `url`.
#[must_use]
pub fn sink_problem(source: &str, url: &str, sink: &str) -> Option<Problem> {
    could_match_below(url, sink).then(|| {
        Problem::new("the sink is inside a folder that is read")
            .found(format!("`{sink}` in {source}, `{url}`"))
            .help(
                "name a folder beside the source's: the next run would read the tables of this one",
            )
    })
}
