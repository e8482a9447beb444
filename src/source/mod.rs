//! The first stage: every source becomes a DataFusion table under its name, and every relation a query over them.
//!
//! This stage reads file lists and schemas only; text files have no schema, and are read to infer one. A relation is
//! the default selection with the user's column names mapped, or the user's own SQL from `[source.sql]`; either way
//! its columns have the contract's names.

mod cleaning;
mod decimal;
mod features;
pub mod files;
pub mod listing;
mod plain_integer;
mod relation;
mod rows;
mod spec;
pub mod text;
pub mod typed;

use datafusion::prelude::{DataFrame, SessionContext};

use crate::error::{Error, Result, Stage};
use crate::job_context::JobContext;
use crate::store::{StoreSpec, secret_problem};
pub use cleaning::{Cleaning, Normalisation};
pub(crate) use cleaning::{LONGEST_MISSING_WORD, is_missing_word};
pub use decimal::{Decimal, as_plain_integer};
use files::Files;
pub use listing::published::{PublishedTables, TableSearch};
use listing::{pinned, unread};
pub use plain_integer::is_plain_integer;
use relation::Query;
pub use relation::by_column::GROUP_SEPARATOR;
pub use relation::contract::{Origin, Relation, contract_columns};
pub use relation::select;
pub use spec::{
    ColumnsSpec, InlineRows, Location, OnMissing, Scalar, SourceSpec, SqlSpec, name_problems,
    sink_problem,
};
pub use text::InferenceScope;
pub use typed::batch_rows::{BATCHES_IN_FLIGHT, batches_at_once};
pub(crate) use typed::views::value_type;

/// The registered sources of one run.
pub struct Source {
    spec: SourceSpec,
    /// The files found at each URL, by table name: for digests, estimates and progress.
    pub files: Vec<(String, Files)>,
    /// The queries of `[source.sql]`, whether inline or in a file.
    pub queries: Vec<Query>,
}

impl Source {
    /// Lists the files of every source and reads the queries; opens no file with rows. Where there is no file, `runs` may
    /// find a table of a published run. `run` is warned of files that are left out.
    ///
    /// # Errors
    /// When a file is missing, empty, or of an unknown format, or a folder holds files that would not be read.
    pub async fn list(
        spec: &SourceSpec,
        stores: &StoreSpec,
        runs: &dyn PublishedTables,
        job: &mut JobContext,
    ) -> Result<Self> {
        let (source, errors) = Self::list_each(spec, stores, runs, job).await;
        Error::all(errors).map(|()| source)
    }

    /// As [`Source::list`], with an error for each source that is missing in the result. A store that cannot be reached
    /// ends the listing, because each further source of that store would take all its retries.
    pub async fn list_each(
        spec: &SourceSpec,
        stores: &StoreSpec,
        runs: &dyn PublishedTables,
        job: &mut JobContext,
    ) -> (Self, Vec<Error>) {
        let (queries, mut errors) = Query::all(&spec.sql);
        let mut files = Vec::new();
        for (name, location) in spec.all() {
            let Location::Url(url) = location else { continue };
            // Checked first, before the `?` of a URL's query is read as a pattern.
            if let Some(problem) = secret_problem(url) {
                errors.push(Error::spec_problems(vec![problem.at(spec.key(name))]));
                continue;
            }
            job.warn_about(Some(spec.key(name)));
            let found = Files::list(url, spec.format, stores, runs, job).await;
            job.warn_about(None);
            match found {
                Ok(found) => files.push((name.to_owned(), found)),
                Err(e) => errors.push(e.or_at(&key_and_url(spec, name, url))),
            }
            if errors.last().is_some_and(|e| e.stage == Stage::Store) {
                break;
            }
        }
        (Self { spec: spec.clone(), files, queries }, errors)
    }

    /// Registers every source as a table. The types of NDJSON and CSV files, which have no schema, are inferred from
    /// the rows that `look` names.
    ///
    /// # Errors
    /// When a file does not have the format that its name implies, or the files of one table have incompatible columns.
    pub async fn open(&self, ctx: &SessionContext, look: InferenceScope) -> Result<()> {
        for (name, files) in &self.files {
            self.open_files(ctx, name, files, look).await?;
        }
        for (name, location) in self.spec.all() {
            self.open_rows(ctx, name, location)?;
        }
        Ok(())
    }

