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
//! let fitted = LabelModel::default().fit((&tiny(2, &rows)).into(), &mut labelmill::run::Run::new(0)).unwrap();
//! assert!(fitted.report.skill[0] > 0.9 && fitted.report.skill[3] < 0.5);
//! assert!(fitted.posterior.row(1)[1] > 0.9);
//! ```

use std::ops::Range;

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::co_occurrence::{self, CoOccurrence};
use super::{PairLogs, few_annotators};
use crate::error::{Error, Result};
use crate::frame::{Annotations, Dims, Evidence, FitBytes, QuestionSizes};
use crate::model::assignment::best_assignment;
use crate::model::em::kernels::{Prior, log_domain};
use crate::model::fitted::{Fitted, Report, Stop, TraceRow};
use crate::model::posterior::Posterior;
use crate::model::{Capabilities, Model, Spec};
use crate::run::{Run, WarningCode};
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
    pub class_balance: Option<Vec<f64>>,
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
        Self { n_epochs: 100, lr: 0.01, optimizer: Optimizer::Sgd, l2: 0.0, class_balance: None }
    }
}

impl Spec for LabelModel {
    const KIND: &'static str = "label_model";
    const SUMMARY: &'static str = "matrices from the overlaps of pairs, for annotators who label most instances, such as rules";
    const SOURCE: &'static str = "Ratner et al. 2019, arXiv:1810.02840; Snorkel 0.9";
    const CAPABILITIES: Capabilities =
        Capabilities { annotator_prior: true, ..Capabilities::LABELS };

    fn estimates_prior(&self) -> bool {
        self.class_balance.is_some()
    }

    fn check(&self, place: &str, problems: &mut Problems) {
        let Some(balance) = &self.class_balance else { return };
        let sum: f64 = balance.iter().sum();
        if (sum - 1.0).abs() > 1e-6 || balance.iter().any(|p| *p <= 0.0) {
            problems.push(
                crate::error::Problem::new("the shares of the classes are above 0 and sum to 1")
                    .at(format!("{place}.class_balance"))
                    .found(format!("{balance:?}"))
                    .help("divide them by their sum, or leave them out for equal shares"),
            );
        }
    }
}

/// The precision that the start supposes, by the half that Snorkel draws from 0 to 1.
const START: f64 = 0.7;
const START_SCALE: f64 = 0.5;

/// Classes exchange their columns only for a larger gain: one of nobody's labels is as good as another.
const MIN_GAIN: f64 = 1e-6;

/// The largest product of step and curvature; with momentum, descent diverges at 3.8. Beyond it the step is one by the curvature.
const MAX_STEP: f64 = 2.5;

/// How much of the last step the next one keeps.
const MOMENTUM: f64 = 0.9;

/// How much of the mean of squared gradients a step of Adam keeps.
const SQUARES_KEPT: f64 = 0.999;

/// The numbers for each pair of annotator and label and class: mu, its start, two means of gradients, the gradient.
const NUMBERS_OF_CELL: usize = 5;

impl LabelModel {
    /// The memory of its fit: the co-occurrences, and the numbers of each cell.
    pub(super) fn fit_bytes(sizes: &QuestionSizes) -> Option<FitBytes> {
        co_occurrence::fit_bytes(sizes, sizes.dims.classes.checked_mul(NUMBERS_OF_CELL)?)
    }

    /// P(class), `[class]`.
    fn balance(&self, n_classes: usize, run: &Run) -> Result<Vec<f64>> {
        match &self.class_balance {
            None => Ok(vec![1.0 / n_classes.max(1) as f64; n_classes]),
            Some(given) if given.len() == n_classes => Ok(given.clone()),
            Some(given) => Err(Error::fit(format!("there are {n_classes} classes"))
                .at(run.model_key("class_balance"))
                .found(format!("{} shares", given.len()))
                .help("give a share for each class, in the order of the classes, or leave them out for equal shares")),
        }
    }
}

