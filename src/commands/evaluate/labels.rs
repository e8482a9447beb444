//! The true classes by number, and the labels and predictions of the run for their instances.

use std::collections::{BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array, LargeStringArray};
use arrow::compute::kernels::cmp::neq;
use arrow::compute::{cast, nullif};
use arrow::datatypes::{DataType, Float64Type};
use arrow::error::ArrowError;
use arrow::util::display::array_value_to_string;
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::prelude::{DataFrame, Expr, col, lit, when};

use super::tables::{MAX_PROBABILITY, Tables, WRITE_AGAIN, columns_of};
use crate::error::{Error, Overlap, Result, UnknownValues, offenders};
use crate::frame::{Ids, cast_exact_text};
use crate::job_context::JobContext;
use crate::metrics::LabelsWithTruth;
use crate::source::{as_plain_integer, value_type};

/// The rows of the truth that give a class.
pub(super) struct TrueClasses {
    /// The classes of the run.
    classes: Ids,
    instance: ArrayRef,
    /// The true class by number. All classes that the run does not know share one extra number, which no label has.
    class: Vec<usize>,
    /// Its classes, and those that the run does not know.
    pub(super) classes_in_run: Overlap,
}

impl TrueClasses {
    pub(super) async fn read(truth: &DataFrame, tables: &Tables<'_>) -> Result<Self> {
        let classes = tables.classes().await?;
        let truth = tables.about(truth.clone())?.select_columns(&["instance_id", "class"])?;
        // Rows without a class are left out, and repeated rows count once.
        let truth = with_finite_values(truth)?.filter(col("class").is_not_null())?.distinct()?;
        refuse_contradictions(&truth).await?;
        let columns = columns_of(truth).await?;
        // A class that cannot be represented in the run's type is null after the cast, but still counts as wrong.
        let numbers = classes.lookup("truth.class", &as_type("class", &columns[1], &classes)?)?;
        let known: BTreeSet<u32> = numbers.iter().flatten().copied().collect();
        let others = distinct_without(&columns[1], &numbers)?;
        let classes_in_run = Overlap::new(
            "class",
            ("the truth", known.len() + others.len(), others),
            ("the run", classes.len(), (0..classes.len()).map(|k| classes.text(k))),
        );
        let number = |n: Option<u32>| n.map_or(classes.len(), |k| k as usize);
        let class = numbers.into_iter().map(number).collect();
        Ok(Self { classes, instance: Arc::clone(&columns[0]), class, classes_in_run })
    }

    /// The instances, and those for which `is_known` does not hold; `known` are those of the run.
    pub(super) fn instances_in(
        &self,
        known: &Ids,
        is_known: impl Fn(usize) -> bool,
    ) -> Result<Overlap> {
        // Each row is of another instance.
        let others = (0..self.len()).filter(|row| !is_known(*row));
        let others = others.map(|row| array_value_to_string(&self.instance, row));
        let others: UnknownValues = others.collect::<Result<_, ArrowError>>()?;
        let n = self.len();
        let known = ("the run", known.len(), (0..known.len()).map(|i| known.text(i)));
        Ok(Overlap::new("instance", ("the truth", n, others), known).advise(
            "do the ids have the same form? name the columns with --instance-column and --class-column",
        ))
    }

    pub(super) fn len(&self) -> usize {
        self.class.len()
    }

    pub(super) fn n_classes(&self) -> usize {
        self.classes.len()
    }
}

/// The distinct values of the rows without a number. In a wrong column there may be as many as rows: of each a hash is kept.
fn distinct_without(column: &ArrayRef, numbers: &[Option<u32>]) -> Result<UnknownValues> {
    let (mut seen, mut unknown) = (HashSet::new(), UnknownValues::default());
    for row in (0..numbers.len()).filter(|row| numbers[*row].is_none()) {
        let text = array_value_to_string(column, row)?;
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        if seen.insert(hasher.finish()) {
            unknown.add(text);
        }
    }
    Ok(unknown)
}

/// Warns of rows of the truth that give no class.
pub(super) async fn warn_without_class(truth: &DataFrame, job: &mut JobContext) -> Result<()> {
    let truth = truth.clone().select_columns(&["instance_id", "class"])?;
    let rows = with_finite_values(truth)?.filter(col("class").is_null())?.count().await?;
    if rows > 0 {
        job.warn(format!("rows of the truth without a class are left out: {rows}"));
    }
    Ok(())
}

