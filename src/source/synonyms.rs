//! Usual names of the contract's columns in other tools.

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
            "label",
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

/// Synonyms of `class` that are synonyms of `label` as well.
const EITHER: [&str; 2] = ["answer", "y"];

/// The column that the user most likely means.
pub(super) fn synonym<'a>(
    contract: &str,
    names: impl Iterator<Item = &'a String>,
) -> Option<&'a String> {
    names
        .filter_map(|name| Some((rank(contract, name)?, name)))
        .min_by_key(|(rank, _)| *rank)
        .map(|(_, name)| name)
}

/// How well a name fits a column of the contract: 0 is best; `None` if it does not. Of a name such as `INPUT:image` or
/// `Answer.label`, the last part may fit as well.
fn rank(contract: &str, name: &str) -> Option<usize> {
    let of_part = || {
        let (group, part) = name.rsplit_once([':', '.'])?;
        let is_truth = contract == "label" && is_truth(&plain(group));
        rank_of_word(contract, part).filter(|_| !is_truth).map(|rank| rank + 1)
    };
    rank_of_word(contract, name).or_else(of_part)
}

fn plain(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

fn rank_of_word(contract: &str, name: &str) -> Option<usize> {
    let plain = plain(name);
    if plain == contract.replace('_', "") {
        return Some(0);
    }
    let known = known(contract);
    let suffix = if contract == "class" { "label" } else { "id" };
    let stem = plain.strip_suffix(suffix).filter(|stem| !stem.is_empty()).unwrap_or(&plain);
    let place = known.iter().position(|known| [stem, plain.as_str()].contains(known));
    let is_label = contract == "label" && is_kind_of_label(&plain);
    let place = place.or_else(|| is_label.then_some(known.len()))?;
    // Of `answer` and `answer_id`, the plain word fits better.
    Some(1 + 2 * place + usize::from(!known.contains(&plain.as_str())))
}

/// Such as `worker_label`, but not `true_label`, which is a class.
fn is_kind_of_label(plain: &str) -> bool {
    let whose = plain.strip_suffix("label").or_else(|| plain.strip_suffix("answer"));
    whose.is_some_and(|whose| !is_truth(whose))
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
        synonym(contract, names.iter()).cloned()
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
            columns(&["HITId", "WorkerId", "Answer.label", "Gold.label"]),
            ["HITId", "WorkerId", "Answer.label"]
        );
        assert_eq!(
            columns(&["task_id", "worker_id", "label_id"]),
            ["task_id", "worker_id", "label_id"]
        );
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
