//! The annotations in groups: those with one value in any column of theirs.

use arrow::datatypes::DataType;
use datafusion::common::Column;
use datafusion::logical_expr::{Expr, Operator, binary_expr, cast, lit};
use datafusion::prelude::{DataFrame, SessionContext};

use super::contract::{contract_columns, name_in};
use crate::error::{Error, Result, did_you_mean, offenders};
use crate::source::relation::contract::{Origin, Relation};
use crate::source::spec::ColumnsSpec;
use crate::source::{Source, relation};

/// Separates a question and a value in a group; text has it by no accident.
pub const GROUP_SEPARATOR: char = '\u{1f}';

/// The name of the column of groups, while they are made.
const GROUP: &str = "group of annotations";

impl Source {
    /// As [`Source::annotations`], where the column `question` has the values of another column. If there are questions,
    /// it has the text of both, with [`GROUP_SEPARATOR`] between them.
    ///
    /// # Errors
    /// As [`Source::annotations`]; and when there is no such column.
    pub async fn annotations_by(&self, ctx: &SessionContext, by: &str) -> Result<DataFrame> {
        let sql = self.sql("annotations");
        let origin = if sql.is_some() { Origin::Query } else { Origin::Table };
        let frame = relation::table_or_sql(ctx, Relation::Annotations.table(), sql).await?;
        let names: Vec<String> = frame.schema().fields().iter().map(|f| f.name().clone()).collect();
        if !names.iter().any(|name| name == by) {
            let all = || format!("name one of {}", offenders(&names));
            return Err(Error::data(format!("the annotations have no column `{by}`"))
                .at("--by")
                .help(did_you_mean(by, names.iter().map(String::as_str), all)));
        }
        let text = |name: &str| cast(Expr::Column(Column::new_unqualified(name)), DataType::Utf8);
        let question =
            contract_columns(Relation::Annotations).iter().find(|c| c.name == "question");
        let location = (Relation::Annotations, origin);
        let own = question.and_then(|c| name_in(location, c, &self.spec.columns, &names));
        let group = match own {
            None => Expr::Column(Column::new_unqualified(by)),
            Some(question) => {
                let and = |x, y| binary_expr(x, Operator::StringConcat, y);
                and(and(text(question), lit(GROUP_SEPARATOR.to_string())), text(by))
            }
        };
        let columns = ColumnsSpec { question: Some(GROUP.to_owned()), ..self.spec.columns.clone() };
        let frame = relation::select(frame.with_column(GROUP, group)?, location, &columns)?;
        self.spec.cleaning().apply(frame)
    }
}