/// The truth with null for an id or a class that is NaN or infinite, which count as missing, as in gold.
fn with_finite_values(truth: DataFrame) -> Result<DataFrame> {
    let finite = |name: &str| -> Result<Expr> {
        let value = || col(name);
        if !truth.schema().field_with_unqualified_name(name)?.data_type().is_floating() {
            return Ok(value());
        }
        // DataFusion orders NaN above or below all numbers, by its sign.
        let is_finite = value().gt(lit(f64::NEG_INFINITY)).and(value().lt(lit(f64::INFINITY)));
        Ok(when(is_finite, value()).end()?.alias(name))
    };
    let columns = vec![finite("instance_id")?, finite("class")?];
    Ok(truth.select(columns)?)
}

/// Refuses a truth that gives an instance two classes. Two ids that are one instance of the run are found later.
async fn refuse_contradictions(truth: &DataFrame) -> Result<()> {
    let instance = || vec![col("instance_id")];
    let counted = truth.clone().aggregate(instance(), vec![count(col("class")).alias("n")])?;
    let twice = counted.filter(col("n").gt(lit(1)).and(col("instance_id").is_not_null()))?;
    let instances =
        columns_of(twice.select(instance())?.sort(vec![col("instance_id").sort(true, true)])?);
    let instances = Ids::in_order(instances.await?.swap_remove(0));
    if instances.is_empty() {
        return Ok(());
    }
    Err(two_classes(&instances, 0..instances.len()))
}

/// The error that the truth gives these of the instances two classes.
fn two_classes(instances: &Ids, contradicted: impl IntoIterator<Item = usize>) -> Error {
    Error::data("the truth gives an instance two classes")
        .at("--truth")
        .found(offenders(contradicted.into_iter().map(|i| instances.text(i))))
        .help("keep one class an instance")
}

/// Casts a column of the truth to the run's type; null where a value cannot be represented.
fn as_type(column: &str, array: &ArrayRef, like: &Ids) -> Result<ArrayRef> {
    let (found, wanted) = (array.data_type(), like.values().data_type());
    let other = || {
        Error::data(format!("the truth's {found} cannot be read as {wanted}"))
            .at(format!("--truth, column {column}"))
            .help("write the column with the type that it has in the run")
    };
    if found.is_nested() {
        return Err(other());
    }
    if value_type(found).is_string() {
        return as_type_of_text(array, wanted).map_err(|_| other());
    }
    let values = cast(array, wanted).map_err(|_| other())?;
    // A float stands for the numbers to which it is the nearest.
    if found == wanted || wanted.is_floating() {
        return Ok(values);
    }
    // Otherwise it truncates fractions and times, and makes every number but zero true: what remains may be a class.
    let is_cut = neq(&cast(&values, found).map_err(|_| other())?, array)?;
    Ok(nullif(&values, &is_cut)?)
}

/// As [`as_type`], for text: as in gold, "1.0" is an integer, and "007" is none.
fn as_type_of_text(texts: &ArrayRef, wanted: &DataType) -> Result<ArrayRef, ArrowError> {
    if !wanted.is_integer() {
        return cast_exact_text(texts, wanted);
    }
    let texts = cast(texts, &DataType::LargeUtf8)?;
    let texts = texts.as_string::<i64>().iter();
    let plain: LargeStringArray = texts.map(|text| text.and_then(as_plain_integer)).collect();
    cast_exact_text(&(Arc::new(plain) as ArrayRef), wanted)
}

/// The run's labels or predictions, scored on the instances of the truth.
pub(super) struct ScoredLabels {
    /// The pairs of given and true class, for the instances in both tables.
    pub(super) scored: LabelsWithTruth,
    /// Whether the table has the instance, by row of the truth.
    pub(super) is_known: Vec<bool>,
    /// The instances in the run's table.
    pub(super) instances: Ids,
}

impl ScoredLabels {
    /// The chosen labels with their posteriors; `None` where the run did not publish them.
    pub(super) async fn labels(tables: &Tables<'_>, truth: &TrueClasses) -> Result<Option<Self>> {
        let Some(columns) = tables.columns("labels", &["instance_id", "label"]).await? else {
            return Ok(None);
        };
        let instances = Ids::in_order(Arc::clone(&columns[0]));
        let given = truth.classes.lookup("labels.label", &columns[1])?;
        let rows =
            ClassProbabilities::read(tables, "posteriors", &instances, &truth.classes).await?;
        Self::pair_up(truth, &instances, rows.as_ref(), |scored, i, row, class| {
            scored.push(given[i].map(|k| k as usize), row, class);
        })
        .map(Some)
    }

