//! The parameters of a network on a GPU as flat tensors, which the optimiser updates at once.
//!
//! # Why
//! One launch of a kernel updates all parameters of a kind, those with weight decay or the others; ResNet-20 has 76. Their
//! gradients and their new values are copied by one launch each.

use candle_core::{Result as CandleResult, Tensor, TensorId, Var};

use crate::error::Result;
use crate::model::neural::device::from_candle;
use crate::model::neural::net::gpu::copies::{joined, set_all};
use crate::model::neural::net::optimiser::moments::Moments;

/// The parameters of one kind that have gradients, one after the other.
pub(in crate::model::neural::net) struct Flat {
    pub(super) vars: Vec<Var>,
    /// The values and then the moments that the optimiser has; without the values if the variables have been set since
    /// the last step.
    pub(super) state: Tensor,
    pub(super) has_values: bool,
}

impl Flat {
    /// Whether these are the parameters of these variables.
    pub(super) fn is_of(&self, vars: &[Var]) -> bool {
        self.vars.iter().map(|var| var.id()).eq(vars.iter().map(|var| var.id()))
    }

    /// Updates the variables; `step` gives the new state for the old one.
    pub(super) fn update(
        &mut self,
        step: impl FnOnce(&Tensor) -> CandleResult<Tensor>,
    ) -> CandleResult<()> {
        if !self.has_values {
            let values = joined(self.vars.iter().map(Var::as_detached_tensor))?;
            (self.state, self.has_values) = (Tensor::cat(&[&values, &self.state], 0)?, true);
        }
        self.state = step(&self.state)?;
        set_all(&self.vars, &self.state)
    }

    /// Takes the values again in the next step, because the variables have been set.
    pub(super) fn forget_values(&mut self) -> CandleResult<()> {
        (self.state, self.has_values) = (self.moments()?, false);
        Ok(())
    }

    /// The moments alone.
    fn moments(&self) -> CandleResult<Tensor> {
        let of_var = |var: &Var| var.elem_count();
        let values: usize = if self.has_values { self.vars.iter().map(of_var).sum() } else { 0 };
        self.state.narrow(0, values, self.state.elem_count() - values)
    }

    /// Copies the moments of each parameter from the GPU.
    pub(super) fn moments_on_host(&self) -> Result<impl Iterator<Item = (TensorId, Moments)>> {
        let moments = Moments::from_gpu(&from_candle(self.moments())?, &self.vars)?;
        Ok(self.vars.iter().map(|var| var.id()).zip(moments))
    }
}
