//! The parameters of a network on a GPU: steps of the optimiser over flat tensors, and sums over all parameters.

use std::collections::HashMap;

use candle_core::backprop::GradStore;
use candle_core::{Tensor, TensorId, Var};

use super::flat::Flat;
use crate::error::Result;
use crate::model::neural::device::from_candle;
use crate::model::neural::net::gpu::copies::joined;
use crate::model::neural::net::gpu::optimiser::stepped;
use crate::model::neural::net::optimiser::Optimiser;
use crate::model::neural::net::optimiser::moments::Moments;
use crate::model::neural::net::parameters::{ParameterKind, Parameters};

impl Parameters {
    /// Updates every parameter that has a gradient, each gradient multiplied by `scale` first.
    pub(super) fn step_on_gpu(
        &mut self,
        gradients: &GradStore,
        scale: f64,
        optimiser: &Optimiser,
        rate: f64,
        weight_decay: f64,
    ) -> Result<()> {
        for (at, kind, decay) in
            [(0, ParameterKind::Weight, weight_decay), (1, ParameterKind::Bias, 0.0)]
        {
            let all = self.all.values().filter(|parameter| parameter.kind == kind);
            let (vars, found): (Vec<Var>, Vec<Tensor>) =
                all.filter_map(|p| Some((p.var.clone(), gradients.get(&p.var)?.detach()))).unzip();
            if vars.is_empty() {
                continue;
            }
            if self.flat[at].as_ref().is_none_or(|flat| !flat.is_of(&vars)) {
                self.unflatten(at)?;
                let moments =
                    self.all.values().filter(|p| vars.iter().any(|v| v.id() == p.var.id()));
                let moments: Vec<&Moments> = moments.map(|p| &p.moments).collect();
                let state = Moments::to_gpu(&moments, optimiser.kind(), &vars)?;
                self.flat[at] = Some(Flat { vars, state, has_values: false });
            }
            let Some(flat) = &mut self.flat[at] else { continue };
            let factors = optimiser.factors(self.step, rate, decay);
            from_candle(
                flat.update(|state| stepped(state, &joined(found.into_iter())?, factors, scale)),
            )?;
        }
        Ok(())
    }

    /// The sum of the squares of all gradients, which is copied to the host once.
    pub(super) fn squared_norm_on_gpu(&self, gradients: &GradStore) -> Result<f64> {
        let all = self.all.values().filter_map(|p| gradients.get(&p.var));
        let all: Vec<Tensor> = all.map(Tensor::detach).collect();
        if all.is_empty() {
            return Ok(0.0);
        }
        let squares = joined(all.into_iter()).and_then(|all| all.sqr()?.sum_all()?.to_scalar());
        from_candle(squares).map(|squares: f32| f64::from(squares))
    }

    /// Whether all parameters are finite numbers: whether the sum of their absolute values is one.
    pub(super) fn is_finite_on_gpu(&self) -> Result<bool> {
        let all = joined(self.all.values().map(|p| p.var.as_detached_tensor()));
        let sum = all.and_then(|all| all.abs()?.sum_all()?.to_scalar());
        from_candle(sum).map(|sum: f32| sum.is_finite())
    }

    /// Copies the moments of flat parameters back to each parameter.
    fn unflatten(&mut self, at: usize) -> Result<()> {
        let Some(flat) = self.flat[at].take() else { return Ok(()) };
        let mut moments: HashMap<_, _> = flat.moments_on_host()?.collect();
        for parameter in self.all.values_mut() {
            if let Some(own) = moments.remove(&parameter.var.id()) {
                parameter.moments = own;
            }
        }
        Ok(())
    }

    /// The moments that are on a GPU, by the variables that they belong to.
    pub(super) fn moments_on_gpu(&self) -> Result<HashMap<TensorId, Moments>> {
        let mut all = HashMap::new();
        for flat in self.flat.iter().flatten() {
            all.extend(flat.moments_on_host()?);
        }
        Ok(all)
    }

