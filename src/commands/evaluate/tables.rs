//! The registered tables of the run and of the truth, one question at a time.

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::prelude::{DataFrame, SessionContext, cast, col, lit};

use crate::commands::run_source::has_column;
use crate::error::{Error, Overlap, Result, offenders};
use crate::frame::{Ids, read_all};
use crate::job_context::JobContext;

/// The largest probability in a table of a run: one that was rounded may be above 1.
pub(super) const MAX_PROBABILITY: f64 = 1.0 + 1e-9;

/// What to do about a table of a run that another program wrote, or that a disk has damaged.
pub(super) const WRITE_AGAIN: &str = "run the job again with --force";

/// The rows of the registered tables that concern one question.
pub(super) struct Tables<'a> {
    pub(super) ctx: &'a SessionContext,
    /// The question, where the run had several.
    pub(super) question: Option<ScalarValue>,
}

impl<'a> Tables<'a> {
    /// The tables of every question that the run answered, in order.
    pub(super) async fn of_questions(ctx: &'a SessionContext) -> Result<Vec<Self>> {
        for table in ["labels", "predictions", "posteriors"] {
            if let Some(frame) = table_of(ctx, table).await?
                && has_column(&frame, "question")
            {
                let questions = distinct(frame, "question").await?;
                let question = |row| ScalarValue::try_from_array(&questions, row);
                let tables = |row| Ok(Self { ctx, question: Some(question(row)?) });
                return (0..questions.len()).map(tables).collect();
            }
        }
        Ok(vec![Self { ctx, question: None }])
    }

    /// The rows for this question; a table without the column applies to every question.
    pub(super) fn about(&self, frame: DataFrame) -> Result<DataFrame> {
        Ok(match &self.question {
            Some(question) if has_column(&frame, "question") => {
                let field = frame.schema().field_with_unqualified_name("question")?;
                let is_question = if *field.data_type() == question.data_type() {
                    col("question").eq(lit(question.clone()))
                } else {
                    cast(col("question"), DataType::Utf8).eq(lit(question.to_string()))
                };
                frame.filter(is_question)?
            }
            _ => frame,
        })
    }

    /// A table by name; `None` where the run did not publish it.
    pub(super) async fn table(&self, name: &str) -> Result<Option<DataFrame>> {
        table_of(self.ctx, name).await?.map(|frame| self.about(frame)).transpose()
    }

    /// Columns of a table, read completely; `None` where the run did not publish it.
    pub(super) async fn columns(
        &self,
        table: &str,
        names: &[&str],
    ) -> Result<Option<Vec<ArrayRef>>> {
        match self.table(table).await? {
            Some(frame) => {
                check_columns(&frame, table, names)?;
                let columns = columns_of(frame.select_columns(names)?).await?;
                for (name, column) in names.iter().zip(&columns) {
                    if ["instance_id", "class"].contains(name) {
                        refuse_nulls(table, name, column)?;
                    }
                }
                Ok(Some(columns))
            }
            None => Ok(None),
        }
    }

    /// The distinct values of a table's column, sorted.
    pub(super) async fn distinct(&self, table: &str, column: &str) -> Result<Option<Ids>> {
        match self.table(table).await? {
            Some(frame) => {
                check_columns(&frame, table, &[column])?;
                Ok(Some(Ids::in_order(distinct(frame, column).await?)))
            }
            None => Ok(None),
        }
    }

    /// The classes in their order. Where the run did not publish the table `classes`, they are sorted; that can only
    /// change ties.
    pub(super) async fn classes(&self) -> Result<Ids> {
        if let Some(classes) = self.table("classes").await? {
            check_columns(&classes, "classes", &["class", "index"])?;
            let classes = classes.sort(vec![col("index").sort(true, true)])?;
            let class = columns_of(classes.select_columns(&["class"])?).await?.swap_remove(0);
            refuse_nulls("classes", "class", &class)?;
            return Ok(Ids::in_order(class));
        }
        for (table, column) in
            [("predictions", "class"), ("posteriors", "class"), ("labels", "label")]
        {
            if let Some(classes) = self.distinct(table, column).await?
                && !classes.is_empty()
            {
                return Ok(classes);
            }
        }
        Ok(Ids::in_order(arrow::array::new_empty_array(&DataType::Utf8)))
    }
}

