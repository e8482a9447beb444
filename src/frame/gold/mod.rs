//! Trusted classes: rows of the gold relation by role, matched to the instances that were read.

pub(super) mod role;
pub(super) mod truth;

use std::collections::HashSet;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt32Array};
use arrow::buffer::NullBuffer;
use arrow::compute::{cast, take, take_record_batch};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use arrow::util::display::array_value_to_string;
use datafusion::prelude::DataFrame;

use super::classes::LabelAxis;
use super::ids::{IdIndex, Ids, Interner, NULL, finite, without_run_ends};
use super::memory::read_all::read_all_within;
use super::memory::reservation::Reservation;
use crate::error::{Error, Result, UnknownValues, offenders};
use crate::job_context::JobContext;
use role::Role;

/// One trusted class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gold {
    /// The instance's number.
    pub instance: u32,
    /// Its class.
    pub class: u32,
    /// Its permitted use.
    pub role: Role,
}

/// Gold that only scores and whose class is not a class of the run: no label can be right. [`Gold::class`] is the
/// number of classes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnknownGold {
    /// The gold of instances that have annotations.
    pub of_instances: Vec<Gold>,
    /// The gold of rows of features.
    pub of_feature_rows: Vec<Gold>,
}

/// A gold row by provisional numbers.
pub(super) struct GoldNumber {
    pub(super) instance: u32,
    pub(super) class: u32,
    pub(super) role: Role,
    /// Its row in the relation.
    pub(super) row: u32,
    /// Whether no annotation row mentioned the instance, and this is the first gold row that does.
    pub(super) is_new: bool,
}

impl GoldNumber {
    /// The roles of the gold of instances that annotations mention.
    pub(super) fn roles_of_read(all: &[Self]) -> Vec<Role> {
        let has = |role: &Role| all.iter().any(|gold| !gold.is_new && gold.role == *role);
        Role::ALL.into_iter().filter(has).collect()
    }
}

/// Replaces instances and classes by the values that stand for them; the first `annotated` instances have annotations.
pub(super) fn replace_values(
    gold: &mut Vec<GoldNumber>,
    [instances, classes]: [Option<&Vec<u32>>; 2],
    annotated: usize,
) {
    if let Some(classes) = classes {
        for row in gold.iter_mut().filter(|row| row.class != NULL) {
            row.class = classes[row.class as usize];
        }
    }
    if let Some(instances) = instances {
        let mut seen = HashSet::new();
        for row in gold.iter_mut() {
            row.instance = instances[row.instance as usize];
            row.is_new = row.instance as usize >= annotated && seen.insert(row.instance);
        }
        gold.retain(|row| row.is_new || row.class != NULL);
    }
}

/// The gold relation as it was read.
#[derive(Clone)]
pub(super) struct GoldRows {
    batch: RecordBatch,
}

impl GoldRows {
    /// Reads all rows; `budget` holds them. Warns of those that cannot be used.
    pub(super) async fn read(
        query: DataFrame,
        budget: &Reservation,
        job: &mut JobContext,
    ) -> Result<Self> {
        let batch = read_all_within(query, "rows of gold", budget).await;
        let batch = batch.map_err(|e| e.or_at("source.gold"))?;
        let rows = Self { batch };
        if rows.batch.num_rows() == 0 {
            job.warn("gold has no rows: nothing is trained, calibrated or scored by it");
        }
        let (instances, classes) = (rows.nulls_of("instance_id")?, rows.nulls_of("class")?);
        let nulls = NullBuffer::union(instances.as_ref(), classes.as_ref());
        let left_out = nulls.map_or(0, |nulls| nulls.null_count());
        if left_out > 0 {
            job.warn(format!(
                "rows of gold without an instance or a class are left out: {left_out}"
            ));
        }
        Ok(rows)
    }

    /// The nulls of a column of ids, with NaN and infinities.
    fn nulls_of(&self, column: &str) -> Result<Option<NullBuffer>> {
        let Some(column) = self.batch.column_by_name(column) else { return Ok(None) };
        Ok(finite(&without_run_ends(column)?).logical_nulls())
    }

    /// Refuses gold of several questions where annotations have no question column: all would apply to one question.
    pub(super) fn refuse_several_questions(&self) -> Result<()> {
        let Some(column) = self.batch.column_by_name("question") else { return Ok(()) };
        let questions = self.questions_of(column)?;
        if questions.len() < 2 {
            return Ok(());
        }
        Err(Error::data("gold is of several questions, and the annotations name none")
            .at("source.gold")
            .found(offenders((0..questions.len()).map(|n| questions.text(n))))
            .help(
                "set source.columns.question to the column of the annotations that names it, or keep the rows of one \
                 question in source.sql.gold",
            ))
    }

    /// The distinct questions in a column of this relation.
    fn questions_of(&self, column: &ArrayRef) -> Result<Ids> {
        let mut ids = Interner::new(self.batch.schema().field_with_name("question")?);
        ids.intern(column, &mut Vec::new())?;
        Ok(ids.finish(|_| true)?.0)
    }

