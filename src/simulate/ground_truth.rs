//! The instances to annotate, with classes and features: read from files, or drawn where a recipe draws its own.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};

use datafusion::prelude::SessionContext;

use super::conal::GaussianBlobs;
use super::draw::Annotation;
use super::plan;
use super::resample::SourceCrowd;
use crate::engine::EngineSpec;
use crate::error::{Error, Result, offenders};
use crate::frame::{Features, Ids, Scratch, TrueCrowd, Truth, read_all, read_features};
use crate::job_context::JobContext;
use crate::pipeline::inputs;
use crate::sink::RunTables;
use crate::source::{
    Cleaning, ColumnsSpec, InferenceScope, Location, Origin, Relation, Source, SourceSpec, select,
};
use crate::store::StoreSpec;
use crate::tables::InputRecord;

/// The locations of the truth, the features and the annotations.
#[derive(Debug, Clone, Default)]
pub struct SimulationInput<'a> {
    /// Rows of `instance_id` and `class` (or `label`).
    pub truth: Option<&'a str>,
    /// Features of the instances.
    pub features: Option<&'a str>,
    /// Annotations of the instances.
    pub annotations: Option<&'a str>,
    /// The columns' names in the files.
    pub columns: ColumnsSpec,
    /// What is done with the text of ids, classes and labels.
    pub cleaning: Cleaning,
}

impl<'a> SimulationInput<'a> {
    /// The option and the URL of each table.
    pub(super) fn urls(&self) -> [(&'static str, Option<&'a str>); 3] {
        [
            ("--truth", self.truth),
            ("--features", self.features),
            ("--annotations", self.annotations),
        ]
    }
}

/// The files of the input, listed but not opened.
pub(super) struct Registered {
    ctx: SessionContext,
    source: Source,
    columns: ColumnsSpec,
    cleaning: Cleaning,
    engine: EngineSpec,
    /// The files of all sources, for the digest.
    pub(super) inputs: Vec<InputRecord>,
}

/// The instances with their classes, features and, where one is given, their crowd.
pub(super) struct GroundTruth {
    pub(super) instances: Ids,
    pub(super) classes: Ids,
    pub(super) class: Vec<u32>,
    features: Option<Features>,
    /// The given crowd, where `--annotations` names one.
    pub(super) crowd: Option<SourceCrowd>,
    /// The feature row of each instance.
    rows: Vec<u32>,
    /// Whether the features were drawn, so that they are published with the crowd.
    pub(super) draws_features: bool,
}

impl Registered {
    pub(super) async fn find(
        given: &SimulationInput<'_>,
        engine: &EngineSpec,
        stores: &StoreSpec,
        job: &mut JobContext,
    ) -> Result<Self> {
        let ctx = engine.session()?;
        let url = |text: &str| Location::Url(text.to_owned());
        let spec = SourceSpec {
            tables: given.truth.map(|text| ("truth".to_owned(), url(text))).into_iter().collect(),
            features: given.features.map(url),
            annotations: given.annotations.map(url),
            columns: given.columns.clone(),
            null_values: given.cleaning.null_values.clone(),
            normalise: given.cleaning.normalise.clone(),
            ..SourceSpec::default()
        };
        let source = Source::list(&spec, stores, &RunTables, job).await?;
        let inputs = inputs(&source);
        let (columns, cleaning) = (given.columns.clone(), given.cleaning.clone());
        Ok(Self { ctx, source, columns, cleaning, engine: engine.clone(), inputs })
    }

    /// Reads the truth, and the features and annotations where they are given.
    pub(super) async fn read(&self, job: &mut JobContext) -> Result<GroundTruth> {
        self.source.open(&self.ctx, InferenceScope::Whole).await?;
        let truth =
            select(self.ctx.table("truth").await?, (Relation::Gold, Origin::Table), &self.columns)
                .map_err(|e| {
                    e.at("--truth")
                        .help("name the columns with --instance-column and --class-column")
                })?
                .select_columns(&["instance_id", "class"])?;
        let truth = read_all(self.cleaning.apply(truth)?, "true classes")
            .await
            .map_err(|e| e.or_at("--truth"))?;
        let (truth, crowd) = if self.source.files.iter().any(|(name, _)| name == "annotations") {
            let (truth, crowd) = self.crowd(&truth, job).await?;
            (truth, Some(crowd))
        } else {
            (Truth::from_batch(&truth).map_err(|e| e.or_at("--truth"))?, None)
        };
        if truth.skipped > 0 {
            job.warn(format!("{} rows of the truth lack an instance or a class", truth.skipped));
        }
        let features = match self.source.features(&self.ctx, job).await? {
            Some(query) => {
                let scratch = Scratch::from_engine(&self.engine);
                Some(read_features(query, scratch, "--features", job).await?)
            }
            None => None,
        };
        self.source.check_unchanged().await?;
        Ok(GroundTruth { crowd, ..GroundTruth::new(truth, features)? })
    }

