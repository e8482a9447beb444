//! A classifier's probabilities and the annotations are averaged, each with a weight that its agreement earns.
//!
//! ```text
//! p_i       P(class | x_i) by a classifier that did not learn from instance i, or as `source.predictions` gives it
//! cons_i    the majority vote; ties go to the class of the largest p_i, then to the rarer class, then to the class of the
//!           annotators who agree more with untied votes
//! M2        the instances with two annotators or more;  n_i: the number of annotations of i
//! c         the mean over M2 of the share of annotations equal to cons_i;  nc = (1 - c) / (C - 1)          C classes
//! e         the share of M2 for which cons_i is not the most frequent class of all cons, at least 1e-6
//! s_r       the share of the other annotators' annotations, of the same instances, that equal those of r
//! w_r       max(1e-6, 1 - (1 - s_r) / e)
//! w         max(1e-6, 1 - err / e) sqrt(mean n_i);  err = the share of M2 for which p_i is not largest at cons_i
//! post_i[k] ~ w p_i[k] + sum over the annotations (r, y) of i of w_r (c if y = k, else nc)
//! ```
//! 1. cons = the votes; post, which are the posteriors of the tables. 2. cons = the class of the largest post, where it is
//!    the only one; post again, which `quality` and skills are made of.
//! 3. A skill is l * mean of post_i\[y\] + (1 - l) * the share of r's annotations in M2 that equal cons_i, over the
//!    annotations (i, y) of r; l = w / (w + mean n_i * mean w_r).
//!
//! A label that is no class counts for nothing, and an annotation as often as its weight says. A trusted class is the
//! consensus of its instance, and its posterior. Of an instance without features or predictions, the annotations alone
//! decide. Annotators who share no instance with others have the mean `s_r` of those who do; without any such instance,
//! all weights are 1, and a warning says that nothing tells good annotators from bad ones.
//!
//! `quality` of an instance is post of cons: low ones are worth another look. `weight` and `agreement` of an annotator
//! are w_r and s_r; `agreement` of an instance is the share of its annotations that equal cons.
//!
//! H. W. Goh, U. Tkachenko, J. Mueller: CROWDLAB: Supervised learning to infer consensus labels and quality scores for data
//! with multiple annotators. NeurIPS 2022 Human in the Loop Learning Workshop. arXiv:2210.06812
//!
//! Differs from cleanlab's `get_label_quality_multiannotator`, to which labels, qualities, weights and skills are equal
//! (2.9.0), in that a tied largest post goes to the lowest class, as in all kinds, and not to the vote; in that a tied vote
//! that no rule decides goes to the lowest class and not to a random one; in that an annotator without an instance in M2
//! has the mean of `post_i[y]` as the skill, and not NaN. Beside the paper: the classifier learns the shares of the votes,
//! in folds at random, and not majority labels; there is no ensemble of classifiers. The posteriors are those of the first
//! step, because the label of step 2 is theirs: over four crowds with features, it is right 0.1 to 2.6 points more often
//! than the largest post of the second.
//!
//! ```
//! use labelmill::frame::Evidence;
//! use labelmill::model::{Model, with_classifier::crowdlab::Crowdlab};
//! use labelmill::testing::{tiny, with_features};
//!
//! let rows: Vec<_> = (0..36).map(|n| (n / 3, n % 3, if n == 0 { 1 } else { n / 3 % 2 })).collect();
//! let (a, mut job) = (tiny(2, &rows), labelmill::job_context::JobContext::new(0));
//! let with_features = with_features(&a);
//! let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
//! let fitted = Crowdlab::default().fit(evidence, &mut job).unwrap();
//! assert!(fitted.posterior.row(0)[0] > 0.5 && fitted.report.skill[0] < fitted.report.skill[1]);
//! ```

mod scores;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use scores::{CrowdlabAnnotations, Predictions};

use crate::error::Result;
use crate::frame::{Evidence, MemoryEstimate, QuestionSizes, dense_memory_estimate};
use crate::job_context::JobContext;
use crate::model::classifier::from_features;
use crate::model::classifier::{ClassifierSpec, ExampleFeatures, Examples};
use crate::model::fitted::{Fitted, on_cpu};
use crate::model::posterior::{Posterior, tied};
use crate::model::{Capabilities, FeatureUse, Model, ModelKind, Spec};
use crate::spec::Problems;

/// The model of this file.
pub static KINDS: &[ModelKind] = &[ModelKind::new::<Crowdlab>()];

/// CROWDLAB.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Crowdlab {
    /// How many parts the instances are divided into: a classifier learns from all but one, and predicts that one. More
    /// give each classifier more to learn from, and take longer.
    #[schemars(range(min = 2))]
    pub folds: u32,
    /// The classifier; without a use where `source.predictions` is given.
    pub classifier: ClassifierSpec,
}

impl Default for Crowdlab {
    fn default() -> Self {
        Self { folds: 5, classifier: ClassifierSpec::default() }
    }
}