    /// As [`Source::open`], with an error for each source that is not registered.
    pub async fn open_each(&self, ctx: &SessionContext, look: InferenceScope) -> Vec<Error> {
        let mut errors = Vec::new();
        for (name, files) in &self.files {
            if let Err(e) = self.open_files(ctx, name, files, look).await {
                ctx.deregister_table(name.as_str()).ok();
                let ends = e.stage == Stage::Store;
                errors.push(e);
                // Each further source of that store would take all its retries.
                if ends {
                    break;
                }
            }
        }
        let rows = self.spec.all().into_iter();
        errors.extend(rows.filter_map(|(name, rows)| self.open_rows(ctx, name, rows).err()));
        errors
    }

    async fn open_files(
        &self,
        ctx: &SessionContext,
        name: &str,
        files: &Files,
        look: InferenceScope,
    ) -> Result<()> {
        let mut columns = self.spec.known_columns(name);
        let relation = Relation::of_table(name);
        let contract: Vec<String> = relation
            .into_iter()
            .flat_map(contract_columns)
            .map(|c| self.spec.columns.mapped(c.name).unwrap_or(c.name).to_owned())
            .collect();
        if self.sql(name).is_none() {
            columns.of_contract.clone_from(&contract);
        }
        let opened = files::register(ctx, name, files, &columns, look).await;
        opened.map_err(|e| within(e, &self.location_of(name)))?;
        if relation.is_none() {
            return Ok(());
        }
        let schema = ctx.table_provider(name).await?.schema();
        let lacks = contract.iter().filter(|name| schema.index_of(name).is_err());
        let lacks = lacks.map(String::as_str);
        let has_query = self.sql(name).is_some();
        unread::refuse_columns_of_folders(&files.location, &files.objects, lacks, has_query)
            .map_err(|e| e.or_at(&self.spec.key(name)))
    }

    /// Registers rows that stand in the spec itself.
    fn open_rows(&self, ctx: &SessionContext, name: &str, location: &Location) -> Result<()> {
        let Location::Rows(rows) = location else { return Ok(()) };
        let key = self.spec.key(name);
        let batch = match (Relation::of_table(name), name) {
            (Some(relation), _) => rows.to_batch(relation, &key)?,
            (None, "features") => rows.to_features("instance_id", &key)?,
            (None, "annotator_features") => rows.to_features("annotator_id", &key)?,
            _ => {
                return Err(Error::spec(
                    "rows can stand only for a relation, and not for a table of source.tables",
                )
                .at(key.as_str()));
            }
        };
        ctx.register_batch(name, batch)?;
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
        runs: &dyn PublishedTables,
        job: &mut JobContext,
    ) -> Result<Self> {
        let source = Self::list(spec, stores, runs, job).await?;
        source.open(ctx, InferenceScope::Whole).await?;
        Ok(source)
    }

    /// Checks, after the relations were read, that no file was written again meanwhile where nothing else notices it.
    ///
    /// # Errors
    /// The first file that changed.
    pub async fn check_unchanged(&self) -> Result<()> {
        for (name, files) in &self.files {
            let checked = pinned::check_unchanged(files).await;
            checked.map_err(|e| within(e.into(), &self.location_of(name)))?;
        }
        Ok(())
    }

    /// The location of an error about a table of files.
    fn location_of(&self, table: &str) -> String {
        let url = self.spec.all().into_iter().find_map(|(name, location)| match location {
            Location::Url(url) if name == table => Some(url.as_str()),
            _ => None,
        });
        key_and_url(&self.spec, table, url.unwrap_or_default())
    }

    /// The user's query of a relation, where there is one.
    #[must_use]
    pub fn sql(&self, relation: &str) -> Option<&Query> {
        self.queries.iter().find(|query| query.relation == relation)
    }

    /// Moves an error about a relation to the query that provides it, where that is the user's own.
    #[must_use]
    pub fn at_query(&self, error: Error) -> Error {
        self.queries.iter().fold(error, |error, Query { relation, .. }| {
            error.moved(&format!("source.{relation}"), &format!("source.sql.{relation}"))
        })
    }

