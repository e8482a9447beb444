//! The first stage: every source becomes a DataFusion table under its name, and every relation a query over them.
//!
//! Nothing is read here but file lists and schemas. A relation is the default selection with the user's column names
//! mapped, or the user's own SQL from `[source.sql]`; either way it arrives with the names of the contract.

mod arrow;
mod batch_rows;
mod features;
pub mod files;
mod format;
mod header;
mod listing;
mod pinned;
mod published;
mod relation;
mod rows;
mod synonyms;
pub mod text;
mod typed;
mod unread;
pub mod views;

use std::collections::BTreeMap;

use datafusion::prelude::{DataFrame, SessionContext};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Problem, Result};
use crate::spec::Problems;
use crate::store::{StoreSpec, secret_problem};
use files::{Files, Format};
use relation::Query;
pub use relation::{Relation, contract_columns, select};
pub use rows::{InlineRows, Scalar};
pub use text::InferenceScope;
use text::TextColumns;

/// Where the input is and what its columns are called.
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
    /// Any other tables that the SQL below wants to join, by name.
    pub tables: BTreeMap<String, Location>,
    /// The format, where the file names do not tell.
    pub format: Option<Format>,
    /// The columns' names in the files.
    pub columns: ColumnsSpec,
    /// Queries that replace the default selection of a relation.
    pub sql: SqlSpec,
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

/// The name that each column of the contract has in the user's tables; left out, its own.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ColumnsSpec {
    /// Stands for `instance_id`.
    pub instance: Option<String>,
    /// Stands for `annotator_id`.
    pub annotator: Option<String>,
    /// Stands for `label`.
    pub label: Option<String>,
    /// Stands for `weight`.
    pub weight: Option<String>,
    /// Stands for `annotated_at`.
    pub annotated_at: Option<String>,
    /// Stands for `question`.
    pub question: Option<String>,
    /// Stands for `class` (of gold).
    pub class: Option<String>,
    /// Stands for `role` (of gold).
    pub role: Option<String>,
    /// Stands for `features`: the column of lists. Without one, every column of numbers is a feature.
    pub features: Option<String>,
}

/// SQL instead of the default selection: the query itself, or the path of a `.sql` file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SqlSpec {
    /// Gives the annotations relation.
    pub annotations: Option<String>,
    /// Gives the gold relation.
    pub gold: Option<String>,
    /// Gives the features relation.
    pub features: Option<String>,
    /// Gives the relation of annotators' features.
    pub annotator_features: Option<String>,
}

impl ColumnsSpec {
    /// Every name that a column of ids, labels or questions may have.
    fn ids(&self) -> Vec<String> {
        let mapped = [&self.instance, &self.annotator, &self.label, &self.class, &self.question];
        let own = ["instance_id", "annotator_id", "label", "class", "question"];
        let mapped = mapped.into_iter().flatten().cloned();
        own.into_iter().map(str::to_owned).chain(mapped).collect()
    }

    /// What a column of the contract is called in the files, where the user says so.
    fn mapped(&self, contract: &str) -> Option<&str> {
        let mapped = match contract {
            "instance_id" => &self.instance,
            "annotator_id" => &self.annotator,
            "label" => &self.label,
            "weight" => &self.weight,
            "annotated_at" => &self.annotated_at,
            "question" => &self.question,
            "class" => &self.class,
            "role" => &self.role,
            _ => &None,
        };
        mapped.as_deref()
    }

    /// A column of the contract by its own name and by the user's.
    fn names(own: &str, mapped: Option<&String>) -> Vec<String> {
        std::iter::once(own.to_owned()).chain(mapped.cloned()).collect()
    }
}

impl SourceSpec {
    /// Adds what is wrong to `problems`.
    pub fn check(&self, place: &str, problems: &mut Problems) {
        if self.annotations.is_none() && self.sql.annotations.is_none() {
            problems.push(
                Problem::new("there are no annotations to read")
                    .at(format!("{place}: source.annotations"))
                    .help("set source.annotations to a file, a folder or a glob"),
            );
        }
        for (name, location) in self.all() {
            let Location::Url(url) = location else { continue };
            let problem = secret_problem(url).map(|p| p.at(format!("{place}: {}", self.key(name))));
            problem.into_iter().for_each(|p| problems.push(p));
        }
        for name in self.tables.keys() {
            if self.named().iter().any(|(known, _)| known == name) {
                problems.push(
                    Problem::new(format!("the table name `{name}` is taken"))
                        .at(format!("{place}: source.tables.{name}"))
                        .help(format!("set source.{name}, or choose another name")),
                );
            }
        }
    }