    /// Gathers all values again in the next step, because the variables have been set.
    pub(super) fn forget_flat_values(&mut self) -> Result<()> {
        self.flat.iter_mut().flatten().try_for_each(|flat| from_candle(flat.forget_values()))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;
    use crate::job_context::JobContext;
    use crate::model::neural::net::backend::Backend;
    use crate::model::neural::net::optimiser::optimiser_spec::OptimiserKind;
    use crate::model::neural::net::optimiser::optimiser_spec::OptimiserSpec;
    use crate::model::neural::net::parameters::Initialisation;
    use crate::model::neural::net::testing::device_of;
    use crate::model::saved::snapshot::Snapshot;

    const NAMES: [&str; 5] = ["a.weight", "a.bias", "b.weight", "b.bias", "running_mean"];

    /// Two layers and a running statistic, on the host and as on a GPU.
    fn both() -> [Parameters; 2] {
        [Backend::Host, Backend::Device(DType::F32)].map(|backend| {
            let device = device_of(backend);
            let all = Parameters::new(&JobContext::new(1), &device, Initialisation::Uniform);
            let built = all.build(|layers| {
                layers.pp("a").weight_and_bias(&[3, 4], 4, 3, 4)?;
                layers.pp("b").weight_and_bias(&[2, 4, 1], 2, 4, 2)?;
                layers.constant("running_mean", 4, 2.0)
            });
            let (_, all) = built.unwrap();
            if backend == Backend::Host { all } else { all.on_gpu() }
        })
    }

    fn values(all: &Parameters) -> Vec<Vec<f32>> {
        let of = |name: &&str| all.var(name).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        NAMES.iter().map(of).collect()
    }

    /// w + n in step n, for the parameters of these names; the statistic has none.
    fn gradients(all: &Parameters, names: &[&str], step: u32) -> GradStore {
        let mut gradients = GradStore::default();
        for name in names {
            let var = all.var(name).unwrap();
            let gradient = (var.as_detached_tensor() + f64::from(step)).unwrap();
            gradients.insert(var.as_tensor(), gradient);
        }
        gradients
    }

    fn near(what: &str, [host, gpu]: &[Parameters; 2]) {
        let (host, gpu) = (values(host), values(gpu));
        for ((name, host), gpu) in NAMES.iter().zip(&host).zip(&gpu) {
            assert_eq!(host.len(), gpu.len(), "{what}, {name}");
            for (host, gpu) in host.iter().zip(gpu) {
                assert!((host - gpu).abs() < 1e-6, "{what}, {name}: {gpu}, on the host {host}");
            }
        }
    }

    fn specs() -> impl Iterator<Item = OptimiserSpec> {
        let rules = [OptimiserKind::Adam, OptimiserKind::Amsgrad, OptimiserKind::Sgd];
        let kinds = [(true, false), (false, true)];
        rules.into_iter().flat_map(move |rule| {
            kinds.map(|(decoupled, nesterov)| OptimiserSpec {
                rule,
                decoupled,
                nesterov,
                ..OptimiserSpec::default()
            })
        })
    }

    /// Five steps of every rule with and without a scale and weight decay. The second layer has no gradient in the
    /// third step. After the fourth, the moments go through a snapshot, and the parameters are set to other values.
    #[test]
    fn a_gpu_takes_the_steps_of_the_host() {
        for spec in specs() {
            let optimiser = Optimiser::new(&spec);
            let mut both = both();
            let start = values(&both[0]);
            for step in 1..=5 {
                let names = if step == 3 { &NAMES[..2] } else { &NAMES[..4] };
                let (scale, decay) = [(1.0, 0.5), (0.25, 0.5), (1.0, 0.0)][step as usize % 3];
                for all in &mut both {
                    let gradients = gradients(all, names, step);
                    all.step(&gradients, scale, &optimiser, 0.1, decay).unwrap();
                    if step == 4 {
                        let (mut moments, mut other) = (Snapshot::default(), Snapshot::default());
                        all.save_moments(&mut moments).unwrap();
                        all.load_moments(&moments).unwrap();
                        all.save(&mut other).unwrap();
                        other.f32s("net.a.bias".to_owned(), vec![4], vec![0.5, -1.0, 2.0, 3.0]);
                        all.load(&other).unwrap();
                    }
                }
                near(&format!("{spec:?}, step {step}"), &both);
            }
            let end = values(&both[1]);
            assert_eq!(end[4], [2.0; 4], "a statistic");
            for (start, end) in start.iter().zip(&end).take(4) {
                assert!(start.iter().zip(end).all(|(start, end)| (start - end).abs() > 0.01));
            }
        }
    }

    /// The moments of a step survive other values, as those of the best epoch, and are dropped by a reset.
    #[test]
    fn values_that_are_set_keep_the_moments() {
        let optimiser = Optimiser::new(&OptimiserSpec::default());
        let mut both = both();
        for all in &mut both {
            let mut first = Snapshot::default();
            all.save(&mut first).unwrap();
            for step in [1, 2] {
                let gradients = gradients(all, &NAMES[..4], step);
                all.step(&gradients, 1.0, &optimiser, 0.1, 0.5).unwrap();
                all.load(&first).unwrap();
            }
            let gradients = gradients(all, &NAMES[..4], 3);
            all.step(&gradients, 1.0, &optimiser, 0.1, 0.5).unwrap();
        }
        near("set", &both);
        for all in &mut both {
            all.reset("again").unwrap();
            let gradients = gradients(all, &NAMES[..4], 3);
            all.step(&gradients, 1.0, &optimiser, 0.1, 0.5).unwrap();
        }
        near("reset", &both);
    }

    /// Gradients of 2 for 12 + 4 + 8 + 2 values; one value that is not finite is seen wherever it is.
    #[test]
    fn a_norm_and_a_check_are_over_all_parameters() {
        for all in both() {
            let mut gradients = GradStore::default();
            for name in &NAMES[..4] {
                let var = all.var(name).unwrap();
                gradients.insert(var.as_tensor(), (var.ones_like().unwrap() * 2.0).unwrap());
            }
            assert_eq!(all.squared_norm(&gradients).unwrap(), 104.0);
            assert_eq!(all.squared_norm(&GradStore::default()).unwrap(), 0.0);
            assert!(all.is_finite().unwrap());
            for name in NAMES {
                let var = all.var(name).unwrap();
                let good = var.as_detached_tensor().copy().unwrap();
                var.set(&(good.zeros_like().unwrap() + f64::NAN).unwrap()).unwrap();
                assert!(!all.is_finite().unwrap(), "{name}");
                var.set(&good).unwrap();
            }
            assert!(all.is_finite().unwrap());
        }
    }
}
