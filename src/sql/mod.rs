//! Checks the user's SQL before it runs, and holds every query that labelmill runs itself: one file per named result,
//! with standard functions only, so that any DataFusion can run it.
//!
//! # Why
//! Parsed SQL is a tree that is dropped, compared and printed recursively. The parser limits nested brackets, but a
//! chain such as `1+1+...` makes a tree as deep as it is long, and a tree that is deep enough ends the process with a
//! stack overflow. So the depth is checked on the tokens, before there is a tree. A plan may be larger and deeper than
//! its text; `expansion.rs` limits it. Values that are too large end in the bound on the memory of the process.

mod expansion;
mod named;
mod unknown_table;

use std::collections::VecDeque;
use std::future::Future;
use std::panic::AssertUnwindSafe;

use datafusion::execution::context::SQLOptions;
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::DFParserBuilder;
pub use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};
use futures::FutureExt;

use crate::error::{Error, Result};
pub use named::{NAMED_QUERIES, NamedQuery, QueryParameter};
pub use unknown_table::with_known_tables;

/// The distance of estimated confusion matrices from the true ones.
pub const CONFUSION_ERROR: &str = include_str!("../../sql/confusion_error.sql");
/// The most tokens between two commas, plus those of all brackets around them.
const MAX_DEPTH: usize = 1_000;

/// The least number of tokens that a query in a chain of `union` counts as, whatever commas it contains.
const TOKENS_OF_A_QUERY: usize = 2;

/// The statements of a text.
///
/// # Errors
/// When it is not SQL, or its plan would be too deep or too large to be handled.
pub fn parse(ctx: &SessionContext, text: &str) -> Result<VecDeque<Statement>> {
    check_depth(text)?;
    let state = ctx.state();
    let limit = state.config().options().sql_parser.recursion_limit.get();
    let mut parser = DFParserBuilder::new(text).with_recursion_limit(limit).build()?;
    let statements = parser.parse_statements()?;
    statements.iter().try_for_each(expansion::check)?;
    Ok(statements)
}

/// Plans or runs SQL, and turns a panic of a kernel or a decoder into an error.
///
/// # Errors
/// When the work fails or panics.
pub async fn catch_panics<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    AssertUnwindSafe(work)
        .catch_unwind()
        .await
        .unwrap_or_else(|panic| Err(Error::of_panic(&*panic, Error::query_broke_off())))
}

/// The options that allow statements to do anything if `writes`, and otherwise only to read.
#[must_use]
pub fn options(writes: bool) -> SQLOptions {
    SQLOptions::new().with_allow_ddl(writes).with_allow_dml(writes).with_allow_statements(writes)
}

/// Whether a statement changes nothing, not even this session.
#[must_use]
pub fn only_reads(statement: &Statement) -> bool {
    match statement {
        Statement::Explain(explain) => only_reads(&explain.statement),
        Statement::Statement(statement) => is_query(statement),
        _ => false,
    }
}

fn is_query(statement: &ast::Statement) -> bool {
    match statement {
        ast::Statement::Explain { statement, .. } => is_query(statement),
        ast::Statement::Query(_)
        | ast::Statement::ExplainTable { .. }
        | ast::Statement::ShowColumns { .. }
        | ast::Statement::ShowFunctions { .. }
        | ast::Statement::ShowTables { .. }
        | ast::Statement::ShowVariable { .. } => true,
        _ => false,
    }
}

/// Whether a statement gives a plan instead of rows.
#[must_use]
pub fn explains(statement: &Statement) -> bool {
    matches!(statement, Statement::Explain(_))
        || matches!(statement, Statement::Statement(s) if matches!(**s, ast::Statement::Explain { .. }))
}

/// The files and folders that a statement names, in addition to those of its tables.
#[must_use]
pub fn locations(statement: &Statement) -> Vec<&str> {
    match statement {
        Statement::Explain(explain) => locations(&explain.statement),
        Statement::CopyTo(copy) => vec![&copy.target],
        Statement::CreateExternalTable(create) => {
            create.locations.iter().map(String::as_str).collect()
        }
        _ => Vec::new(),
    }
}

/// The first word of a statement; for `explain`, that of the explained statement.
#[must_use]
pub fn what_it_does(statement: &Statement) -> String {
    let text = match statement {
        Statement::Explain(explain) => return what_it_does(&explain.statement),
        Statement::CopyTo(_) => "COPY".to_owned(),
        Statement::CreateExternalTable(_) => "CREATE EXTERNAL TABLE".to_owned(),
        Statement::Reset(_) => "RESET".to_owned(),
        Statement::Statement(statement) => statement.to_string(),
    };
    text.split_whitespace().next().unwrap_or_default().to_uppercase()
}

/// Checks the depth of a text before it is parsed.
///
/// # Errors
/// When the tree of the text could overflow the stack.
fn check_depth(text: &str) -> Result<()> {
    // The parser reports a text that does not consist of tokens.
    let Ok(tokens) = Tokenizer::new(&GenericDialect {}, text).tokenize() else { return Ok(()) };
    let depth = depth(&tokens);
    if depth <= MAX_DEPTH {
        return Ok(());
    }
    Err(Error::spec("the SQL is too deep")
        .found(format!("{depth} words and signs in one expression, {MAX_DEPTH} at most"))
        .help("write long chains of `or` as `in (...)`, and long unions as one table"))
}