    /// Adds a problem for each source folder that the sink's own files would be read from.
    pub fn check_sink(&self, sink: &str, place: &str, problems: &mut Problems) {
        for (name, location) in self.all() {
            let Location::Url(url) = location else { continue };
            let problem = sink_problem(&format!("source.{name}"), url, sink);
            problem.into_iter().for_each(|p| problems.push(p.at(format!("{place}: sink.url"))));
        }
    }

    /// Whether features of instances are given.
    #[must_use]
    pub fn has_features(&self) -> bool {
        self.features.is_some() || self.sql.features.is_some()
    }

    /// Whether gold is given.
    #[must_use]
    pub fn has_gold(&self) -> bool {
        self.gold.is_some() || self.sql.gold.is_some()
    }

    /// Every table with its name.
    fn all(&self) -> Vec<(&str, &Location)> {
        let extra = self.tables.iter().map(|(name, location)| (name.as_str(), location));
        self.named().into_iter().chain(extra).collect()
    }

    /// The key that names a table.
    fn key(&self, table: &str) -> String {
        let tables = if self.tables.contains_key(table) { "tables." } else { "" };
        format!("source.{tables}{table}")
    }

    /// What is known of a table's columns where its files carry no types.
    fn text_columns(&self, table: &str) -> TextColumns {
        let names = ColumnsSpec::names;
        let columns = &self.columns;
        let ids = columns.ids();
        let has_sql = [
            &self.sql.annotations,
            &self.sql.gold,
            &self.sql.features,
            &self.sql.annotator_features,
        ];
        let has_sql = has_sql.into_iter().any(Option::is_some);
        match table {
            "annotations" => TextColumns {
                ids,
                numbers: names("weight", columns.weight.as_ref()),
                times: names("annotated_at", columns.annotated_at.as_ref()),
                only_these: !has_sql,
                are_features: false,
            },
            "gold" => TextColumns { ids, only_these: !has_sql, ..TextColumns::default() },
            "features" | "annotator_features" => {
                TextColumns { ids, are_features: true, ..TextColumns::default() }
            }
            _ => TextColumns { ids, ..TextColumns::default() },
        }
    }

    fn named(&self) -> Vec<(&str, &Location)> {
        let fixed = [
            ("annotations", &self.annotations),
            ("gold", &self.gold),
            ("features", &self.features),
            ("annotator_features", &self.annotator_features),
        ];
        fixed.into_iter().filter_map(|(name, l)| Some((name, l.as_ref()?))).collect()
    }
}

/// The registered sources of one run.
pub struct Source {
    spec: SourceSpec,
    /// What was found behind each URL, by table name: for digests, estimates and progress.
    pub files: Vec<(String, Files)>,
    /// The queries of `[source.sql]`, by relation: their text, wherever it was written.
    pub queries: Vec<Query>,
}

impl Source {
    /// Lists the files behind every source and reads the queries; opens no file of rows.
    ///
    /// # Errors
    /// When a file is missing, empty, or of an unknown format, or a folder holds what would not be read.
    pub async fn list(spec: &SourceSpec, stores: &StoreSpec) -> Result<Self> {
        let mut files = Vec::new();
        for (name, location) in spec.all() {
            let Location::Url(url) = location else { continue };
            // Refused before its `?` is read as a pattern.
            if let Some(problem) = secret_problem(url) {
                return Err(Error::spec_problems(vec![problem.at(format!("source.{name}"))]));
            }
            let found = Files::list(url, spec.format, stores).await;
            files.push((name.to_owned(), found.map_err(|e| e.or_at(&place(name, url)))?));
        }
        Ok(Self { spec: spec.clone(), files, queries: Query::all(&spec.sql)? })
    }

