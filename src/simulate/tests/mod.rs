//! Tests of simulated crowds against values worked out by hand.

mod annotators;
mod crowds;
mod noise;
mod resample;

use super::annotators::confusion::ConfusionMatrix;
use super::draw::{SimulatedCrowd, draw};
use super::grammar::kind;
use super::plan::{Instances, Plan};
use super::recipes::recipe;
use crate::job_context::JobContext;

fn matrix(word: &str, classes: usize, seed: u64) -> ConfusionMatrix {
    let shares = vec![1.0 / classes as f64; classes];
    let kind = kind(word).unwrap();
    kind.confusion(&shares, &mut JobContext::new(seed).rng("test")).unwrap().unwrap()
}

#[track_caller]
fn assert_rows(got: &ConfusionMatrix, want: &[&[f64]]) {
    for (k, want) in want.iter().enumerate() {
        let close = got.row(k).iter().zip(*want).all(|(g, w)| (g - w).abs() < 1e-12);
        assert!(close && want.len() == got.classes(), "row {k}: {:?} is not {want:?}", got.row(k));
    }
}

#[track_caller]
fn assert_near(got: f64, want: f64, tolerance: f64) {
    assert!((got - want).abs() <= tolerance, "{got} is not {want} within {tolerance}");
}

/// The classes of `10 * of_each` instances: ten classes, equally frequent.
fn balanced(of_each: u32) -> Vec<u32> {
    (0..10 * of_each).map(|i| i % 10).collect()
}

/// The plan of a recipe for ten classes.
fn plan_of(name: &str, settings: &[&str]) -> Plan {
    let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
    recipe(name).unwrap().load(&settings).unwrap().design.plan(10).unwrap()
}

fn drawn(plan: &Plan, class: &[u32], classes: usize, seed: u64) -> SimulatedCrowd {
    draw(plan, Instances { class, classes, features: None }, &JobContext::new(seed)).unwrap()
}
