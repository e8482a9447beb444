//! Checks that the brackets of a TOML text are not nested too deep for its parser.
//!
//! # Why
//! The parser recurses for each bracket inside a bracket. Its own limit does not hold for malformed text: a `{ }` where
//! no value may stand lowers its count of open brackets, so that `{ {} a = { {} a = ...` overflows the stack and aborts
//! the process. Here a bracket counts as open until one of its own kind closes it, so that the parser's depth never
//! exceeds this count.

use toml_parser::Source;
use toml_parser::lexer::TokenKind;

/// The most open brackets: the parser's own limit for well-formed text.
const MAX_OPEN: usize = 80;

/// The byte at which too many brackets are open; `None` where they never are.
pub(super) fn too_deep(text: &str) -> Option<usize> {
    let mut open = Vec::new();
    for token in Source::new(text).lex() {
        match token.kind() {
            kind @ (TokenKind::LeftSquareBracket | TokenKind::LeftCurlyBracket) => open.push(kind),
            TokenKind::RightSquareBracket => {
                open.pop_if(|last| *last == TokenKind::LeftSquareBracket);
            }
            TokenKind::RightCurlyBracket => {
                open.pop_if(|last| *last == TokenKind::LeftCurlyBracket);
            }
            _ => {}
        }
        if open.len() > MAX_OPEN {
            return Some(token.span().start());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::{Overrides, from_table, parse};
    use super::*;

    #[test]
    fn malformed_text_that_nests_without_end_is_an_error() {
        let levels =
            ["{ {} a = ", "{ label = 'l'{ }\ns = ", "{ ] {} a = ", "{ a = ", "[", "[{ a = "];
        for level in levels {
            let error = parse(&format!("a = 1\nx = {}", level.repeat(50_000)), "p.toml");
            let error = error.unwrap_err().to_string();
            assert!(error.contains("nested too deep") && error.contains("p.toml:"), "{error}");
        }
        let set = format!("name={}", "{ {} a = ".repeat(50_000));
        let overrides = Overrides { set: vec![set], ..Overrides::default() };
        let schema = serde_json::json!({"properties": {"name": {"type": "integer"}}});
        let table = toml::Table::new();
        assert!(from_table::<toml::Table>(table, "p.toml", &overrides, &schema).is_err());
    }

    #[test]
    fn brackets_that_are_closed_or_quoted_do_not_count() {
        let pairs = "[1], ".repeat(1000);
        let text =
            format!("a = [{pairs}]\nb = '{0}' # {0}\nc = \"\"\"{0}\"\"\"", "[{".repeat(1000));
        assert_eq!(too_deep(&text), None);
        assert!(parse(&text, "p.toml").is_ok());
        let deep = |n: usize| format!("a = {}1{}", "[".repeat(n), "]".repeat(n));
        assert_eq!((too_deep(&deep(MAX_OPEN)), too_deep(&deep(MAX_OPEN + 1))), (None, Some(84)));
    }
}
