//! What every model must keep, whatever it is: the suite walks the registry, so a new model is tested at once.

use crate::error::Result;
use crate::frame::{Annotations, Dims};
use crate::model::fitted::{Fitted, best};
use crate::model::{FAMILIES, Family};
use crate::run::Run;

use super::synth::Crowd;
use super::{annotations, tiny};

/// How near sums of probabilities must come to 1, and permuted results to each other.
const TOLERANCE: f64 = 1e-9;

type Check = fn(&Family) -> std::result::Result<(), String>;

/// The checks, by name.
pub const CHECKS: &[(&str, Check)] = &[
    ("rows of the posterior and of every confusion matrix sum to 1", sums_to_one),
    ("the objective never falls", objective_never_falls),
    ("a second fit gives the same bits", repeatable),
    ("one thread and four give the same bits", threads),
    ("renamed annotators change nothing", annotator_permutation),
    ("renamed classes rename the posterior", class_permutation),
    ("unanimous answers are certain", unanimous),
    ("degenerate crowds give no panic and no NaN", degenerate),
    ("ten thousand agreeing annotations stay finite", many_agree),
    ("a trusted class stays", trusted),
    ("a good crowd is read better than by chance", better_than_chance),
];

/// Runs every check on every model; the failures, as `kind: check: what`.
#[must_use]
pub fn failures() -> Vec<String> {
    let mut failures = Vec::new();
    for family in FAMILIES {
        for (name, check) in CHECKS {
            if let Err(what) = check(family) {
                failures.push(format!("{}: {name}: {what}", family.kind));
            }
        }
    }
    failures
}

fn fit(family: &Family, a: &Annotations) -> std::result::Result<Fitted, String> {
    fit_with(family, a, Run::new(1)).map_err(|e| e.to_string())
}

fn fit_with(family: &Family, a: &Annotations, mut run: Run) -> Result<Fitted> {
    let model = family.load((family.defaults)())?.model;
    run.pool().install(|| model.fit(a.into(), &mut run))
}

fn crowd(seed: u64) -> Annotations {
    let crowd = Crowd::default();
    let rows = crowd.draw(seed).rows;
    annotations(dims(&crowd), &rows)
}

