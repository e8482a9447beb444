//! A step of an optimiser on a GPU, for many parameters at once.

use candle_core::{Result, Tensor};

use crate::model::neural::net::gpu::kernel::{KernelCall, Work};
use crate::model::neural::net::gpu::op::{DeviceOp, of_two};
use crate::model::neural::net::optimiser::StepFactors;
use crate::model::neural::net::optimiser::moments::MomentsMut;
use crate::model::neural::net::optimiser::optimiser_spec::OptimiserKind;

/// The state after a step by `gradient`, which is multiplied by `scale` first. The state of n parameters is
/// `[part and parameter]`: their values, and the moments that the optimiser has.
pub(crate) fn stepped(
    state: &Tensor,
    gradient: &Tensor,
    factors: StepFactors,
    scale: f64,
) -> Result<Tensor> {
    if state.elem_count() != gradient.elem_count() * (1 + factors.rule.moments()) {
        let sizes = [state, gradient].map(Tensor::elem_count);
        candle_core::bail!("a state and a gradient of {sizes:?} values for {:?}", factors.rule);
    }
    of_two(OptimiserStep { factors, scale: scale as f32 }, [state, gradient])
}

struct OptimiserStep {
    factors: StepFactors,
    scale: f32,
}

impl DeviceOp<2> for OptimiserStep {
    const NAME: &'static str = "step of an optimiser";

    fn kernel(&self, values: usize) -> Result<KernelCall> {
        let StepFactors { rule, nesterov, rate, shrink, added, .. } = self.factors;
        let StepFactors { beta1, beta2, size, root, epsilon, .. } = self.factors;
        let work = Work::Threads(values / (1 + rule.moments()));
        Ok(if rule == OptimiserKind::Sgd {
            let factors = vec![self.scale, added, beta1, rate];
            KernelCall { name: "sgd", work, numbers: vec![u32::from(nesterov)], factors }
        } else {
            let keeps_largest = u32::from(rule == OptimiserKind::Amsgrad);
            let factors = vec![self.scale, added, shrink, beta1, beta2, size, root, epsilon];
            KernelCall { name: "adam", work, numbers: vec![keeps_largest], factors }
        })
    }

    fn on_host(&self, inputs: &[&[f32]], out: &mut [f32]) {
        out.copy_from_slice(inputs[0]);
        let gradient: Vec<f32> = inputs[1].iter().map(|g| g * self.scale).collect();
        let mut parts = out.chunks_exact_mut(gradient.len().max(1));
        let mut part = || parts.next().unwrap_or_default();
        let values = part();
        let moments = MomentsMut { first: part(), second: part(), max_second: part() };
        self.factors.update(values, &gradient, moments);
    }
}
