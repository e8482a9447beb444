//! Scores the labels, and the classifier's predictions, against gold that the model did not see.

use crate::frame::Role;
use crate::metrics::Scored;
use crate::tables::metrics::Metric;
use crate::tables::{Answer, Outcome};

/// Every metric of every question and role that the model did not see.
pub(super) fn score(outcome: &Outcome) -> Vec<(usize, Metric)> {
    let mut metrics = Vec::new();
    for (question, Answer { frame, fitted, .. }) in outcome.answers.iter().enumerate() {
        let a = &frame.annotations;
        // What an instance without evidence has in `posteriors` too: nothing, whatever the model fills in.
        let nothing = vec![0.0; a.dims().classes];
        for role in Role::ALL.into_iter().filter(|r| !r.trains()) {
            let mut scored = Scored::new(a.dims().classes);
            for gold in frame.gold.iter().filter(|g| g.role == role) {
                let i = gold.instance as usize;
                let decided = outcome.decide.decide(a, fitted, outcome.run.seed, i);
                let row = if a.has_evidence(i) { fitted.posterior.row(i) } else { &nothing };
                scored.push(decided.class.map(|c| c as usize), row, gold.class as usize);
            }
            if !scored.is_empty() {
                metrics.extend(scored.all("", role.word()).into_iter().map(|m| (question, m)));
            }
            if let (Some(predictions), Some(described)) = (&fitted.predictions, &frame.described) {
                let mut scored = Scored::new(predictions.n_classes());
                for gold in described.gold.iter().filter(|g| g.role == role) {
                    let row = predictions.row(gold.instance as usize);
                    scored.push_prediction(row, gold.class as usize);
                }
                if !scored.is_empty() {
                    let all = scored.all("prediction_", role.word());
                    metrics.extend(all.into_iter().map(|m| (question, m)));
                }
            }
        }
    }
    metrics
}