    /// The rows of each question; gold without a question column applies to all questions.
    pub(super) fn by_question(&self, questions: &Ids, job: &mut JobContext) -> Result<Vec<Self>> {
        let Some(column) = self.batch.column_by_name("question") else {
            if questions.len() > 1 && self.batch.num_rows() > 0 {
                job.warn(format!(
                    "gold names no question: each of its classes holds for all {} questions",
                    questions.len()
                ));
            }
            return Ok(vec![self.clone(); questions.len()]);
        };
        let mut rows = vec![Vec::new(); questions.len()];
        let found = questions.lookup("gold.question", column)?;
        let mut of_none = Vec::new();
        for (row, question) in found.into_iter().enumerate() {
            match question.and_then(|n| rows.get_mut(n as usize)) {
                Some(rows) => rows.push(row as u32),
                None => of_none.push(row as u32),
            }
        }
        if !of_none.is_empty() {
            let n = of_none.len();
            let unknown = self.questions_of(&take(column, &UInt32Array::from(of_none), None)?)?;
            let names = offenders((0..unknown.len()).map(|q| unknown.text(q)));
            let names = if unknown.is_empty() { names } else { format!(" ({names})") };
            job.warn(format!(
                "rows of gold without a question, or of one that no annotation names, are left out: {n}{names}"
            ));
        }
        let of_rows =
            |rows| Ok(Self { batch: take_record_batch(&self.batch, &UInt32Array::from(rows))? });
        rows.into_iter().map(of_rows).collect()
    }

    /// Numbers the rows, without those whose instance or class is null. A row that introduces a new instance stays even
    /// if its class is null, as the class [`NULL`] with the role `holdout`: the caller must know the instance as new.
    ///
    /// # Errors
    /// When gold has other types than the annotations, or a value that their types cannot hold and that is to be an
    /// instance or a class of the run.
    pub(super) fn number(
        &self,
        instances: &mut Interner,
        classes: &mut Interner,
    ) -> Result<Vec<GoldNumber>> {
        let column = |name: &str| {
            let found = self.batch.column_by_name(name);
            found.ok_or_else(|| Error::bug(format!("gold lacks `{name}`")))
        };
        let mut seen = instances.len();
        let (mut instance, mut class) = (Vec::new(), Vec::new());
        let named = |e: Error| e.at("source.gold");
        let schema = self.batch.schema();
        let field = |name: &str| schema.field_with_name(name);
        instances
            .intern_other(field("instance_id")?, column("instance_id")?, &mut instance)
            .map_err(named)?;
        classes.intern_other(field("class")?, column("class")?, &mut class).map_err(named)?;
        let roles = self.roles()?;
        let mut numbers = Vec::with_capacity(instance.len());
        for row in 0..instance.len() {
            let is_new = instance[row] != NULL && instance[row] as usize >= seen;
            seen = if is_new { instance[row] as usize + 1 } else { seen };
            if instance[row] != NULL && (class[row] != NULL || is_new) {
                let role = if class[row] == NULL { Role::Holdout } else { roles[row] };
                numbers.push(GoldNumber {
                    instance: instance[row],
                    class: class[row],
                    role,
                    row: row as u32,
                    is_new,
                });
            }
        }
        let training = numbers.iter().filter(|n| n.role.trains());
        expect_fits(instances, "gold that trains has an instance", training.map(|n| n.instance))?;
        let with_class = numbers.iter().filter(|n| !n.role.only_scores());
        expect_fits(classes, "gold has a class", with_class.map(|n| n.class))?;
        Ok(numbers)
    }

    /// The gold of instances with features, by feature row, sorted: first that of the run's classes, second that of
    /// other classes, which only scores.
    pub(super) fn by_feature_row(
        &self,
        (instances, index): (&Ids, &IdIndex),
        labels: &Ids,
        n_classes: usize,
    ) -> Result<(Vec<Gold>, Vec<Gold>)> {
        let numbers = |name: &str, index: &IdIndex| {
            let column = self.batch.column_by_name(name);
            let column = column.ok_or_else(|| Error::bug(format!("gold lacks `{name}`")))?;
            let schema = self.batch.schema();
            let field = schema.field_with_name(name)?;
            index.lookup(field, column).map_err(|e| e.or_at("source.gold"))
        };
        let rows = numbers("instance_id", index)?;
        let classes = numbers("class", &labels.index("class")?)?;
        let of_row = |((row, class), role): ((Option<u32>, Option<u32>), Role)| {
            let class = class.filter(|c| (*c as usize) < n_classes).unwrap_or(n_classes as u32);
            Some(Gold { instance: row?, class, role })
        };
        let nulls = self.nulls_of("class")?;
        let has_class = |row: usize| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row));
        let rows = rows.into_iter().zip(classes).zip(self.roles()?).enumerate();
        let rows = rows.filter(|(row, _)| has_class(*row)).filter_map(|(_, row)| of_row(row));
        let mut gold: Vec<Gold> = rows.collect();
        gold.sort_unstable();
        gold.dedup();
        Gold::check(&gold, instances)?;
        let (known, mut unknown): (Vec<Gold>, Vec<Gold>) =
            gold.into_iter().partition(|gold| (gold.class as usize) < n_classes);
        unknown.retain(|gold| gold.role.only_scores());
        Ok((known, unknown))
    }

    /// The instances of these rows that have no features.
    pub(super) fn without_features(
        &self,
        rows: Vec<u32>,
        index: &IdIndex,
    ) -> Result<UnknownValues> {
        let column = self.batch.column_by_name("instance_id");
        let column = column.ok_or_else(|| Error::bug("gold lacks `instance_id`"))?;
        let instances = take(column, &UInt32Array::from(rows), None)?;
        let schema = self.batch.schema();
        let found = index.lookup(schema.field_with_name("instance_id")?, &instances)?;
        let missing = (0..found.len()).filter(|row| found[*row].is_none());
        Ok(missing
            .map(|row| array_value_to_string(&instances, row))
            .collect::<Result<_, ArrowError>>()?)
    }

    /// Whether the rows name questions.
    pub(super) fn has_questions(&self) -> bool {
        self.batch.column_by_name("question").is_some()
    }

    fn roles(&self) -> Result<Vec<Role>> {
        let Some(column) = self.batch.column_by_name("role") else {
            return Ok(vec![Role::Train; self.batch.num_rows()]);
        };
        let words = cast(column, &DataType::Utf8)?;
        words.as_string::<i32>().iter().map(|w| w.map_or(Ok(Role::Train), str::parse)).collect()
    }
}

