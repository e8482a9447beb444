//! Quality gates: conditions for publishing a run. When a run fails one, the last published run stays in place.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Problem, Result, Stage};
use crate::frame::Rejects;
use crate::tables::Outcome;

/// Bounds that a run must meet; a bound that is left out is not checked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GateSpec {
    /// The greatest share of rows that may be rejected.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub max_rejected: Option<f64>,
    /// The greatest share of instances whose label may be a broken tie.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub max_tied: Option<f64>,
    /// The greatest share of instances that may stay without a label.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub max_abstained: Option<f64>,
    /// The least accuracy on gold of the role `holdout`.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min_accuracy: Option<f64>,
}

/// The measures that gates check. They include questions without a usable row, whose instances have no labels. The
/// manifest stores them, so that gates can also be checked for a run that is already committed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measures {
    /// The share of rows that were rejected.
    pub rejected: f64,
    /// The share of instances whose label is a broken tie.
    pub tied: f64,
    /// The share of instances without a label.
    pub abstained: f64,
    /// The lowest accuracy of a question on gold of the role `holdout`, where there is any.
    pub accuracy: Option<f64>,
    /// What the shares are of: rows, instances, and the gold of the accuracy; 0 where an older version did not count them.
    #[serde(default)]
    pub rows: u64,
    /// The number of instances.
    #[serde(default)]
    pub instances: u64,
    /// The number of scored instances of the question with the lowest accuracy.
    #[serde(default)]
    pub scored: f64,
}

impl Measures {
    /// The measures of an outcome.
    #[must_use]
    pub fn from_outcome(outcome: &Outcome) -> Self {
        let share =
            |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let (counts, run) = (outcome.tally(), &outcome.run);
        let of_holdout = |name: &'static str| {
            let metrics = outcome.metrics.iter();
            metrics.filter(move |(_, m)| m.name == name && m.split == "holdout")
        };
        let scores = of_holdout("accuracy").filter_map(|(question, metric)| {
            let mut n = of_holdout("instances").filter(|(other, _)| other == question);
            Some((metric.value?, n.next().and_then(|(_, n)| n.value).unwrap_or_default()))
        });
        let left_out = || outcome.results.iter().flat_map(|result| &result.frame.left_out);
        let unlabelled: u64 = left_out().map(|question| question.instances).sum();
        // Such a question has no labels: its accuracy is 0.
        let missed = left_out().filter(|question| question.n_holdout > 0);
        let missed = missed.map(|question| (0.0, question.n_holdout as f64));
        let lowest = scores.chain(missed).min_by(|(a, _), (b, _)| a.total_cmp(b));
        let instances = counts.total() + unlabelled;
        Self {
            rejected: share(run.rows_rejected, run.rows_read),
            tied: share(counts.tied, instances),
            abstained: share(counts.abstained + unlabelled, instances),
            accuracy: lowest.map(|(accuracy, _)| accuracy),
            rows: run.rows_read,
            instances,
            scored: lowest.map_or(0.0, |(_, n)| n),
        }
    }
}

impl GateSpec {
    /// Checks the measures in the manifest of a committed run.
    ///
    /// # Errors
    /// Every bound that the run breaks; or a bound is set and the manifest has no measures to check it against.
    pub fn check_committed(&self, run_id: &str, measures: &Value) -> Result<()> {
        match serde_json::from_value(measures.clone()) {
            Ok(measures) => self.check_bounds(
                &measures,
                &Rejects::default(),
                "the run was committed before; look into the input, or move the bound",
            ),
            Err(_) if *self == Self::default() => Ok(()),
            Err(_) => Err(Error::new(
                Stage::Gate,
                Problem::new("the manifest of the committed run has no measures for the gate")
                    .at("gate")
                    .found(format!("run `{run_id}`"))
                    .help("run it again with --force"),
            )),
        }
    }

    /// Checks the measures of a run before it is published. An error names the reasons of `rejects`, which no table will
    /// list.
    ///
    /// # Errors
    /// Every bound that the measures break, at once.
    pub fn check(&self, measures: &Measures, rejects: &Rejects) -> Result<()> {
        let help = "nothing was published; look into the input, or move the bound; --keep-rejected publishes the run \
                    under rejected/ for a look";
        self.check_bounds(measures, rejects, help)
    }

    fn check_bounds(&self, measures: &Measures, rejects: &Rejects, help: &str) -> Result<()> {
        let most = [
            ("max_rejected", "rows were rejected", self.max_rejected, measures.rejected),
            ("max_tied", "labels are broken ties", self.max_tied, measures.tied),
            ("max_abstained", "instances have no label", self.max_abstained, measures.abstained),
        ];
        let broken = most.into_iter().filter_map(|(key, what, bound, found)| {
            let (n, of) = match key {
                "max_rejected" => (measures.rows as f64, "rows"),
                _ => (measures.instances as f64, "instances"),
            };
            let bound = bound.filter(|bound| found > *bound)?;
            let mut found = vec![share_of(found, n, of)];
            if key == "max_rejected" {
                found.extend(rejects.texts());
            }
            let problem = Problem::new(format!("too many {what}"));
            Some(problem.at(format!("gate.{key} = {bound}")).found(found.join("; ")))
        });
        let mut problems: Vec<Problem> = broken.chain(self.accuracy_problem(measures)).collect();
        let Some(last) = problems.last_mut() else { return Ok(()) };
        last.help.get_or_insert_with(|| help.to_owned());
        Err(Error::several(Stage::Gate, problems))
    }

    fn accuracy_problem(&self, measures: &Measures) -> Option<Problem> {
        let bound = self.min_accuracy?;
        let location = format!("gate.min_accuracy = {bound}");
        match measures.accuracy {
            None => Some(
                Problem::new("there is no gold to measure the accuracy on")
                    .at(location)
                    .help("give gold with the role `holdout`"),
            ),
            Some(lowest) => (lowest < bound).then(|| {
                let found = share_of(lowest, measures.scored, "gold instances");
                Problem::new("the accuracy is too low").at(location).found(found)
            }),
        }
    }
}

/// A share with what it is of: `0.2000 (1 of 5 rows)`.
fn share_of(share: f64, n: f64, of: &str) -> String {
    if n == 0.0 {
        return format!("{share:.4}");
    }
    format!("{share:.4} ({:.0} of {n} {of})", share * n)
}
