//! The schedule, the loss and the E-step.

use std::borrow::Cow;

use super::pairs::PairMatrices;
use super::{ClassifierWeight, EM, EStepPrior, Lia, MARGINAL, Marginal};
use crate::model::neural::numerics::negative_log;
use crate::model::neural::objective::batch_context::{BatchContext, BatchPrediction, Gradient};
use crate::model::neural::objective::schedule::{Act, Phase};
use crate::model::neural::objective::train_spec::TrainSpec;
use crate::model::neural::objective::train_state::MAIN_TARGETS;
use crate::model::neural::params::param_table::Owner;

impl Lia {
    /// All acts, one after the other.
    pub(super) fn acts(&self, train: &TrainSpec) -> impl Iterator<Item = Act> {
        let em = Phase::joint(EM, self.em_epochs());
        let round_epochs = self.round_epochs;
        let rounds = (0..self.rounds).flat_map(move |round| {
            let [start, end] = [round, round + 1].map(|round| round.saturating_mul(round_epochs));
            let train = Act::Train(Phase { act: start..end, ..em.clone() });
            [Act::MStep(MAIN_TARGETS), train, Act::EStep(MAIN_TARGETS)]
        });
        let likelihood = Act::Train(Phase::joint(MARGINAL, train.epochs));
        let marginal = (self.marginal != Marginal::None)
            .then_some([Act::MStep(MAIN_TARGETS), likelihood, Act::Select])
            .into_iter()
            .flatten();
        rounds.chain([Act::Select]).chain(marginal)
    }

    /// The prior of the E-step for these data.
    fn prior_choice(&self, context: &BatchContext<'_>) -> EStepPrior {
        let is_embedded =
            context.annotator_params.tables.iter().any(|t| t.owner == Owner::Instance);
        match self.e_step_prior {
            EStepPrior::Auto if is_embedded => EStepPrior::Classes,
            EStepPrior::Auto => EStepPrior::Classifier,
            chosen => chosen,
        }
    }

    /// P(class) of row `b` before its annotations.
    fn prior<'c>(&self, context: &'c BatchContext<'_>, b: usize) -> Cow<'c, [f64]> {
        let n = context.dims.classes;
        let uniform = || {
            let own = context.batch.question(b).map_or(n, |question| question.classes);
            let mut uniform = vec![1.0 / own.max(1) as f64; own];
            uniform.resize(n, 0.0);
            uniform.into()
        };
        match self.prior_choice(context) {
            EStepPrior::Classes => Self::mean_prior(context, b).map_or_else(uniform, Cow::Borrowed),
            EStepPrior::Uniform => uniform(),
            EStepPrior::Auto | EStepPrior::Classifier => context.out.p(b).into(),
        }
    }

    /// The mean posterior of the instances of the question of row `b`, once it is known.
    fn mean_prior<'c>(context: &'c BatchContext<'_>, b: usize) -> Option<&'c [f64]> {
        let (n, all) = (context.dims.classes, context.estimates.prior.as_deref()?);
        let first = context.batch.question(b).map_or(0, |question| question.index * n);
        Some(&all[first..first + n])
    }

    /// Adds the derivatives of `-weight ln h[b][k]`, weighted by `g`, to those of the logits; returns that loss.
    fn classifier_loss(
        context: &BatchContext<'_>,
        b: usize,
        weight: f64,
        g: &[f64],
        gradient: &mut Gradient,
    ) -> f64 {
        let (p, sum) = (context.out.p(b), g.iter().sum::<f64>());
        let d = gradient.out.logits[b * p.len()..(b + 1) * p.len()].iter_mut();
        let mut loss = 0.0;
        for ((d, p), g) in d.zip(p).zip(g) {
            if *g > 0.0 {
                loss += weight * g * negative_log(*p).0;
            }
            *d += weight * (p * sum - g);
        }
        loss
    }

