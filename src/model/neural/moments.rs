//! What an optimiser remembers of each number that it moves.

use std::ops::Range;

use candle_core::{Tensor, Var};

use super::optimiser::Rule;
use super::prefetch::ask_for;
use super::snapshot::Snapshot;
use super::tensor;
use crate::error::Result;

/// Running moments of one parameter; those that the rule does not use are empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Moments {
    first: Vec<f32>,
    second: Vec<f32>,
    greatest: Vec<f32>,
}

/// The moments of some numbers of a parameter.
#[derive(Default)]
pub(super) struct MomentsMut<'a> {
    pub(super) first: &'a mut [f32],
    pub(super) second: &'a mut [f32],
    pub(super) greatest: &'a mut [f32],
}

impl<'a> MomentsMut<'a> {
    /// Those of the first `n` numbers, and the others.
    pub(super) fn split_at(self, n: usize) -> (Self, Self) {
        let split = |values: &'a mut [f32]| values.split_at_mut(n.min(values.len()));
        let (first, second, greatest) =
            (split(self.first), split(self.second), split(self.greatest));
        (
            Self { first: first.0, second: second.0, greatest: greatest.0 },
            Self { first: first.1, second: second.1, greatest: greatest.1 },
        )
    }

    /// Those of some numbers.
    pub(super) fn slice(&mut self, range: Range<usize>) -> MomentsMut<'_> {
        fn part(values: &mut [f32], range: Range<usize>) -> &mut [f32] {
            if values.is_empty() { values } else { &mut values[range] }
        }
        MomentsMut {
            first: part(self.first, range.clone()),
            second: part(self.second, range.clone()),
            greatest: part(self.greatest, range),
        }
    }

    /// Asks for some numbers, which are wanted soon.
    pub(super) fn ask_for(&self, range: Range<usize>) {
        for moments in [&*self.first, self.second, self.greatest] {
            ask_for(moments.get(range.clone()).unwrap_or_default());
        }
    }
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

    pub(super) fn all(&mut self) -> MomentsMut<'_> {
        MomentsMut {
            first: &mut self.first,
            second: &mut self.second,
            greatest: &mut self.greatest,
        }
    }

    /// Those of a variable on a card.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn from_card(moments: &[Tensor; 3]) -> Result<Self> {
        let host = |t: &Tensor| tensor(t.flatten_all().and_then(|t| t.to_vec1::<f32>()));
        let [first, second, greatest] = moments;
        Ok(Self { first: host(first)?, second: host(second)?, greatest: host(greatest)? })
    }

    /// The same beside a variable on a card, where all three are as long as it is.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn to_card(&self, var: &Var) -> Result<[Tensor; 3]> {
        let card = |values: &[f32]| match values {
            [] => tensor(var.as_detached_tensor().zeros_like()),
            _ => tensor(Tensor::from_slice(values, var.dims(), var.device())),
        };
        Ok([card(&self.first)?, card(&self.second)?, card(&self.greatest)?])
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
