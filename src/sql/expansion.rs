//! Limits the size and the depth of a query's plan, in which common table expressions are expanded wherever they are
//! read.
//!
//! # Why
//! DataFusion plans a common table expression again for each place that reads it. Forty of them that each read the one
//! before twice are a text of two kilobytes and a plan of 2^39 tables. Three thousand that each read the one before
//! once are a plan three thousand times as deep as any of them. So is a list of three thousand tables, which becomes a
//! join of joins. Plans are traversed recursively. So both sizes are computed from the parsed text, which is as small
//! as it was written.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;

use datafusion::sql::parser::{CopyToSource, Statement};
use datafusion::sql::sqlparser::ast::{
    Expr, Ident, ObjectName, Query, TableFactor, Visit, Visitor,
};

use crate::error::{Error, Result};

/// The most tables that a plan may read, each counted as often as it is read.
const MAX_TABLES: u64 = 4_096;

/// The most tables, queries and operators of a plan that may lie above one another.
const MAX_LEVELS: u64 = 1_000;

/// Checks the size and the depth of a statement's plan.
///
/// # Errors
/// When the plan would be too large or too deep.
pub(super) fn check(statement: &Statement) -> Result<()> {
    let mut plan = OpenQueries { levels: vec![OpenQuery::default()] };
    match statement {
        Statement::Explain(explain) => return check(&explain.statement),
        Statement::Statement(statement) => drop(statement.visit(&mut plan)),
        Statement::CopyTo(copy) => match &copy.source {
            CopyToSource::Query(query) => drop(query.visit(&mut plan)),
            CopyToSource::Relation(_) => {}
        },
        _ => {}
    }
    let Size { tables, levels } = plan.levels.first().map_or(Size::default(), OpenQuery::size);
    if tables > MAX_TABLES {
        return Err(Error::spec("the SQL reads too many tables")
            .found(format!("{}, {MAX_TABLES} at most", times(tables)))
            .help(
                "what stands in a `with` is planned again for each place that reads it: read it fewer times, or write \
                 it to a table first",
            ));
    }
    if levels > MAX_LEVELS {
        return Err(Error::spec("the SQL is too deep")
            .found(format!(
                "{levels} tables, queries and operators above one another, {MAX_LEVELS} at most"
            ))
            .help("shorten chains of `with` that each read the one before, and long lists after `from`"));
    }
    Ok(())
}

fn times(tables: u64) -> String {
    if tables == u64::MAX {
        return "more than can be counted".to_owned();
    }
    format!("{tables}, each counted as often as it is read")
}

/// The size of a query's plan.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Size {
    tables: u64,
    levels: u64,
}

/// The queries that are being visited, outermost first.
struct OpenQueries {
    levels: Vec<OpenQuery>,
}

/// A query that is being visited.
#[derive(Default)]
struct OpenQuery {
    /// The names in its `with` whose queries are not visited yet: they are visited first, in this order.
    to_come: VecDeque<String>,
    /// The sizes of the queries in its `with`, by name.
    named: HashMap<String, Size>,
    /// Tables that are read here, and in the queries that are read here.
    tables: u64,
    /// Items of all its lists of tables: each adds a join.
    items: u64,
    /// Nested operators: of the current expression, and the most of any expression.
    operators: u64,
    most_operators: u64,
    /// Levels of the deepest query that is read here.
    deepest: u64,
}

impl OpenQuery {
    fn size(&self) -> Size {
        let own = 1 + self.items + self.most_operators;
        Size { tables: self.tables.max(1), levels: self.deepest.saturating_add(own) }
    }

    fn read(&mut self, size: Size) {
        self.tables = self.tables.saturating_add(size.tables);
        self.deepest = self.deepest.max(size.levels);
    }
}

impl OpenQueries {
    fn open(&mut self, change: impl FnOnce(&mut OpenQuery)) -> ControlFlow<()> {
        if let Some(level) = self.levels.last_mut() {
            change(level);
        }
        ControlFlow::Continue(())
    }
}