    /// Registers every source as a table. Of files without a schema, NDJSON and CSV, some rows are read, or all, as
    /// [`InferenceScope`] says.
    ///
    /// # Errors
    /// When a file is not readable as what its name says, or files of one table do not go together.
    pub async fn open(&self, ctx: &SessionContext, look: InferenceScope) -> Result<()> {
        for (name, files) in &self.files {
            let columns = self.spec.text_columns(name);
            let Files { place: folder, objects, format } = files;
            files::register(ctx, name, folder, objects, *format, &columns, look).await.map_err(
                |e| {
                    let url =
                        self.spec.all().into_iter().find_map(|(n, location)| match location {
                            Location::Url(url) if n == name => Some(url.as_str()),
                            _ => None,
                        });
                    within(e, &place(name, url.unwrap_or_default()))
                },
            )?;
            if let Some(relation) = Relation::of_table(name) {
                let schema = ctx.table_provider(name.as_str()).await?.schema();
                let wanted = contract_columns(relation)
                    .iter()
                    .map(|column| self.spec.columns.mapped(column.name).unwrap_or(column.name));
                let lacks = wanted.filter(|name| schema.index_of(name).is_err());
                unread::refuse_columns_of_folders(&folder.path, objects, lacks)
                    .map_err(|e| e.or_at(&format!("source.{name}")))?;
            }
        }
        for (name, location) in self.spec.all() {
            let Location::Rows(rows) = location else { continue };
            let relation = Relation::of_table(name).ok_or_else(|| {
                Error::spec("rows can stand only for annotations or gold")
                    .at(format!("source.{name}"))
            })?;
            let batch = rows.to_batch(relation).map_err(|e| e.or_at(&format!("source.{name}")))?;
            ctx.register_batch(name, batch)?;
        }
        Ok(())
    }

    /// Lists and opens every source.
    ///
    /// # Errors
    /// As [`Source::list`] and [`Source::open`].
    pub async fn register(
        ctx: &SessionContext,
        spec: &SourceSpec,
        stores: &StoreSpec,
    ) -> Result<Self> {
        let source = Self::list(spec, stores).await?;
        source.open(ctx, InferenceScope::Whole).await?;
        Ok(source)
    }

    fn sql(&self, relation: &str) -> Option<&Query> {
        self.queries.iter().find(|query| query.relation == relation)
    }

    /// The annotations relation: `instance_id`, `annotator_id`, `label` and whichever optional columns there are.
    ///
    /// # Errors
    /// When a column is missing (the nearest name is suggested) or the user's SQL does not plan.
    pub async fn annotations(&self, ctx: &SessionContext) -> Result<DataFrame> {
        relation::query(ctx, Relation::Annotations, self.sql("annotations"), &self.spec.columns)
            .await
    }

    /// The gold relation, where there is one: `instance_id`, `class` and perhaps `role`, `question`.
    ///
    /// # Errors
    /// As [`Source::annotations`].
    pub async fn gold(&self, ctx: &SessionContext) -> Result<Option<DataFrame>> {
        if !self.spec.has_gold() {
            return Ok(None);
        }
        relation::query(ctx, Relation::Gold, self.sql("gold"), &self.spec.columns).await.map(Some)
    }

    /// The features relation, where there is one: `instance_id`, then a column of lists or columns of numbers.
    ///
    /// # Errors
    /// As [`Source::annotations`]; and when no column holds numbers.
    pub async fn features(&self, ctx: &SessionContext) -> Result<Option<DataFrame>> {
        let sql = self.sql("features");
        if !self.spec.has_features() {
            return Ok(None);
        }
        let id = ("instance_id", self.spec.columns.instance.as_deref());
        features::query(ctx, "features", sql, id, &self.spec.columns).await.map(Some)
    }

    /// The relation of annotators' features, where there is one: `annotator_id`, then as [`Source::features`].
    ///
    /// # Errors
    /// As [`Source::features`].
    pub async fn annotator_features(&self, ctx: &SessionContext) -> Result<Option<DataFrame>> {
        let (url, sql) = (&self.spec.annotator_features, self.sql("annotator_features"));
        if url.is_none() && sql.is_none() {
            return Ok(None);
        }
        let id = ("annotator_id", self.spec.columns.annotator.as_deref());
        features::query(ctx, "annotator_features", sql, id, &self.spec.columns).await.map(Some)
    }
}

/// What is wrong with a sink whose files would be read from the source of that name.
#[must_use]
pub fn sink_problem(source: &str, url: &str, sink: &str) -> Option<Problem> {
    listing::holds(url, sink).then(|| {
        Problem::new("the sink is inside a folder that is read")
            .found(format!("`{sink}` in {source}, `{url}`"))
            .help(
                "name a folder beside the source's: the next run would read the tables of this one",
            )
    })
}

fn place(name: &str, url: &str) -> String {
    format!("source.{name}: {url}")
}

/// An error at a file gets the key that led to it as well.
fn within(mut error: Error, place: &str) -> Error {
    for problem in &mut error.problems {
        problem.place = Some(match problem.place.take() {
            Some(file) => format!("{place}, in {file}"),
            None => place.to_owned(),
        });
    }
    error
}
