//! Quality gates: what must hold before anything is published. A run that fails one leaves the last one in place.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Problem, Result, Stage};
use crate::tables::Outcome;

/// Bounds that a run must keep; a bound that is left out does not hold anyone up.
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

impl GateSpec {
    /// # Errors
    /// Every bound that the outcome breaks, at once.
    pub fn check(&self, outcome: &Outcome) -> Result<()> {
        let counts = outcome.tally();
        let share =
            |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let mut problems = Vec::new();
        let run = &outcome.run;
        let most = [
            (
                "max_rejected",
                "rows were rejected",
                self.max_rejected,
                share(run.rows_rejected, run.rows_read),
            ),
            (
                "max_tied",
                "labels are broken ties",
                self.max_tied,
                share(counts.tied, counts.total()),
            ),
            (
                "max_abstained",
                "instances have no label",
                self.max_abstained,
                share(counts.abstained, counts.total()),
            ),
        ];
        for (key, what, bound, found) in most {
            if let Some(bound) = bound
                && found > bound
            {
                problems.push(
                    Problem::new(format!("too many {what}"))
                        .at(format!("gate.{key} = {bound}"))
                        .found(format!("{found:.4}")),
                );
            }
        }
        problems.extend(self.accuracy_problem(outcome));
        let Some(last) = problems.last_mut() else { return Ok(()) };
        let help = "nothing was published; look into the input, or move the bound";
        last.help.get_or_insert_with(|| help.to_owned());
        let mut error = Error::new(Stage::Gate, Problem::new(""));
        error.problems = problems;
        Err(error)
    }

    fn accuracy_problem(&self, outcome: &Outcome) -> Option<Problem> {
        let bound = self.min_accuracy?;
        let scores: Vec<f64> = outcome
            .metrics
            .iter()
            .filter(|(_, m)| m.name == "accuracy" && m.split == "holdout")
            .filter_map(|(_, m)| m.value)
            .collect();
        let lowest = scores.iter().copied().fold(f64::INFINITY, f64::min);
        let place = format!("gate.min_accuracy = {bound}");
        if scores.is_empty() {
            let help = "give gold with the role `holdout`";
            return Some(
                Problem::new("there is no gold to measure the accuracy on").at(place).help(help),
            );
        }
        (lowest < bound).then(|| {
            Problem::new("the accuracy is too low").at(place).found(format!("{lowest:.4}"))
        })
    }
}
