//! Calibration without gold: the map is fitted to held-out annotations and the rows of a model that did not see them.

use std::borrow::Cow;
use std::mem::replace;

use rand::Rng as _;
use rayon::prelude::*;

use super::likelihoods::log_likelihoods;
use super::{CalibrationSpec, Calibrator, Points};
use crate::error::{Error, Result};
use crate::frame::{Annotations, Dims, Evidence, ITEMS_PER_BLOCK};
use crate::job_context::{Cancel, JobContext};
use crate::model::Model;
use crate::model::fitted::Fitted;
use crate::model::fitted::fitted_posterior::FittedPosterior;

/// The second fit, in warnings and errors.
const SECOND_FIT: &str = "the fit without held-out annotations";

/// A fit to a part of the annotations, and the held-out rest.
pub(super) struct HeldOut {
    training: Annotations,
    annotations: Annotations,
    fitted: Fitted,
    /// ln P(label given class) of each held-out (annotator, label) pair, `[pair, class]`.
    log_likelihoods: Vec<f64>,
}

/// Mean confidences of the same instances.
pub(super) struct Confidences {
    /// By the fit without the held-out annotations.
    pub(super) fewer: f64,
    /// By the fit to all annotations.
    pub(super) all: f64,
    /// The standard error of the difference.
    standard_error: f64,
}

impl Confidences {
    /// Whether all annotations leave less confidence than fewer do, by more than chance and by more than 0.02.
    ///
    /// # Why
    /// More annotations make posteriors surer on average, if these are probabilities. Shares of votes are not: one vote
    /// gives the share 1, three may give 2/3, and a map that is fitted to the former misjudges the latter.
    pub(super) fn fall(&self) -> bool {
        let loss = self.fewer - self.all;
        loss > 0.02 && loss > 3.0 * self.standard_error
    }
}

/// The rows that a map calibrates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowKind {
    /// Posteriors. They are compared with held-out annotations of instances that keep other annotations.
    Posteriors,
    /// Predictions. They are compared with held-out annotations of instances that keep none.
    Predictions,
}

impl RowKind {
    /// The word in warnings.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Posteriors => "posteriors",
            Self::Predictions => "predictions",
        }
    }
}

impl HeldOut {
    /// Fits the model without a share of the annotations; `None` where none of them can be held out.
    ///
    /// # Errors
    /// When the fit fails.
    pub(super) fn fit(
        spec: &CalibrationSpec,
        model: &dyn Model,
        evidence: Evidence<'_>,
        job: &mut JobContext,
    ) -> Result<Option<Self>> {
        let a = evidence.annotations;
        let mut rng = job.rng("annotations held out to calibrate");
        // With a classifier, which predicts without annotations, half of the share are whole instances.
        let single =
            if evidence.with_features.is_some() { spec.held_out / 2.0 } else { spec.held_out };
        let mut whole = None;
        let [training, held_out] = a.hold_out(|i| {
            if whole.is_none_or(|(instance, _)| instance != i) {
                whole = Some((i, rng.random::<f64>() < spec.held_out - single));
            }
            whole.is_some_and(|(_, is_whole)| is_whole) || rng.random::<f64>() < single
        })?;
        if held_out.is_empty() {
            return Ok(None);
        }
        job.warn_of_part(Some(SECOND_FIT));
        let fitted = model.fit(Evidence { annotations: &training, ..evidence }, job);
        job.warn_of_part(None);
        let fitted = fitted.map_err(|e| e.about(SECOND_FIT))?;
        if let Some(what) = fitted.not_finite() {
            return Err(Error::bug(format!("{SECOND_FIT} gave NaN or an infinity: {what}")));
        }
        let log_likelihoods = log_likelihoods(&training, &held_out, &fitted.report);
        Ok(Some(Self { training, annotations: held_out, fitted, log_likelihoods }))
    }

    /// The map of these rows, and the number of points that it was fitted to; `None` where no held-out annotation
    /// belongs to such a row.
    pub(super) fn calibrator(
        &self,
        spec: &CalibrationSpec,
        rows: RowKind,
        row_of_instance: &[Option<u32>],
        cancel: &Cancel,
    ) -> Result<Option<(Calibrator, usize)>> {
        let Dims { instances, classes, .. } = self.annotations.dims();
        let is_compared = |i: &usize| self.is_compared(*i, rows);
        // With room for all, no copy is made of numbers that may be as many as the posteriors.
        let n_compared = (0..instances).filter(is_compared).count();
        let mut points = Points::of_likelihoods(classes, n_compared);
        for i in (0..instances).filter(is_compared) {
            let row = match rows {
                RowKind::Posteriors => Some(self.fitted.posterior.row(i)),
                RowKind::Predictions => {
                    let row = row_of_instance.get(i).copied().flatten();
                    row.zip(self.fitted.predictions.as_ref())
                        .map(|(r, p)| Cow::Borrowed(p.row(r as usize)))
                }
            };
            if let Some(row) = row {
                points.push(&row, &self.likelihood(i), 1.0);
            }
        }
        let found = Calibrator::fit_latent(spec.method, spec.smoothing, &points, cancel)?;
        Ok(found.map(|found| (found, points.len())))
    }

