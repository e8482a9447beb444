//! Gradient descent: Adam, AMSGrad and SGD, with schedules of the rate, weight decay and clipping.
//!
//! On the host one loop updates parameters and moments; on a GPU a kernel has the same formulas.

pub(crate) mod moments;
pub(crate) mod optimiser_spec;

use candle_core::{Tensor, Var};
use pulp::Arch;

use crate::error::Result;
use crate::model::neural::device::from_candle;
use crate::model::neural::net::host::zip_in_place;
use moments::{Moments, MomentsMut};
use optimiser_spec::{OptimiserKind, OptimiserSpec};

/// Updates parameters by their gradients.
#[derive(Debug, Clone)]
pub struct Optimiser {
    spec: OptimiserSpec,
}

impl Optimiser {
    /// The optimiser of a spec.
    #[must_use]
    pub fn new(spec: &OptimiserSpec) -> Self {
        Self { spec: spec.clone() }
    }

    /// The kind of optimiser, which decides which moments exist.
    pub(crate) fn kind(&self) -> OptimiserKind {
        self.spec.rule
    }

    /// The bias corrections 1 - beta^step of both moments in step `step`, from 1.
    fn corrections(&self, step: u32) -> (f64, f64) {
        let step = i32::try_from(step).unwrap_or(i32::MAX);
        (1.0 - self.spec.beta1.powi(step), 1.0 - self.spec.beta2.powi(step))
    }

    /// The factors of step `step`, from 1.
    pub(crate) fn factors(&self, step: u32, rate: f64, decay: f64) -> StepFactors {
        let spec = &self.spec;
        let decoupled = spec.decoupled && spec.rule != OptimiserKind::Sgd;
        let (first_correction, second_correction) = self.corrections(step);
        StepFactors {
            rule: spec.rule,
            nesterov: spec.nesterov,
            rate: rate as f32,
            shrink: if decoupled { (1.0 - rate * decay) as f32 } else { 1.0 },
            added: if decoupled { 0.0 } else { decay as f32 },
            beta1: spec.beta1 as f32,
            beta2: spec.beta2 as f32,
            size: (rate / first_correction) as f32,
            root: (1.0 / second_correction.sqrt()) as f32,
            epsilon: spec.epsilon as f32,
        }
    }

    /// Updates `values` and `moments` by `gradient`.
    pub(crate) fn update(
        &self,
        values: &mut [f32],
        gradient: &[f32],
        moments: MomentsMut<'_>,
        step: u32,
        rate: f64,
        decay: f64,
    ) {
        self.factors(step, rate, decay).update(values, gradient, moments);
    }

    /// Updates a variable on the host.
    pub(crate) fn update_host(
        &self,
        var: &Var,
        gradient: &Tensor,
        moments: &mut Moments,
        step: u32,
        rate: f64,
        decay: f64,
    ) -> Result<()> {
        moments.fit(self.spec.rule, var.elem_count());
        from_candle(zip_in_place(var, gradient, |values, gradient| {
            self.update(values, gradient, moments.all(), step, rate, decay);
        }))
    }
}

/// The numbers of one step of an optimiser, which are the same for all parameters of a kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepFactors {
    pub(crate) rule: OptimiserKind,
    pub(crate) nesterov: bool,
    pub(crate) rate: f32,
    /// What a value is multiplied by, for decoupled weight decay.
    pub(crate) shrink: f32,
    /// The share of a value that is added to its gradient.
    pub(crate) added: f32,
    pub(crate) beta1: f32,
    pub(crate) beta2: f32,
    /// The rate, with the correction of the first moment.
    pub(crate) size: f32,
    /// The correction of the second moment's square root.
    pub(crate) root: f32,
    pub(crate) epsilon: f32,
}

