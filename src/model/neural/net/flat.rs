//! The parameters of a network on a GPU as flat tensors, which the optimiser updates at once.
//!
//! # Why
//! The optimiser's formulas are a dozen operations. For each of the 76 trained parameters of ResNet-20's layers by
//! itself these are a thousand launches a step. Here they are launched twice: for the parameters with weight decay, and
//! for the others. Two copies for each parameter remain: of its gradient, and of its new value.

use candle_core::{Result as CandleResult, Tensor, TensorId, Var};

use crate::error::Result;
use crate::model::neural::train::moments::Moments;

/// The parameters of one kind that have gradients, one after the other.
pub(super) struct Flat {
    pub(super) vars: Vec<Var>,
    /// The values; `None` if the variables have been set since the last step.
    pub(super) values: Option<Tensor>,
    /// The first moments, the second moments and the largest second moments.
    pub(super) moments: [Tensor; 3],
}

impl Flat {
    /// Whether these are the parameters of these variables.
    pub(super) fn is_of(&self, vars: &[Var]) -> bool {
        self.vars.iter().map(|var| var.id()).eq(vars.iter().map(|var| var.id()))
    }

    /// Updates the variables; `formulas` gives the new values for the old ones and the moments.
    pub(super) fn update(
        &mut self,
        formulas: impl FnOnce(&Tensor, &mut [Tensor; 3]) -> CandleResult<Tensor>,
    ) -> CandleResult<()> {
        let values = match self.values.take() {
            Some(values) => values,
            None => joined(self.vars.iter().map(Var::as_detached_tensor))?,
        };
        let values = formulas(&values, &mut self.moments)?;
        let mut first = 0;
        for var in &self.vars {
            var.set(&values.narrow(0, first, var.elem_count())?.reshape(var.dims())?)?;
            first += var.elem_count();
        }
        self.values = Some(values);
        Ok(())
    }

    /// Copies the moments of each parameter from the GPU.
    pub(super) fn moments(&self) -> Result<impl Iterator<Item = (TensorId, Moments)>> {
        let moments = Moments::from_gpu(&self.moments, &self.vars)?;
        Ok(self.vars.iter().map(|var| var.id()).zip(moments))
    }
}

/// The values of all tensors, one after the other.
pub(super) fn joined(tensors: impl Iterator<Item = Tensor>) -> CandleResult<Tensor> {
    let flat = tensors.map(|tensor| tensor.flatten_all()).collect::<CandleResult<Vec<_>>>()?;
    Tensor::cat(&flat, 0)
}
