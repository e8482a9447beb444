//! [`ConalEm`](crate::model::em::ConalEm) around a classifier, whose probabilities are the prior of each instance.
//!
//! ```text
//! z[i] ~ Categorical(p_i),  p_i = classifier(x[i])
//! P(y | z[i] = k, r) = om[r] pg[k][y] + (1 - om[r]) pi[r][k][y]
//! ```
//! The rounds are those of [`Gem`](super::Gem): T = the shares of the votes; M: om, pg and pi as for `conal_em`, and the
//! classifier learns T; E: T from p and the mixtures.
//!
//! Z. Chu, J. Ma, H. Wang: Learning from Crowds by Modeling Common Confusions. AAAI 2021, appendix B. arXiv:2012.13052
//!
//! Differs from the paper as `conal_em` does, and as `gem` in the classifiers and their training. The kind `conal` trains the
//! same mixture, with shares that depend on the instance, by gradients; its authors prefer it to this EM, which depends more
//! on its start.
//!
//! ```
//! use labelmill::frame::Evidence;
//! use labelmill::model::{Model, with_classifier::gem::ConalEmNet};
//! use labelmill::testing::{tiny, with_features};
//!
//! // (instance, annotator, label): all agree but for the last, who always says 0.
//! let rows: Vec<_> = (0..40).map(|n| (n / 4, n % 4, if n % 4 == 3 { 0 } else { n / 4 % 2 })).collect();
//! let (a, mut job) = (tiny(2, &rows), labelmill::job_context::JobContext::new(0));
//! let with_features = with_features(&a);
//! let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
//! let fitted = ConalEmNet::default().fit(evidence, &mut job).unwrap();
//! assert!(fitted.posterior.row(1)[1] > 0.99 && fitted.report.common.is_some());
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::classifier_em::{ClassifierEm, FIXED_KEYS, check_rounds};
use super::fit;
use crate::error::Result;
use crate::frame::{Annotations, Evidence, MemoryEstimate, QuestionSizes};
use crate::job_context::JobContext;
use crate::model::classifier::ClassifierSpec;
use crate::model::confusion::Smoothing;
use crate::model::em::kernels::PairKernel;
use crate::model::em::{ConalEm, MixtureEstimator, PairModel as _, StopRule, few_annotations};
use crate::model::fitted::{Fitted, Report};
use crate::model::{Capabilities, FeatureUse, Model, Spec};
use crate::spec::Problems;

/// CoNAL's EM around a classifier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConalEmNet {
    /// Added to every cell of a confusion matrix, common or not, before its rows are normalised. Raising it pulls annotators
    /// with few annotations towards chance, and so towards the common matrix.
    #[schemars(range(min = 0.0))]
    pub smoothing: f64,
    /// The classifier.
    pub classifier: ClassifierSpec,
    /// When to stop.
    pub stop: StopRule,
}

impl Default for ConalEmNet {
    fn default() -> Self {
        let (classifier, stop) = (ClassifierSpec::default(), StopRule::default());
        Self { smoothing: 0.01, classifier, stop }
    }
}

impl Spec for ConalEmNet {
    const KIND: &'static str = "conal_em_net";
    const SUMMARY: &'static str = "EM around a classifier, with a confusion matrix that all annotators share and one for each";
    const SOURCE: &'static str = "Chu, Ma and Wang 2021, arXiv:2012.13052, appendix B";
    const CAPABILITIES: Capabilities =
        Capabilities { features: FeatureUse::Needed, ..Capabilities::LABELS };

    fn estimates_prior(&self) -> bool {
        true
    }

    fn check(&self, location: &str, problems: &mut Problems) {
        check_rounds(self, location, problems);
    }

    fn fixed_keys() -> Vec<&'static str> {
        FIXED_KEYS.to_vec()
    }
}

impl ClassifierEm for ConalEmNet {
    type Rows = MixtureEstimator;

    fn pair_bytes(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        ConalEm::memory_estimate(sizes)
    }

    fn estimator(&self, a: &Annotations) -> MixtureEstimator {
        MixtureEstimator::new(Smoothing::new(a, self.smoothing, 0.0))
    }

    fn classifier(&self) -> &ClassifierSpec {
        &self.classifier
    }

    fn classifier_mut(&mut self) -> &mut ClassifierSpec {
        &mut self.classifier
    }

    fn few_annotations(&self, a: &Annotations, job: &JobContext) -> Option<String> {
        few_annotations(a, self.smoothing, 0.0, job)
    }

    fn report(
        &self,
        a: &Annotations,
        estimator: MixtureEstimator,
        kernel: &PairKernel,
        expected_count: Vec<f64>,
    ) -> Report {
        let shares = (0..a.dims().annotators).map(|r| kernel.state_of(a, r)[0]).collect();
        estimator.into_report(a, shares, expected_count)
    }

    fn stop(&self) -> &StopRule {
        &self.stop
    }
}

impl Model for ConalEmNet {
    fn fit(&self, evidence: Evidence<'_>, job: &mut JobContext) -> Result<Fitted> {
        fit(self, evidence, job)
    }

    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        super::memory_estimate::<Self>(sizes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::frame::Matrix;
    use crate::testing::{assert_close, erring_half, fit as fit_labels, iterations, with_features};

    /// A feature that is the same for all instances leaves the classifier the shares of the classes, which are the prior of
    /// `conal_em`: both take the same steps. Logistic regression fits them up to its own prior.
    // keys: conal_em_net.smoothing
    #[test]
    fn around_a_constant_feature_it_is_conal_em() {
        let a = erring_half();
        let mut features = with_features(&a);
        features.features.matrix = Arc::new(Matrix::from_rows(1, &[1.0; 40]));
        for smoothing in [0.01, 1.0] {
            let spec = ConalEmNet { smoothing, stop: iterations(5), ..ConalEmNet::default() };
            let evidence = Evidence { annotations: &a, with_features: Some(&features) };
            let net = spec.fit(evidence, &mut JobContext::new(0)).unwrap();
            let em = fit_labels(ConalEm { smoothing, stop: iterations(5) }, &a);
            assert_close(net.posterior.dense().values(), em.posterior.dense().values(), 1e-3, "T");
            let shares = |fitted: &Fitted| fitted.report.annotator_parameters[0].1.clone();
            assert_close(&shares(&net), &shares(&em), 1e-3, "om");
            let common = |fitted: Fitted| fitted.report.common.unwrap().probability;
            assert_close(&common(net), &common(em), 1e-3, "pg");
        }
    }
}