impl StepFactors {
    /// Updates `values` and `moments` by `gradient`.
    pub(crate) fn update(self, values: &mut [f32], gradient: &[f32], moments: MomentsMut<'_>) {
        let Self { rate, shrink, added, beta1, beta2, size, root, epsilon, .. } = self;
        Arch::new().dispatch(|| {
            let each = values.iter_mut().zip(gradient).zip(moments.first);
            if self.rule == OptimiserKind::Sgd {
                for ((w, g), m) in each {
                    let g = g + added * *w;
                    *m = beta1 * *m + g;
                    *w -= rate * if self.nesterov { g + beta1 * *m } else { *m };
                }
                return;
            }
            let each = each.zip(moments.second);
            let moved = |w: &mut f32, g: f32, m: &mut f32, v: &mut f32, most: Option<&mut f32>| {
                let g = g + added * *w;
                *m = beta1 * *m + (1.0 - beta1) * g;
                *v = beta2 * *v + (1.0 - beta2) * g * g;
                let v = most.map_or(*v, |most| {
                    *most = most.max(*v);
                    *most
                });
                *w = *w * shrink - size * *m / (v.sqrt() * root + epsilon);
            };
            if self.rule == OptimiserKind::Adam {
                each.for_each(|(((w, g), m), v)| moved(w, *g, m, v, None));
            } else {
                each.zip(moments.max_second)
                    .for_each(|((((w, g), m), v), x)| moved(w, *g, m, v, Some(x)));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use candle_core::backprop::GradStore;

    use super::*;
    use crate::job_context::JobContext;
    use crate::model::neural::net::parameters::{Initialisation, Parameters};

    /// Gradients 2 and -1 from w = 1 at the rate 0.1: m = .2, .08 and v = .004, .004996, in the second step corrected by
    /// 1 - .9^2 and 1 - .999^2.
    #[test]
    fn the_second_step_of_adam_has_its_own_correction() {
        let optimiser = Optimiser::new(&OptimiserSpec::default());
        let (mut w, mut moments) = ([1.0_f32], Moments::default());
        moments.fit(OptimiserKind::Adam, 1);
        for (step, gradient, wanted) in [(1, 2.0, 0.9), (2, -1.0, 0.873_366)] {
            optimiser.update(&mut w, &[gradient], moments.all(), step, 0.1, 0.0);
            assert!((w[0] - wanted).abs() < 1e-5, "{w:?}, expected {wanted}");
        }
    }

    /// The same steps as steps of a network's parameters, which count them. After a reset, the gradient 2 gives the
    /// first step again: minus the rate.
    #[test]
    fn a_network_counts_the_steps_of_its_optimiser() {
        let parameters =
            Parameters::new(&JobContext::new(1), &Device::Cpu, Initialisation::Uniform);
        let (w, mut parameters) = parameters.build(|layers| layers.constant("w", 1, 1.0)).unwrap();
        let optimiser = Optimiser::new(&OptimiserSpec::default());
        let step = |parameters: &mut Parameters, gradient: f32| {
            let mut gradients = GradStore::default();
            gradients.insert(&w, Tensor::new(&[gradient], &Device::Cpu).unwrap());
            parameters.step(&gradients, 1.0, &optimiser, 0.1, 0.0).unwrap();
            w.to_vec1::<f32>().unwrap()[0]
        };
        for (gradient, wanted) in [(2.0, 0.9), (-1.0, 0.873_366)] {
            let got = step(&mut parameters, gradient);
            assert!((got - wanted).abs() < 1e-5, "{got}, expected {wanted}");
        }
        parameters.reset_moments();
        let got = step(&mut parameters, 2.0);
        assert!((got - 0.773_366).abs() < 1e-5, "{got}");
    }

    /// Gradients 2 and 0.1 from w = 1 at the rate 0.1 with the decay 0.4: by the formulas of the papers in f64. The second
    /// moments are 0.4 and 0.361, of which AMSGrad keeps 0.4.
    // keys: model.train.optimiser.beta1, model.train.optimiser.beta2, model.train.optimiser.epsilon
    // keys: model.train.optimiser.decoupled, model.train.optimiser.nesterov, model.train.optimiser.rule
    #[test]
    fn every_rule_takes_the_two_steps_worked_out_by_hand() {
        let (adam, amsgrad, sgd) =
            (OptimiserKind::Adam, OptimiserKind::Amsgrad, OptimiserKind::Sgd);
        for (rule, decoupled, nesterov, wanted) in [
            (adam, true, false, [0.88, 0.794_521]),
            (adam, false, false, [0.917_241, 0.856_585]),
            (amsgrad, true, false, [0.88, 0.796_391]),
            (sgd, true, false, [0.76, 0.5276]),
            (sgd, true, true, [0.568, 0.355_504]),
        ] {
            let (beta1, beta2, epsilon) = (0.8, 0.9, 0.5);
            let spec = OptimiserSpec {
                rule,
                decoupled,
                beta1,
                beta2,
                epsilon,
                nesterov,
                ..OptimiserSpec::default()
            };
            let optimiser = Optimiser::new(&spec);
            let (mut w, mut moments) = ([1.0_f32], Moments::default());
            moments.fit(rule, 1);
            for (step, (gradient, wanted)) in (1..).zip([2.0, 0.1].into_iter().zip(wanted)) {
                optimiser.update(&mut w, &[gradient], moments.all(), step, 0.1, 0.4);
                assert!((f64::from(w[0]) - wanted).abs() < 1e-5, "{rule:?}: {w:?} not {wanted}");
            }
        }
    }
}
