//! A classifier and the annotators' confusion matrices are found together: each round, the classifier learns the
//! posteriors, which then follow from its probabilities and the annotations.
//!
//! ```text
//! z[i] ~ Categorical(p_i),  p_i = classifier(x[i])   the true class of instance i
//! y | z[i] = k, r ~ Categorical(pi[r][k])            what annotator r chooses
//! LL = sum_i logsumexp_k ( ln p_i[k] + sum over the annotations (r, y) of i of ln pi[r][k][y] )
//! ```
//! 1. T = the shares of the votes (trusted rows one-hot).
//! 2. M: pi[r][k][l] = (n[r][k][l] + smoothing + diagonal [k = l]) / the sum of its row, as for `dawid_skene`; the
//!    classifier is fitted to the targets T of all instances that have features and evidence; p = its probabilities, at
//!    least [`MIN_PROBABILITY`].
//! 3. E: T = softmax of the terms of LL.
//! 4. Repeat until LL + the log-priors of the classifier and of the matrices converges; the trace shows it without the
//!    matrices'.
//!
//! V. C. Raykar, S. Yu, L. H. Zhao, G. Hermosillo Valadez, C. Florin, L. Bogoni, L. Moy: Learning From Crowds. JMLR 11,
//! 2010, section 3 for two classes, and section 4 for more.
//!
//! Differs from the paper in that its classifier may be a tree or a forest, for which the objective may fall, because
//! their fit is no maximum of the likelihood. An instance without features has the same prior probability of all
//! classes. With a single annotation for every instance, the posteriors only give the annotation back: a warning says so.

#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::kernels::{ColumnModel, Prior};
use super::{EmSteps, Objective, Optimum, StopRule, maximise};
use crate::error::Result;
use crate::frame::{Annotations, Described, Dims, Evidence, Matrix};
use crate::model::classifier::{Classifier, ClassifierSpec, Examples};
use crate::model::confusion::{Cells, Confusion, Smoothing};
use crate::model::fitted::{Fitted, Report, Trained, on_cpu};
use crate::model::numerics::{MIN_PROBABILITY, normalise};
use crate::model::posterior::Posterior;
use crate::model::snapshot::Snapshot;
use crate::model::{Model, Predicted, SavedModel, Spec, from_features};
use crate::run::{Cancel, Run};
use crate::spec::Problems;

/// Generalised EM.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Gem {
    /// Added to every cell of a confusion matrix before its rows are normalised. Raising it pulls annotators with few
    /// annotations towards chance; 0.01 to 0.1 suits sparse data.
    #[schemars(range(min = 0.0))]
    pub smoothing: f64,
    /// Added to the diagonal on top. Raising it trusts annotators with few annotations.
    #[schemars(range(min = 0.0))]
    pub diagonal: f64,
    /// The classifier.
    pub classifier: ClassifierSpec,
    /// When to stop.
    pub stop: StopRule,
}

impl Spec for Gem {
    const KIND: &'static str = "gem";
    const SUMMARY: &'static str = "EM around a logistic regression, a tree or a forest, with a confusion matrix for each annotator";
    const SOURCE: &'static str = "Raykar et al. 2010, JMLR 11";

    fn check(&self, place: &str, problems: &mut Problems) {
        self.classifier.check(&format!("{place}.classifier"), problems);
    }
}

/// The sizes of a saved model.
#[derive(Debug, Serialize, Deserialize)]
struct Sizes {
    features: usize,
    classes: usize,
}

/// The spec with the data of one fit.
struct Steps<'a> {
    spec: &'a Gem,
    matrix: &'a Matrix,
    /// The instances that have features, ascending.
    instances: Vec<usize>,
    /// Their rows of features.
    rows: Vec<u32>,
    /// Their weights: 1, or 0 without evidence.
    weights: Vec<f64>,
    run: Run,
}

/// The estimates of the M-step.
struct Params {
    /// P(class given features), `[instance, class]`.
    prior: Vec<f64>,
    classifier: Box<dyn Classifier>,
    columns: ColumnModel,
    smoothing: Smoothing,
}

impl Model for Gem {
    fn fit(&self, evidence: Evidence<'_>, run: &mut Run) -> Result<Fitted> {
        let (a, kind) = (evidence.annotations, Self::KIND);
        let described = from_features::described_of(evidence, kind)?;
        let steps = Steps::new(self, a, described, run)?;
        let (Optimum { posterior, params, stop, .. }, trace) = maximise(&steps, kind, a, run)?;
        let sizes = Sizes { features: steps.matrix.width(), classes: a.dims().classes };
        let predictions = predictions_of(params.classifier.as_ref(), steps.matrix, sizes.classes);
        let mut learned = Snapshot::default();
        params.classifier.save(&mut learned);
        let report = steps.report(a, &posterior, params);
        Ok(Fitted {
            posterior,
            predictions: Some(predictions),
            report,
            trace,
            stop,
            model: Some(Trained {
                description: json!({"kind": kind, "parameters": self, "sizes": sizes}),
                parameters: learned.to_bytes()?,
            }),
            device: on_cpu(),
        })
    }
}