    /// The classifier's predictions; `None` where the run has none.
    pub(super) async fn predictions(
        tables: &Tables<'_>,
        truth: &TrueClasses,
    ) -> Result<Option<Self>> {
        let Some(instances) = tables.distinct("predictions", "instance_id").await? else {
            return Ok(None);
        };
        // A model without a classifier leaves the table empty.
        if instances.is_empty() {
            return Ok(None);
        }
        let rows =
            ClassProbabilities::read(tables, "predictions", &instances, &truth.classes).await?;
        Self::pair_up(truth, &instances, rows.as_ref(), |scored, _, row, class| {
            scored.push_prediction(row, class);
        })
        .map(Some)
    }

    /// Calls `push(scored, instance, probabilities, true class)` for every instance of the truth that is in the table.
    ///
    /// # Errors
    /// When two rows of the truth are one instance, because their ids are one in the run's type, and give it two classes.
    fn pair_up(
        truth: &TrueClasses,
        instances: &Ids,
        rows: Option<&ClassProbabilities>,
        push: impl Fn(&mut LabelsWithTruth, usize, &[f64], usize),
    ) -> Result<Self> {
        let n_classes = truth.n_classes();
        let mut scored = match rows {
            Some(_) => LabelsWithTruth::new(n_classes),
            None => LabelsWithTruth::without_posteriors(n_classes),
        };
        let ids = as_type("instance_id", &truth.instance, instances)?;
        let found = instances.lookup("truth.instance_id", &ids)?;
        let (mut class_of, mut contradicted) = (vec![None; instances.len()], Vec::new());
        for (instance, class) in found.iter().zip(&truth.class) {
            let Some(i) = instance.map(|i| i as usize) else { continue };
            match class_of[i].replace(*class) {
                None => push(&mut scored, i, rows.map_or(&[], |rows| rows.row(i)), *class),
                Some(other) if other != *class => contradicted.push(i),
                Some(_) => {}
            }
        }
        if !contradicted.is_empty() {
            return Err(two_classes(instances, contradicted));
        }
        Ok(Self {
            scored,
            is_known: found.iter().map(Option::is_some).collect(),
            instances: instances.clone(),
        })
    }
}

/// P(class) of each instance.
///
/// # Shapes
/// `[instance, class]`, row-major; all zero where an instance has no rows.
struct ClassProbabilities {
    n_classes: usize,
    values: Vec<f64>,
}

impl ClassProbabilities {
    /// `None` where the run did not publish the table.
    async fn read(
        tables: &Tables<'_>,
        table: &str,
        instances: &Ids,
        classes: &Ids,
    ) -> Result<Option<Self>> {
        let names = ["instance_id", "class", "probability"];
        let Some(rows) = tables.columns(table, &names).await? else { return Ok(None) };
        let n_classes = classes.len();
        let mut values = vec![0.0; instances.len() * n_classes];
        let instance = instances.lookup(&format!("{table}.instance_id"), &rows[0])?;
        let class = classes.lookup(&format!("{table}.class"), &rows[1])?;
        let probability = probabilities(table, &rows[2])?;
        for (probability, position) in
            probability.values().iter().zip(instance.into_iter().zip(class))
        {
            if let (Some(i), Some(k)) = position {
                values[i as usize * n_classes + k as usize] = *probability;
            }
        }
        Ok(Some(Self { n_classes, values }))
    }

    fn row(&self, i: usize) -> &[f64] {
        &self.values[i * self.n_classes..(i + 1) * self.n_classes]
    }
}

/// The probabilities in a column of the run's table.
///
/// # Errors
/// When the column has another type than tables of probabilities have, or a value is null or no probability.
fn probabilities<'a>(table: &str, column: &'a ArrayRef) -> Result<&'a Float64Array> {
    let refused = |found: String| {
        let error = Error::data("a probability of the run is not a number from 0 to 1");
        Err(error.at(format!("{table}.probability")).found(found).help(WRITE_AGAIN))
    };
    let Some(numbers) = column.as_primitive_opt::<Float64Type>() else {
        return refused(column.data_type().to_string());
    };
    let is_probability = |p: &Option<f64>| p.is_some_and(|p| (0.0..=MAX_PROBABILITY).contains(&p));
    let others = numbers.iter().filter(|p| !is_probability(p));
    let mut shown =
        others.map(|p| p.map_or_else(|| "null".to_owned(), |p| format!("{p:?}"))).peekable();
    if shown.peek().is_some() {
        return refused(offenders(shown));
    }
    Ok(numbers)
}