    /// The mean confidences of the compared instances after calibration; `all` are the posteriors of the fit to all
    /// annotations.
    pub(super) fn confidences(&self, map: &Calibrator, all: &FittedPosterior) -> Confidences {
        let n = self.annotations.dims().instances;
        let confidence = |posterior: &FittedPosterior, i: usize| {
            let mut row = posterior.row(i).into_owned();
            map.apply(&mut row);
            row.into_iter().fold(0.0, f64::max)
        };
        let of_block = |block: usize| {
            let instances = block * ITEMS_PER_BLOCK..((block + 1) * ITEMS_PER_BLOCK).min(n);
            let compared = instances.filter(|i| self.is_compared(*i, RowKind::Posteriors));
            compared.fold([0.0; 4], |sums, i| {
                let [fewer, all] = [&self.fitted.posterior, all].map(|p| confidence(p, i));
                let added = [fewer, all, (all - fewer).powi(2), 1.0];
                std::array::from_fn(|k| sums[k] + added[k])
            })
        };
        let blocks: Vec<[f64; 4]> =
            (0..n.div_ceil(ITEMS_PER_BLOCK)).into_par_iter().map(of_block).collect();
        let [fewer, all, squares, n] =
            [0, 1, 2, 3].map(|k: usize| blocks.iter().map(|block| block[k]).sum::<f64>());
        let (fewer, all) = (fewer / n, all / n);
        let variance = (squares - n * (all - fewer).powi(2)).max(0.0) / (n - 1.0);
        Confidences { fewer, all, standard_error: (variance / n).sqrt() }
    }

    /// Whether the held-out annotations of instance `i` tell something about these rows.
    fn is_compared(&self, i: usize, rows: RowKind) -> bool {
        let a = &self.annotations;
        let is_held_out = a.trusted_class(i).is_none() && !a.pairs_of_instance(i).is_empty();
        is_held_out && self.training.has_evidence(i) == (rows == RowKind::Posteriors)
    }

    /// P(the held-out annotations of instance `i` given each class), up to a factor.
    fn likelihood(&self, i: usize) -> Vec<f64> {
        let n = self.annotations.dims().classes;
        let mut logs = vec![0.0; n];
        for (pair, weight) in self.annotations.annotations_of_instance(i) {
            let cells = &self.log_likelihoods[pair as usize * n..(pair as usize + 1) * n];
            logs.iter_mut().zip(cells).for_each(|(log, cell)| *log += weight * cell);
        }
        let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        logs.iter().map(|log| (log - most).exp()).collect()
    }
}

