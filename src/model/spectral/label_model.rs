//! P(label given class) of every annotator, from how often the labels of two annotators fall on one instance.
//!
//! ```text
//! mu[v][k] = P(annotator r gives the label y to an instance given class k),   v = (r, y);   p[k] = P(class k)
//! O[v][w] = the share of the instances with both v and w,   for two annotators:   E O[v][w] = sum_k mu[v][k] p[k] mu[w][k]
//! O[v][v] = the share of the instances with v:                                      E O[v][v] = sum_k mu[v][k] p[k]
//! loss = sum over v and w of two annotators of (O[v][w] - mu[v] P mu[w])^2  +  sum over v of (O[v][v] - mu[v] p)^2
//!        + l2 sum (mu - start)^2,                                             P = diag(p)
//! ```
//! 1. mu[(r, y)][y] = min(1, 0.7 O[v][v] / p[y]) / 2; all other entries are 0.
//! 2. `n_epochs` steps of gradient descent, of size `lr`, with momentum 0.9; or by Adam.
//! 3. mu is clamped to e .. 1 - e, e = min(0.01, 10^-ceil(log10 N)) (N instances).
//! 4. Classes of the same p exchange columns, so that sum of mu[(r, y)][y] p[y] is as large as possible.
//! 5. T = softmax over k of ln p[k] + the sum of ln mu[v][k] over the annotations v of an instance.
//!
//! Two annotators who never meet have O = 0 there, and count in the loss; but no matrix of all annotators by all is made.
//! The sum over all v and w of (mu[v] P mu[w])^2 follows from the sum of mu[v] mu[v]^T, a matrix of classes by
//! classes, and O is sparse: a step takes time in proportion to the pairs that meet, times the classes.
//!
//! A. Ratner, B. Hancock, J. Dunnmon, F. Sala, S. Pandey, C. Ré: Training Complex Models with Multi-Task Weak Supervision. AAAI
//! 2019. arXiv:1810.02840
//!
//! It is meant for a few dozen annotators, such as labelling functions, who label most instances. A fit warns where most pairs of
//! annotators never meet: O is then nearly 0, and mu tells nothing of how good they are.
//!
//! Differs from the `LabelModel` of Snorkel 0.9 in the start, which is multiplied by a random number there and by a half
//! here (on rte, it is right on 77 % either way); in steps, which are never so large that many annotators make them
//! diverge; and in that the matrix is not of dependent annotators. A soft annotation counts by its shares. A weight counts in
//! step 5: no probability exceeds 1. A trusted class is the label of one more annotator.
//!
//! ```
//! use labelmill::model::{Model, spectral::LabelModel};
//! use labelmill::testing::tiny;
//!
//! // Annotators 0 to 2 are right on all of forty instances, annotator 3 on every third.
//! let rows: Vec<_> = (0..160).map(|n| (n / 4, n % 4, (n / 4 + u32::from(n % 4 == 3 && n / 4 % 3 > 0)) % 2)).collect();
//! let fitted = LabelModel::default().fit((&tiny(2, &rows)).into(), &mut labelmill::job_context::JobContext::new(0)).unwrap();
//! assert!(fitted.report.skill[0] > 0.9 && fitted.report.skill[3] < 0.5);
//! assert!(fitted.posterior.row(1)[1] > 0.9);
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::co_occurrence::MAX_OTHERS;
use super::overlaps::Overlaps;
use super::{PairLogs, co_occurrence, few_annotators};
use crate::error::Result;
use crate::frame::{Dims, Evidence, MemoryEstimate, QuestionSizes};
use crate::job_context::{JobContext, WarningCode};
use crate::model::em::kernels::{Prior, log_domain};
use crate::model::fitted::{Fitted, Report, Stop, TraceRow};
use crate::model::posterior::Posterior;
use crate::model::settings::given_prior::{check_number, check_shares, shares_or_uniform};
use crate::model::{Capabilities, Model, Spec};
use crate::spec::Problems;

/// Snorkel's label model: P(label given class) from overlaps of pairs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LabelModel {
    /// The number of steps.
    #[schemars(range(min = 1))]
    pub n_epochs: u32,
    /// The size of a step. It is smaller where many annotators who label most instances would make descent diverge.
    #[schemars(range(min = 0.0))]
    pub lr: f64,
    /// How steps follow the gradient.
    pub optimizer: Optimizer,
    /// The weight of the distance from the start in the loss. Raising it keeps annotators alike.
    #[schemars(range(min = 0.0))]
    pub l2: f64,
    /// P(class) of every class, in their order; uniform if it is not given.
    pub class_prior: Option<Vec<f64>>,
}

