//! Scores the labels, and the classifier's predictions, against gold that the model did not see.

use crate::calibration::Calibrated;
use crate::decide::{DecideSpec, TieSeed};
use crate::frame::{Frame, Role};
use crate::metrics::LabelsWithTruth;
use crate::model::fitted::Fitted;
use crate::run::Run;
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
    pub(super) fn of(&self, fitted: &Fitted) -> Vec<Metric> {
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
        run: &mut Run,
    ) -> Vec<Metric> {
        let scores = |s: &ScoredRole| !calibrated.gold_roles.contains(&s.role);
        let mut metrics = Vec::new();
        let after = self.scored(after);
        let pairs = before.iter().zip(&after).filter(|(before, _)| scores(before));
        pairs.filter_map(|(before, after)| worse(before, after)).for_each(|w| run.warn(w));
        for s in after.into_iter().filter(scores) {
            metrics.extend(s.scored.all(s.prefix, s.role.word()));
            metrics.extend(s.scored.reliability(s.prefix, s.role.word()));
        }
        for s in before.into_iter().filter(scores) {
            let prefix = format!("{}uncalibrated_", s.prefix);
            metrics.extend(s.scored.uncalibrated(&prefix, s.role.word()));
            metrics.extend(s.scored.reliability(&prefix, s.role.word()));
        }
        metrics.extend(calibrated.metrics);
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
            if let (Some(predictions), Some(described)) =
                (&fitted.predictions, &self.frame.described)
            {
                let mut scored = LabelsWithTruth::new(n);
                for gold in described.gold.iter().chain(of_rows).filter(|g| g.role == role) {
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

/// With fewer instances the standard error of a mean is not reliable.
const MIN_COMPARED: usize = 30;

/// The warning that a calibration raised the log-loss by more than two standard errors.
fn worse(before: &ScoredRole, after: &ScoredRole) -> Option<String> {
    let (rise, error) = before.scored.rise_of_log_loss(&after.scored)?;
    let is_worse = before.scored.len() >= MIN_COMPARED && rise > 2.0 * error;
    let (was, is) = (before.scored.log_loss()?, after.scored.log_loss()?);
    is_worse.then(|| {
        format!(
            "the calibration made the {} worse: by {} instances of gold of the role `{}` it raised their log-loss from \
             {was:.3} to {is:.3}; calibrate by other data (calibration.fit_on), or leave the calibration out",
            if before.prefix.is_empty() { "posteriors" } else { "predictions" },
            before.scored.len(),
            before.role.word()
        )
    })
}