impl Model for LabelModel {
    fn fit(&self, evidence: Evidence<'_>, run: &mut Run) -> Result<Fitted> {
        let a = evidence.annotations;
        let Dims { annotators, classes, instances, .. } = a.dims();
        let balance = self.balance(classes, run)?;
        let overlaps = Overlaps::new(a, &balance);
        let advice = "use dawid_skene or ibcc, or compare with majority_vote";
        if let Some(few) = few_annotators(a) {
            run.warn_code(
                WarningCode::NotMeantFor,
                format_args!("label_model compares {few}: {advice}"),
            );
        } else if let Some(share) =
            overlaps.share_that_meet(annotators).filter(|share| *share < 0.5)
        {
            run.warn_code(
                WarningCode::NotMeantFor,
                format_args!(
                    "label_model is meant for annotators who label most instances, and {:.0} % of the pairs of annotators \
                     share none: {advice}",
                    100.0 * (1.0 - share)
                ),
            );
        }
        let (mut mu, trace) = self.descend(&overlaps, run)?;
        overlaps.finish(&mut mu);
        let skill = overlaps.skills(&mu, annotators);
        let mut t = Posterior::zeros(instances, classes);
        let logs: Vec<f64> = mu.iter().map(|p| p.ln()).collect();
        log_domain::e_step(a, Prior::Class(&balance), &PairLogs { a, logs: &logs }, &mut t);
        let objective = trace.last().map(|row| row.objective);
        let stop = Stop { converged: true, iterations: self.n_epochs, objective };
        let report = Report { prior: Some(balance), skill, ..Report::default() };
        Ok(Fitted { stop, trace, ..Fitted::new(t, report) })
    }
}

/// O and what goes with it.
struct Overlaps<'a> {
    co: CoOccurrence<'a>,
    /// The votes of each annotator.
    annotators: Vec<(u32, Range<usize>)>,
    p: &'a [f64],
    n_instances: f64,
}

impl<'a> Overlaps<'a> {
    fn new(a: &'a Annotations, p: &'a [f64]) -> Self {
        let co = CoOccurrence::new(a, |weight, all| if all > 0.0 { weight / all } else { 0.0 });
        let annotated = (0..a.dims().instances).filter(|i| a.has_evidence(*i)).count();
        let mut annotators = co.annotators();
        annotators.sort_by_key(|(_, votes)| votes.start);
        Self { co, annotators, p, n_instances: annotated.max(1) as f64 }
    }

    /// The share of the pairs of annotators that have an instance in common.
    fn share_that_meet(&self, n_annotators: usize) -> Option<f64> {
        let met = |(r, votes): &(u32, Range<usize>)| {
            let others = votes.clone().flat_map(|vote| self.co.of(vote));
            let mut others: Vec<u32> = others.map(|(met, _)| self.co.annotator_of(met)).collect();
            others.sort_unstable();
            others.dedup();
            let is_person = |r: u32| (r as usize) < n_annotators;
            if is_person(*r) { others.into_iter().filter(|r| is_person(*r)).count() } else { 0 }
        };
        let met: usize = self.annotators.par_iter().map(met).sum();
        let pairs = n_annotators * n_annotators.saturating_sub(1);
        (pairs > 0).then(|| met as f64 / pairs as f64)
    }

    /// The share of the instances with this vote.
    fn coverage(&self, vote: usize) -> f64 {
        self.co.totals[vote] / self.n_instances
    }

    fn start(&self) -> Vec<f64> {
        let n = self.p.len();
        let mut mu = vec![0.0; self.co.totals.len() * n];
        for (vote, row) in mu.chunks_exact_mut(n.max(1)).enumerate() {
            let class = self.co.class_of(vote as u32) as usize;
            if let Some(own) = row.get_mut(class) {
                *own = START_SCALE * (START * self.coverage(vote) / self.p[class]).min(1.0);
            }
        }
        mu
    }