impl<'a> Steps<'a> {
    fn new(
        spec: &'a Gem,
        a: &Annotations,
        described: &'a Described,
        run: &mut Run,
    ) -> Result<Self> {
        let row_of = &described.row_of_instance;
        let (mut instances, mut rows) = (Vec::new(), Vec::new());
        for (i, row) in row_of.iter().enumerate() {
            if let Some(row) = row {
                instances.push(i);
                rows.push(*row);
            }
        }
        let weight = |i: &usize| f64::from(u8::from(a.has_evidence(*i)));
        let weights: Vec<f64> = instances.iter().map(weight).collect();
        if weights.iter().all(|weight| *weight == 0.0) {
            return Err(from_features::no_examples());
        }
        let without = row_of.len() - rows.len();
        if without > 0 {
            run.warn(from_features::without_features(without, row_of.len()));
        }
        Ok(Self { spec, matrix: described.matrix(), instances, rows, weights, run: run.clone() })
    }
}

impl EmSteps for Steps<'_> {
    type Params = Params;

    fn params(&self, a: &Annotations) -> Params {
        let Dims { instances, classes, .. } = a.dims();
        Params {
            prior: vec![1.0 / classes as f64; instances * classes],
            classifier: self.spec.classifier.build(self.matrix.width(), classes),
            columns: ColumnModel::new(a),
            smoothing: Smoothing::new(a, self.spec.smoothing, self.spec.diagonal),
        }
    }

    fn count(&self, a: &Annotations, t: &Posterior, params: &mut Params) {
        params.columns.count(a, t);
    }

    fn m_step(
        &self,
        a: &Annotations,
        t: &Posterior,
        Params { prior, classifier, columns, smoothing }: &mut Params,
        _: &Cancel,
    ) -> Result<()> {
        columns.m_step(a, t, smoothing);
        let Self { matrix, rows, weights, .. } = self;
        let (n_classes, instances) = (a.dims().classes, self.instances.iter());
        let mut p: Vec<f64> = instances.clone().flat_map(|i| t.row(*i)).copied().collect();
        let examples = Examples { matrix, rows, targets: &p, weights, n_classes };
        classifier.fit(examples, &self.run)?;
        classifier.predict_examples(matrix, rows, &mut p);
        for (i, p) in instances.zip(p.chunks_exact(n_classes)) {
            let prior = &mut prior[i * n_classes..(i + 1) * n_classes];
            prior.copy_from_slice(p);
            normalise(prior, |p| p.max(MIN_PROBABILITY));
        }
        Ok(())
    }

    fn e_step(&self, a: &Annotations, params: &mut Params, t: &mut Posterior) -> Objective {
        let Params { prior, classifier, columns, smoothing } = params;
        let log_likelihood = columns.e_step(a, Prior::Instance(prior), smoothing, t);
        Objective::penalised(log_likelihood + classifier.log_prior(), columns.prior_terms())
    }

    fn report(&self, a: &Annotations, t: &Posterior, params: Params) -> Report {
        let expected_count = params.columns.into_expected_counts(a, t);
        let confusion = Confusion { cells: Cells::Counted(params.smoothing), expected_count };
        let (skill, prior) = (confusion.skill(a), Some(t.mean_of_annotated(a)));
        Report { skill, prior, confusion: Some(confusion), ..Report::default() }
    }

    fn caution(&self, a: &Annotations) -> Option<String> {
        from_features::single_annotations(a)
    }

    fn stop(&self) -> &StopRule {
        &self.spec.stop
    }
}

/// P(class) of every row of a matrix.
fn predictions_of(classifier: &dyn Classifier, matrix: &Matrix, n_classes: usize) -> Posterior {
    let rows: Vec<u32> = (0..matrix.len() as u32).collect();
    let mut predictions = Posterior::zeros(matrix.len(), n_classes);
    classifier.predict(matrix, &rows, predictions.values_mut());
    predictions
}

/// P(class given features) of every row, by a saved model.
///
/// # Errors
/// When the features have another width, or the numbers belong to another model.
pub(super) fn predict(model: SavedModel<'_>, matrix: &Matrix, _: &Run) -> Result<Predicted> {
    let spec: Gem = from_features::spec_of(model.parameters, |_| {})?;
    let sizes: Sizes = from_features::sizes_of(model.sizes)?;
    let learned = Snapshot::from_bytes(model.bytes)?;
    if sizes.classes == 0 {
        return Err(from_features::impossible_sizes(&sizes));
    }
    from_features::check_width(matrix, sizes.features)?;
    let mut classifier = spec.classifier.build(sizes.features, sizes.classes);
    classifier.load(&learned)?;
    let classes = predictions_of(classifier.as_ref(), matrix, sizes.classes);
    from_features::check_finite(classes.values(), 0, sizes.classes)?;
    Ok(Predicted { classes, device: on_cpu() })
}