impl Visitor for OpenQueries {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        let with = query.with.iter().flat_map(|with| &with.cte_tables);
        let to_come = with.map(|table| key(&table.alias.name)).collect();
        self.levels.push(OpenQuery { to_come, ..OpenQuery::default() });
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
        let Some(size) = self.levels.pop().map(|level| level.size()) else {
            return ControlFlow::Continue(());
        };
        self.open(|level| match level.to_come.pop_front() {
            Some(name) => drop(level.named.insert(name, size)),
            None => level.read(size),
        })
    }

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<()> {
        let name = match relation.0.as_slice() {
            [part] => part.as_ident().map(key),
            _ => None,
        };
        let named = |level: &OpenQuery| level.named.get(name.as_ref()?).copied();
        let size = self.levels.iter().rev().find_map(named);
        self.open(|level| level.read(size.unwrap_or(Size { tables: 1, levels: 0 })))
    }

    fn pre_visit_table_factor(&mut self, _: &TableFactor) -> ControlFlow<()> {
        self.open(|level| level.items += 1)
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        self.open(|level| {
            level.operators += 1;
            level.most_operators = level.most_operators.max(level.operators);
            // A cube groups by every subset.
            if let Expr::Cube(columns) = expr {
                let subsets = u32::try_from(columns.len()).ok().and_then(|n| 1_u64.checked_shl(n));
                level.tables = level.tables.saturating_add(subsets.unwrap_or(u64::MAX));
            }
        })
    }

    fn post_visit_expr(&mut self, _: &Expr) -> ControlFlow<()> {
        self.open(|level| level.operators -= 1)
    }
}

/// A name as DataFusion compares it.
fn key(name: &Ident) -> String {
    match name.quote_style {
        Some(_) => name.value.clone(),
        None => name.value.to_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::sql::parser::DFParser;

    use super::*;

    fn size(text: &str) -> Size {
        let statement = DFParser::parse_sql(text).unwrap().pop_front().unwrap();
        let Statement::Statement(statement) = statement else { panic!("{text}") };
        let mut plan = OpenQueries { levels: vec![OpenQuery::default()] };
        let _ = statement.visit(&mut plan);
        plan.levels[0].size()
    }

    #[test]
    fn what_stands_in_a_with_counts_as_often_as_it_is_read() {
        assert_eq!(size("select 1 from t").tables, 1);
        assert_eq!(size("with a as (select 1 from t, u) select 1 from a, a b, v").tables, 5);
        // No query reads `a`, so it is not part of the plan.
        assert_eq!(size("with a as (select 1 from t, u) select 1 from v").tables, 1);
        let doubled =
            "with a as (select 1 from t), b as (select 1 from a, A x), c as (select 1 from b, b x)
            select 1 from c where exists (select 1 from c)";
        assert_eq!(size(doubled).tables, 8);
        // The inner `a` is another one, and so are a quoted name and a table of a schema.
        let inner = "with a as (select 1 from t, u)
            select 1 from (with a as (select 1 from t) select 1 from a), \"A\", public.a";
        assert_eq!(size(inner).tables, 3);
        assert_eq!(size("select 1 from t group by cube (a, b, c)").tables, 9);
    }

    #[test]
    fn levels_lie_above_one_another_by_lists_chains_and_operators() {
        let levels = |text: &str| size(text).levels;
        // The statement, the query, its table; one operator: the literal.
        let one = levels("select 1 from t");
        assert_eq!(levels("select 1 from t, u, v"), one + 2);
        assert_eq!(levels("select 1 + 1 + 1 from t"), one + 2);
        assert_eq!(levels("select 1, 1 + 1, 1 from t"), one + 1);
        let chain = levels("with a as (select 1 from t) select 1 from a");
        assert_eq!(
            levels("with a as (select 1 from t), b as (select 1 from a) select 1 from b"),
            2 * chain - one
        );
        assert_eq!(
            levels("with a as (select 1 from t), b as (select 1 from t) select 1 from b"),
            chain
        );
    }
}