    /// The curvature of the loss, were all annotators perfect.
    fn curvature(&self) -> f64 {
        let perfect = |vote: usize| {
            let class = self.co.class_of(vote as u32) as usize;
            self.p.get(class).map_or(0.0, |p| (self.coverage(vote) / p).min(1.0).powi(2))
        };
        let squares: f64 = (0..self.co.totals.len()).map(perfect).sum();
        let largest = self.p.iter().fold(0.0, |max: f64, p| max.max(*p));
        12.0 * largest * largest * squares
    }

    /// The sum of mu[v] mu[v]^T over some votes, `[class, class]`.
    fn gram(&self, mu: &[f64], votes: Range<usize>) -> Vec<f64> {
        let n = self.p.len();
        let mut gram = vec![0.0; n * n];
        for row in mu[votes.start * n..votes.end * n].chunks_exact(n.max(1)) {
            for (sums, x) in gram.chunks_exact_mut(n).zip(row) {
                sums.iter_mut().zip(row).for_each(|(sum, y)| *sum += x * y);
            }
        }
        gram
    }

    /// The loss without the distance from the start, and its gradient, `[vote, class]`.
    fn loss(&self, mu: &[f64], gram: &[f64]) -> (f64, Vec<f64>) {
        let n = self.p.len();
        let of_annotator = |(_, votes): &(u32, Range<usize>)| {
            let own = self.gram(mu, votes.clone());
            let (mut loss, mut gradient) = (0.0, Vec::with_capacity(votes.len() * n));
            let mut met = vec![0.0; n];
            for vote in votes.clone() {
                let row = &mu[vote * n..(vote + 1) * n];
                let (mut squares, coverage) = (0.0, self.coverage(vote));
                met.fill(0.0);
                for (other, sum) in self.co.of(vote) {
                    let o = sum / self.n_instances;
                    squares += o * o;
                    let of_other = &mu[other as usize * n..(other as usize + 1) * n];
                    met.iter_mut().zip(of_other).for_each(|(met, m)| *met += o * m);
                }
                let off: f64 = row.iter().zip(self.p).map(|(m, p)| m * p).sum::<f64>() - coverage;
                loss += squares + off * off;
                for k in 0..n {
                    let all =
                        (0..n).map(|l| row[l] * self.p[l] * (gram[k * n + l] - own[k * n + l]));
                    let all: f64 = all.sum();
                    loss += self.p[k] * row[k] * (all - 2.0 * met[k]);
                    gradient.push(self.p[k] * (4.0 * (all - met[k]) + 2.0 * off));
                }
            }
            (loss, gradient)
        };
        let parts: Vec<(f64, Vec<f64>)> = self.annotators.par_iter().map(of_annotator).collect();
        let loss = parts.iter().map(|(loss, _)| loss).sum();
        (loss, parts.into_iter().flat_map(|(_, gradient)| gradient).collect())
    }

    /// Steps 3 and 4.
    fn finish(&self, mu: &mut [f64]) {
        let n = self.p.len();
        let least = 10_f64.powf(-self.n_instances.log10().ceil()).min(0.01);
        mu.iter_mut().for_each(|m| *m = m.clamp(least, 1.0 - least));
        let mut sums = vec![0.0; n * n];
        for (vote, row) in mu.chunks_exact(n.max(1)).enumerate() {
            let class = self.co.class_of(vote as u32) as usize;
            if class < n {
                sums[class * n..(class + 1) * n].iter_mut().zip(row).for_each(|(sum, m)| *sum += m);
            }
        }
        let mean = 1.0 / self.annotators.len().max(1) as f64;
        let alike = |k: usize, l: usize| (self.p[k] - self.p[l]).abs() < 1e-9;
        // A column may take the place of one of the same share alone.
        let score = |y: usize, k: usize| {
            if alike(y, k) { sums[y * n + k] * self.p[y] * mean } else { -1e3 }
        };
        let identity: f64 = (0..n).map(|k| score(k, k)).sum();
        let best = best_assignment(n, n, score).filter(|best| best.sum > identity + MIN_GAIN);
        let Some(best) = best else { return };
        for row in mu.chunks_exact_mut(n.max(1)) {
            let old = row.to_vec();
            row.iter_mut().zip(&best.columns).for_each(|(m, column)| *m = old[*column]);
        }
    }

