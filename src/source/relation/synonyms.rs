//! Usual names of the contract's columns in other tools.

use super::sample::Sample;

/// Names that crowdsourcing platforms, their exports and other tools use for a column of the contract, the most
/// specific first. They are compared in lower case and without characters other than letters and digits: `Task ID` is
/// `task_id`.
const SYNONYMS: [(&str, &[&str]); 4] = [
    (
        "instance_id",
        &[
            "instance",
            "inputhash",
            "task",
            "item",
            "example",
            "sample",
            "question",
            "object",
            "unit",
            "hit",
            "id",
            "document",
            "doc",
            "image",
            "text",
            "row",
            "i",
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
            "label",
            "answer",
            "response",
            "annotation",
            "vote",
            "judgment",
            "judgement",
            "verdict",
            "rating",
            "choice",
            "class",
            "category",
            "value",
            "output",
            "result",
            "y",
            "l",
        ],
    ),
    (
        "class",
        &["truth", "gold", "golden", "true", "groundtruth", "target", "correct", "answer", "y"],
    ),
];

/// Labels that may be numbered: `label_id` is a label, and `annotation_id` the key of a row.
const NUMBERED_LABELS: [&str; 4] = ["labelid", "classid", "categoryid", "choiceid"];

/// Words before `id` for what groups instances or rows, and names neither.
const GROUPS: [&str; 9] = [
    "session",
    "project",
    "workflow",
    "batch",
    "assignment",
    "campaign",
    "country",
    "group",
    "parent",
];

/// Synonyms of `class` that are synonyms of `label` as well.
const EITHER: [&str; 2] = ["answer", "y"];

/// The groups of columns that do not hold a column of the contract: `INPUT:label` is part of a task, and `Answer.text`
/// is not the text of an instance.
const OTHER_GROUPS: [(&str, &[&str]); 3] = [
    ("instance_id", &["output", "answer", "golden", "hint"]),
    ("annotator_id", &["output", "answer", "golden", "hint"]),
    ("label", &["input", "hint"]),
];

/// The column that the user most likely means.
pub(in crate::source) fn synonym<'a>(
    contract: &str,
    names: impl Iterator<Item = &'a String>,
    sample: &Sample,
) -> Option<&'a String> {
    // Ids of instances and annotators repeat: a column that does not is rather the key of its rows.
    let names: Vec<&String> = names.collect();
    // Prodigy's `answer` says whether a row counts.
    let is_prodigy = names.iter().any(|name| plain(name).ends_with("hash") || *name == "_view_id");
    let is_status = |name: &str| is_prodigy && plain(name) == "answer";
    let known = names
        .iter()
        .copied()
        .filter(|name| contract != "label" || !is_status(name))
        .filter(|name| contract != "label" || sample.may_be_label(name))
        .filter_map(|name| Some(((sample.is_key(name), rank(contract, name)?), name)))
        .min_by_key(|(rank, _)| *rank)
        .map(|(_, name)| name);
    if contract != "instance_id" || known.is_some_and(|name| !sample.is_key(name)) {
        return known;
    }
    // `id` is the key of the rows where `prompt_id` repeats.
    let mut repeated = names.into_iter().filter(|name| is_repeated_id(name, sample));
    match (repeated.next(), repeated.next()) {
        (Some(only), None) => Some(only),
        (None, _) => known,
        _ => None,
    }
}

/// Whether a column has the name of an id, which is none of an annotator, a label or a group, and values that repeat.
fn is_repeated_id(name: &str, sample: &Sample) -> bool {
    let plain = plain(name);
    let is_group = GROUPS.iter().any(|group| plain.starts_with(group));
    is_id_name(name)
        && sample.is_known
        && sample.may_be_label(name)
        && !is_group
        && rank("annotator_id", name).is_none()
}

/// Whether a name is one of an id and not of a label: `prompt_id`, `subject_ids`, `_task_hash`.
pub(super) fn is_id_name(name: &str) -> bool {
    let plain = plain(name);
    let is_numbered = NUMBERED_LABELS.iter().any(|label| plain.ends_with(label));
    !is_numbered && ["id", "ids", "hash"].iter().any(|end| plain.ends_with(end))
}