/// The reason why no annotation can be held out and compared, whatever is drawn; `None` where one can. Posteriors are
/// compared with annotations of instances that keep others; only a model that `predicts` uses those of other instances.
pub(super) fn nothing_to_hold_out(a: &Annotations, predicts: bool) -> Option<&'static str> {
    let mut is_known = vec![false; a.dims().annotators];
    let mut is_anyone_known = false;
    for i in 0..a.dims().instances {
        let (mut n_annotators, mut n_known) = (0, 0);
        let same = |one: &u32, next: &u32| a.annotator_of_pair(*one) == a.annotator_of_pair(*next);
        for pairs in a.pairs_of_instance(i).chunk_by(same) {
            n_annotators += 1;
            let was_known = replace(&mut is_known[a.annotator_of_pair(pairs[0]) as usize], true);
            n_known += usize::from(was_known);
        }
        is_anyone_known |= n_known > 0;
        if n_known > 0 && (predicts || n_annotators > 1) && a.trusted_class(i).is_none() {
            return None;
        }
    }
    Some(if is_anyone_known {
        "no instance without a trusted class keeps an annotation when another is held out"
    } else {
        "each annotator has a single annotation, which is never held out"
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::vote::MajorityVote;
    use crate::testing::{assert_close, tiny, weighted};

    /// A majority vote that warns of fewer annotations than `all`, or fails.
    struct OfAll {
        all: usize,
        fails: bool,
    }

    impl Model for OfAll {
        fn fit(&self, evidence: Evidence<'_>, job: &mut JobContext) -> Result<Fitted> {
            if evidence.annotations.len() < self.all {
                if self.fails {
                    return Err(Error::fit("no optimum"));
                }
                job.warn("few rows");
            }
            MajorityVote::default().fit(evidence, job)
        }
    }

    #[test]
    fn warnings_and_errors_of_the_second_fit_say_where_they_come_from() {
        let a = tiny(2, &(0..40).map(|n| (n / 2, n % 2, n % 2)).collect::<Vec<_>>());
        let (spec, mut job) = (CalibrationSpec::default(), JobContext::new(1));
        let fit = |fails, job: &mut JobContext| {
            HeldOut::fit(&spec, &OfAll { all: a.len(), fails }, (&a).into(), job)
        };
        assert!(fit(false, &mut job).unwrap().is_some());
        job.warn("few rows");
        let want = ["the fit without held-out annotations: few rows", "few rows"];
        assert_eq!(job.warnings(), want);
        let error = fit(true, &mut job).err().unwrap();
        assert_eq!(error.exit_code(), 4);
        assert_eq!(error.to_string(), "error: the fit without held-out annotations: no optimum");
    }

    /// The first annotation of an annotator is never held out, and a trusted instance has no posterior to calibrate.
    #[test]
    fn annotations_that_cannot_be_held_out_or_compared_are_known_before_the_fit() {
        let single = tiny(2, &[(0, 0, 0), (0, 1, 1), (1, 2, 0)]);
        let found = nothing_to_hold_out(&single, true).unwrap();
        assert!(found.starts_with("each annotator has a single annotation"), "{found}");
        let alone = tiny(2, &[(0, 0, 0), (1, 0, 1)]);
        let found = nothing_to_hold_out(&alone, false).unwrap();
        assert!(found.starts_with("no instance without a trusted class"), "{found}");
        assert_eq!(nothing_to_hold_out(&alone, true), None);
        let mut pair = tiny(2, &[(0, 0, 0), (1, 0, 1), (1, 1, 1)]);
        assert_eq!(nothing_to_hold_out(&pair, false), None);
        pair.trusted = Some(vec![None, Some(1)]);
        assert!(nothing_to_hold_out(&pair, false).is_some());
        let soft = tiny(2, &[(0, 0, 0), (0, 0, 1), (1, 1, 1)]);
        assert!(nothing_to_hold_out(&soft, true).is_some(), "two rows of one answer");
    }

    /// The held-out annotations of instance 0, which keeps one, and of instance 1, which keeps none; instance 2 has none.
    fn held_out(weights: Vec<f64>) -> HeldOut {
        let dims = Dims { instances: 3, annotators: 2, classes: 2, labels: 2 };
        let training = weighted(dims, &[(0, 0, 0), (2, 0, 1)], vec![1.0, 1.0]);
        let annotations = weighted(dims, &[(0, 1, 0), (1, 0, 1)], weights);
        let fitted =
            MajorityVote::default().fit((&training).into(), &mut JobContext::new(1)).unwrap();
        // Annotator 1 gives the label 0 to class 0 with a probability of .8, and to class 1 with .2; so does annotator 0
        // with the label 1 and class 1.
        let log_likelihoods = (0..annotations.n_pairs()).flat_map(|pair| {
            let of_first = annotations.annotator_of_pair(pair as u32) == 1;
            if of_first { [0.8_f64.ln(), 0.2_f64.ln()] } else { [0.2_f64.ln(), 0.8_f64.ln()] }
        });
        let log_likelihoods = log_likelihoods.collect();
        HeldOut { training, annotations, fitted, log_likelihoods }
    }

    #[test]
    fn a_held_out_annotation_counts_with_its_weight() {
        let found = held_out(vec![2.0, 0.5]);
        assert_close(&found.likelihood(0), &[1.0, 0.25_f64.powi(2)], 1e-12, "weight 2");
        assert_close(&found.likelihood(1), &[0.25_f64.sqrt(), 1.0], 1e-12, "weight .5");
    }

    #[test]
    fn instances_that_the_second_fit_has_seen_calibrate_posteriors_and_others_predictions() {
        let found = held_out(vec![1.0, 1.0]);
        let compared = |rows| (0..3).filter(|i| found.is_compared(*i, rows)).collect::<Vec<_>>();
        assert_eq!(compared(RowKind::Posteriors), [0]);
        assert_eq!(compared(RowKind::Predictions), [1]);
    }

    /// The only annotation of an annotator is never held out.
    #[test]
    fn without_an_annotation_to_hold_out_there_is_no_second_fit() {
        let (spec, a) = (CalibrationSpec::default(), tiny(2, &[(0, 0, 0), (1, 1, 1)]));
        let model = OfAll { all: 3, fails: true };
        assert!(
            HeldOut::fit(&spec, &model, (&a).into(), &mut JobContext::new(1)).unwrap().is_none()
        );
    }
}
