//! The moments that an optimiser keeps for each value that it updates.

use std::ops::Range;

use candle_core::{Device, Tensor, Var};

use super::optimiser_spec::OptimiserKind;
use crate::error::Result;
use crate::model::neural::device::from_candle;
use crate::model::saved::snapshot::Snapshot;
use crate::prefetch::prefetch_all;

/// Running moments of one parameter; a moment that the kind of optimiser does not use is empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Moments {
    first: Vec<f32>,
    second: Vec<f32>,
    max_second: Vec<f32>,
}

/// The moments of a range of a parameter's values.
#[derive(Default)]
pub(crate) struct MomentsMut<'a> {
    pub(crate) first: &'a mut [f32],
    pub(crate) second: &'a mut [f32],
    pub(crate) max_second: &'a mut [f32],
}

impl<'a> MomentsMut<'a> {
    /// Splits into the moments of the first `n` values and those of the others.
    pub(crate) fn split_at(self, n: usize) -> (Self, Self) {
        let split = |values: &'a mut [f32]| values.split_at_mut(n.min(values.len()));
        let (first, second, max_second) =
            (split(self.first), split(self.second), split(self.max_second));
        (
            Self { first: first.0, second: second.0, max_second: max_second.0 },
            Self { first: first.1, second: second.1, max_second: max_second.1 },
        )
    }

    /// The moments of a range of the values.
    pub(crate) fn slice(&mut self, range: Range<usize>) -> MomentsMut<'_> {
        fn part(values: &mut [f32], range: Range<usize>) -> &mut [f32] {
            if values.is_empty() { values } else { &mut values[range] }
        }
        MomentsMut {
            first: part(self.first, range.clone()),
            second: part(self.second, range.clone()),
            max_second: part(self.max_second, range),
        }
    }

    /// Prefetches the moments of a range.
    pub(crate) fn prefetch(&self, range: Range<usize>) {
        for moments in [&*self.first, self.second, self.max_second] {
            prefetch_all(moments.get(range.clone()).unwrap_or_default());
        }
    }
}

impl Moments {
    /// Allocates zero moments for `n` values, unless they exist already.
    pub(crate) fn fit(&mut self, rule: OptimiserKind, n: usize) {
        if self.first.len() != n {
            let zeros = |wanted: bool| if wanted { vec![0.0; n] } else { Vec::new() };
            self.first = zeros(true);
            self.second = zeros(rule != OptimiserKind::Sgd);
            self.max_second = zeros(rule == OptimiserKind::Amsgrad);
        }
    }

    pub(crate) fn all(&mut self) -> MomentsMut<'_> {
        MomentsMut {
            first: &mut self.first,
            second: &mut self.second,
            max_second: &mut self.max_second,
        }
    }

    /// Copies the moments of these variables from the GPU: all first moments, all second ones, and so on.
    pub(crate) fn from_gpu(moments: &Tensor, vars: &[Var]) -> Result<Vec<Self>> {
        let all = from_candle(moments.to_vec1::<f32>())?;
        let count: usize = vars.iter().map(|var| var.elem_count()).sum();
        let mut moments = all.chunks_exact(count.max(1));
        let [first, second, max_second] = [(); 3].map(|()| moments.next().unwrap_or_default());
        let mut start = 0;
        let part = |var: &Var| {
            let own = start..start + var.elem_count();
            start = own.end;
            let part = |all: &[f32]| all.get(own.clone()).unwrap_or_default().to_vec();
            Self { first: part(first), second: part(second), max_second: part(max_second) }
        };
        Ok(vars.iter().map(part).collect())
    }

    /// Copies the moments of these variables that an optimiser has to their GPU, one after the other; those that do not
    /// exist yet are zeros.
    pub(crate) fn to_gpu(moments: &[&Self], rule: OptimiserKind, vars: &[Var]) -> Result<Tensor> {
        let parts: [fn(&Self) -> &Vec<f32>; 3] = [|m| &m.first, |m| &m.second, |m| &m.max_second];
        let mut all = Vec::new();
        for part in &parts[..rule.moments()] {
            for (own, var) in moments.iter().map(|own| part(own)).zip(vars) {
                all.extend_from_slice(own);
                all.resize(all.len() + var.elem_count() - own.len(), 0.0);
            }
        }
        let (n, device) = (all.len(), vars.first().map_or(&Device::Cpu, |var| var.device()));
        from_candle(Tensor::from_vec(all, n, device))
    }

    pub(crate) fn save(&self, name: &str, to: &mut Snapshot) {
        let parts =
            [("first", &self.first), ("second", &self.second), ("max_second", &self.max_second)];
        for (part, values) in parts.into_iter().filter(|(_, values)| !values.is_empty()) {
            to.f32s(format!("{name}.{part}"), vec![values.len()], values.clone());
        }
    }

    pub(crate) fn load(name: &str, from: &Snapshot) -> Self {
        let part = |part: &str| {
            from.find_f32s(&format!("{name}.{part}")).map(<[f32]>::to_vec).unwrap_or_default()
        };
        Self { first: part("first"), second: part("second"), max_second: part("max_second") }
    }
}