    /// Equation 7 in EM, equation 9 or its joint form afterwards. A trusted row has its class in both.
    pub(super) fn loss_of(&self, context: &BatchContext<'_>, gradient: &mut Gradient) -> f64 {
        let (pairs, classes) = (PairMatrices::new(context, self.latent), context.dims.classes);
        let is_marginal = context.phase == MARGINAL;
        let by_classes = self.prior_choice(context) == EStepPrior::Classes;
        let scale = 1.0 / context.batch.len().max(1) as f64;
        let mut loss = pairs.penalty([self.difficulty_penalty, self.competence_penalty], gradient);
        for (b, target) in context.batch.targets.chunks_exact(classes).enumerate() {
            let annotations = context.batch.annotations_of_instance(b);
            let matrices: Vec<Vec<f64>> =
                annotations.iter().map(|a| pairs.log_matrix(b, a.annotator as usize)).collect();
            let is_open = is_marginal && context.batch.trusted[b].is_none();
            let mean = if by_classes { Self::mean_prior(context, b) } else { None };
            let prior = mean.unwrap_or_else(|| context.out.p(b));
            let joint = (is_open && self.marginal == Marginal::Joint)
                .then(|| pairs.joint(b, prior, &matrices));
            if let Some((posterior, log)) = &joint {
                loss -= scale * log;
                if !by_classes {
                    Self::classifier_loss(context, b, scale, posterior, gradient);
                }
            }
            for (annotation, matrix) in annotations.iter().zip(&matrices) {
                let (label, weight) = (annotation.label as usize, scale * annotation.weight);
                let of_label = || matrix.iter().skip(label).step_by(context.dims.labels);
                let mut own = Vec::new();
                let g: &[f64] = match &joint {
                    Some((posterior, _)) => posterior,
                    None if is_open => {
                        own.extend(prior.iter().zip(of_label()).map(|(p, q)| p * q.exp()));
                        let sum: f64 = own.iter().sum();
                        loss += weight * negative_log(sum).0;
                        own.iter_mut().for_each(|g| *g /= sum.max(f64::MIN_POSITIVE));
                        if !by_classes {
                            Self::classifier_loss(context, b, weight, &own, gradient);
                        }
                        &own
                    }
                    None => {
                        let of_classes = target.iter().zip(of_label()).filter(|(g, _)| **g > 0.0);
                        loss -= weight * of_classes.map(|(g, q)| g * q).sum::<f64>();
                        target
                    }
                };
                let pair = (b, annotation.annotator as usize, label);
                pairs.backward(pair, weight, g, matrix, gradient);
            }
            if !is_open || by_classes {
                let of_annotations = || annotations.iter().map(|a| a.weight).sum::<f64>();
                let weight = match self.classifier_weight {
                    ClassifierWeight::Instance => 1.0,
                    ClassifierWeight::Annotations => of_annotations(),
                };
                loss += Self::classifier_loss(context, b, scale * weight, target, gradient);
            }
        }
        loss
    }

    /// The E-step, equation 4.
    pub(super) fn e_step_of(&self, context: &BatchContext<'_>) -> BatchPrediction {
        let (pairs, dims) = (PairMatrices::new(context, self.latent), context.dims);
        let mut prediction =
            BatchPrediction { classes: context.out.p.clone(), ..BatchPrediction::default() };
        for b in 0..context.batch.len() {
            let annotations = context.batch.annotations_of_instance(b);
            let matrices: Vec<Vec<f64>> =
                annotations.iter().map(|a| pairs.log_matrix(b, a.annotator as usize)).collect();
            let prior = self.prior(context, b);
            prediction.posterior.extend(pairs.joint(b, &prior, &matrices).0);
            let (h, mut right, mut weights) = (context.out.p(b), 0.0, 0.0);
            for (annotation, matrix) in annotations.iter().zip(&matrices) {
                let q = |k: usize, l: usize| matrix[k * dims.labels + l].exp();
                let of_label = |k: usize| h[k] * q(k, annotation.label as usize);
                prediction.likelihood.push((0..dims.classes).map(of_label).sum());
                right += annotation.weight * (0..dims.classes).map(|k| h[k] * q(k, k)).sum::<f64>();
                weights += annotation.weight;
            }
            prediction.parameters.push(if weights > 0.0 { right / weights } else { f64::NAN });
        }
        prediction
    }
}
