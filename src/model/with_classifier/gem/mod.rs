//! A classifier and the annotators' confusion matrices are found together: each round, the classifier learns the
//! posteriors, which then follow from its probabilities and the annotations.
//!
//! ```text
//! z[i] ~ Categorical(p_i),  p_i = classifier(x[i])   the true class of instance i
//! y | z[i] = k, r ~ Categorical(pi[r][k])            what annotator r chooses
//! LL = sum_i logsumexp_k ( ln p_i[k] + sum over the annotations (r, y) of i of ln pi[r][k][y] )
//! ```
//! The sum is over all instances that have annotations or are trusted; of the latter, only the true class counts.
//!
//! 1. T = the shares of the votes (trusted rows one-hot).
//! 2. M: `pi[r][k][l] = (n[r][k][l] + smoothing + diagonal [k = l])` / the sum of its row, as for `dawid_skene`; the
//!    classifier is fitted to the targets T of all instances that have features and a term of LL; p = its
//!    probabilities, at least [`MIN_PROBABILITY`]. Those of a tree or a forest leave the target of the instance itself
//!    out.
//! 3. E: T = softmax of the terms of LL.
//! 4. Repeat until LL + the log-priors of the classifier and of the matrices converges; the trace shows LL.
//!
//! V. C. Raykar, S. Yu, L. H. Zhao, G. Hermosillo Valadez, C. Florin, L. Bogoni, L. Moy: Learning From Crowds. JMLR 11,
//! 2010, section 3 for two classes, and section 4 for more.
//!
//! Differs from the paper in that its classifier may be a tree, a forest or a network, for which the objective may fall,
//! because their fit is no maximum of the likelihood. Trees are grown in at most 20 rounds, until three in a row gain
//! nothing; then those of the best round stay, and the rounds go on from it until they converge. A network is trained by `classifier.network.epochs_per_fit` epochs
//! in each round, at a learning rate that falls. After `classifier.network.epochs` it stays as it is; the rounds end no
//! sooner, and converge. An instance without features has the same prior probability of all classes. With a single
//! annotation for every instance, nothing tells the annotators' mistakes from the classifier's: a warning says so.
//!
//! ```
//! use labelmill::frame::Evidence;
//! use labelmill::model::{Model, with_classifier::gem::Gem};
//! use labelmill::testing::{tiny, with_features};
//!
//! // (instance, annotator, label): two agree on everything; the third gives the opposite.
//! let row = |i: u32, r: u32| (i, r, if r == 2 { 1 - i % 2 } else { i % 2 });
//! let rows: Vec<_> = (0..12).map(|n| row(n / 3, n % 3)).collect();
//! let (a, mut job) = (tiny(2, &rows), labelmill::job_context::JobContext::new(0));
//! let with_features = with_features(&a);
//! let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
//! let fitted = Gem::default().fit(evidence, &mut job).unwrap();
//! assert!(fitted.posterior.row(1)[1] > 0.99);
//! ```

mod best_round;
mod checkpoint;
mod classifier_em;
mod conal_em_net;
mod outcome;
mod sizes;
#[cfg(test)]
mod tests;
mod tree_rounds;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tree_rounds::TreeRounds;

use crate::error::Result;
use crate::frame::{Annotations, Dims, Evidence, MemoryEstimate, QuestionFeatures, QuestionSizes};
use crate::job_context::{Cancel, JobContext};
use crate::model::classifier::from_features;
use crate::model::classifier::{Classifier, ClassifierSpec, ExampleFeatures, Examples};
use crate::model::confusion::{Cells, Confusion, Smoothing};
use crate::model::em::kernels::{PairKernel, Prior};
use crate::model::em::{
    EmSteps, LoopState, Objective, Optimum, StopRule, few_annotations, maximise,
};
use crate::model::fitted::{Fitted, Report, Trained};
use crate::model::numerics::{MIN_PROBABILITY, at_least, normalise};
use crate::model::posterior::Posterior;
use crate::model::saved::snapshot::Snapshot;
use crate::model::settings::preset::Preset;
use crate::model::{Capabilities, FeatureUse, Model, ModelKind, Spec};
use crate::spec::Problems;
pub use classifier_em::{ClassifierEm, memory_estimate, predict};
use classifier_em::{FIXED_KEYS, check_rounds, predictions_of};
pub use conal_em_net::ConalEmNet;
use sizes::GemSizes;