fn dims(crowd: &Crowd) -> Dims {
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

fn sums_to_one(family: &Family) -> std::result::Result<(), String> {
    let a = crowd(1);
    let fitted = fit(family, &a)?;
    for i in 0..fitted.posterior.len() {
        let sum: f64 = fitted.posterior.row(i).iter().sum();
        expect((sum - 1.0).abs() < TOLERANCE, || format!("posterior of {i} sums to {sum}"))?;
    }
    let Some(confusion) = &fitted.report.confusion else { return Ok(()) };
    for r in 0..a.dims().annotators {
        let mut sums = vec![0.0; a.dims().classes];
        for label in 0..a.dims().labels {
            let column = confusion.column(&a, r, label).0;
            sums.iter_mut().zip(column).for_each(|(s, p)| *s += p);
        }
        let ones = vec![1.0; sums.len()];
        expect(gap(&sums, &ones) < TOLERANCE, || format!("rows of annotator {r} sum to {sums:?}"))?;
    }
    Ok(())
}

fn objective_never_falls(family: &Family) -> std::result::Result<(), String> {
    for seed in 0..5 {
        for row in fit(family, &crowd(seed))?.trace {
            let allowed = -1e-6 * row.objective.abs();
            expect(row.change.is_none_or(|c| c >= allowed), || format!("seed {seed}: {row:?}"))?;
        }
    }
    Ok(())
}

fn repeatable(family: &Family) -> std::result::Result<(), String> {
    let a = crowd(2);
    let (one, two) = (fit(family, &a)?, fit(family, &a)?);
    expect(one.posterior == two.posterior && one.report == two.report, || "it does not".to_owned())
}

fn threads(family: &Family) -> std::result::Result<(), String> {
    let a = crowd(3);
    let on = |n: usize| {
        let run = Run::new(1).with_threads(n).map_err(|e| e.to_string())?;
        fit_with(family, &a, run).map_err(|e| e.to_string())
    };
    let (one, four) = (on(1)?, on(4)?);
    expect(one.posterior == four.posterior && one.report == four.report, || {
        "they do not".to_owned()
    })
}

fn annotator_permutation(family: &Family) -> std::result::Result<(), String> {
    let crowd = Crowd::default();
    let rows = crowd.draw(4).rows;
    let n = crowd.annotators;
    let renamed: Vec<_> = rows.iter().map(|(i, r, l)| (*i, n - 1 - r, *l)).collect();
    let one = fit(family, &annotations(dims(&crowd), &rows))?;
    let two = fit(family, &annotations(dims(&crowd), &renamed))?;
    let back: Vec<f64> = two.report.skill.iter().rev().copied().collect();
    let worst =
        gap(one.posterior.values(), two.posterior.values()).max(gap(&one.report.skill, &back));
    expect(worst < 1e-6, || format!("they move a number by {worst}"))
}

fn class_permutation(family: &Family) -> std::result::Result<(), String> {
    let crowd = Crowd::default();
    let rows = crowd.draw(5).rows;
    let n = crowd.classes;
    let renamed: Vec<_> = rows.iter().map(|(i, r, l)| (*i, *r, n - 1 - l)).collect();
    let one = fit(family, &annotations(dims(&crowd), &rows))?;
    let two = fit(family, &annotations(dims(&crowd), &renamed))?;
    for i in 0..one.posterior.len() {
        let back: Vec<f64> = two.posterior.row(i).iter().rev().copied().collect();
        let worst = gap(one.posterior.row(i), &back);
        expect(worst < 1e-6, || format!("instance {i} differs by {worst}"))?;
    }
    Ok(())
}

fn unanimous(family: &Family) -> std::result::Result<(), String> {
    let rows: Vec<_> = (0..30).flat_map(|i| (0..4).map(move |r| (i, r, i % 3))).collect();
    let fitted = fit(family, &tiny(3, &rows))?;
    for i in 0..30 {
        let p = fitted.posterior.row(i)[i % 3];
        expect(p > 1.0 - 1e-6, || format!("instance {i} has {p}"))?;
    }
    Ok(())
}

fn degenerate(family: &Family) -> std::result::Result<(), String> {
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
        let fitted = fit(family, a).map_err(|e| format!("{name}: {e}"))?;
        expect(fitted.not_finite().is_none(), || format!("{name}: {:?}", fitted.not_finite()))?;
    }
    Ok(())
}

fn many_agree(family: &Family) -> std::result::Result<(), String> {
    let rows: Vec<_> = (0..10_000).map(|r| (0, r, 1)).chain([(1, 0, 0), (1, 1, 0)]).collect();
    let fitted = fit(family, &tiny(2, &rows))?;
    expect(fitted.not_finite().is_none(), || format!("{:?}", fitted.not_finite()))?;
    expect(best(fitted.posterior.row(0)) == Some((1, false)), || {
        format!("{:?}", fitted.posterior.row(0))
    })
}

fn trusted(family: &Family) -> std::result::Result<(), String> {
    let mut a = crowd(6);
    let class = |i: usize| (i % 3) as u32;
    a.trusted = Some((0..a.dims().instances).map(|i| (i % 10 == 0).then(|| class(i))).collect());
    let fitted = fit(family, &a)?;
    for i in (0..a.dims().instances).step_by(10) {
        let p = fitted.posterior.row(i)[class(i) as usize];
        expect(p >= 1.0 - TOLERANCE, || format!("instance {i} has {p}"))?;
    }
    Ok(())
}

fn better_than_chance(family: &Family) -> std::result::Result<(), String> {
    let drawn = Crowd::default().draw(7);
    let fitted = fit(family, &annotations(dims(&Crowd::default()), &drawn.rows))?;
    let right = drawn.truth.iter().enumerate().filter(|(i, truth)| {
        best(fitted.posterior.row(*i)).is_some_and(|(class, _)| class == **truth as usize)
    });
    let accuracy = right.count() as f64 / drawn.truth.len() as f64;
    expect(accuracy > 0.85, || format!("accuracy {accuracy}"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_model_conforms() {
        let failures = super::failures();
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
}
