//! Words for messages: offending values, and the name that was probably meant.

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

/// The candidate that is nearest to `word` by edit distance, if it is near enough for a typing error.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // The distance takes time and memory proportional to the product of the lengths, and typing errors do not matter in
    // names this long.
    let is_short = |word: &str| word.len() <= 256;
    candidates
        .into_iter()
        .filter(|c| is_short(word) && is_short(c))
        .map(|c| (strsim::damerau_levenshtein(&word.to_lowercase(), &c.to_lowercase()), c))
        .filter(|(distance, c)| *distance <= 1 + word.len().max(c.len()) / 4)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, c)| c)
}

/// The help for a word that is none of the candidates: the nearest of them, or `otherwise` if none is near.
pub fn did_you_mean<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
    otherwise: impl FnOnce() -> String,
) -> String {
    nearest(word, candidates).map_or_else(otherwise, |near| format!("did you mean `{near}`?"))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn the_nearest_name_is_a_slip_away_or_none() {
        assert_eq!(nearest("anotations", ["annotations", "gold"]), Some("annotations"));
        assert_eq!(nearest("zzz", ["annotations", "gold"]), None);
    }

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
