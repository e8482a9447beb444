//! The checks: each fits a model to small crowds, and says what is wrong.

use std::sync::Arc;

use super::crowds::{crowd, dims, usual_crowd};
use super::subject::{Subject, is_network, matrices};
use crate::frame::Dims;
use crate::job_context::{Cancel, JobContext, Progress};
use crate::model::fitted::{Fitted, TraceRow};
use crate::model::posterior::best;
use crate::model::{FeatureUse, SavedModel};
use crate::testing::synth::CrowdShape;
use crate::testing::{annotations, tiny, weighted, with_features};

/// The tolerance for sums of probabilities and for the posterior of a trusted class.
const TOLERANCE: f64 = 1e-9;

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

pub(super) fn sums_to_one(model: &Subject<'_>) -> std::result::Result<(), String> {
    let (a, fitted) = (usual_crowd(), model.fitted()?);
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

pub(super) fn prior(model: &Subject<'_>) -> std::result::Result<(), String> {
    let loaded = model.kind.load(model.parameters.clone()).map_err(|e| e.to_string())?;
    let prior = &model.fitted()?.report.prior;
    let is_uniform = |p: &Vec<f64>| gap(p, &vec![1.0 / p.len() as f64; p.len()]) < TOLERANCE;
    let is_as_declared = match prior {
        None => !loaded.estimates_prior,
        // The prior of the test's crowd, as an estimate, is not uniform.
        Some(p) => is_uniform(p) != loaded.estimates_prior,
    };
    expect(is_as_declared, || format!("it is {prior:?}"))
}

pub(super) fn objective_never_falls(model: &Subject<'_>) -> std::result::Result<(), String> {
    for seed in 0..5 {
        for row in model.fit(&crowd(seed))?.trace {
            let allowed = -1e-6 * row.objective.abs();
            expect(row.change.is_none_or(|c| c >= allowed), || format!("seed {seed}: {row:?}"))?;
        }
    }
    Ok(())
}

pub(super) fn repeatable(model: &Subject<'_>) -> std::result::Result<(), String> {
    let (one, two) = (model.fitted()?, model.briefly().fit(&usual_crowd())?);
    expect(one.posterior == two.posterior && one.report == two.report, || "it does not".to_owned())
}

pub(super) fn threads(model: &Subject<'_>) -> std::result::Result<(), String> {
    let (model, a) = (model.briefly(), crowd(3));
    let on = |n: usize| {
        let job = JobContext::new(1).with_threads(n).map_err(|e| e.to_string())?;
        model.fit_in(&a, job).map_err(|e| e.to_string())
    };
    let (one, four) = (on(1)?, on(4)?);
    expect(one.posterior == four.posterior && one.report == four.report, || {
        "they do not".to_owned()
    })
}

pub(super) fn annotator_permutation(model: &Subject<'_>) -> std::result::Result<(), String> {
    let model = model.with_one_start();
    let crowd = CrowdShape::default();
    let rows = crowd.draw(4).rows;
    let n = crowd.annotators;
    let renamed: Vec<_> = rows.iter().map(|(i, r, l)| (*i, n - 1 - r, *l)).collect();
    let one = model.fit(&annotations(dims(&crowd), &rows))?;
    let two = model.fit(&annotations(dims(&crowd), &renamed))?;
    let back: Vec<f64> = two.report.skill.iter().rev().copied().collect();
    let worst = gap(one.posterior.dense().values(), two.posterior.dense().values())
        .max(gap(&one.report.skill, &back));
    expect(worst < 1e-6, || format!("they move a number by {worst}"))
}

pub(super) fn instance_permutation(model: &Subject<'_>) -> std::result::Result<(), String> {
    let model = model.with_one_start();
    let crowd = CrowdShape::default();
    let rows = crowd.draw(10).rows;
    let n = crowd.instances;
    let renamed: Vec<_> = rows.iter().map(|(i, r, l)| (n - 1 - i, *r, *l)).collect();
    let (a, renamed) = (annotations(dims(&crowd), &rows), annotations(dims(&crowd), &renamed));
    // A renamed instance keeps its features.
    let mut features = with_features(&a);
    let one = model.fit_with(&a, &features, JobContext::new(1)).map_err(|e| e.to_string())?;
    features.row_of_instance.reverse();
    let two = model.fit_with(&renamed, &features, JobContext::new(1)).map_err(|e| e.to_string())?;
    let last = one.posterior.len() - 1;
    for i in 0..=last {
        let worst = gap(&one.posterior.row(i), &two.posterior.row(last - i));
        expect(worst < 1e-6, || format!("instance {i} differs by {worst}"))?;
    }
    let worst = gap(&one.report.skill, &two.report.skill);
    expect(worst < 1e-6, || format!("they move a skill by {worst}"))
}

pub(super) fn class_permutation(model: &Subject<'_>) -> std::result::Result<(), String> {
    let model = model.with_one_start();
    let crowd = CrowdShape::default();
    let rows = crowd.draw(5).rows;
    let n = crowd.classes;
    let renamed: Vec<_> = rows.iter().map(|(i, r, l)| (*i, *r, n - 1 - l)).collect();
    let one = model.fit(&annotations(dims(&crowd), &rows))?;
    let two = model.fit(&annotations(dims(&crowd), &renamed))?;
    for i in 0..one.posterior.len() {
        let back: Vec<f64> = two.posterior.row(i).iter().rev().copied().collect();
        let worst = gap(&one.posterior.row(i), &back);
        expect(worst < 1e-6, || format!("instance {i} differs by {worst}"))?;
    }
    Ok(())
}

/// Two annotators whose only annotations are one with the weight 2, or two; and every third annotation of the others.
pub(super) fn double_weight(model: &Subject<'_>) -> std::result::Result<(), String> {
    let crowd = CrowdShape { instances: 60, ..CrowdShape::default() };
    let mut rows = crowd.draw(10).rows;
    rows.extend([(0, crowd.annotators, 1), (7, crowd.annotators + 1, 2)]);
    let is_double = |n: usize| n.is_multiple_of(3) || n + 2 >= rows.len();
    let weights = (0..rows.len()).map(|n| if is_double(n) { 2.0 } else { 1.0 }).collect();
    let repeated = rows.iter().enumerate().filter(|(n, _)| is_double(*n)).map(|(_, row)| row);
    let twice: Vec<_> = rows.iter().chain(repeated).copied().collect();
    let dims = Dims { annotators: crowd.annotators as usize + 2, ..dims(&crowd) };
    let mut parameters = model.parameters.clone();
    if let Some(stop) = parameters.get_mut("stop") {
        // The tolerance is for each annotation, of which there are more or fewer.
        (stop["tol"], stop["max_iter"]) = (0.0.into(), 20.into());
    }
    let model = Subject::new(model.kind, parameters).briefly();
    let one = model.fit(&weighted(dims, &rows, weights))?;
    let two = model.fit(&weighted(dims, &twice, vec![1.0; twice.len()]))?;
    let objectives =
        |fitted: &Fitted| fitted.trace.iter().map(|row| row.objective).collect::<Vec<_>>();
    let scale = objectives(&one).iter().fold(1.0, |max: f64, o| max.max(o.abs()));
    let gaps = [
        gap(one.posterior.dense().values(), two.posterior.dense().values()),
        gap(&one.report.skill, &two.report.skill),
        gap(&objectives(&one), &objectives(&two)) / scale,
    ];
    expect(gaps.iter().all(|gap| *gap < 1e-9), || {
        format!("posteriors, skills and objectives differ by {gaps:?}")
    })
}

pub(super) fn unanimous(model: &Subject<'_>) -> std::result::Result<(), String> {
    let rows: Vec<_> = (0..30).flat_map(|i| (0..4).map(move |r| (i, r, i % 3))).collect();
    let fitted = model.fit(&tiny(3, &rows))?;
    let doubt = match model.kind.kind {
        // Its regularisers grow with the crowd, so that they never fade.
        "mmce" => 5e-3,
        _ if model.kind.capabilities.annotator_prior => 1e-3,
        _ => 1e-6,
    };
    for i in 0..30 {
        let p = fitted.posterior.row(i)[i % 3];
        expect(p > 1.0 - doubt, || format!("instance {i} has {p}"))?;
    }
    Ok(())
}

/// The interval of a skill holds it, where the kind declares intervals.
pub(super) fn intervals(model: &Subject<'_>) -> std::result::Result<(), String> {
    let report = &model.fitted()?.report;
    let declared = model.kind.capabilities.intervals;
    expect(report.skill_interval.is_some() == declared, || "it is not as declared".to_owned())?;
    for (skill, (low, high)) in report.skill.iter().zip(report.skill_interval.iter().flatten()) {
        expect(low <= skill && skill <= high, || format!("{skill} is not in [{low}, {high}]"))?;
    }
    Ok(())
}

pub(super) fn degenerate(model: &Subject<'_>) -> std::result::Result<(), String> {
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
    let max = model.kind.capabilities.max_classes.unwrap_or(1);
    let beyond = (
        "more classes than it has a way for",
        tiny(max as usize + 1, &[(0, 0, max), (0, 1, 0), (0, 2, max)]),
    );
    for (name, a) in crowds.iter().chain([&beyond]) {
        let fitted = match model.fit(a) {
            // A classifier cannot be learned without annotations: the fit returns an error.
            Err(_) if model.kind.capabilities.features.are_read() && a.is_empty() => continue,
            fitted => fitted.map_err(|e| format!("{name}: {e}"))?,
        };
        expect(fitted.not_finite().is_none(), || format!("{name}: {:?}", fitted.not_finite()))?;
    }
    Ok(())
}

pub(super) fn many_agree(model: &Subject<'_>) -> std::result::Result<(), String> {
    let rows: Vec<_> = (0..10_000).map(|r| (0, r, 1)).chain([(1, 0, 0), (1, 1, 0)]).collect();
    let fitted = model.fit(&tiny(2, &rows))?;
    expect(fitted.not_finite().is_none(), || format!("{:?}", fitted.not_finite()))?;
    expect(best(&fitted.posterior.row(0)) == Some((1, false)), || {
        format!("{:?}", fitted.posterior.row(0))
    })
}

pub(super) fn trusted(model: &Subject<'_>) -> std::result::Result<(), String> {
    let mut a = crowd(6);
    let class = |i: usize| (i % 3) as u32;
    a.trusted = Some((0..a.dims().instances).map(|i| (i % 10 == 0).then(|| class(i))).collect());
    let fitted = model.fit(&a)?;
    for i in (0..a.dims().instances).step_by(10) {
        let p = fitted.posterior.row(i)[class(i) as usize];
        expect(p >= 1.0 - TOLERANCE, || format!("instance {i} has {p}"))?;
    }
    Ok(())
}

/// The posteriors or predictions of other instances change with trusted classes that contradict their annotations, or do not.
pub(super) fn trusted_teach(model: &Subject<'_>) -> std::result::Result<(), String> {
    let mut a = crowd(6);
    let model = model.briefly();
    let one = model.fit(&a)?;
    let class = |i: usize| i.is_multiple_of(5).then_some((i / 5 % 3) as u32);
    a.trusted = Some((0..a.dims().instances).map(class).collect());
    let two = model.fit(&a)?;
    let others = (0..a.dims().instances).filter(|i| !i.is_multiple_of(5));
    let moved = |i: usize| {
        let of_classifier = one.predictions.iter().zip(&two.predictions);
        let predicted = of_classifier.map(|(one, two)| gap(one.row(i), two.row(i)));
        predicted.fold(gap(&one.posterior.row(i), &two.posterior.row(i)), f64::max)
    };
    let changed = others.map(moved).fold(0.0, f64::max);
    expect((changed > 1e-6) == model.kind.capabilities.gold, || format!("they move by {changed}"))
}

/// One more instance has a single annotation, nine tenths of which are for one class.
pub(super) fn soft(model: &Subject<'_>) -> std::result::Result<(), String> {
    let crowd = CrowdShape::default();
    let (mut rows, last) = (crowd.draw(8).rows, crowd.instances);
    let mut weights = vec![1.0; rows.len()];
    rows.extend([(last, 0, 1), (last, 0, 2)]);
    weights.extend([0.9, 0.1]);
    let dims = Dims { instances: last as usize + 1, ..dims(&crowd) };
    let fitted = model.briefly().fit(&weighted(dims, &rows, weights))?;
    let row = fitted.posterior.row(last as usize).to_vec();
    expect(row[1] > row[2] && row[1] > row[0], || format!("it gives {row:?}"))
}

/// Matrices by which annotators name the class after the true one.
pub(super) fn given_matrices(model: &Subject<'_>) -> std::result::Result<(), String> {
    let using = model.kind.capabilities.confusion;
    if using == FeatureUse::Needed {
        return Ok(());
    }
    let mut parameters = model.parameters.clone();
    if let Some(stop) = parameters.get_mut("stop") {
        (stop["tol"], stop["max_iter"]) = (0.0.into(), 1.into());
    }
    let (model, mut a) = (Subject::new(model.kind, parameters), usual_crowd());
    let one = model.fit(&a)?;
    a.given.confusion = Some(Arc::new(matrices(a.dims(), 1)));
    let two = model.fit(&a)?;
    let changed = gap(one.posterior.dense().values(), two.posterior.dense().values());
    expect((changed > 1e-3) == using.are_read(), || format!("posteriors differ by {changed}"))
}

pub(super) fn better_than_chance(model: &Subject<'_>) -> std::result::Result<(), String> {
    let drawn = CrowdShape::default().draw(7);
    let fitted = model.fit(&annotations(dims(&CrowdShape::default()), &drawn.rows))?;
    let right = drawn.truth.iter().enumerate().filter(|(i, truth)| {
        best(&fitted.posterior.row(*i)).is_some_and(|(class, _)| class == **truth as usize)
    });
    let accuracy = right.count() as f64 / drawn.truth.len() as f64;
    expect(accuracy > 0.85, || format!("accuracy {accuracy}"))
}

pub(super) fn saved(model: &Subject<'_>) -> std::result::Result<(), String> {
    let (a, fitted) = (usual_crowd(), model.fitted()?);
    let (Some(trained), Some(predict)) = (&fitted.model, model.kind.predict) else {
        return Err("it leaves no model".to_owned());
    };
    let saved = SavedModel::new(&trained.description, &trained.parameters, Some("cpu"));
    let again = predict(saved, with_features(&a).matrix(), &JobContext::new(1))
        .map_err(|e| e.to_string())?;
    expect(fitted.predictions == Some(again.classes), || "it does not".to_owned())
}

/// Cancels its run after a number of epochs or iterations.
struct Stopper(Cancel, u64);

impl Progress for Stopper {
    fn at(&self, position: u64, _message: &str) {
        if position == self.1 {
            let _ = self.0.request(15);
        }
    }
}

pub(super) fn resumed(model: &Subject<'_>) -> std::result::Result<(), String> {
    let mut a = crowd(9);
    // Some models calibrate the classifier by trusted instances.
    let trusted = |i: usize| i.is_multiple_of(10).then_some((i / 10 % 3) as u32);
    a.trusted = Some((0..a.dims().instances).map(trusted).collect());
    let mut parameters = model.parameters.clone();
    if is_network(model.kind) {
        parameters["train"]["average"] = 0.7.into();
    }
    let averaged = Subject::new(model.kind, parameters);
    let fit = |run| averaged.fit_in(&a, run);
    let whole = fit(JobContext::new(1)).map_err(|e| e.to_string())?;
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let file = folder.path().join("state");
    let steps = whole.stop.iterations;
    expect(steps >= 8, || {
        format!("it ends after {steps} steps, too few to be interrupted thrice")
    })?;
    // The last of these steps is in the last phase of every kind.
    for after in [3, steps / 2, (steps / 2 + 1).max(steps - 5)] {
        let mut job = JobContext::new(1);
        job.keep_checkpoint(Some(file.clone()));
        job.progress = Arc::new(Stopper(job.cancel.clone(), after.into()));
        expect(fit(job).is_err(), || format!("it does not stop after {after}"))?;
    }
    let mut job = JobContext::new(1);
    job.keep_checkpoint(Some(file));
    let resumed = fit(job).map_err(|e| e.to_string())?;
    let rows = |fitted: &Fitted| -> Vec<(String, u32, f64, bool)> {
        let row = |row: &TraceRow| (row.phase.clone(), row.step, row.objective, row.is_kept);
        fitted.trace.iter().map(row).collect()
    };
    let same = whole.posterior == resumed.posterior
        && whole.report == resumed.report
        && rows(&whole) == rows(&resumed)
        && whole.predictions == resumed.predictions
        && whole.model == resumed.model;
    expect(same, || "it does not".to_owned())
}

/// Two questions with instances and annotators in common: three classes, and two.
pub(super) fn questions(model: &Subject<'_>) -> std::result::Result<(), String> {
    let three = usual_crowd();
    let shape = CrowdShape { instances: 120, classes: 2, ..CrowdShape::default() };
    let drawn = shape.draw(2);
    let two = annotations(dims(&shape), &drawn.rows);
    let frames = [&three, &two].map(|a| model.frame(a, &with_features(&three)));
    let (model, job) = (model.briefly(), || JobContext::new(1));
    let fitted = model.fit_frames(&frames, job())?;
    expect(fitted.len() == 2, || format!("{} results", fitted.len()))?;
    for (a, fitted) in [&three, &two].into_iter().zip(&fitted) {
        let Dims { instances, annotators, classes, .. } = a.dims();
        expect(fitted.not_finite().is_none(), || format!("{:?}", fitted.not_finite()))?;
        let rows = (0..fitted.posterior.len()).map(|i| fitted.posterior.row(i));
        let are_whole = rows
            .clone()
            .all(|row| row.len() == classes && (row.iter().sum::<f64>() - 1.0).abs() < TOLERANCE);
        expect(rows.len() == instances && are_whole, || "posteriors".to_owned())?;
        expect(fitted.report.skill.len() == annotators, || "skills".to_owned())?;
    }
    let again = model.fit_frames(&frames, job())?;
    let is_same =
        |(one, two): (&Fitted, &Fitted)| one.posterior == two.posterior && one.report == two.report;
    expect(fitted.iter().zip(&again).all(is_same), || "a second fit differs".to_owned())?;
    let alone = model.fit_frames(&frames[..1], job())?;
    let one = model.fit(&three)?;
    expect(is_same((&alone[0], &one)), || "one question alone is another fit".to_owned())
}