/// How steps follow the gradient.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Optimizer {
    /// With momentum.
    #[default]
    Sgd,
    /// By Adam, which takes larger steps where gradients are small: better where annotators have few instances.
    Adam,
}

impl Default for LabelModel {
    fn default() -> Self {
        Self { n_epochs: 100, lr: 0.01, optimizer: Optimizer::Sgd, l2: 0.0, class_prior: None }
    }
}

impl Spec for LabelModel {
    const KIND: &'static str = "label_model";
    const SUMMARY: &'static str = "matrices from the overlaps of pairs, for annotators who label most instances, such as rules";
    const SOURCE: &'static str = "Ratner et al. 2019, arXiv:1810.02840; Snorkel 0.9";
    const CAPABILITIES: Capabilities =
        Capabilities { annotator_prior: true, ..Capabilities::LABELS };

    fn estimates_prior(&self) -> bool {
        self.class_prior.is_some()
    }

    fn check(&self, position: &str, problems: &mut Problems) {
        check_shares(self.class_prior.as_ref(), position, problems);
    }
}

/// The largest product of step and curvature; with momentum, descent diverges at 3.8. Beyond it the step is one by the curvature.
const MAX_STEP: f64 = 2.5;

/// The moments of fewer instances say nothing of annotators: their labels would depend on the start alone.
const FEW_INSTANCES: usize = 10;

/// How much of the last step the next one keeps.
const MOMENTUM: f64 = 0.9;

/// How much of the mean of squared gradients a step of Adam keeps.
const SQUARES_KEPT: f64 = 0.999;

/// The numbers for each pair of annotator and label and class: mu, its start, two means of gradients, the gradient.
const NUMBERS_OF_CELL: usize = 5;

impl Model for LabelModel {
    fn fit(&self, evidence: Evidence<'_>, job: &mut JobContext) -> Result<Fitted> {
        let a = evidence.annotations;
        let Dims { annotators, classes, instances, .. } = a.dims();
        check_number(self.class_prior.as_ref(), a, job)?;
        let prior = shares_or_uniform(self.class_prior.as_ref(), classes);
        let overlaps = Overlaps::new(a, &prior);
        let advice = "use dawid_skene or ibcc, or compare with majority_vote";
        if overlaps.is_sampled {
            job.warn_code(
                WarningCode::NotMeantFor,
                format_args!(
                    "label_model compares all annotations of an instance, and here one has more than {MAX_OTHERS}: the labels \
                     are those of a vote; {advice}"
                ),
            );
        } else if let Some(few) = few_annotators(a) {
            job.warn_code(
                WarningCode::NotMeantFor,
                format_args!("label_model compares {few}: {advice}"),
            );
        } else if let Some(share) =
            overlaps.share_that_meet(annotators).filter(|share| *share < 0.5)
        {
            job.warn_code(
                WarningCode::NotMeantFor,
                format_args!(
                    "label_model is meant for annotators who label most instances, and {:.0} % of the pairs of annotators \
                     share none: {advice}",
                    100.0 * (1.0 - share)
                ),
            );
        }
        let (mut mu, trace) = self.descend(&overlaps, job)?;
        overlaps.finish(&mut mu);
        let skill = overlaps.skills(&mu, annotators);
        let mut t = Posterior::from_votes(a);
        if overlaps.is_sampled {
            // The vote stays.
        } else if instances < FEW_INSTANCES {
            job.warn_code(
                WarningCode::NotMeantFor,
                format_args!(
                    "label_model has moments of {instances} instances only: the labels are those of a vote; {advice}"
                ),
            );
        } else {
            let logs: Vec<f64> = mu.iter().map(|p| p.ln()).collect();
            log_domain::e_step(a, Prior::Class(&prior), &PairLogs { a, logs: &logs }, &mut t);
        }
        let objective = trace.last().map(|row| row.objective);
        let stop = Stop::planned(self.n_epochs, "epoch", objective);
        let report = Report { prior: Some(prior), skill, ..Report::default() };
        Ok(Fitted { trace, stop, ..Fitted::new(t, report) })
    }

