//! The name that was probably meant.

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
        // Otherwise any two names of one letter would be near.
        .filter(|(distance, c)| *distance < word.chars().count().max(c.chars().count()))
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
    use super::*;

    #[test]
    fn the_nearest_name_is_a_slip_away_or_none() {
        assert_eq!(nearest("anotations", ["annotations", "gold"]), Some("annotations"));
        assert_eq!(nearest("zzz", ["annotations", "gold"]), None);
        assert_eq!(nearest("o", ["c", "O"]), Some("O"));
        assert_eq!(nearest("o", ["c"]), None);
    }
}
