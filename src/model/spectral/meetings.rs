//! The pairs of annotators that have instances in common, and how far each agrees.

use std::collections::BTreeMap;
use std::ops::Range;

use rayon::prelude::*;

use super::co_occurrence::CoOccurrence;
use crate::frame::Annotations;

/// The steps that find signs.
const SIGN_STEPS: u32 = 100;

/// What an annotator has in common with another one.
pub(super) struct Meeting {
    pub(super) other: u32,
    /// g
    pub(super) common: f64,
    /// m
    pub(super) agreement: f64,
}

/// The meetings of each annotator, and at the end of the one who knows the trusted classes, where any is.
pub(super) struct Meetings(pub(super) Vec<Vec<Meeting>>);

impl Meetings {
    pub(super) fn new(a: &Annotations) -> Self {
        let co = CoOccurrence::new(a, |weight, _| weight);
        let n = a.dims().classes as f64;
        let of_annotator = |(_, votes): (u32, Range<usize>)| {
            let mut sums: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
            for vote in votes {
                for (met, sum) in co.common_votes(vote) {
                    let (common, equal) = sums.entry(co.annotator_of(met)).or_default();
                    *common += sum;
                    *equal += if co.class_of(met) == co.class_of(vote as u32) { sum } else { 0.0 };
                }
            }
            let meeting = |(other, (common, equal))| {
                let agreement = if n > 1.0 { (n * equal / common - 1.0) / (n - 1.0) } else { 1.0 };
                Meeting { other, common, agreement }
            };
            sums.into_iter().filter(|(_, (common, _))| *common > 0.0).map(meeting).collect()
        };
        Self(co.annotators().into_par_iter().map(of_annotator).collect())
    }

    /// The median number of common instances of the pairs that have any.
    pub(super) fn median(&self) -> Option<f64> {
        let mut common: Vec<f64> = self.0.iter().flatten().map(|m| m.common).collect();
        let middle = common.len() / 2;
        (!common.is_empty()).then(|| *common.select_nth_unstable_by(middle, f64::total_cmp).1)
    }

    /// Whether each agrees with the majority, or with the trusted classes, whose annotator is the last; +1 or -1.
    pub(super) fn signs(&self, gold_decides: bool) -> Vec<f64> {
        let mut x = vec![1.0_f64; self.0.len()];
        for _ in 0..SIGN_STEPS {
            let moved = |(own, meetings): (&f64, &Vec<Meeting>)| {
                let (sum, all) = meetings.iter().fold((0.0, 0.0), |(sum, all), m| {
                    (sum + m.common * m.agreement * x[m.other as usize], all + m.common)
                });
                if all > 0.0 { f64::midpoint(*own, sum / all) } else { *own }
            };
            let next: Vec<f64> = x.par_iter().zip(&self.0).map(moved).collect();
            let most = next.iter().fold(0.0, |max: f64, x| max.max(x.abs()));
            x = next.into_iter().map(|x| if most > 0.0 { x / most } else { x }).collect();
        }
        let right =
            if gold_decides { x.last().copied().unwrap_or_default() } else { x.iter().sum() };
        let orientation = if right < 0.0 { -1.0 } else { 1.0 };
        x.iter().map(|x| if *x * orientation < 0.0 { -1.0 } else { 1.0 }).collect()
    }
}
