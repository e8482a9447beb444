//! Gradient descent: Adam, AMSGrad and SGD, with schedules of the rate, weight decay and clipping.
//!
//! On the host one fused loop moves parameter and moments together; on a card the same formulas are tensor operations.

use candle_core::{Tensor, Var};
use pulp::Arch;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::host::change_by;
use super::moments::{Moments, MomentsMut};
use super::tensor;
use crate::error::Result;

/// How a step is made of a gradient.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Kingma and Ba 2015.
    #[default]
    Adam,
    /// Adam whose second moment never falls (Reddi, Kale, Kumar 2018); both bias corrections stay.
    Amsgrad,
    /// Steepest descent with momentum.
    Sgd,
}

/// How the learning rate goes over the epochs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Course {
    /// It stays.
    Constant,
    /// It falls by `gamma` at each milestone.
    Step,
    /// It falls by `gamma` every epoch.
    Exponential,
    /// It falls to zero along half a cosine.
    #[default]
    Cosine,
}

/// The optimiser.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OptimiserSpec {
    /// How a step is made of a gradient.
    pub rule: Rule,
    /// The learning rate of the classifier.
    #[schemars(range(min = 0.0))]
    pub learning_rate: f64,
    /// The learning rate of annotators' parameters; left out, the model's own custom.
    #[schemars(range(min = 0.0))]
    pub annotator_learning_rate: Option<f64>,
    /// Epochs at the start in which annotators' parameters stand still, so that the classes are found before they could
    /// be exchanged; left out, the model's own custom.
    pub annotator_delay: Option<u32>,
    /// How the rates go over the epochs.
    pub schedule: Course,
    /// Epochs at which the `step` schedule lowers the rates.
    pub milestones: Vec<u32>,
    /// The factor of the `step` and `exponential` schedules.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub gamma: f64,
    /// Epochs over which the rates rise from zero.
    pub warmup: u32,
    /// Weight decay of the classifier's weights; biases, batch norms and annotators' parameters are never decayed.
    #[schemars(range(min = 0.0))]
    pub weight_decay: f64,
    /// Whether decay shrinks the weights themselves (AdamW) instead of being added to the gradient. SGD always adds.
    pub decoupled: bool,
    /// Decay of the first moment (Adam), or the momentum (SGD).
    #[schemars(range(min = 0.0, max = 1.0))]
    pub beta1: f64,
    /// Decay of the second moment.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub beta2: f64,
    /// Added to the root of the second moment.
    #[schemars(range(min = 0.0))]
    pub epsilon: f64,
    /// Nesterov's momentum (SGD).
    pub nesterov: bool,
    /// The largest norm that a gradient may have; larger ones are scaled down.
    #[schemars(range(min = 0.0))]
    pub clip_norm: Option<f64>,
    /// Whether every epoch begins with fresh moments, as CoNAL's public code does.
    pub reset_each_epoch: bool,
}

impl Default for OptimiserSpec {
    fn default() -> Self {
        Self {
            rule: Rule::Adam,
            learning_rate: 1e-3,
            annotator_learning_rate: None,
            annotator_delay: None,
            schedule: Course::Cosine,
            milestones: Vec::new(),
            gamma: 0.1,
            warmup: 0,
            weight_decay: 0.01,
            decoupled: true,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            nesterov: false,
            clip_norm: None,
            reset_each_epoch: false,
        }
    }
}

impl OptimiserSpec {
    /// What the rates are multiplied by in `epoch`, from 0, of `epochs`.
    #[must_use]
    pub fn factor(&self, epoch: u32, epochs: u32) -> f64 {
        let course = match self.schedule {
            Course::Constant => 1.0,
            Course::Step => {
                let passed = self.milestones.iter().filter(|m| **m <= epoch).count();
                self.gamma.powi(i32::try_from(passed).unwrap_or(i32::MAX))
            }
            Course::Exponential => self.gamma.powf(f64::from(epoch)),
            Course::Cosine => {
                let done = f64::from(epoch) / f64::from(epochs.max(1));
                0.5 * (1.0 + (std::f64::consts::PI * done).cos())
            }
        };
        let warm = f64::from(epoch + 1) / f64::from(self.warmup + 1);
        course * warm.min(1.0)
    }
}

