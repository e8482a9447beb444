//! The closing summary of a job that publishes tables, as text and as JSON.

mod fit_line;

use std::cmp::Ordering;
use std::fmt::Write as _;

use serde_json::{Value, json};

use fit_line::fit;

use crate::commands::run::JobEnd;
use crate::error::clipped;
use crate::escape;
use crate::frame::Role;
use crate::job_context::WarningCode;
use crate::sink::Published;
use crate::tables::{Outcome, QuestionResult, RunRecord};

/// The most questions in the summary.
const SHOWN_QUESTIONS: usize = 20;

/// How many of the best and of the worst annotators are named.
const NAMED: usize = 3;

/// The summary of a job that ended.
pub(super) trait Summary {
    /// The summary for people.
    fn text(&self) -> String;

    /// The summary for programs; its keys are stable.
    fn json(&self) -> Value;
}

impl Summary for JobEnd {
    fn text(&self) -> String {
        match self {
            Self::Published(published) => published.text(),
            Self::Skipped(error) => {
                let why = error.to_string();
                let why = why.strip_prefix("error: ").unwrap_or(&why);
                format!(
                    "nothing to do: {why}\n  nothing was published (source.on_missing = \"skip\")"
                )
            }
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::Published(published) => published.json(),
            Self::Skipped(error) => {
                let why: Vec<String> = error.problems.iter().map(|p| p.what.clone()).collect();
                json!({ "run_id": null, "no_op": true, "skipped": why })
            }
        }
    }
}

impl Summary for Published<Outcome> {
    fn text(&self) -> String {
        let Some(outcome) = &self.outcome else { return nothing_to_do(self) };
        let mut text = String::new();
        let run = &outcome.run;
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "{name:<12}{}", escape::line(&clipped(&value)));
        };
        line(
            "rows",
            format!(
                "{} read = {} used + {} rejected",
                run.rows_read, run.rows_used, run.rows_rejected
            ),
        );
        outcome.rejects().texts().for_each(|text| line("rejected", text));
        let counts = outcome.tally();
        line(
            "labels",
            format!(
                "{} decided, {} tied, {} gold, {} abstained",
                counts.decided, counts.tied, counts.gold, counts.abstained
            ),
        );
        for (n, result) in outcome.results.iter().enumerate().take(SHOWN_QUESTIONS) {
            if let Some(question) = &result.frame.question {
                line("question", short(question.text(0)));
            }
            line("classes", classes(result));
            if let Some(gold) = gold(result) {
                line("gold", gold);
            }
            line("fit", fit(result));
            if let Some(against) = against_vote(result) {
                line("vote", against);
            }
            let (best, worst) = annotators(result);
            line("best", best);
            line("worst", worst);
            for (name, accuracy) in accuracies(outcome, n) {
                line(name, accuracy);
            }
        }
        if let Some(more) = outcome.results.len().checked_sub(SHOWN_QUESTIONS).filter(|n| *n > 0) {
            line("questions", format!("{more} more: see the tables"));
        }
        if let Some(codes) = warning_codes(&run.warnings) {
            line("warnings", codes);
        }
        line("tables", self.folder.clone());
        if self.latest.as_ref() != Some(&self.run.run_id) {
            line("latest", latest(self));
        }
        text.trim_end().to_owned()
    }

    fn json(&self) -> Value {
        let mut value = published_json(self);
        if let Some(outcome) = &self.outcome {
            let counts = outcome.tally();
            value["labels"] = json!({
                "decided": counts.decided, "tied": counts.tied, "gold": counts.gold, "abstained": counts.abstained,
            });
            let of_questions = outcome.results.iter().enumerate();
            let of_questions = of_questions.map(|(n, result)| (result, question_json(outcome, n)));
            match outcome.results.as_slice() {
                [result] if result.frame.question.is_none() => {
                    for (_, of_question) in of_questions {
                        value["accuracy"] = of_question["accuracy"].clone();
                        value["classes"] = of_question["classes"].clone();
                    }
                }
                _ => {
                    let named = of_questions.map(|(result, value)| {
                        let question = result.frame.question.as_ref();
                        (question.map_or_else(String::new, |question| question.text(0)), value)
                    });
                    value["questions"] = named.collect::<serde_json::Map<_, _>>().into();
                }
            }
            add_record(&mut value, &outcome.run);
        }
        value
    }
}