/// Checks that the type of the annotations can hold these values of gold: tables hold both in one column of that type.
/// Instances of gold that does not train and classes of gold that only scores are in no such column: with such a value,
/// gold is of an instance or a class that no annotation has.
fn expect_fits(ids: &Interner, what: &str, numbers: impl Iterator<Item = u32>) -> Result<()> {
    let outside = ids.outside(numbers)?;
    if outside.is_empty() {
        return Ok(());
    }
    let (found, wanted) = (offenders(outside), ids.data_type());
    Err(Error::data(format!("{what} that the annotations could not have"))
        .at("source.gold")
        .found(format!("{found}, where the annotations hold {wanted}"))
        .help("correct these rows of gold, or cast the column of the annotations in source.sql to a type that holds both"))
}

impl Gold {
    /// Gold by final numbers, sorted, without gold of instances that were never read. The second list is gold that only
    /// scores, of a class that the run does not have; where the classes are listed, such gold is an error.
    pub(super) fn resolve(
        numbers: Vec<GoldNumber>,
        instance_rank: &[u32],
        (classes, are_listed): (&LabelAxis, bool),
        instances: &Ids,
    ) -> Result<(Vec<Self>, Vec<Self>)> {
        let mut unknown = Vec::new();
        let mut gold = Vec::with_capacity(numbers.len());
        for row in numbers.into_iter().filter(|n| n.class != NULL) {
            let (instance, class) =
                (instance_rank[row.instance as usize], classes.rank[row.class as usize]);
            if class == NULL && !are_listed && row.role.only_scores() {
                if instance != NULL {
                    gold.push(Self { instance, class: classes.n as u32, role: row.role });
                }
            } else if class == NULL || class as usize >= classes.n {
                unknown.push(classes.text(row.class));
            } else if instance != NULL {
                gold.push(Self { instance, class, role: row.role });
            }
        }
        if !unknown.is_empty() {
            unknown.sort_unstable();
            unknown.dedup();
            return Err(Error::data("gold has classes that are not listed")
                .at("source.gold")
                .found(offenders(unknown))
                .help("add them to frame.classes"));
        }
        gold.sort_unstable();
        gold.dedup();
        Self::check(&gold, instances)?;
        Ok(gold.into_iter().partition(|gold| (gold.class as usize) < classes.n))
    }

    /// Checks that each instance has one class and one role: gold that trains or chooses an epoch cannot score as well.
    fn check(sorted: &[Self], instances: &Ids) -> Result<()> {
        let differing = |differ: fn(&Self, &Self) -> bool| -> Vec<String> {
            let pairs = sorted.windows(2).filter(|w| w[0].instance == w[1].instance);
            let pairs = pairs.filter(|w| differ(&w[0], &w[1]));
            pairs.map(|w| instances.text(w[0].instance as usize)).collect()
        };
        let (classes, roles) =
            (differing(|a, b| a.class != b.class), differing(|a, b| a.role != b.role));
        let (what, found, help) = if !classes.is_empty() {
            ("gold gives an instance two classes", classes, "keep one class an instance")
        } else if !roles.is_empty() {
            (
                "gold gives an instance two roles",
                roles,
                "keep one role an instance: a class that trains cannot score",
            )
        } else {
            return Ok(());
        };
        Err(Error::data(what).at("source.gold").found(offenders(found)).help(help))
    }

    /// The class of each instance with gold that trains; `None` where there is no such gold.
    pub(super) fn trusted(gold: &[Self], instances: usize) -> Option<Vec<Option<u32>>> {
        let mut trusted = vec![None; instances];
        let mut any = false;
        for row in gold.iter().filter(|g| g.role.trains()) {
            trusted[row.instance as usize] = Some(row.class);
            any = true;
        }
        any.then_some(trusted)
    }
}
