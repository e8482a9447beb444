//! When the loop of EM stops, and what happens where it has not converged.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::job_context::{JobContext, WarningCode};
use crate::model::fitted::Stop;

/// When the loop stops.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StopRule {
    /// The maximum number of iterations.
    #[schemars(range(min = 1))]
    pub max_iter: u32,
    /// Stop when the objective, with its log-prior, changes by less than this for each annotation; 0 runs all iterations.
    #[schemars(range(min = 0.0))]
    pub tol: f64,
    /// What to do when the iterations run out first.
    pub on_exhausted: OnExhausted,
}

impl Default for StopRule {
    fn default() -> Self {
        Self { max_iter: 100, tol: 1e-5, on_exhausted: OnExhausted::Warn }
    }
}

/// What to do when the iterations run out before the objective converges.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnExhausted {
    /// Publish with a warning.
    #[default]
    Warn,
    /// Fail, and publish nothing.
    Fail,
}

/// Warns or fails, as the rule says, where the iterations ran out before the objective converged.
pub(super) fn check_converged(rule: &StopRule, stop: Stop, job: &mut JobContext) -> Result<()> {
    if stop.converged || rule.tol == 0.0 {
        return Ok(());
    }
    let what = format!("the fit had not converged after {} iterations", stop.iterations);
    match rule.on_exhausted {
        OnExhausted::Warn => {
            let [max_iter, tol] = ["stop.max_iter", "stop.tol"].map(|key| job.model_key(key));
            job.warn_code(WarningCode::NotConverged, format!("{what}: raise {max_iter} or {tol}"));
            Ok(())
        }
        OnExhausted::Fail => Err(Error::fit(what)
            .at(job.model_key("stop"))
            .help("raise max_iter or tol, or set on_exhausted = \"warn\"")),
    }
}