    /// The co-occurrences, and the numbers of each cell.
    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        co_occurrence::memory_estimate(sizes, sizes.dims.classes.checked_mul(NUMBERS_OF_CELL)?)
    }
}

impl LabelModel {
    /// Step 2: mu `[vote, class]`, and the loss before each step.
    fn descend(
        &self,
        overlaps: &Overlaps<'_>,
        job: &JobContext,
    ) -> Result<(Vec<f64>, Vec<TraceRow>)> {
        let start = overlaps.start();
        let curvature = overlaps.curvature() + 2.0 * self.l2;
        let lr = if self.lr * curvature > MAX_STEP { 1.0 / curvature } else { self.lr };
        let mut mu = start.clone();
        let (mut mean, mut squares) = (vec![0.0; mu.len()], vec![0.0; mu.len()]);
        let mut trace = Vec::with_capacity(self.n_epochs as usize);
        job.progress.begin(Self::KIND, Some(u64::from(self.n_epochs)));
        for step in 1..=self.n_epochs {
            job.cancel.check()?;
            let began = job.clock.seconds();
            let gram = overlaps.gram(&mu, 0..overlaps.co.totals.len());
            let (mut loss, mut gradient) = overlaps.loss(&mu, &gram);
            for ((g, m), start) in gradient.iter_mut().zip(&mu).zip(&start) {
                loss += self.l2 * (m - start).powi(2);
                *g += 2.0 * self.l2 * (m - start);
            }
            let cells = mu.iter_mut().zip(&gradient).zip(&mut mean).zip(&mut squares);
            match self.optimizer {
                Optimizer::Sgd => {
                    for (((m, g), mean), _) in cells {
                        *mean = MOMENTUM * *mean + g;
                        *m -= lr * *mean;
                    }
                }
                Optimizer::Adam => {
                    let t = step.cast_signed();
                    let bias = (1.0 - MOMENTUM.powi(t), 1.0 - SQUARES_KEPT.powi(t));
                    for (((m, g), mean), squares) in cells {
                        *mean = MOMENTUM * *mean + (1.0 - MOMENTUM) * g;
                        *squares = SQUARES_KEPT * *squares + (1.0 - SQUARES_KEPT) * g * g;
                        *m -= self.lr * (*mean / bias.0) / ((*squares / bias.1).sqrt() + 1e-8);
                    }
                }
            }
            let seconds = job.clock.seconds() - began;
            job.progress.at(u64::from(step), &format!("loss {loss:.4}"));
            let phase = "descent".to_owned();
            trace.push(TraceRow { phase, step, objective: -loss, seconds, ..TraceRow::default() });
        }
        job.progress.end();
        Ok((mu, trace))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::spectral::overlaps::tests::crowd;
    use crate::testing::synth::CrowdShape;
    use crate::testing::{assert_close, fit, tiny, weighted};

    /// One annotator who covers 6 of 8 instances, 4 of them with class 0, of 2; the start of the pair is .7 (4 / 8) / (1 / 2) / 2.
    // keys: label_model.n_epochs, label_model.lr, label_model.l2
    #[test]
    fn a_step_follows_the_gradient_and_l2_holds_it() {
        let a = tiny(
            2,
            &[
                (0, 0, 0),
                (1, 0, 0),
                (2, 0, 0),
                (3, 0, 0),
                (4, 0, 1),
                (5, 0, 1),
                (6, 1, 0),
                (7, 1, 1),
            ],
        );
        let p = [0.5; 2];
        let overlaps = Overlaps::new(&a, &p);
        let start = overlaps.start();
        assert_close(&start[..2], &[0.35, 0.0], 1e-12, "start");
        let mu = |spec: LabelModel| spec.descend(&overlaps, &JobContext::new(0)).unwrap().0;
        let one = LabelModel { n_epochs: 1, lr: 0.1, ..LabelModel::default() };
        // Off by .35 / 2 - .5 = -.325; the other annotator, whom he never meets, has mu .0875 twice.
        let gradient = [4.0 * 0.25 * 0.35 * 0.0875 * 0.0875 - 0.325, -0.325];
        let stepped = [0.35 - 0.1 * gradient[0], -0.1 * gradient[1]];
        assert_close(&mu(one.clone())[..2], &stepped, 1e-12, "one step");
        let away = |mu: &[f64]| mu.iter().zip(&start).map(|(m, s)| (m - s).abs()).sum::<f64>();
        let ten = LabelModel { n_epochs: 10, ..one };
        assert!(away(&mu(LabelModel { l2: 5.0, ..ten.clone() })) < 0.5 * away(&mu(ten)));
    }

    // keys: label_model.optimizer
    #[test]
    fn adam_moves_every_cell_by_the_rate_in_its_first_step() {
        let (a, p) = (crowd(), [1.0 / 3.0; 3]);
        let overlaps = Overlaps::new(&a, &p);
        let spec = LabelModel { n_epochs: 1, optimizer: Optimizer::Adam, ..LabelModel::default() };
        let (mu, start) =
            (spec.descend(&overlaps, &JobContext::new(0)).unwrap().0, overlaps.start());
        for (m, s) in mu.iter().zip(start) {
            assert!((m - s).abs() < 0.010_001 && (m - s).abs() > 0.009, "{m} from {s}");
        }
    }

    /// Without any annotation of an instance, its row is the prior.
    // keys: label_model.class_prior
    #[test]
    fn a_given_prior_has_a_share_for_each_class() {
        let dims = Dims { instances: 41, annotators: 3, classes: 2, labels: 2 };
        let rows: Vec<_> =
            (0..120).map(|n: u32| (n / 3, n % 3, u32::from((n / 3).is_multiple_of(4)))).collect();
        let a = weighted(dims, &rows, vec![1.0; 120]);
        let class_prior = Some(vec![0.75, 0.25]);
        let fitted = fit(LabelModel { class_prior, ..LabelModel::default() }, &a);
        assert_close(&fitted.posterior.row(40), &[0.75, 0.25], 1e-12, "T40");
        assert!(fitted.posterior.row(0)[1] > 0.99);
        let wrong =
            LabelModel { class_prior: Some(vec![0.5, 0.25, 0.25]), ..LabelModel::default() };
        let error = wrong.fit((&a).into(), &mut JobContext::new(0)).unwrap_err().to_string();
        assert!(error.contains("3 shares, 2 classes"), "{error}");
        let mut problems = Problems::default();
        LabelModel { class_prior: Some(vec![0.5, 0.6]), ..wrong }.check("model", &mut problems);
        assert!(problems.into_result().unwrap_err().to_string().contains("class_prior"));
    }

    #[test]
    fn hundreds_of_annotators_are_told_apart_and_too_many_are_warned_of() {
        let (annotators, redundancy, accuracy) = (400, 400, (0.55, 0.85));
        let shape = CrowdShape { instances: 200, annotators, classes: 2, redundancy, accuracy };
        let drawn = shape.draw(1);
        let mut job = JobContext::new(0);
        let a = tiny(2, &drawn.rows);
        let fitted = LabelModel::default().fit((&a).into(), &mut job).unwrap();
        assert!(job.warnings().is_empty(), "{:?}", job.warnings());
        for (i, class) in drawn.truth.iter().enumerate() {
            assert!(fitted.posterior.row(i)[*class as usize] > 0.9, "{i}");
        }
        for (skill, accuracy) in fitted.report.skill.iter().zip(drawn.accuracy) {
            assert!((skill - accuracy).abs() < 0.15, "{skill} of {accuracy}");
        }
        let rows: Vec<_> = (0..20 * 600).map(|n| (n / 600, n % 600, n / 600 % 2)).collect();
        let fitted = LabelModel::default().fit((&tiny(2, &rows)).into(), &mut job).unwrap();
        assert!(job.warnings()[0].contains("more than 512"), "{:?}", job.warnings());
        assert_eq!(*fitted.posterior.row(1), [0.0, 1.0]);
    }

    #[test]
    fn annotators_who_never_meet_are_warned_of() {
        let warnings = |shift: u32| {
            let rows: Vec<_> = (0..60).map(|n| (n / 3 + n % 3 * shift, n % 3, n / 3 % 2)).collect();
            let mut job = JobContext::new(0);
            LabelModel::default().fit((&tiny(2, &rows)).into(), &mut job).unwrap();
            job.warnings().join("")
        };
        assert_eq!(warnings(0), "");
        assert!(
            warnings(20).contains("100 % of the pairs of annotators share none"),
            "{}",
            warnings(20)
        );
    }
}
