//! Scores the labels, and the classifier's predictions, against gold that the model did not see.

use crate::decide::{DecideSpec, TieSeed};
use crate::frame::{Frame, Role};
use crate::job_context::JobContext;
use crate::metrics::LabelsWithTruth;
use crate::model::calibration::Calibrated;
use crate::model::fitted::Fitted;
use crate::tables::metrics::Metric;

/// Scores fits of one question.
pub(super) struct Scorer<'a> {
    pub(super) decide: &'a DecideSpec,
    pub(super) tie_seed: TieSeed,
    pub(super) frame: &'a Frame,
}

/// The scores of one gold role, and the prefix of their metrics' names: empty for labels, `prediction_` for the
/// classifier.
pub(super) struct ScoredRole {
    role: Role,
    prefix: &'static str,
    scored: LabelsWithTruth,
}

impl Scorer<'_> {
    /// Every metric for every gold role that the model did not see.
    pub(super) fn metrics(&self, fitted: &Fitted) -> Vec<Metric> {
        let roles = self.scored(fitted).into_iter();
        roles.flat_map(|s| s.scored.all(s.prefix, s.role.word())).collect()
    }

    /// The metrics of calibrated posteriors and predictions, with reliability tables, and the same metrics before
    /// calibration. Gold that the calibrator was fitted on is not scored. Warns of probabilities that became worse.
    pub(super) fn of_calibrated(
        &self,
        before: Vec<ScoredRole>,
        after: &Fitted,
        calibrated: Calibrated,
        job: &mut JobContext,
    ) -> Vec<Metric> {
        let scores = |s: &ScoredRole| !calibrated.gold_roles.contains(&s.role);
        let mut metrics = Vec::new();
        let after = self.scored(after);
        let pairs = before.iter().zip(&after).filter(|(before, _)| scores(before));
        let warnings = pairs.filter_map(|(before, after)| warning_of_higher_loss(before, after));
        warnings.for_each(|warning| job.warn(warning));
        for s in after.into_iter().filter(scores) {
            metrics.extend(s.scored.all(s.prefix, s.role.word()));
            metrics.extend(s.scored.reliability(s.prefix, s.role.word()));
        }
        for s in before.into_iter().filter(scores) {
            let prefix = format!("{}uncalibrated_", s.prefix);
            metrics.extend(s.scored.uncalibrated(&prefix, s.role.word()));
            metrics.extend(s.scored.reliability(&prefix, s.role.word()));
        }
        metrics.extend(calibrated.metrics.into_iter().map(|(name, split, value)| Metric {
            name,
            split,
            bin: None,
            value: Some(value),
        }));
        metrics
    }

    /// Labels, posteriors and predictions paired with the true classes, by role.
    pub(super) fn scored(&self, fitted: &Fitted) -> Vec<ScoredRole> {
        let a = &self.frame.annotations;
        let (of_instances, of_rows) = {
            let unknown = &self.frame.unknown_gold;
            (&unknown.of_instances, &unknown.of_feature_rows)
        };
        let n = a.dims().classes;
        // An instance without evidence has no rows in `posteriors` either, whatever the model fills in: its
        // probabilities count as 0.
        let nothing = vec![0.0; n];
        let mut all = Vec::new();
        for role in Role::ALL.into_iter().filter(|r| !r.trains()) {
            let mut scored = LabelsWithTruth::new(n);
            for gold in self.frame.gold.iter().chain(of_instances).filter(|g| g.role == role) {
                let i = gold.instance as usize;
                let decided = self.decide.decide(a, fitted, self.tie_seed, i);
                let known = a.has_evidence(i).then(|| fitted.posterior.row(i));
                let row = known.as_deref().unwrap_or(&nothing);
                scored.push(decided.class.map(|c| c as usize), row, gold.class as usize);
            }
            all.push(ScoredRole { role, prefix: "", scored });
            if let (Some(predictions), Some(with_features)) =
                (&fitted.predictions, &self.frame.with_features)
            {
                let mut scored = LabelsWithTruth::new(n);
                for gold in with_features.gold.iter().chain(of_rows).filter(|g| g.role == role) {
                    let row = predictions.row(gold.instance as usize);
                    scored.push_prediction(row, gold.class as usize);
                }
                all.push(ScoredRole { role, prefix: "prediction_", scored });
            }
        }
        all.retain(|s| !s.scored.is_empty());
        all
    }
}

/// An increase of the log-loss by less than this is no reason to act.
const MIN_INCREASE: f64 = 0.01;

/// If the calibrated probabilities are right, one of a thousand sets of gold has a higher z-score.
const MAX_Z_SCORE: f64 = 3.0;

/// The warning that a calibration made probabilities worse, if gold says so.
fn warning_of_higher_loss(before: &ScoredRole, after: &ScoredRole) -> Option<String> {
    let increase = before.scored.log_loss_increase(&after.scored)?;
    let is_worse = increase.mean > MIN_INCREASE && increase.z_score > MAX_Z_SCORE;
    let (was, is) = (before.scored.log_loss()?, after.scored.log_loss()?);
    is_worse.then(|| {
        format!(
            "the calibration made the {} worse: it raised their log-loss from {was:.3} to {is:.3} on {} instances of gold \
             of the role `{}`; calibrate by other data (calibration.fit_on), or set calibration.method to \"none\"",
            if before.prefix.is_empty() { "posteriors" } else { "predictions" },
            before.scored.len(),
            before.role.word()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(prefix: &'static str, n: u32, of_truth: f64) -> ScoredRole {
        let mut scored = LabelsWithTruth::new(2);
        (0..n).for_each(|_| scored.push(Some(0), &[of_truth, 1.0 - of_truth], 0));
        ScoredRole { role: Role::Holdout, prefix, scored }
    }

    #[test]
    fn a_calibration_is_worse_where_its_loss_is_higher_and_improbable() {
        let warning = |prefix, n, was, is| {
            warning_of_higher_loss(&role(prefix, n, was), &role(prefix, n, is)).unwrap_or_default()
        };
        // With probabilities of 0.5 the z-score is the square root of the number of instances.
        assert_eq!(warning("", 8, 0.95, 0.5), "");
        let told = warning("", 10, 0.95, 0.5);
        assert!(
            told.contains("posteriors worse") && told.contains("0.051 to 0.693 on 10"),
            "{told}"
        );
        assert!(warning("prediction_", 10, 0.95, 0.5).contains("predictions worse"));
        // A hundredth is the least increase of a mean that counts.
        assert_eq!(warning("", 1_000, 0.504, 0.5), "");
        assert!(!warning("", 1_000, 0.506, 0.5).is_empty());
        assert_eq!(warning("", 1_000, 0.5, 0.95), "");
        assert_eq!(warning("", 30, 0.99999, 0.996), "");
    }
}
