//! The properties that every model must have. The suite iterates over the registry, so that a new model is tested at
//! once.

use std::sync::Arc;

use serde_json::Value;

use crate::error::Result;
use crate::frame::{Annotations, Dims, Evidence};
use crate::model::fitted::{Fitted, TraceRow, best};
use crate::model::{MODELS, ModelKind, SavedModel};
use crate::run::{Cancel, Progress, Run};

use super::synth::CrowdShape;
use super::{annotations, described, tiny};

/// The tolerance for sums of probabilities and for the posterior of a trusted class.
const TOLERANCE: f64 = 1e-9;

type KindCheck = fn(&ModelKind) -> std::result::Result<(), String>;

/// Selects the kinds of model that a check applies to, by their declared properties.
type For = fn(&ModelKind) -> bool;

/// Every kind.
const ALL: For = |_| true;
/// Kinds with a deterministic start, which take the same steps on a renamed crowd.
const FIXED_START: For = |kind| !kind.properties.random_start;
/// Kinds with a deterministic start that treat all classes alike.
const SYMMETRIC: For = |kind| !kind.properties.random_start && kind.properties.symmetric_classes;
/// Kinds that learn a classifier from features.
const CLASSIFIERS: For = |kind| kind.predict.is_some();

/// The checks, by name.
const CHECKS: &[(&str, For, KindCheck)] = &[
    ("rows of the posterior and of every confusion matrix sum to 1", ALL, sums_to_one),
    ("the objective never falls", FIXED_START, objective_never_falls),
    ("a second fit gives the same bits", ALL, repeatable),
    ("one thread and four give the same bits", ALL, threads),
    ("renamed annotators change nothing", FIXED_START, annotator_permutation),
    ("renamed classes rename the posterior", SYMMETRIC, class_permutation),
    ("unanimous answers are certain", FIXED_START, unanimous),
    ("degenerate crowds give no panic and no NaN", ALL, degenerate),
    ("ten thousand agreeing annotations stay finite", ALL, many_agree),
    ("a trusted class stays", ALL, trusted),
    ("a good crowd is read better than by chance", ALL, better_than_chance),
    ("a saved model predicts what the fitted one did", CLASSIFIERS, saved),
    ("an interrupted training goes on to the same bits", CLASSIFIERS, resumed),
];

/// Runs every check on the kinds that `chosen` selects; returns the failures, each as `kind: check: what`.
#[must_use]
pub fn failures(chosen: fn(&ModelKind) -> bool) -> Vec<String> {
    let mut failures = Vec::new();
    for kind in MODELS.iter().filter(|kind| chosen(kind)) {
        for (name, _, check) in CHECKS.iter().filter(|(_, covers, _)| covers(kind)) {
            if let Err(what) = check(kind) {
                failures.push(format!("{}: {name}: {what}", kind.kind));
            }
        }
    }
    failures
}

fn fit(kind: &ModelKind, a: &Annotations) -> std::result::Result<Fitted, String> {
    fit_with(kind, a, Run::new(1)).map_err(|e| e.to_string())
}

fn fit_with(kind: &ModelKind, a: &Annotations, run: Run) -> Result<Fitted> {
    fit_as(kind, a, (kind.defaults)(), run)
}

fn fit_as(
    kind: &ModelKind,
    a: &Annotations,
    mut parameters: Value,
    mut run: Run,
) -> Result<Fitted> {
    let described = kind.needs_features.then(|| described(a));
    if kind.needs_features {
        parameters["backbone"]["hidden"] = serde_json::json!([64]);
        parameters["device"] = "cpu".into();
    }
    let model = kind.load(parameters)?.model;
    let evidence = Evidence { annotations: a, described: described.as_ref() };
    run.pool().install(|| model.fit(evidence, &mut run))
}

fn crowd(seed: u64) -> Annotations {
    let crowd = CrowdShape::default();
    let rows = crowd.draw(seed).rows;
    annotations(dims(&crowd), &rows)
}

fn dims(crowd: &CrowdShape) -> Dims {
    Dims {
        instances: crowd.instances as usize,
        annotators: crowd.annotators as usize,
        classes: crowd.classes as usize,
        labels: crowd.classes as usize,
    }
}

fn expect(holds: bool, what: impl FnOnce() -> String) -> std::result::Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

/// The largest difference of two slices, infinite where their lengths differ.
fn gap(a: &[f64], b: &[f64]) -> f64 {
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max)
}

fn sums_to_one(kind: &ModelKind) -> std::result::Result<(), String> {
    let a = crowd(1);
    let fitted = fit(kind, &a)?;
    for i in 0..fitted.posterior.len() {
        let sum: f64 = fitted.posterior.row(i).iter().sum();
        expect((sum - 1.0).abs() < TOLERANCE, || format!("posterior of {i} sums to {sum}"))?;
    }
    let Some(confusion) = &fitted.report.confusion else { return Ok(()) };
    for r in 0..a.dims().annotators {
        let mut sums = vec![0.0; a.dims().classes];
        for label in 0..a.dims().labels {
            let column = confusion.column(&a, r, label);
            sums.iter_mut().zip(column).for_each(|(s, p)| *s += p);
        }
        let ones = vec![1.0; sums.len()];
        expect(gap(&sums, &ones) < TOLERANCE, || format!("rows of annotator {r} sum to {sums:?}"))?;
    }
    Ok(())
}

