//! A network as a classifier: the layers of a `backbone`, and a linear layer with a softmax.
//!
//! ```text
//! loss of a batch of B examples = -(1/B) sum_i (w_i / mean of w) sum_k T[i][k] ln p_i[k]
//! ```
//! Each fit trains `epochs_per_fit` epochs, from the parameters and the moments of the last fit on. The learning rate
//! follows its schedule over the `epochs` of all fits; after them, fits change nothing. Features are scaled by the means
//! and deviations of the first fit's examples, by their weights. Batch normalisation counts examples, whatever their
//! weights.
//!
//! # Why
//! With a rate that ends at zero, a loop around the classifier converges: EM with a gradient step for an M-step needs
//! step sizes that fall (O. Cappé, E. Moulines: On-line expectation-maximization algorithm for latent data models. JRSS B
//! 71, 2009. doi:10.1111/j.1467-9868.2009.00698.x). A rate that does not fall would also let the network
//! memorise the posteriors in the rounds that follow, and these would count the annotations again.
//!
//! `device`, `batch_size` and `precision` are keys of `NetworkSpec` and `TrainSpec` too, and are written a second time
//! here, because no struct can be flattened into both. `NetworkSpec` is itself flattened into `[model]`, beside the keys
//! of the model. Where a flattened struct flattens another one, serde passes it all keys and takes none of them out, so
//! that `deny_unknown_fields` of the section refuses them. A test keeps the schemas of the three keys equal.

#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Classifier, Examples};
use crate::error::{Error, Result};
use crate::frame::Matrix;
use crate::job_context::{Cancel, JobContext};
use crate::model::neural::{
    BackboneSpec, DeviceChoice, NetworkSpec, OptimiserSpec, Precision, SoftTargetNetwork,
    TrainSpec, WeightedTargets,
};
use crate::model::posterior::Posterior;
use crate::model::saved::snapshot::Snapshot;
use crate::spec::Problems;

/// The section of the settings in a pipeline file.
const SECTION: &str = "model.classifier.network";

/// The settings of a network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkClassifierSpec {
    /// The device that the network runs on: `auto`, `cpu` or `cuda:0`. `auto` is a GPU if there is one and the forward
    /// pass of a step has at least 20 million multiply-adds (rows of a batch times products of a row), else the CPU:
    /// smaller networks gain nothing from a GPU.
    pub device: String,
    /// The network before its last layer.
    pub backbone: BackboneSpec,
    /// Passes over the examples in all fits together; the learning rate follows its schedule over them, and later fits
    /// leave the network as it is. Raising it fits the targets more closely; with too many it memorises wrong targets.
    #[schemars(range(min = 1))]
    pub epochs: u32,
    /// Passes over the examples in each fit. Raising it trains the network in fewer fits: early ones, whose targets are
    /// the least certain, then count more.
    #[schemars(range(min = 1))]
    pub epochs_per_fit: u32,
    /// Rows in a batch; left out, 128, or an eighth of all where that is less.
    #[schemars(range(min = 1))]
    pub batch_size: Option<usize>,
    /// The floating-point type of the network's matrix products and convolutions.
    pub precision: Precision,
    /// The optimiser. Its `annotator_learning_rate` and `annotator_delay` belong to networks that train parameters of
    /// annotators, and may not be set here.
    pub optimiser: OptimiserSpec,
}

impl Default for NetworkClassifierSpec {
    fn default() -> Self {
        Self {
            device: "auto".to_owned(),
            backbone: BackboneSpec::default(),
            epochs: 30,
            epochs_per_fit: 1,
            batch_size: None,
            precision: Precision::F32,
            optimiser: OptimiserSpec::default(),
        }
    }
}

impl NetworkClassifierSpec {
    /// The number of fits until the network is trained.
    pub(super) fn n_fits(&self) -> u32 {
        self.epochs.div_ceil(self.epochs_per_fit.max(1))
    }

    /// Adds the broken rules of the section to `problems`.
    pub(super) fn check(&self, location: &str, problems: &mut Problems) {
        self.backbone.check(location, problems);
        if let Err(e) = DeviceChoice::parse(&self.device) {
            let at = format!("{location}.device");
            e.problems.into_iter().for_each(|p| problems.push(p.at(at.clone())));
        }
        let why = "this network has no parameters of annotators";
        let at = format!("{location}.optimiser");
        self.optimiser.refuse_settings_of_annotators(why, &at, problems);
    }
}

/// A network with its parameters.
pub struct NetworkClassifier {
    network: SoftTargetNetwork,
}

impl NetworkClassifier {
    /// A network that has learned nothing yet, for rows of features of these axes.
    #[must_use]
    pub fn new(spec: NetworkClassifierSpec, axes: &[usize], n_classes: usize) -> Self {
        let NetworkClassifierSpec { device, backbone, epochs, epochs_per_fit, .. } = spec;
        let NetworkClassifierSpec { batch_size, precision, optimiser, .. } = spec;
        let train = TrainSpec { epochs, batch_size, optimiser, precision, ..TrainSpec::default() };
        let spec = NetworkSpec { device, backbone, train, ..NetworkSpec::default() };
        Self { network: SoftTargetNetwork::new(spec, epochs_per_fit, axes, n_classes) }
    }
}

impl Classifier for NetworkClassifier {
    fn fit(&mut self, examples: Examples<'_>, job: &JobContext) -> Result<()> {
        let Examples { features, weights, n_classes, .. } = examples;
        let seen: Vec<usize> = (0..weights.len()).filter(|i| weights[*i] > 0.0).collect();
        let rows: Vec<u32> = seen.iter().map(|i| features.rows()[*i]).collect();
        let mut targets = Posterior::zeros(seen.len(), n_classes);
        for (i, targets) in seen.iter().zip(targets.values_mut().chunks_exact_mut(n_classes)) {
            let target = examples.target(*i);
            targets.iter_mut().zip(target).for_each(|(to, share)| *to = weights[*i] * share);
        }
        let examples = WeightedTargets { matrix: features.matrix(), rows: &rows, targets };
        self.network.fit(examples, job).map_err(with_own_keys)
    }

    fn predict(&self, matrix: &Matrix, rows: &[u32], p: &mut [f64], cancel: &Cancel) -> Result<()> {
        self.network.predict(matrix, rows, p, cancel).map_err(with_own_keys)
    }

    fn save(&self, to: &mut Snapshot) -> Result<()> {
        self.network.save(to)
    }

    fn load(&mut self, from: &Snapshot, n_rows: usize, job: &JobContext) -> Result<()> {
        self.network.load(from, n_rows, job).map_err(with_own_keys)
    }

    fn save_state(&self, to: &mut Snapshot) -> Result<()> {
        self.network.save_state(to)
    }

    fn load_state(&mut self, from: &Snapshot, job: &JobContext) -> Result<()> {
        self.network.load_state(from, job).map_err(with_own_keys)
    }

    fn epochs_left(&self) -> Option<u32> {
        Some(self.network.epochs_left())
    }

    fn device(&self) -> String {
        self.network.device()
    }

    fn modules(&self) -> Option<Value> {
        Some(self.network.modules())
    }
}

/// The error with the keys of this section in place of those of a model that is a network itself.
fn with_own_keys(error: Error) -> Error {
    let backbone = format!("{SECTION}.backbone");
    error.moved("model.train", SECTION).moved("model.backbone", &backbone)
}