    /// P(right given an annotation), which the clamp may take beyond 1.
    fn skills(&self, mu: &[f64], n_annotators: usize) -> Vec<f64> {
        let n = self.p.len();
        let mut skills = vec![0.0; n_annotators];
        for (r, votes) in self.annotators.iter().filter(|(r, _)| (*r as usize) < n_annotators) {
            let (mut right, mut all) = (0.0, 0.0);
            for vote in votes.clone() {
                let class = self.co.class_of(vote as u32) as usize;
                if class < n {
                    right += mu[vote * n + class] * self.p[class];
                    all += self.coverage(vote);
                }
            }
            skills[*r as usize] = if all > 0.0 { (right / all).clamp(1e-6, 1.0) } else { 0.0 };
        }
        skills
    }
}

impl LabelModel {
    /// Step 2: mu `[vote, class]`, and the loss before each step.
    fn descend(&self, overlaps: &Overlaps<'_>, run: &Run) -> Result<(Vec<f64>, Vec<TraceRow>)> {
        let start = overlaps.start();
        let curvature = overlaps.curvature() + 2.0 * self.l2;
        let lr = if self.lr * curvature > MAX_STEP { 1.0 / curvature } else { self.lr };
        let mut mu = start.clone();
        let (mut mean, mut squares) = (vec![0.0; mu.len()], vec![0.0; mu.len()]);
        let mut trace = Vec::with_capacity(self.n_epochs as usize);
        run.progress.begin(Self::KIND, Some(u64::from(self.n_epochs)));
        for step in 1..=self.n_epochs {
            run.cancel.check()?;
            let began = run.clock.seconds();
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
            let seconds = run.clock.seconds() - began;
            run.progress.at(u64::from(step), &format!("loss {loss:.4}"));
            let phase = "descent".to_owned();
            trace.push(TraceRow { phase, step, objective: -loss, change: None, seconds });
        }
        run.progress.end();
        Ok((mu, trace))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, fit, tiny, weighted};

    fn crowd() -> Annotations {
        let label = |i: u32, r: u32| (i + u32::from((i * 7 + r * 3) % 5 == 0)) % 3;
        let rows = (0..30).flat_map(|i| (0..4).map(move |r| (i, r)));
        let rows: Vec<_> = rows.filter(|(i, r)| (i + r) % 4 > 0).collect();
        let mut a = tiny(3, &rows.iter().map(|(i, r)| (*i, *r, label(*i, *r))).collect::<Vec<_>>());
        a.trusted = Some((0..30).map(|i| (i % 5 == 0).then_some(i % 3)).collect());
        a
    }

    /// The loss of the formula, with every pair of votes.
    fn dense_loss(overlaps: &Overlaps<'_>, mu: &[f64]) -> f64 {
        let (n, votes) = (overlaps.p.len(), overlaps.co.totals.len());
        let mut loss = 0.0;
        for v in 0..votes {
            let row = &mu[v * n..(v + 1) * n];
            let at: f64 = row.iter().zip(overlaps.p).map(|(m, p)| m * p).sum();
            loss += (at - overlaps.coverage(v)).powi(2);
            for w in (0..votes).filter(|w| {
                overlaps.co.annotator_of(*w as u32) != overlaps.co.annotator_of(v as u32)
            }) {
                let sum: f64 = overlaps
                    .co
                    .of(v)
                    .filter(|(met, _)| *met as usize == w)
                    .map(|(_, sum)| sum)
                    .sum();
                let product: f64 = (0..n).map(|k| row[k] * overlaps.p[k] * mu[w * n + k]).sum();
                loss += (sum / overlaps.n_instances - product).powi(2);
            }
        }
        loss
    }