/// Refuses a truth of several questions for a run without questions, and one of other questions than the run answered. Warns of questions that only the truth has, and of
/// a truth without questions for a run of several.
pub(super) async fn check_questions(
    truth: &DataFrame,
    answered: &[Tables<'_>],
    job: &mut JobContext,
) -> Result<()> {
    let of_run: Vec<&ScalarValue> = answered.iter().filter_map(|t| t.question.as_ref()).collect();
    if !has_column(truth, "question") {
        if of_run.len() > 1 {
            job.warn(format!(
                "the truth names no question: each of its classes holds for all {} questions",
                of_run.len()
            ));
        }
        return Ok(());
    }
    let questions = Ids::in_order(distinct(truth.clone(), "question").await?);
    let texts = (0..questions.len()).map(|n| questions.text(n));
    if of_run.is_empty() {
        if questions.len() < 2 {
            return Ok(());
        }
        return Err(Error::data("the truth is of several questions, and the run names none")
            .at("--truth")
            .found(offenders(texts))
            .help("keep the rows of one question"));
    }
    let is_unknown = |n: &usize| !of_run.iter().any(|q| q.to_string() == questions.text(*n));
    let unknown: Vec<usize> = (0..questions.len()).filter(is_unknown).collect();
    if !unknown.is_empty() && unknown.len() == questions.len() {
        let given = unknown.into_iter().map(|n| questions.text(n)).collect();
        let known = of_run.iter().map(ToString::to_string);
        let overlap = Overlap::new(
            "question",
            ("the truth", questions.len(), given),
            ("the run", of_run.len(), known),
        );
        return Err(overlap.error().at("--truth"));
    }
    if !unknown.is_empty() {
        job.warn(format!(
            "rows of the truth of questions that the run did not answer are left out: {}",
            offenders(unknown.into_iter().map(|n| questions.text(n)))
        ));
    }
    Ok(())
}

async fn table_of(ctx: &SessionContext, name: &str) -> Result<Option<DataFrame>> {
    Ok(if ctx.table_exist(name)? { Some(ctx.table(name).await?) } else { None })
}

/// Checks that a table of the run has these columns.
///
/// # Errors
/// When one is absent.
pub(super) fn check_columns(frame: &DataFrame, table: &str, names: &[&str]) -> Result<()> {
    let Some(absent) = names.iter().find(|name| !has_column(frame, name)) else { return Ok(()) };
    let columns = frame.schema().fields().iter().map(|field| field.name().clone());
    Err(Error::data("a table of the run lacks a column")
        .at(format!("{table}.{absent}"))
        .found(offenders(columns))
        .help(WRITE_AGAIN))
}

/// Refuses a column of ids or classes of the run with a null.
fn refuse_nulls(table: &str, name: &str, column: &ArrayRef) -> Result<()> {
    if column.null_count() == 0 {
        return Ok(());
    }
    Err(Error::data("a row of the run has null in place of an id or a class")
        .at(format!("{table}.{name}"))
        .found(format!("{} of {} rows", column.null_count(), column.len()))
        .help(WRITE_AGAIN))
}

async fn distinct(frame: DataFrame, column: &str) -> Result<ArrayRef> {
    let values = frame.select_columns(&[column])?.filter(col(column).is_not_null())?.distinct()?;
    Ok(columns_of(values.sort(vec![col(column).sort(true, true)])?).await?.swap_remove(0))
}

/// The columns of a query as one array each.
pub(super) async fn columns_of(frame: DataFrame) -> Result<Vec<ArrayRef>> {
    Ok(read_all(frame, "rows to score").await?.columns().to_vec())
}