    /// Reads the given crowd, and its truth.
    async fn crowd(
        &self,
        truth: &RecordBatch,
        job: &mut JobContext,
    ) -> Result<(Truth, SourceCrowd)> {
        let query = self.source.annotations(&self.ctx).await.map_err(|e| {
            e.at("--annotations").help(
                "name the columns with --instance-column, --annotator-column and --label-column",
            )
        })?;
        for column in ["weight", "question"] {
            if query.schema().has_column_with_unqualified_name(column) {
                return Err(Error::data("a crowd that is given says one label an annotation")
                    .at("--annotations")
                    .found(format!("the column `{column}`"))
                    .help("leave the column out"));
            }
        }
        let query = query.select_columns(&["instance_id", "annotator_id", "label"])?;
        let given = read_all(query, "annotations of the crowd")
            .await
            .map_err(|e| e.or_at("--annotations"))?;
        let crowd = TrueCrowd::from_batches(truth, &given).map_err(|e| e.or_at("--annotations"))?;
        if crowd.skipped > 0 {
            job.warn(format!(
                "{} annotations are left out: their instance has no true class, or there is no annotator or label",
                crowd.skipped
            ));
        }
        let TrueCrowd { truth, annotators, annotations, .. } = crowd;
        let annotators = (0..annotators.len()).map(|r| annotators.text(r)).collect();
        let annotation =
            |[instance, annotator, label]: [u32; 3]| Annotation { instance, annotator, label };
        let annotations = annotations.into_iter().map(annotation).collect();
        Ok((truth, SourceCrowd { annotators, annotations }))
    }
}

impl GroundTruth {
    fn new(truth: Truth, features: Option<Features>) -> Result<Self> {
        let Truth { instances, classes, class, .. } = truth;
        let rows = match &features {
            Some(features) => rows_of(features, &instances)?,
            None => Vec::new(),
        };
        let crowd = None;
        Ok(Self { instances, classes, class, features, crowd, rows, draws_features: false })
    }

    /// Draws instances and classes, numbered from 0, and their features.
    pub(super) fn drawn(blobs: &GaussianBlobs, job: &JobContext) -> Self {
        let numbers = |n: usize| {
            Ids::in_order(Arc::new((0..n).map(|i| i64::try_from(i).ok()).collect::<Int64Array>()))
        };
        let ground_truth = Self {
            instances: numbers(blobs.instances),
            classes: numbers(blobs.classes),
            class: blobs.truth(job),
            features: None,
            crowd: None,
            rows: Vec::new(),
            draws_features: false,
        };
        ground_truth.with_blobs(blobs, job)
    }

    /// The same instances with features drawn around their classes.
    pub(super) fn with_blobs(mut self, blobs: &GaussianBlobs, job: &JobContext) -> Self {
        let matrix = Arc::new(blobs.features(&self.class, self.classes.len(), job));
        self.features = Some(Features { ids: self.instances.clone(), columns: Vec::new(), matrix });
        self.rows = (0..self.class.len() as u32).collect();
        self.draws_features = true;
        self
    }

    /// The classes and features by number, without ids.
    pub(super) fn numbers(&self) -> plan::Instances<'_> {
        plan::Instances {
            class: &self.class,
            classes: self.classes.len(),
            features: self.features.as_ref().map(|f| (f.matrix.as_ref(), self.rows.as_slice())),
        }
    }

    /// Checks that there are at least `needed` classes for the recipe.
    pub(super) fn check_classes(&self, recipe: &str, needed: usize) -> Result<()> {
        if self.classes.len() >= needed {
            return Ok(());
        }
        let names = offenders((0..self.classes.len()).map(|k| self.classes.text(k)));
        Err(Error::data(format!("the recipe `{recipe}` needs {needed} classes"))
            .at("--truth")
            .found(format!("{}: {names}", self.classes.len()))
            .help("choose another recipe, or `groups` with groups of your own"))
    }

    /// The features of an instance; empty where there are none.
    pub(super) fn features(&self, instance: usize) -> Vec<f32> {
        let Some(features) = &self.features else { return Vec::new() };
        let mut row = vec![0.0; features.matrix.width()];
        features.matrix.read(self.rows[instance] as usize, &mut row);
        row
    }

    /// The ids of the instances with these numbers.
    pub(super) fn ids(&self, numbers: impl Iterator<Item = u32>) -> Result<ArrayRef> {
        self.instances.rows(numbers.map(Some))
    }

    /// The classes with these numbers.
    pub(super) fn labels(&self, numbers: impl Iterator<Item = u32>) -> Result<ArrayRef> {
        self.classes.rows(numbers.map(Some))
    }
}

fn rows_of(features: &Features, instances: &Ids) -> Result<Vec<u32>> {
    let rows = features.rows_of(instances).map_err(|e| {
        let [own, of_truth] = [&features.ids, instances].map(|ids| ids.values().data_type());
        if own == of_truth {
            return e.at("--features");
        }
        e.what("`instance_id` has another type than the truth has")
            .at("--features")
            .found(format!("{own} here, {of_truth} there"))
            .help("the same value in two types is two values: write both with one type")
    })?;
    let lacking = || (0..rows.len()).filter(|i| rows[*i].is_none());
    if lacking().next().is_some() {
        return Err(Error::data("instances of the truth have no features")
            .at("--features")
            .found(offenders(lacking().map(|i| instances.text(i))))
            .help("do the ids have the same form? every instance needs a row"));
    }
    Ok(rows.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use arrow::array::StringArray;

    use super::*;
    use crate::frame::Matrix;

    #[test]
    fn the_ids_of_features_are_compared_with_those_of_the_truth() {
        let ids = Ids::in_order(Arc::new(StringArray::from(vec!["1"])));
        let matrix = Arc::new(Matrix::from_rows(1, &[0.0]));
        let features = Features { ids, columns: Vec::new(), matrix };
        let instances = Ids::in_order(Arc::new(Int64Array::from(vec![1])));
        let error = rows_of(&features, &instances).unwrap_err();
        assert_eq!(error.exit_code(), 3);
        assert_eq!(
            error.to_string(),
            "error: `instance_id` has another type than the truth has\n  where: --features\n  \
             found: Utf8 here, Int64 there\n  \
             help: the same value in two types is two values: write both with one type"
        );
    }
}
