//! The line about a fit: how it ended, and which epoch of a network was kept.

use crate::model::fitted::{FINE_TUNING, PlannedSteps, Stop, TraceRow};
use crate::tables::QuestionResult;

/// How the start whose result was kept ended; the trace may end with another start.
pub(super) fn fit(result: &QuestionResult) -> String {
    let text = fit_text(result.fitted.stop);
    match kept_text(&result.fitted.trace) {
        Some(kept) => format!("{text}, {kept}"),
        None => text,
    }
}

/// A fit of planned steps has no rule of convergence to meet: it runs them, unless patience ends a network's.
fn fit_text(Stop { converged, iterations, objective, planned }: Stop) -> String {
    let state = match planned {
        Some(PlannedSteps { n, unit }) if iterations < n => {
            format!("ran {iterations} of {n} {unit}s, as the score rose no more")
        }
        Some(PlannedSteps { unit, .. }) => format!("ran {}", counted(iterations, unit)),
        None if objective.is_none() && iterations < 2 => "one pass".to_owned(),
        None if converged => format!("converged after {}", counted(iterations, "iteration")),
        None => format!("stopped after {}", counted(iterations, "iteration")),
    };
    objective.map_or_else(|| state.clone(), |value| format!("{state}, objective {value:.3}"))
}

fn counted(n: u32, unit: &str) -> String {
    if n == 1 { format!("1 {unit}") } else { format!("{n} {unit}s") }
}

/// The epoch of a network that was kept, where the trace goes on after it; a fine-tuning begins at it.
fn kept_text(trace: &[TraceRow]) -> Option<String> {
    let n_tuned = trace.iter().rev().take_while(|row| row.phase == FINE_TUNING).count();
    if n_tuned > 0 {
        let before = kept_text(&trace[..trace.len() - n_tuned]);
        let before = before.map_or_else(String::new, |kept| format!("{kept}, "));
        return Some(format!("{before}then fine-tuned for {}", counted(n_tuned as u32, "epoch")));
    }
    let position = trace.iter().rposition(|row| row.is_kept)?;
    let (kept, is_last) = (&trace[position], position + 1 == trace.len());
    let score = kept.score.map_or_else(String::new, |score| format!(" (score {score:.4})"));
    let phase = if kept.phase == "train" { String::new() } else { format!(" of `{}`", kept.phase) };
    (!is_last).then(|| format!("kept epoch {}{phase}{score}", kept.step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fit_is_shown_with_the_objective_of_the_start_that_was_kept() {
        let of = |converged, iterations, objective, planned| {
            fit_text(Stop { converged, iterations, objective, planned })
        };
        let got = of(false, 7, Some(-1.5), None);
        assert_eq!(got, "stopped after 7 iterations, objective -1.500");
        let got = of(true, 7, Some(-1.5), None);
        assert_eq!(got, "converged after 7 iterations, objective -1.500");
        assert_eq!(of(true, 1, None, None), "one pass");
        assert_eq!(of(true, 7, None, None), "converged after 7 iterations");
        let planned = |n, unit| Some(PlannedSteps { n, unit });
        assert_eq!(of(true, 1, Some(0.5), planned(1, "round")), "ran 1 round, objective 0.500");
        assert_eq!(of(true, 10, None, planned(10, "iteration")), "ran 10 iterations");
        let got = of(true, 30, Some(-1.5), planned(30, "epoch"));
        assert_eq!(got, "ran 30 epochs, objective -1.500");
        let got = of(true, 12, Some(-1.5), planned(30, "epoch"));
        assert_eq!(got, "ran 12 of 30 epochs, as the score rose no more, objective -1.500");
    }

    #[test]
    fn the_kept_epoch_is_named_where_it_is_not_the_last() {
        let row = |phase: &str, step, is_kept, score| TraceRow {
            phase: phase.to_owned(),
            step,
            score,
            is_kept,
            ..TraceRow::default()
        };
        let of = |phase, kept, score| {
            kept_text(&[1, 2, 3].map(|step| row(phase, step, step == kept, score)))
        };
        assert_eq!(of("train", 2, Some(0.91234)).unwrap(), "kept epoch 2 (score 0.9123)");
        assert_eq!(of("retraining", 1, None).unwrap(), "kept epoch 1 of `retraining`");
        assert_eq!((of("train", 3, None), of("train", 0, None)), (None, None));
        let tuned = [row("train", 1, true, None), row("train", 2, false, None)];
        let tuned = [&tuned[..], &[row(FINE_TUNING, 1, true, None)]].concat();
        assert_eq!(kept_text(&tuned).unwrap(), "kept epoch 1, then fine-tuned for 1 epoch");
        assert_eq!(kept_text(&tuned[2..]).unwrap(), "then fine-tuned for 1 epoch");
    }
}