/// The models of this folder.
pub static KINDS: &[ModelKind] =
    &[ModelKind::classifier_em::<Gem>(), ModelKind::classifier_em::<ConalEmNet>()];

/// Generalised EM.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Gem {
    /// The settings that the other keys start from: `labelmill`, or `paper` for those of the paper, with which labelmill's
    /// agree. A key that is given always wins.
    pub preset: Preset,
    /// Added to every cell of a confusion matrix before its rows are normalised. Raising it pulls annotators with few
    /// annotations towards chance; 0.01 to 0.1 suits sparse data.
    #[schemars(range(min = 0.0))]
    pub smoothing: f64,
    /// Added to the diagonal in addition to `smoothing`. Raising it trusts annotators with few annotations.
    #[schemars(range(min = 0.0))]
    pub diagonal: f64,
    /// The classifier.
    pub classifier: ClassifierSpec,
    /// When to stop.
    pub stop: StopRule,
}

impl Spec for Gem {
    const KIND: &'static str = "gem";
    const SUMMARY: &'static str = "EM around a regression, a tree, a forest or a network, with annotators' confusion matrices";
    const SOURCE: &'static str = "Raykar et al. 2010, JMLR 11";
    const CAPABILITIES: Capabilities =
        Capabilities { features: FeatureUse::Needed, ..Capabilities::LABELS };

    /// Logistic regression with a prior on its coefficients, and matrices without one.
    fn paper() -> Option<Self> {
        Some(Self { preset: Preset::Paper, ..Self::default() })
    }

    fn estimates_prior(&self) -> bool {
        true
    }

    fn check(&self, location: &str, problems: &mut Problems) {
        check_rounds(self, location, problems);
    }

    /// Its network has no parameters of annotators.
    fn fixed_keys() -> Vec<&'static str> {
        FIXED_KEYS.to_vec()
    }
}

/// Fits the classifier and the annotators' parameters.
fn fit<M: ClassifierEm>(spec: &M, evidence: Evidence<'_>, job: &mut JobContext) -> Result<Fitted> {
    let (a, kind) = (evidence.annotations, M::KIND);
    let with_features = from_features::with_features_of(evidence, kind)?;
    from_features::warn_of_annotator_features(kind, false, with_features, job);
    let mut steps = Steps::new(spec, a, with_features, job)?;
    if job.keeps_checkpoints() {
        steps.fingerprint = Some(steps.fingerprint_of(a)?);
    }
    let (Optimum { mut params, stop, .. }, trace) = maximise(&steps, kind, a, job)?;
    // Rounds that end before the trees stay end with the best one.
    params.return_to_best(a);
    let expected_count = params.kernel.expected_counts(a);
    steps.m_step(a, &mut params, &job.cancel)?;
    let Params { classifier, estimator, kernel, t, .. } = params;
    let matrix = steps.features.matrix();
    let sizes = GemSizes::new(matrix, a.dims().classes);
    let predictions = predictions_of(classifier.as_ref(), matrix, sizes.classes, &job.cancel)?;
    let mut learned = Snapshot::default();
    classifier.save(&mut learned)?;
    let mut description = json!({"kind": kind, "parameters": spec, "sizes": sizes});
    if let Some(modules) = classifier.modules() {
        description["network"] = modules;
    }
    let of_annotators = spec.report(a, estimator, &kernel, expected_count);
    let report = Report { prior: Some(t.mean_of_annotated(a)), ..of_annotators };
    Ok(Fitted {
        predictions: Some(predictions),
        trace,
        stop,
        model: Some(Trained { description, parameters: learned.to_bytes()? }),
        device: classifier.device(),
        ..Fitted::new(t, report)
    })
}

