//! What an optimiser remembers of each number that it moves.

use std::hint::black_box;
use std::ops::Range;

use super::optimiser::Rule;
use super::snapshot::Snapshot;

/// Numbers in a line of the cache.
const LINE: usize = 16;

/// Running moments of one parameter; those that the rule does not use are empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Moments {
    first: Vec<f32>,
    second: Vec<f32>,
    greatest: Vec<f32>,
}

/// The moments of some numbers of a parameter.
pub(super) struct MomentsMut<'a> {
    pub(super) first: &'a mut [f32],
    pub(super) second: &'a mut [f32],
    pub(super) greatest: &'a mut [f32],
}

impl Moments {
    /// Room for `n` numbers.
    pub(super) fn fit(&mut self, rule: Rule, n: usize) {
        if self.first.len() != n {
            let zeros = |wanted: bool| if wanted { vec![0.0; n] } else { Vec::new() };
            self.first = zeros(true);
            self.second = zeros(rule != Rule::Sgd);
            self.greatest = zeros(rule == Rule::Amsgrad);
        }
    }

    pub(super) fn slice(&mut self, range: Range<usize>) -> MomentsMut<'_> {
        let part = |values: &'_ mut Vec<f32>| -> Range<usize> {
            if values.is_empty() { 0..0 } else { range.clone() }
        };
        let (second, greatest) = (part(&mut self.second), part(&mut self.greatest));
        MomentsMut {
            first: &mut self.first[range],
            second: &mut self.second[second],
            greatest: &mut self.greatest[greatest],
        }
    }

    /// Reads a number of every line of some rows: the waits for memory overlap, where a step's would come one by one.
    pub(super) fn bring(&self, rows: &[u32], width: usize) {
        for moments in [&self.first, &self.second, &self.greatest] {
            let row = |r: &u32| moments.get(*r as usize * width..(*r as usize + 1) * width);
            let lines = rows.iter().filter_map(row).flat_map(|row| row.iter().step_by(LINE));
            black_box(lines.sum::<f32>());
        }
    }

    pub(super) fn save(&self, name: &str, to: &mut Snapshot) {
        let parts =
            [("first", &self.first), ("second", &self.second), ("greatest", &self.greatest)];
        for (part, values) in parts.into_iter().filter(|(_, values)| !values.is_empty()) {
            to.reals(format!("{name}.{part}"), vec![values.len()], values.clone());
        }
    }

    pub(super) fn load(name: &str, from: &Snapshot) -> Self {
        let part = |part: &str| {
            from.find_reals(&format!("{name}.{part}")).map(<[f32]>::to_vec).unwrap_or_default()
        };
        Self { first: part("first"), second: part("second"), greatest: part("greatest") }
    }
}