/// The accuracy by role of gold, null where none scores, and the number of labels of each class.
fn question_json(outcome: &Outcome, question: usize) -> Value {
    let metrics = outcome.metrics.iter().filter(|(q, m)| *q == question && m.name == "accuracy");
    let accuracies: serde_json::Map<_, _> =
        metrics.map(|(_, m)| (m.split.to_owned(), json!(m.value))).collect();
    let result = &outcome.results[question];
    let counts = result.tally.of_class.iter().enumerate();
    let classes: serde_json::Map<_, _> =
        counts.map(|(k, n)| (result.frame.labels.text(k), json!(n))).collect();
    let accuracy = if accuracies.is_empty() { Value::Null } else { accuracies.into() };
    json!({"accuracy": accuracy, "classes": classes})
}

impl Summary for Published<RunRecord> {
    fn text(&self) -> String {
        let Some(record) = &self.outcome else { return nothing_to_do(self) };
        format!(
            "rows        {} predicted\ntables      {}\nlatest      {}",
            record.rows_used,
            self.folder,
            latest(self)
        )
    }

    fn json(&self) -> Value {
        let mut value = published_json(self);
        if let Some(record) = &self.outcome {
            add_record(&mut value, record);
        }
        value
    }
}

fn nothing_to_do<T>(published: &Published<T>) -> String {
    format!(
        "nothing to do: this very job was committed {} as run {}\ntables      {}\nlatest      {}\n            (--force runs it again)",
        published.run.committed_at,
        published.run.run_id,
        published.folder,
        latest(published)
    )
}

/// The run that `latest` points to: a job that was already committed does not move it.
fn latest<T>(published: &Published<T>) -> String {
    match &published.latest {
        Some(latest) if *latest == published.run.run_id => "this run".to_owned(),
        Some(latest) => format!("another run: {latest}"),
        None => "not known".to_owned(),
    }
}

fn published_json<T>(published: &Published<T>) -> Value {
    json!({
        "run_id": published.run.run_id,
        "url": published.folder,
        "digest": published.run.digest,
        "no_op": published.outcome.is_none(),
        "latest": published.latest,
        "tables": published.run.tables,
    })
}

fn add_record(value: &mut Value, run: &RunRecord) {
    value["rows"] =
        json!({"read": run.rows_read, "used": run.rows_used, "rejected": run.rows_rejected});
    value["seconds"] = json!({"reading": run.seconds_reading, "fitting": run.seconds_fitting});
    value["converged"] = json!(run.converged);
    value["warnings"] = json!(run.warnings);
}

/// Every class with the number of its labels.
fn classes(result: &QuestionResult) -> String {
    let counts = &result.tally.of_class;
    let shown = 8;
    let mut parts: Vec<String> = counts
        .iter()
        .enumerate()
        .take(shown)
        .map(|(k, n)| format!("{} {n}", short(result.frame.labels.text(k))))
        .collect();
    if counts.len() > shown {
        parts.push(format!("and {} more", counts.len() - shown));
    }
    parts.join(", ")
}

/// The number of gold rows by role; `None` without gold. Without a column of roles all gold trains, and no accuracy is
/// shown, which needs an explanation.
fn gold(result: &QuestionResult) -> Option<String> {
    let frame = &result.frame;
    let unknown = &frame.unknown_gold;
    let with_features = frame.with_features.iter().flat_map(|with_features| &with_features.gold);
    // Gold of instances with annotations and with features is listed twice.
    let of_instances = frame.gold.iter().chain(&unknown.of_instances);
    let of_rows = with_features.chain(&unknown.of_feature_rows);
    let parts: Vec<(Role, usize)> = Role::ALL
        .into_iter()
        .map(|role| {
            let n = of_instances.clone().filter(|gold| gold.role == role).count();
            (role, n.max(of_rows.clone().filter(|gold| gold.role == role).count()))
        })
        .filter(|(_, n)| *n > 0)
        .collect();
    let counts = parts.iter().map(|(role, n)| format!("{n} {}", role.word()));
    let counts = counts.collect::<Vec<_>>().join(", ");
    if parts.is_empty() {
        return None;
    }
    Some(if parts.iter().all(|(role, _)| role.trains()) {
        format!("{counts}; none scores: give rows the role `holdout` to measure the accuracy")
    } else {
        counts
    })
}

