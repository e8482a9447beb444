//! The true classes by number, and the labels and predictions of the run for their instances.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::kernels::cmp::neq;
use arrow::compute::{cast, nullif};
use arrow::datatypes::Float64Type;
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::prelude::{DataFrame, col, lit};

use super::tables::{Tables, columns_of};
use crate::error::{Error, Result, offenders};
use crate::frame::Ids;
use crate::metrics::Scored;

/// The rows of the truth.
pub(super) struct TrueClasses {
    /// The classes of the run.
    classes: Ids,
    instance: ArrayRef,
    /// The true class by number. All classes that the run does not know share one extra number, which no label has.
    /// `None` where the truth gives no class.
    class: Vec<Option<usize>>,
}

impl TrueClasses {
    pub(super) async fn read(truth: &DataFrame, tables: &Tables<'_>) -> Result<Self> {
        let classes = tables.classes().await?;
        let truth = tables.about(truth.clone())?.select_columns(&["instance_id", "class"])?;
        // Rows without a class are ignored, and repeated rows count once.
        let truth = truth.filter(col("class").is_not_null())?.distinct()?;
        refuse_contradictions(&truth).await?;
        let columns = columns_of(truth).await?;
        let numbers = classes.lookup("truth.class", &as_type(&columns[1], &classes)?)?;
        // Taken from the values as given: a class that cannot be represented in the run's type is null after the cast,
        // but still counts as wrong.
        let nulls = columns[1].logical_nulls();
        let has_class = |row| nulls.as_ref().is_none_or(|n| n.is_valid(row));
        let number = |n: Option<u32>| n.map_or(classes.len(), |k| k as usize);
        let class = numbers.into_iter().enumerate();
        let class = class.map(|(row, n)| has_class(row).then(|| number(n))).collect();
        Ok(Self { classes, instance: Arc::clone(&columns[0]), class })
    }

    pub(super) fn len(&self) -> usize {
        self.class.len()
    }

    /// Whether a row gives a true class.
    pub(super) fn has_class(&self, row: usize) -> bool {
        self.class[row].is_some()
    }

    pub(super) fn n_classes(&self) -> usize {
        self.classes.len()
    }
}

/// Refuses a truth that gives an instance two classes.
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
    Err(Error::data("the truth gives an instance two classes")
        .at("--truth")
        .found(offenders((0..instances.len()).map(|i| instances.text(i))))
        .help("keep one class an instance"))
}

/// Casts the truth's values to the run's type; null where a value cannot be represented.
fn as_type(array: &ArrayRef, like: &Ids) -> Result<ArrayRef> {
    let (found, wanted) = (array.data_type(), like.values().data_type());
    let other =
        || Error::data(format!("the truth's {found} cannot be read as {wanted}")).at("--truth");
    if found.is_nested() {
        return Err(other());
    }
    let values = cast(array, wanted).map_err(|_| other())?;
    // A cast truncates fractions, and the integer that remains may be a class.
    if found.is_floating() && wanted.is_integer() {
        let is_cut = neq(&cast(&values, found)?, array)?;
        return Ok(nullif(&values, &is_cut)?);
    }
    Ok(values)
}

/// The run's labels or predictions, scored on the instances of the truth.
pub(super) struct ScoredLabels {
    /// The pairs of given and true class, for the instances in both tables.
    pub(super) scored: Scored,
    /// Whether the table has the instance, by row of the truth.
    pub(super) is_known: Vec<bool>,
    /// The number of instances in the run's table.
    pub(super) n_instances: usize,
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
        Self::of(truth, &instances, rows.as_ref(), |scored, i, row, class| {
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
        Self::of(truth, &instances, rows.as_ref(), |scored, _, row, class| {
            scored.push_prediction(row, class);
        })
        .map(Some)
    }

    /// Calls `push(scored, instance, probabilities, true class)` for every row of the truth that has a class and whose
    /// instance is in the table.
    fn of(
        truth: &TrueClasses,
        instances: &Ids,
        rows: Option<&ClassProbabilities>,
        push: impl Fn(&mut Scored, usize, &[f64], usize),
    ) -> Result<Self> {
        let n_classes = truth.n_classes();
        let mut scored = match rows {
            Some(_) => Scored::new(n_classes),
            None => Scored::without_posteriors(n_classes),
        };
        let found = instances.lookup("truth.instance_id", &as_type(&truth.instance, instances)?)?;
        for (instance, class) in found.iter().zip(&truth.class) {
            if let (Some(i), Some(class)) = (instance, class) {
                let i = *i as usize;
                push(&mut scored, i, rows.map_or(&[], |rows| rows.row(i)), *class);
            }
        }
        Ok(Self {
            scored,
            is_known: found.iter().map(Option::is_some).collect(),
            n_instances: instances.len(),
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
        let probability = rows[2].as_primitive::<Float64Type>();
        for (row, place) in instance.into_iter().zip(class).enumerate() {
            if let (Some(i), Some(k)) = place {
                values[i as usize * n_classes + k as usize] = probability.value(row);
            }
        }
        Ok(Some(Self { n_classes, values }))
    }

    fn row(&self, i: usize) -> &[f64] {
        &self.values[i * self.n_classes..(i + 1) * self.n_classes]
    }
}