/// How well a name fits a column of the contract: whether only a part of it fits, and a rank, of which 0 is best;
/// `None` if it does not fit. Of a name such as `INPUT:image` or `Answer.label`, the last part may fit. A whole name
/// fits better: `HITId` names the instances, also beside `Input.text`.
fn rank(contract: &str, name: &str) -> Option<(bool, usize)> {
    let Some((group, part)) = name.rsplit_once([':', '.']) else {
        return Some((false, rank_of_word(contract, name)?));
    };
    let group = plain(group);
    let others = OTHER_GROUPS.iter().find(|(column, _)| *column == contract);
    let is_other = others.is_some_and(|(_, groups)| groups.contains(&group.as_str()))
        || contract == "label" && is_truth(&group);
    if is_other {
        return None;
    }
    let whole = rank_of_word(contract, name).map(|rank| (false, rank));
    whole.or_else(|| Some((true, rank_of_word(contract, part)?)))
}

/// The letters and digits of a name, in lower case.
fn plain(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

fn rank_of_word(contract: &str, name: &str) -> Option<usize> {
    let plain = plain(name);
    let is_numbered = NUMBERED_LABELS.iter().any(|label| plain.ends_with(label));
    if contract == "label" && plain.ends_with("id") && !is_numbered {
        return None;
    }
    if plain == contract.replace('_', "") {
        return Some(0);
    }
    let known = known(contract);
    let suffix = if contract == "class" { "label" } else { "id" };
    let stem = plain.strip_suffix(suffix).filter(|stem| !stem.is_empty()).unwrap_or(&plain);
    let location = known.iter().position(|known| [stem, plain.as_str()].contains(known));
    let is_label = contract == "label" && is_kind_of_label(&plain);
    let location = location.or_else(|| is_label.then_some(known.len()))?;
    // Of `answer` and `answer_id`, the plain word fits better.
    Some(1 + 2 * location + usize::from(!known.contains(&plain.as_str())))
}

/// Whether the name is one of a label, such as `worker_label`; `true_label` is the name of a class.
fn is_kind_of_label(plain: &str) -> bool {
    let words_before = plain.strip_suffix("label").or_else(|| plain.strip_suffix("answer"));
    words_before.is_some_and(|words| !is_truth(words))
}

/// Whether a word is used of the true class alone.
fn is_truth(plain: &str) -> bool {
    known("class").contains(&plain) && !EITHER.contains(&plain)
}

fn known(contract: &str) -> &'static [&'static str] {
    SYNONYMS.iter().find(|(name, _)| *name == contract).map_or(&[], |(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(contract: &str, names: &[&str]) -> Option<String> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        synonym(contract, names.iter(), &Sample::default()).cloned()
    }

    #[test]
    fn only_a_class_loses_the_word_label() {
        let names = ["image_label", "image_id", "worker"];
        assert_eq!(chosen("instance_id", &names).as_deref(), Some("image_id"));
        assert_eq!(chosen("label", &names).as_deref(), Some("image_label"));
        assert_eq!(chosen("annotator_id", &["worker_label", "task"]), None);
        assert_eq!(chosen("label", &["worker_label", "answer"]).as_deref(), Some("answer"));
        assert_eq!(chosen("label", &["answer_id", "answer"]).as_deref(), Some("answer"));
        assert_eq!(chosen("class", &["gold_label"]).as_deref(), Some("gold_label"));
        for class in ["true_label", "gold_label", "correct_answer"] {
            assert_eq!(chosen("label", &[class]), None, "{class}");
        }
    }

    #[test]
    fn exports_of_platforms_have_their_columns() {
        let columns = |names: &[&str]| {
            ["instance_id", "annotator_id", "label"]
                .map(|contract| chosen(contract, names).unwrap())
        };
        assert_eq!(
            columns(&[
                "HITId",
                "Input.text",
                "Input.label",
                "WorkerId",
                "Answer.label",
                "Gold.label"
            ]),
            ["HITId", "WorkerId", "Answer.label"]
        );
        assert_eq!(
            columns(&["task_id", "worker_id", "label_id"]),
            ["task_id", "worker_id", "label_id"]
        );
        assert_eq!(chosen("label", &["GOLDEN:label", "INPUT:label"]), None);
        assert_eq!(chosen("instance_id", &["OUTPUT:text"]), None);
        assert_eq!(
            columns(&["GOLDEN:result", "OUTPUT:result", "INPUT:image", "ASSIGNMENT:worker_id"]),
            ["INPUT:image", "ASSIGNMENT:worker_id", "OUTPUT:result"]
        );
    }

    #[test]
    fn the_contract_s_own_name_in_another_spelling_comes_first() {
        assert_eq!(chosen("label", &["answer", "Label"]).as_deref(), Some("Label"));
        assert_eq!(chosen("instance_id", &["task", "instanceId"]).as_deref(), Some("instanceId"));
    }
}