/// The number of tokens of the longest expression, with those of its deepest brackets. Commas and the branches of
/// `case` separate expressions.
fn depth(tokens: &[Token]) -> usize {
    #[derive(Default)]
    struct Level {
        own: usize,
        inner: usize,
        deepest: usize,
        /// Queries that are chained to the ones before them; `inner_chained` is the most of them in brackets.
        chained: usize,
        inner_chained: usize,
    }
    impl Level {
        fn end_statement(&mut self) -> usize {
            let chained = std::mem::take(&mut self.chained);
            chained + std::mem::take(&mut self.inner_chained)
        }

        fn end_item(&mut self) {
            self.deepest = self.deepest.max(self.own + self.inner);
            (self.own, self.inner) = (0, 0);
        }
    }
    let mut levels = vec![Level::default()];
    let (mut deepest, mut chained) = (0, 0);
    for token in tokens {
        let open = levels.len();
        let Some(level) = levels.last_mut() else { break };
        match token {
            Token::Whitespace(_) => {}
            Token::LParen | Token::LBracket | Token::LBrace => {
                level.own += 1;
                levels.push(Level::default());
            }
            Token::RParen | Token::RBracket | Token::RBrace if open > 1 => {
                if let (Some(mut ended), Some(outer)) = (levels.pop(), levels.last_mut()) {
                    outer.inner_chained = outer.inner_chained.max(ended.end_statement());
                    ended.end_item();
                    outer.inner = outer.inner.max(ended.deepest);
                }
            }
            Token::SemiColon => {
                chained = chained.max(level.end_statement());
                level.end_item();
            }
            Token::Comma => level.end_item(),
            // Each set operation lies above all queries before it, whatever commas are between them.
            Token::Word(word) if is_set_operation(word.keyword) => {
                level.chained += 1;
                level.own += 1;
            }
            Token::VerticalBarRightAngleBracket => level.chained += 1,
            Token::Word(word)
                if matches!(word.keyword, Keyword::WHEN | Keyword::THEN | Keyword::ELSE) =>
            {
                level.end_item();
            }
            _ => level.own += 1,
        }
        deepest = deepest.max(open);
    }
    // Brackets that never close count as if they did.
    let mut inner_chained = 0;
    let open = levels.into_iter().rev().fold(0, |inner, mut level| {
        level.inner_chained = level.inner_chained.max(inner_chained);
        inner_chained = level.end_statement();
        level.inner = level.inner.max(inner);
        level.end_item();
        level.deepest
    });
    open.max(deepest).max(chained.max(inner_chained) * TOKENS_OF_A_QUERY)
}

fn is_set_operation(keyword: Keyword) -> bool {
    matches!(keyword, Keyword::UNION | Keyword::INTERSECT | Keyword::EXCEPT | Keyword::MINUS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_and_brackets_are_deep_and_lists_are_not() {
        let depth =
            |text: &str| depth(&Tokenizer::new(&GenericDialect {}, text).tokenize().unwrap());
        assert_eq!(depth("select 1+1+1"), 6);
        assert_eq!(depth("select (1, 2, 3)"), 3);
        // Four outside, three in the outer brackets, one in the inner ones.
        assert_eq!(depth("select ((1)+1)+1"), 8);
        assert_eq!(depth("select case when a then b when c then d else e end"), 2);
        assert_eq!(depth(&format!("select x in ({})", vec!["1"; 10_000].join(","))), 5);
        assert!(depth(&format!("select 1{}", "+1".repeat(5_000))) > MAX_DEPTH);
        let chain = |word: &str, n: usize| "select 1, 2 ".to_owned() + &word.repeat(n);
        for word in ["union all select 1, 2 ", "except select 1, 2 ", "|> select 1, 2 "] {
            assert_eq!(depth(&chain(word, 300)), 600, "{word}");
            assert_eq!(depth(&format!("{};{}", chain(word, 300), chain(word, 200))), 600, "{word}");
            let nested = format!("({}) {}", chain(word, 300), word.repeat(100));
            assert_eq!(depth(&nested), 800, "{word}");
        }
        assert!(depth(&format!("select {}", "f(1+".repeat(2_000))) > MAX_DEPTH);
    }

    #[test]
    fn what_changes_something_is_told_from_what_reads() {
        let ctx = SessionContext::new();
        let first = |text: &str| parse(&ctx, text).unwrap().pop_front().unwrap();
        for text in [
            "select 1",
            "with a as (select 1) select * from a",
            "values (1)",
            "explain select 1",
            "explain analyze select 1",
            "show tables",
            "show all",
            "describe t",
            "show columns from t",
        ] {
            assert!(only_reads(&first(text)), "{text}");
        }
        for (text, word) in [
            ("create table t as select 1", "CREATE"),
            ("create external table t stored as csv location 'x'", "CREATE"),
            ("create view v as select 1", "CREATE"),
            ("drop table t", "DROP"),
            ("insert into t values (1)", "INSERT"),
            ("delete from t", "DELETE"),
            ("update t set a = 1", "UPDATE"),
            ("truncate table t", "TRUNCATE"),
            ("copy t to 'x.csv'", "COPY"),
            ("explain copy t to 'x.csv'", "COPY"),
            ("explain analyze copy t to 'x.csv'", "COPY"),
            ("explain analyze insert into t values (1)", "INSERT"),
            ("set datafusion.execution.batch_size = 1", "SET"),
            ("reset datafusion.execution.batch_size", "RESET"),
            ("prepare p as select 1", "PREPARE"),
            ("execute p", "EXECUTE"),
            ("deallocate p", "DEALLOCATE"),
            ("begin", "BEGIN"),
        ] {
            assert!(!only_reads(&first(text)), "{text}");
            assert_eq!(what_it_does(&first(text)), word, "{text}");
        }
    }
}