    #[test]
    fn the_sparse_loss_and_its_gradient_are_those_of_the_full_matrix() {
        let (a, p) = (crowd(), [0.5, 0.3, 0.2]);
        let overlaps = Overlaps::new(&a, &p);
        let mu: Vec<f64> =
            (0..overlaps.start().len()).map(|n| (n * 7 % 10) as f64 / 20.0 + 0.1).collect();
        let gram = overlaps.gram(&mu, 0..overlaps.co.totals.len());
        let (loss, gradient) = overlaps.loss(&mu, &gram);
        assert_close(&[loss], &[dense_loss(&overlaps, &mu)], 1e-10, "loss");
        for n in 0..mu.len() {
            let at = |shift: f64| {
                let mut mu = mu.clone();
                mu[n] += shift;
                dense_loss(&overlaps, &mu)
            };
            assert_close(&[gradient[n]], &[(at(1e-5) - at(-1e-5)) / 2e-5], 1e-6, "gradient");
        }
    }

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
        let mu = |spec: LabelModel| spec.descend(&overlaps, &Run::new(0)).unwrap().0;
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
        let (mu, start) = (spec.descend(&overlaps, &Run::new(0)).unwrap().0, overlaps.start());
        for (m, s) in mu.iter().zip(start) {
            assert!((m - s).abs() < 0.010_001 && (m - s).abs() > 0.009, "{m} from {s}");
        }
    }

    /// Without any annotation of an instance, its row is the balance.
    // keys: label_model.class_balance
    #[test]
    fn the_balance_is_a_prior_and_has_a_share_for_each_class() {
        let dims = Dims { instances: 41, annotators: 3, classes: 2, labels: 2 };
        let rows: Vec<_> = (0..120).map(|n| (n / 3, n % 3, u32::from(n / 3 % 4 == 0))).collect();
        let a = weighted(dims, &rows, vec![1.0; 120]);
        let class_balance = Some(vec![0.75, 0.25]);
        let fitted = fit(LabelModel { class_balance, ..LabelModel::default() }, &a);
        assert_close(&fitted.posterior.row(40), &[0.75, 0.25], 1e-12, "T40");
        assert!(fitted.posterior.row(0)[1] > 0.99);
        let wrong =
            LabelModel { class_balance: Some(vec![0.5, 0.25, 0.25]), ..LabelModel::default() };
        let error = wrong.fit((&a).into(), &mut Run::new(0)).unwrap_err().to_string();
        assert!(error.contains("there are 2 classes") && error.contains("3 shares"), "{error}");
        let mut problems = Problems::default();
        LabelModel { class_balance: Some(vec![0.5, 0.6]), ..wrong }.check("model", &mut problems);
        assert!(problems.into_result().unwrap_err().to_string().contains("class_balance"));
    }

    #[test]
    fn columns_that_are_exchanged_are_put_in_their_places() {
        let a = tiny(2, &(0..40).map(|n| (n / 4, n % 4, n / 4 % 2)).collect::<Vec<_>>());
        let p = [0.5; 2];
        let overlaps = Overlaps::new(&a, &p);
        let exchanged = |vote: usize| {
            if overlaps.co.class_of(vote as u32) == 0 { [0.2, 0.9] } else { [0.8, 0.1] }
        };
        let mut mu: Vec<f64> = (0..8).flat_map(exchanged).collect();
        overlaps.finish(&mut mu);
        assert_eq!(mu[..2], [0.9, 0.2]);
    }

    #[test]
    fn annotators_who_never_meet_are_warned_of() {
        let warnings = |shift: u32| {
            let rows: Vec<_> = (0..60).map(|n| (n / 3 + n % 3 * shift, n % 3, n / 3 % 2)).collect();
            let mut run = Run::new(0);
            LabelModel::default().fit((&tiny(2, &rows)).into(), &mut run).unwrap();
            run.warnings().join("")
        };
        assert_eq!(warnings(0), "");
        assert!(
            warnings(20).contains("100 % of the pairs of annotators share none"),
            "{}",
            warnings(20)
        );
    }
}