/// The spec with the data of one fit.
struct Steps<'a, M> {
    spec: &'a M,
    /// The instances that have features, ascending.
    instances: Vec<usize>,
    /// Their features.
    features: ExampleFeatures,
    /// Their weights: 1 with a term of the log-likelihood, else 0.
    weights: Vec<f64>,
    /// (instance, class) of those that are trusted and have no annotations, whose term an E-step leaves out.
    trusted_alone: Vec<(usize, usize)>,
    job: JobContext,
    /// The digest of what the fit depends on; `None` without checkpoints.
    fingerprint: Option<String>,
}

/// The estimates of the M-step.
struct Params<E> {
    /// P(class given features), `[instance, class]`.
    prior: Vec<f64>,
    classifier: Box<dyn Classifier>,
    /// Whether the last M-step has fitted the classifier.
    was_fitted: bool,
    /// The rounds that grow trees, if the classifier has any.
    rounds: TreeRounds,
    kernel: PairKernel,
    estimator: E,
    /// The posteriors of the last E-step.
    t: Posterior,
}

impl ClassifierEm for Gem {
    type Rows = Smoothing;

    fn estimator(&self, a: &Annotations) -> Smoothing {
        Smoothing::new(a, self.smoothing, self.diagonal)
    }

    fn classifier(&self) -> &ClassifierSpec {
        &self.classifier
    }

    fn classifier_mut(&mut self) -> &mut ClassifierSpec {
        &mut self.classifier
    }

    fn few_annotations(&self, a: &Annotations, job: &JobContext) -> Option<String> {
        few_annotations(a, self.smoothing, self.diagonal, job)
    }

    fn report(
        &self,
        a: &Annotations,
        smoothing: Smoothing,
        _: &PairKernel,
        expected_count: Vec<f64>,
    ) -> Report {
        let confusion = Confusion { cells: Cells::Counted(smoothing), expected_count };
        let skill = confusion.skill(a);
        Report { skill, confusion: Some(confusion), ..Report::default() }
    }

    fn stop(&self) -> &StopRule {
        &self.stop
    }
}

impl Model for Gem {
    fn fit(&self, evidence: Evidence<'_>, job: &mut JobContext) -> Result<Fitted> {
        fit(self, evidence, job)
    }

    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        memory_estimate::<Self>(sizes)
    }
}

impl<'a, M: ClassifierEm> Steps<'a, M> {
    fn new(
        spec: &'a M,
        a: &Annotations,
        with_features: &QuestionFeatures,
        job: &mut JobContext,
    ) -> Result<Self> {
        let row_of = &with_features.row_of_instance;
        let (mut instances, mut rows) = (Vec::new(), Vec::new());
        for (i, row) in row_of.iter().enumerate() {
            if let Some(row) = row {
                instances.push(i);
                rows.push(*row);
            }
        }
        if !instances.iter().any(|i| a.has_evidence(*i)) {
            return Err(from_features::no_examples(a));
        }
        let is_annotated = |i: usize| !a.pairs_of_instance(i).is_empty();
        let has_term = |i: &usize| is_annotated(*i) || a.trusted_class(*i).is_some();
        let weights = instances.iter().map(|i| f64::from(u8::from(has_term(i)))).collect();
        let alone = instances.iter().filter(|i| !is_annotated(**i));
        let alone = alone.filter_map(|i| Some((*i, a.trusted_class(*i)? as usize)));
        let trusted_alone = alone.collect();
        if let Some(warning) = from_features::without_features(a, |i| row_of[i].is_some()) {
            job.warn(warning);
        }
        Ok(Self {
            spec,
            instances,
            features: ExampleFeatures::new(Arc::clone(&with_features.features.matrix), rows),
            weights,
            trusted_alone,
            job: job.clone(),
            fingerprint: None,
        })
    }