    /// The annotations relation: `instance_id`, `annotator_id`, `label`, and the optional columns that exist.
    ///
    /// # Errors
    /// When a column is missing (the nearest name is suggested) or the user's SQL does not plan.
    pub async fn annotations(&self, ctx: &SessionContext) -> Result<DataFrame> {
        let sql = self.sql("annotations");
        let found = relation::query(ctx, Relation::Annotations, sql, &self.spec.columns).await?;
        self.spec.cleaning().apply(found)
    }

    /// The gold relation, where there is one: `instance_id`, `class` and perhaps `role`, `question`.
    ///
    /// # Errors
    /// As [`Source::annotations`].
    pub async fn gold(&self, ctx: &SessionContext) -> Result<Option<DataFrame>> {
        self.relation(ctx, Relation::Gold).await
    }

    /// A relation beside the annotations, where it is given, with the columns of its contract.
    ///
    /// # Errors
    /// As [`Source::annotations`].
    pub async fn relation(
        &self,
        ctx: &SessionContext,
        relation: Relation,
    ) -> Result<Option<DataFrame>> {
        if !relation.is_in(&self.spec) {
            return Ok(None);
        }
        let sql = self.sql(relation.table());
        let found = relation::query(ctx, relation, sql, &self.spec.columns).await?;
        self.spec.cleaning().apply(found).map(Some)
    }

    /// The features relation, where there is one: `instance_id`, then a column of lists or columns of numbers. `run` is
    /// warned of columns that are not features because of their names.
    ///
    /// # Errors
    /// As [`Source::annotations`]; and when no column holds numbers.
    pub async fn features(
        &self,
        ctx: &SessionContext,
        job: &mut JobContext,
    ) -> Result<Option<DataFrame>> {
        self.features_for(ctx, &[], job).await
    }

    /// As [`Source::features`], for a model that has `learned` from columns of these names: where all of them are there,
    /// and no column of lists is named in the spec, they alone are read, in this order.
    ///
    /// # Errors
    /// As [`Source::features`].
    pub async fn features_for(
        &self,
        ctx: &SessionContext,
        learned: &[String],
        job: &mut JobContext,
    ) -> Result<Option<DataFrame>> {
        let sql = self.sql("features");
        if !self.spec.has_features() {
            return Ok(None);
        }
        let id = ("instance_id", self.spec.columns.instance.as_deref());
        let origin = self.origin_of_features(sql.is_some());
        let columns = (&self.spec.columns, learned);
        let found = features::query(ctx, ("features", origin), sql, id, columns, job).await?;
        self.spec.cleaning().apply(found).map(Some)
    }

    /// The origin of features: the user's names may be those of annotations or of another table, where there is one.
    fn origin_of_features(&self, is_query: bool) -> Origin {
        let has_others = self.spec.has_annotations() || !self.spec.tables.is_empty();
        match (is_query, has_others) {
            (true, _) => Origin::Query,
            (false, true) => Origin::Table,
            (false, false) => Origin::OnlyTable,
        }
    }

    /// The relation of annotators' features, where there is one: `annotator_id`, then columns as in
    /// [`Source::features`].
    ///
    /// # Errors
    /// As [`Source::features`].
    pub async fn annotator_features(
        &self,
        ctx: &SessionContext,
        job: &mut JobContext,
    ) -> Result<Option<DataFrame>> {
        let (url, sql) = (&self.spec.annotator_features, self.sql("annotator_features"));
        if url.is_none() && sql.is_none() {
            return Ok(None);
        }
        let id = ("annotator_id", self.spec.columns.annotator.as_deref());
        let origin = self.origin_of_features(sql.is_some());
        let columns = (&self.spec.columns, &[][..]);
        let table = ("annotator_features", origin);
        let found = features::query(ctx, table, sql, id, columns, job).await?;
        self.spec.cleaning().apply(found).map(Some)
    }
}

/// The key that declares a table, and its URL: the location of an error.
fn key_and_url(spec: &SourceSpec, table: &str, url: &str) -> String {
    format!("{}: {url}", spec.key(table))
}

/// Adds the source's key and URL to the location of each problem.
fn within(mut error: Error, location: &str) -> Error {
    for problem in &mut error.problems {
        problem.location = Some(match problem.location.take() {
            Some(file) => format!("{location}, in {file}"),
            None => location.to_owned(),
        });
    }
    error
}