impl Spec for Crowdlab {
    const KIND: &'static str = "crowdlab";
    const SUMMARY: &'static str =
        "a weighted mean of annotations and of a classifier's out-of-sample probabilities";
    const SOURCE: &'static str = "Goh, Tkachenko and Mueller 2022, arXiv:2210.06812";
    const CAPABILITIES: Capabilities = Capabilities {
        features: FeatureUse::Needed,
        predictions: FeatureUse::Optional,
        // The folds are random.
        random_start: true,
        annotator_prior: true,
        ..Capabilities::LABELS
    };

    fn check(&self, location: &str, problems: &mut Problems) {
        self.classifier.check(&format!("{location}.classifier"), problems);
    }

    /// Its network has no parameters of annotators.
    fn fixed_keys() -> Vec<&'static str> {
        vec![
            "classifier.network.optimiser.annotator_learning_rate",
            "classifier.network.optimiser.annotator_delay",
        ]
    }
}

impl Crowdlab {
    /// The probabilities of the classifier, and its device.
    fn predictions(
        &self,
        evidence: Evidence<'_>,
        job: &mut JobContext,
    ) -> Result<(Predictions, String)> {
        let a = evidence.annotations;
        if let Some(given) = &a.given.predictions {
            if evidence.with_features.is_some() {
                job.warn("source.predictions is used: source.features changes nothing");
            }
            let all = Predictions::new(a, |i| given.row(i));
            if let Some(warning) = from_features::without(a, "predictions", |i| all.has[i]) {
                job.warn(warning);
            }
            return Ok((all, on_cpu()));
        }
        let with_features = from_features::with_features_of(evidence, Self::KIND)?;
        from_features::warn_of_annotator_features(Self::KIND, false, with_features, job);
        let rows = &with_features.row_of_instance;
        let instances: Vec<usize> = (0..rows.len()).filter(|i| rows[*i].is_some()).collect();
        if !instances.iter().any(|i| a.has_evidence(*i)) {
            return Err(from_features::no_examples(a));
        }
        if let Some(warning) = from_features::without_features(a, |i| rows[i].is_some()) {
            job.warn(warning);
        }
        let votes = Posterior::from_votes(a);
        let targets: Vec<f64> = instances.iter().flat_map(|i| votes.row(*i)).copied().collect();
        let weight = |i: &usize| f64::from(u8::from(a.has_evidence(*i)));
        let weights: Vec<f64> = instances.iter().map(weight).collect();
        let matrix = Arc::clone(&with_features.features.matrix);
        let own_rows = instances.iter().filter_map(|i| rows[*i]).collect();
        let features = ExampleFeatures::new(matrix, own_rows);
        let n_classes = a.dims().classes;
        let examples =
            Examples { features: &features, targets: &targets, weights: &weights, n_classes };
        job.progress.begin(Self::KIND, Some(u64::from(self.folds)));
        let found = self.classifier.out_of_sample(examples, self.folds as usize, job)?;
        job.progress.end();
        let Some(found) = found else {
            job.warn("one instance with features has annotations: no classifier can predict it without having learned from it");
            return Ok((Predictions::new(a, |_| None), on_cpu()));
        };
        let mut location = vec![None; rows.len()];
        instances.iter().enumerate().for_each(|(nth, i)| location[*i] = Some(nth));
        let row =
            |i: usize| location[i].map(|nth| &found.p[nth * n_classes..(nth + 1) * n_classes]);
        Ok((Predictions::new(a, row), found.device))
    }
}

impl Model for Crowdlab {
    fn fit(&self, evidence: Evidence<'_>, job: &mut JobContext) -> Result<Fitted> {
        let a = evidence.annotations;
        let (predictions, device) = self.predictions(evidence, job)?;
        let crowd = CrowdlabAnnotations::new(a, &predictions);
        if crowd.shared.iter().all(|shared| !shared) && !a.is_empty() {
            job.warn(
                "no instance has a second annotator: nothing tells good annotators from bad ones, so that all weights are 1",
            );
        }
        let votes = crowd.votes();
        let first = crowd.posterior(&votes, &crowd.weights(&votes));
        let consensus: Vec<Option<u32>> = votes
            .iter()
            .enumerate()
            .map(|(i, vote)| {
                let vote = (*vote)?;
                let mut best = tied(first.row(i));
                let (only, other) = (best.next(), best.next());
                Some(only.filter(|_| other.is_none()).map_or(vote, |k| k as u32))
            })
            .collect();
        let weights = crowd.weights(&consensus);
        tracing::debug!(classifier = weights.classifier, "weights of CROWDLAB");
        let report = crowd.report(&consensus, &weights, &crowd.posterior(&consensus, &weights));
        Ok(Fitted { device, ..Fitted::new(first, report) })
    }

    /// The posteriors, and as many numbers for predictions, targets, and those of a fold.
    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        let own = dense_memory_estimate(sizes)?;
        Some(MemoryEstimate {
            working: own.working.checked_add(own.posteriors.checked_mul(4)?)?,
            ..own
        })
    }
}