/// Makes steps.
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

    /// The rule, which decides what moments there are.
    pub(super) fn rule(&self) -> Rule {
        self.spec.rule
    }

    /// What each moment is divided by in step `step`, from 1, because it began at zero.
    fn corrections(&self, step: u32) -> (f64, f64) {
        let step = i32::try_from(step).unwrap_or(i32::MAX);
        (1.0 - self.spec.beta1.powi(step), 1.0 - self.spec.beta2.powi(step))
    }

    /// Moves `values` against `gradient`.
    pub(super) fn update(
        &self,
        values: &mut [f32],
        gradient: &[f32],
        moments: MomentsMut<'_>,
        step: u32,
        rate: f64,
        decay: f64,
    ) {
        Arch::new().dispatch(|| {
            let spec = &self.spec;
            let decoupled = spec.decoupled && spec.rule != Rule::Sgd;
            let shrink = if decoupled { (1.0 - rate * decay) as f32 } else { 1.0 };
            let added = if decoupled { 0.0 } else { decay as f32 };
            let (beta1, beta2) = (spec.beta1 as f32, spec.beta2 as f32);
            let (first_correction, second_correction) = self.corrections(step);
            let each = values.iter_mut().zip(gradient).zip(moments.first);
            if spec.rule == Rule::Sgd {
                for ((w, g), m) in each {
                    let g = g + added * *w;
                    *m = beta1 * *m + g;
                    *w -= rate as f32 * if spec.nesterov { g + beta1 * *m } else { *m };
                }
                return;
            }
            let size = (rate / first_correction) as f32;
            let root = (1.0 / second_correction.sqrt()) as f32;
            let epsilon = spec.epsilon as f32;
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
            if spec.rule == Rule::Adam {
                each.for_each(|(((w, g), m), v)| moved(w, *g, m, v, None));
            } else {
                each.zip(moments.greatest)
                    .for_each(|((((w, g), m), v), x)| moved(w, *g, m, v, Some(x)));
            }
        });
    }

    /// Moves a variable that is on the host.
    pub(super) fn update_host(
        &self,
        var: &Var,
        gradient: &Tensor,
        moments: &mut Moments,
        step: u32,
        rate: f64,
        decay: f64,
    ) -> Result<()> {
        moments.fit(self.spec.rule, var.elem_count());
        tensor(change_by(var, gradient, |values, gradient| {
            self.update(values, gradient, moments.all(), step, rate, decay);
        }))
    }

    /// Moves a variable that is on a card; `moments` are as long as the variable, first, second and greatest.
    pub(super) fn update_card(
        &self,
        var: &Var,
        gradient: &Tensor,
        moments: &mut [Tensor; 3],
        step: u32,
        rate: f64,
        decay: f64,
    ) -> Result<()> {
        let new = tensor(self.formulas(var, gradient, moments, step, rate, decay))?;
        tensor(var.set(&new))
    }

    fn formulas(
        &self,
        var: &Var,
        gradient: &Tensor,
        [first, second, greatest]: &mut [Tensor; 3],
        step: u32,
        rate: f64,
        decay: f64,
    ) -> candle_core::Result<Tensor> {
        let spec = &self.spec;
        let values = var.as_detached_tensor();
        let decoupled = spec.decoupled && spec.rule != Rule::Sgd;
        let gradient = if decoupled { gradient.clone() } else { (gradient + (&values * decay)?)? };
        if spec.rule == Rule::Sgd {
            *first = ((&*first * spec.beta1)? + &gradient)?;
            let direction =
                if spec.nesterov { (gradient + (&*first * spec.beta1)?)? } else { first.clone() };
            return values - (direction * rate)?;
        }
        let (first_correction, second_correction) = self.corrections(step);
        *first = ((&*first * spec.beta1)? + (&gradient * (1.0 - spec.beta1))?)?;
        *second = ((&*second * spec.beta2)? + (gradient.sqr()? * (1.0 - spec.beta2))?)?;
        if spec.rule == Rule::Amsgrad {
            *greatest = greatest.maximum(&*second)?;
        }
        let power = if spec.rule == Rule::Amsgrad { &*greatest } else { &*second };
        let root = ((power.sqrt()? / second_correction.sqrt())? + spec.epsilon)?;
        let direction = ((&*first * (rate / first_correction))? / root)?;
        let kept = if decoupled { (values * (1.0 - rate * decay))? } else { values };
        kept - direction
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    /// Three steps on f(w) = w^2 / 2 + w from w = 1, by hand for the first: g = 2.
    #[test]
    fn host_and_card_formulas_agree() {
        for rule in [Rule::Adam, Rule::Amsgrad, Rule::Sgd] {
            for (decoupled, nesterov) in [(true, false), (false, true)] {
                let spec = OptimiserSpec { rule, decoupled, nesterov, ..OptimiserSpec::default() };
                let optimiser = Optimiser::new(&spec);
                let start = Tensor::new(&[1.0_f32, -2.0], &Device::Cpu).unwrap();
                let (host, card) = (
                    Var::from_tensor(&start).unwrap(),
                    Var::from_tensor(&start.copy().unwrap()).unwrap(),
                );
                let mut moments = Moments::default();
                let zeros = || start.zeros_like().unwrap();
                let mut tensors = [zeros(), zeros(), zeros()];
                for step in 1..=3 {
                    let gradient = (host.as_tensor() + 1.0).unwrap().detach();
                    optimiser.update_host(&host, &gradient, &mut moments, step, 0.1, 0.5).unwrap();
                    let gradient = (card.as_tensor() + 1.0).unwrap().detach();
                    optimiser.update_card(&card, &gradient, &mut tensors, step, 0.1, 0.5).unwrap();
                    let (a, b) = (host.to_vec1::<f32>().unwrap(), card.to_vec1::<f32>().unwrap());
                    for (a, b) in a.iter().zip(&b) {
                        assert!((a - b).abs() < 1e-5, "{rule:?} {step}: {a} {b}");
                    }
                    if step == 1 && rule != Rule::Sgd && decoupled {
                        // AdamW's first step is the rate itself, after the decay: 1 * 0.95 - 0.1.
                        assert!((a[0] - 0.85).abs() < 1e-6, "{a:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn moments_come_back_from_a_card_as_they_went() {
        let var = Var::zeros((2, 3), candle_core::DType::F32, &Device::Cpu).unwrap();
        let mut moments = Moments::default();
        moments.fit(Rule::Adam, 6);
        let all = moments.all();
        all.first.iter_mut().zip(1..).for_each(|(m, n)| *m = n as f32);
        all.second.fill(0.5);
        let mut back = Moments::from_card(&moments.to_card(&var).unwrap()).unwrap();
        let (back, all) = (back.all(), moments.all());
        assert_eq!((&back.first, &back.second), (&all.first, &all.second));
        assert_eq!((back.greatest, all.greatest.len()), (&mut [0.0; 6][..], 0));
    }

    #[test]
    fn the_rate_follows_its_course() {
        let spec =
            |schedule| OptimiserSpec { schedule, milestones: vec![2], ..OptimiserSpec::default() };
        assert_eq!(spec(Course::Step).factor(1, 4), 1.0);
        assert!((spec(Course::Step).factor(2, 4) - 0.1).abs() < 1e-12);
        assert!((spec(Course::Cosine).factor(2, 4) - 0.5).abs() < 1e-12);
        let schedule = Course::Constant;
        let warm = OptimiserSpec { warmup: 3, schedule, ..OptimiserSpec::default() };
        assert_eq!((warm.factor(0, 9), warm.factor(3, 9)), (0.25, 1.0));
    }
}