fn objective_never_falls(kind: &ModelKind) -> std::result::Result<(), String> {
    for seed in 0..5 {
        for row in fit(kind, &crowd(seed))?.trace {
            let allowed = -1e-6 * row.objective.abs();
            expect(row.change.is_none_or(|c| c >= allowed), || format!("seed {seed}: {row:?}"))?;
        }
    }
    Ok(())
}

fn repeatable(kind: &ModelKind) -> std::result::Result<(), String> {
    let a = crowd(2);
    let (one, two) = (fit(kind, &a)?, fit(kind, &a)?);
    expect(one.posterior == two.posterior && one.report == two.report, || "it does not".to_owned())
}

fn threads(kind: &ModelKind) -> std::result::Result<(), String> {
    let a = crowd(3);
    let on = |n: usize| {
        let run = Run::new(1).with_threads(n).map_err(|e| e.to_string())?;
        fit_with(kind, &a, run).map_err(|e| e.to_string())
    };
    let (one, four) = (on(1)?, on(4)?);
    expect(one.posterior == four.posterior && one.report == four.report, || {
        "they do not".to_owned()
    })
}

fn annotator_permutation(kind: &ModelKind) -> std::result::Result<(), String> {
    let crowd = CrowdShape::default();
    let rows = crowd.draw(4).rows;
    let n = crowd.annotators;
    let renamed: Vec<_> = rows.iter().map(|(i, r, l)| (*i, n - 1 - r, *l)).collect();
    let one = fit(kind, &annotations(dims(&crowd), &rows))?;
    let two = fit(kind, &annotations(dims(&crowd), &renamed))?;
    let back: Vec<f64> = two.report.skill.iter().rev().copied().collect();
    let worst =
        gap(one.posterior.values(), two.posterior.values()).max(gap(&one.report.skill, &back));
    expect(worst < 1e-6, || format!("they move a number by {worst}"))
}

fn class_permutation(kind: &ModelKind) -> std::result::Result<(), String> {
    let crowd = CrowdShape::default();
    let rows = crowd.draw(5).rows;
    let n = crowd.classes;
    let renamed: Vec<_> = rows.iter().map(|(i, r, l)| (*i, *r, n - 1 - l)).collect();
    let one = fit(kind, &annotations(dims(&crowd), &rows))?;
    let two = fit(kind, &annotations(dims(&crowd), &renamed))?;
    for i in 0..one.posterior.len() {
        let back: Vec<f64> = two.posterior.row(i).iter().rev().copied().collect();
        let worst = gap(one.posterior.row(i), &back);
        expect(worst < 1e-6, || format!("instance {i} differs by {worst}"))?;
    }
    Ok(())
}

fn unanimous(kind: &ModelKind) -> std::result::Result<(), String> {
    let rows: Vec<_> = (0..30).flat_map(|i| (0..4).map(move |r| (i, r, i % 3))).collect();
    let fitted = fit(kind, &tiny(3, &rows))?;
    let doubt = if kind.properties.tempered { 1e-3 } else { 1e-6 };
    for i in 0..30 {
        let p = fitted.posterior.row(i)[i % 3];
        expect(p > 1.0 - doubt, || format!("instance {i} has {p}"))?;
    }
    Ok(())
}

fn degenerate(kind: &ModelKind) -> std::result::Result<(), String> {
    let gap_in_the_middle = Dims { instances: 4, annotators: 2, classes: 2, labels: 2 };
    let crowds = [
        ("one annotation", tiny(2, &[(0, 0, 1)])),
        ("one class", tiny(1, &[(0, 0, 0), (1, 0, 0), (1, 1, 0)])),
        ("one annotator", tiny(2, &[(0, 0, 0), (1, 0, 1), (2, 0, 1)])),
        ("all ties", tiny(2, &[(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)])),
        ("an unused class", tiny(5, &[(0, 0, 0), (0, 1, 1), (1, 0, 1)])),
        ("a label that is no class", tiny(2, &[(0, 0, 2), (1, 0, 0), (1, 1, 1)])),
        (
            "an instance without annotations",
            annotations(gap_in_the_middle, &[(0, 0, 0), (3, 1, 1)]),
        ),
        ("no annotations", annotations(Dims { annotators: 0, ..gap_in_the_middle }, &[])),
        ("nothing", annotations(Dims { instances: 0, annotators: 0, classes: 0, labels: 0 }, &[])),
    ];
    for (name, a) in &crowds {
        let fitted = match fit(kind, a) {
            // A classifier cannot be learned without annotations: the fit returns an error.
            Err(_) if kind.needs_features && a.is_empty() => continue,
            fitted => fitted.map_err(|e| format!("{name}: {e}"))?,
        };
        expect(fitted.not_finite().is_none(), || format!("{name}: {:?}", fitted.not_finite()))?;
    }
    Ok(())
}