    /// A classifier that has learned nothing yet.
    fn new_classifier(&self, a: &Annotations) -> Box<dyn Classifier> {
        self.spec.classifier().build(self.features.matrix().shape(), a.dims().classes)
    }
}

impl<M: ClassifierEm> EmSteps for Steps<'_, M> {
    type Params = Params<M::Rows>;

    fn params(&self, a: &Annotations) -> Self::Params {
        let Dims { instances, classes, .. } = a.dims();
        Params {
            prior: vec![1.0 / classes as f64; instances * classes],
            classifier: self.new_classifier(a),
            was_fitted: false,
            rounds: TreeRounds::default(),
            kernel: PairKernel::new(a),
            t: Posterior::from_votes(a),
            estimator: self.spec.estimator(a),
        }
    }

    fn start(
        &self,
        a: &Annotations,
        _: u32,
        params: &mut Self::Params,
        _: &JobContext,
    ) -> Option<f64> {
        params.count(a);
        None
    }

    fn m_step(&self, a: &Annotations, params: &mut Self::Params, cancel: &Cancel) -> Result<()> {
        let Params { prior, classifier, was_fitted, rounds, kernel, estimator, t } = params;
        kernel.estimate(a, estimator);
        *was_fitted = !rounds.are_over() && classifier.epochs_left() != Some(0);
        if !*was_fitted {
            return Ok(());
        }
        let Self { features, weights, .. } = self;
        let (n_classes, instances) = (a.dims().classes, self.instances.iter());
        let mut p: Vec<f64> = instances.clone().flat_map(|i| t.row(*i)).copied().collect();
        let examples = Examples { features, targets: &p, weights, n_classes };
        classifier.fit(examples, &self.job)?;
        match classifier.examples_p() {
            Some(own) => p.copy_from_slice(own),
            None => classifier.predict(features.matrix(), features.rows(), &mut p, cancel)?,
        }
        for (i, p) in instances.zip(p.chunks_exact(n_classes)) {
            let prior = &mut prior[i * n_classes..(i + 1) * n_classes];
            prior.copy_from_slice(p);
            normalise(prior, |p| at_least(p, MIN_PROBABILITY));
        }
        Ok(())
    }

    fn e_step(&self, a: &Annotations, params: &mut Self::Params) -> Objective {
        let Params { prior, classifier, kernel, t, .. } = params;
        let of_annotated = kernel.sweep(a, Prior::Instance(prior));
        kernel.likelihood().write_posteriors(a, Prior::Instance(prior), t);
        let n_classes = t.n_classes();
        let term = |(i, class): &(usize, usize)| prior[i * n_classes + class].ln();
        let log_likelihood = of_annotated + self.trusted_alone.iter().map(term).sum::<f64>();
        let log_prior = classifier.log_prior() + kernel.terms();
        let objective = Objective::penalised(log_likelihood, log_prior);
        if self.spec.classifier().grows_trees() && params.was_fitted {
            return self.end_round(a, params, objective);
        }
        objective
    }

    fn caution(&self, a: &Annotations, job: &JobContext) -> Option<String> {
        let few = || self.spec.few_annotations(a, job);
        from_features::single_annotations(a).or_else(few)
    }

    fn is_in_training(&self, params: &Self::Params) -> bool {
        let grows_trees = self.spec.classifier().grows_trees() && !params.rounds.are_over();
        grows_trees || params.classifier.epochs_left().is_some_and(|epochs| epochs > 0)
    }

    fn resume(
        &self,
        a: &Annotations,
        params: &mut Self::Params,
        job: &mut JobContext,
    ) -> Result<Option<LoopState>> {
        self.saved(a, params, job)
    }

    fn checkpoint(&self, state: &LoopState, params: &Self::Params) -> Result<()> {
        self.save(state, params)
    }

    fn stop(&self) -> &StopRule {
        self.spec.stop()
    }
}
