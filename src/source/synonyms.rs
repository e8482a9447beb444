//! Usual names of the contract's columns in other tools, so that an error can propose a mapping of all of them at once.

use super::ColumnsSpec;

/// Names that crowdsourcing platforms, their exports and other tools use for a column of the contract, the most
/// specific first. They are compared in lower case and without characters other than letters and digits: `Task ID` is
/// `task_id`.
const SYNONYMS: [(&str, &[&str]); 4] = [
    (
        "instance_id",
        &[
            "instance", "task", "item", "example", "sample", "question", "object", "document",
            "doc", "image", "text", "unit", "hit", "row", "i", "id",
        ],
    ),
    (
        "annotator_id",
        &[
            "annotator",
            "worker",
            "user",
            "rater",
            "labeler",
            "labeller",
            "coder",
            "judge",
            "performer",
            "contributor",
            "turker",
            "expert",
            "source",
            "model",
            "j",
        ],
    ),
    (
        "label",
        &[
            "answer",
            "response",
            "annotation",
            "vote",
            "judgment",
            "judgement",
            "rating",
            "choice",
            "class",
            "category",
            "value",
            "output",
            "y",
            "l",
        ],
    ),
    (
        "class",
        &["truth", "gold", "golden", "true", "groundtruth", "target", "correct", "answer", "y"],
    ),
];

/// Proposes the line of a pipeline file that maps the required columns of a relation to their names in the file.
/// `required` gives each column and its fallback name. `None` where a column has no known synonym, or nothing has to be
/// mapped.
pub(super) fn proposal(
    required: impl Iterator<Item = (&'static str, Option<&'static str>)>,
    columns: &ColumnsSpec,
    names: &[String],
) -> Option<String> {
    let mut mapped: Vec<(&str, &str)> = Vec::new();
    for (contract, fallback) in required {
        let key = contract.trim_end_matches("_id");
        let is_free = |name: &&String| mapped.iter().all(|(_, taken)| taken != name);
        let has = |wanted: &str| names.iter().filter(is_free).find(|name| *name == wanted);
        if has(contract).is_some() || fallback.is_some_and(|name| has(name).is_some()) {
            continue;
        }
        let chosen = columns.mapped(contract).and_then(has);
        let name = chosen.or_else(|| synonym(contract, names.iter().filter(is_free)))?;
        mapped.push((key, name));
    }
    let pairs: Vec<String> = mapped.iter().map(|(key, name)| format!("{key} = {name:?}")).collect();
    (!pairs.is_empty()).then(|| format!("source.columns = {{ {} }}", pairs.join(", ")))
}

/// The column that the user most likely means.
pub(super) fn synonym<'a>(
    contract: &str,
    names: impl Iterator<Item = &'a String>,
) -> Option<&'a String> {
    let (_, known) = SYNONYMS.iter().find(|(name, _)| *name == contract)?;
    let place = |name: &&String| known.iter().position(|known| stem(name) == *known);
    names.filter(|name| place(name).is_some()).min_by_key(place)
}

/// The name in lower case, without characters other than letters and digits, and without a final `id` or `label`.
fn stem(name: &str) -> String {
    let plain: String =
        name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect();
    match plain.strip_suffix("id").or_else(|| plain.strip_suffix("label")) {
        Some(stem) if !stem.is_empty() => stem.to_owned(),
        _ => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANNOTATIONS: [(&str, Option<&str>); 3] =
        [("instance_id", None), ("annotator_id", None), ("label", None)];

    fn proposed(
        required: &[(&'static str, Option<&'static str>)],
        names: &[&str],
    ) -> Option<String> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        proposal(required.iter().copied(), &ColumnsSpec::default(), &names)
    }

    #[test]
    fn the_files_of_other_tools_are_mapped_whole() {
        for (names, line) in [
            (&["task", "worker", "label"][..], r#"{ instance = "task", annotator = "worker" }"#),
            (
                &["item", "user", "answer"],
                r#"{ instance = "item", annotator = "user", label = "answer" }"#,
            ),
            (
                &["sample_id", "annotator", "label"],
                r#"{ instance = "sample_id", annotator = "annotator" }"#,
            ),
            (
                &["question_id", "worker_id", "answer"],
                r#"{ instance = "question_id", annotator = "worker_id", label = "answer" }"#,
            ),
            (&["i", "j", "y"], r#"{ instance = "i", annotator = "j", label = "y" }"#),
            (
                &["Task ID", "workerId", "Judgement", "time"],
                r#"{ instance = "Task ID", annotator = "workerId", label = "Judgement" }"#,
            ),
            (
                &["_unit_id", "_worker_id", "label"],
                r#"{ instance = "_unit_id", annotator = "_worker_id" }"#,
            ),
        ] {
            let want = format!("source.columns = {line}");
            assert_eq!(proposed(&ANNOTATIONS, names), Some(want), "{names:?}");
        }
        let gold =
            proposed(&[("instance_id", None), ("class", Some("label"))], &["task", "true_label"]);
        assert_eq!(
            gold.as_deref(),
            Some(r#"source.columns = { instance = "task", class = "true_label" }"#)
        );
    }

    #[test]
    fn nothing_is_proposed_where_a_column_is_not_known() {
        assert_eq!(proposed(&ANNOTATIONS, &["task", "worker", "colour"]), None);
        assert_eq!(proposed(&ANNOTATIONS, &["task", "label"]), None);
    }
}