fn many_agree(kind: &ModelKind) -> std::result::Result<(), String> {
    let rows: Vec<_> = (0..10_000).map(|r| (0, r, 1)).chain([(1, 0, 0), (1, 1, 0)]).collect();
    let fitted = fit(kind, &tiny(2, &rows))?;
    expect(fitted.not_finite().is_none(), || format!("{:?}", fitted.not_finite()))?;
    expect(best(fitted.posterior.row(0)) == Some((1, false)), || {
        format!("{:?}", fitted.posterior.row(0))
    })
}

fn trusted(kind: &ModelKind) -> std::result::Result<(), String> {
    let mut a = crowd(6);
    let class = |i: usize| (i % 3) as u32;
    a.trusted = Some((0..a.dims().instances).map(|i| (i % 10 == 0).then(|| class(i))).collect());
    let fitted = fit(kind, &a)?;
    for i in (0..a.dims().instances).step_by(10) {
        let p = fitted.posterior.row(i)[class(i) as usize];
        expect(p >= 1.0 - TOLERANCE, || format!("instance {i} has {p}"))?;
    }
    Ok(())
}

fn better_than_chance(kind: &ModelKind) -> std::result::Result<(), String> {
    let drawn = CrowdShape::default().draw(7);
    let fitted = fit(kind, &annotations(dims(&CrowdShape::default()), &drawn.rows))?;
    let right = drawn.truth.iter().enumerate().filter(|(i, truth)| {
        best(fitted.posterior.row(*i)).is_some_and(|(class, _)| class == **truth as usize)
    });
    let accuracy = right.count() as f64 / drawn.truth.len() as f64;
    expect(accuracy > 0.85, || format!("accuracy {accuracy}"))
}

fn saved(kind: &ModelKind) -> std::result::Result<(), String> {
    let a = crowd(8);
    let fitted = fit(kind, &a)?;
    let (Some(trained), Some(predict)) = (&fitted.model, kind.predict) else {
        return Err("it leaves no model".to_owned());
    };
    let model = SavedModel {
        parameters: trained.description["parameters"].clone(),
        sizes: trained.description["sizes"].clone(),
        bytes: &trained.parameters,
        device: Some("cpu"),
    };
    let again = predict(model, described(&a).matrix(), &Run::new(1)).map_err(|e| e.to_string())?;
    expect(fitted.predictions == Some(again.classes), || "it does not".to_owned())
}

/// Cancels its run after a number of epochs.
struct Stopper(Cancel, u64);

impl Progress for Stopper {
    fn at(&self, position: u64, _message: &str) {
        if position == self.1 {
            let _ = self.0.request(15);
        }
    }
}

fn resumed(kind: &ModelKind) -> std::result::Result<(), String> {
    let mut a = crowd(9);
    // Some models calibrate the classifier by trusted instances.
    let trusted = |i: usize| (i % 10 == 0).then_some((i / 10 % 3) as u32);
    a.trusted = Some((0..a.dims().instances).map(trusted).collect());
    let mut parameters = (kind.defaults)();
    parameters["train"]["average"] = 0.7.into();
    let fit = |run| fit_as(kind, &a, parameters.clone(), run);
    let whole = fit(Run::new(1)).map_err(|e| e.to_string())?;
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let file = folder.path().join("state");
    // The last of these epochs is in the last phase of every kind.
    for after in [3, 17, whole.stop.iterations - 5] {
        let mut run = Run::new(1);
        run.keep_checkpoint(Some(file.clone()));
        run.progress = Arc::new(Stopper(run.cancel.clone(), after.into()));
        expect(fit(run).is_err(), || format!("it does not stop after {after}"))?;
    }
    let mut run = Run::new(1);
    run.keep_checkpoint(Some(file));
    let resumed = fit(run).map_err(|e| e.to_string())?;
    let rows = |fitted: &Fitted| -> Vec<(String, u32, f64)> {
        let row = |row: &TraceRow| (row.phase.clone(), row.step, row.objective);
        fitted.trace.iter().map(row).collect()
    };
    let same = whole.posterior == resumed.posterior
        && whole.report == resumed.report
        && rows(&whole) == rows(&resumed)
        && whole.predictions == resumed.predictions
        && whole.model == resumed.model;
    expect(same, || "it does not".to_owned())
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_label_only_model_conforms() {
        let failures = super::failures(|kind| !kind.needs_features);
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }

    #[test]
    fn every_model_with_features_conforms() {
        let failures = super::failures(|kind| kind.needs_features);
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
}
