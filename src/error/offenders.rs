//! Offending values, as a message shows them.

use std::fmt;

/// How many offenders an error names before it only counts them.
pub const SHOWN_OFFENDERS: usize = 5;

/// `a, b, c` in backticks, at most [`SHOWN_OFFENDERS`] of them, then a count.
pub fn offenders<T: fmt::Display>(all: impl IntoIterator<Item = T>) -> String {
    let mut all = all.into_iter().fuse();
    let shown: Vec<String> =
        all.by_ref().take(SHOWN_OFFENDERS).map(|value| format!("`{value}`")).collect();
    let text = shown.join(", ");
    match all.count() {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn offenders_are_five_then_a_count() {
        assert_eq!(offenders(1..=7), "`1`, `2`, `3`, `4`, `5` and 2 more");
        assert_eq!(offenders(1..=5), "`1`, `2`, `3`, `4`, `5`");
        assert_eq!(offenders(1..1), "");
        // The others are counted, and never written.
        let written = Cell::new(0);
        let value = fmt::from_fn(|f| {
            written.set(written.get() + 1);
            f.write_str("x")
        });
        assert_eq!(offenders([&value; 7]), "`x`, `x`, `x`, `x`, `x` and 2 more");
        assert_eq!(written.get(), SHOWN_OFFENDERS);
    }
}