/// A name, cut to 40 characters; in quotes where its ends could not be seen.
fn short(mut name: String) -> String {
    if name.trim().len() != name.len() || name.is_empty() {
        name = format!("\"{name}\"");
    }
    if let Some((end, _)) = name.char_indices().nth(40) {
        name.truncate(end);
        name.push_str("...");
    }
    name
}

/// How many labels the vote would not have given, where any.
fn against_vote(result: &QuestionResult) -> Option<String> {
    let found = &result.diagnosis.agreement;
    let differs = (found.differs_from_vote > 0).then(|| {
        let share = 100.0 * found.differs_from_vote as f64 / found.labelled as f64;
        format!(
            "differs on {} of {} labels ({share:.1} %)",
            found.differs_from_vote, found.labelled
        )
    })?;
    Some(match found.given_by_nobody {
        0 => differs,
        n => format!("{differs}; {n} that no annotator of the instance gave"),
    })
}

/// The number of warnings, and the codes of those that have one.
fn warning_codes(warnings: &[String]) -> Option<String> {
    let codes = WarningCode::names_in(warnings);
    (!codes.is_empty()).then(|| format!("{}, of which: {}", warnings.len(), codes.join(", ")))
}

/// The accuracies of a question's labels and of its classifier on gold, each with the name of its line.
fn accuracies(outcome: &Outcome, question: usize) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    for (name, measure) in [("accuracy", "accuracy"), ("classifier", "prediction_accuracy")] {
        let of_question = outcome.metrics.iter().filter(|(q, _)| *q == question);
        for (_, metric) in of_question.filter(|(_, metric)| metric.name == measure) {
            if let Some(value) = metric.value {
                lines.push((name, format!("{value:.4} on {} gold", metric.split)));
            }
        }
    }
    lines
}

/// Skills of annotators with fewer annotations are guesses, and extremes of guesses are the extremes of chance.
const MIN_RANKED: u32 = 5;

/// The best and the worst annotators, among those with at least a tenth of the median number of annotations, and five. The
/// best are by the lower end of the skill's interval, where the model has one, and the worst by the upper end.
fn annotators(result: &QuestionResult) -> (String, String) {
    let frame = &result.frame;
    let skill = &result.fitted.report.skill;
    let mut rows: Vec<u32> =
        (0..skill.len()).map(|r| frame.annotations.rows_of_annotator(r)).collect();
    let middle = rows.len() / 2;
    let enough = if middle > 0 { *rows.select_nth_unstable(middle).1 / 10 } else { 0 };
    let enough = enough.max(MIN_RANKED);
    if rows.iter().all(|n| *n < enough) {
        let none = format!("not ranked: no annotator has {enough} annotations");
        return (none.clone(), none);
    }
    let able = || (0..skill.len()).filter(|r| frame.annotations.rows_of_annotator(*r) >= enough);
    let names = |first: Vec<usize>| {
        let name = |r: &usize| {
            let id = short(frame.annotators.text(*r));
            format!("{id} {:.2} ({})", skill[*r], frame.annotations.rows_of_annotator(*r))
        };
        first.iter().map(name).collect::<Vec<_>>().join(", ")
    };
    let interval = result.fitted.report.skill_interval.as_ref();
    let low = |r: usize| interval.map_or(skill[r], |all| all[r].0);
    let high = |r: usize| interval.map_or(skill[r], |all| all[r].1);
    let best = first_by(able(), |a, b| low(b).total_cmp(&low(a)));
    let worst = first_by(able(), |a, b| high(a).total_cmp(&high(b)));
    (names(best), names(worst))
}

/// The first [`NAMED`] in an order; ties keep the order of `all`.
fn first_by(
    all: impl Iterator<Item = usize>,
    order: impl Fn(usize, usize) -> Ordering,
) -> Vec<usize> {
    let mut first: Vec<usize> = Vec::with_capacity(NAMED + 1);
    for r in all {
        // The usual case.
        if first.len() == NAMED && order(first[NAMED - 1], r).is_le() {
            continue;
        }
        first.insert(first.partition_point(|other| order(*other, r).is_le()), r);
        first.truncate(NAMED);
    }
    first
}
