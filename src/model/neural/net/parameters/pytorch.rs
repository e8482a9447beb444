//! Networks in PyTorch's terms: their modules, and the names and layouts of their arrays in a saved model.
//!
//! ```text
//! here and in checkpoints                  in model.safetensors
//! net.hidden0.weight      [in, out]        net.hidden0.weight      [out, in]
//! net.HEAD0.weight        [in, out]        HEAD.0.weight           [out, in], of each named head
//! net.convolution0.weight [out, in, kh, kw], every bias and every batch norm: the same
//! scaler.mean, scaler.factor: [column], or [channel, 1, 1] for images
//! crowd.00.heads, ...: the tables of annotators' parameters, as they are
//! ```
//! `net.` holds exactly the classifier, so that its arrays load into a `torch.nn.Sequential` of [`Network::modules`].
//!
//! # Why
//! A dense layer computes `x W`, whose inner loop reads rows of `[in, out]`. Checkpoints keep that layout: by default
//! they are written after every epoch, and only the same job of the same labelmill version reads them.

use serde::Serialize;
use serde_json::{Value, json};

use crate::model::neural::net::Network;
use crate::model::neural::net::heads::{Head, Heads};
use crate::model::neural::net::layers::batch_norm::NORM_EPSILON;
use crate::model::neural::net::layers::{Activation, Layer};
use crate::model::saved::snapshot::Snapshot;

/// A module of `torch.nn`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct TorchModule {
    /// The prefix of its arrays' names, after `net.`; its index in the sequence if it has no arrays.
    pub(crate) name: String,
    /// Its class in `torch.nn`.
    pub(crate) module: &'static str,
    /// The arguments of the class.
    pub(crate) arguments: Value,
}

impl Network {
    /// The classifier from scaled features to logits, or to the last hidden layer where there is no classifier; `None`
    /// if the layers are no sequence of modules.
    pub(crate) fn modules(&self) -> Option<Vec<TorchModule>> {
        let classifier = self.classifier.clone().map(Layer::Dense);
        let mut of_images = self.input.len() == 3;
        let mut modules = Vec::new();
        for (n, layer) in self.layers.iter().chain(&classifier).enumerate() {
            let (module, arguments) = class_of(layer, of_images)?;
            of_images &= !matches!(layer, Layer::Flatten);
            let name = layer.first_parameter().and_then(|p| self.parameters.layer_of(p));
            let name = name.map_or_else(|| n.to_string(), str::to_owned);
            modules.push(TorchModule { name, module, arguments });
        }
        Some(modules)
    }
}

/// A layer's class in `torch.nn`, and the arguments of the class.
fn class_of(layer: &Layer, of_images: bool) -> Option<(&'static str, Value)> {
    Some(match layer {
        Layer::Dense(dense) => {
            let [from, to] = [0, 1].map(|axis| dense.weight.dims()[axis]);
            ("Linear", json!({"in_features": from, "out_features": to}))
        }
        Layer::Convolution(convolution) => {
            let [to, from, kernel] = [0, 1, 2].map(|axis| convolution.weight.dims()[axis]);
            let arguments = json!({
                "in_channels": from,
                "out_channels": to,
                "kernel_size": kernel,
                "padding": convolution.padding,
                "stride": convolution.stride,
            });
            ("Conv2d", arguments)
        }
        Layer::BatchNorm(norm) => {
            let (width, affine) = (norm.width(), norm.is_affine());
            let arguments = json!({"num_features": width, "eps": NORM_EPSILON, "affine": affine});
            (if of_images { "BatchNorm2d" } else { "BatchNorm1d" }, arguments)
        }
        Layer::Activation(Activation::Relu) => ("ReLU", json!({})),
        Layer::Activation(Activation::Gelu) => ("GELU", json!({"approximate": "tanh"})),
        Layer::Activation(Activation::Silu) => ("SiLU", json!({})),
        Layer::Activation(Activation::Tanh) => ("Tanh", json!({})),
        Layer::Activation(Activation::Selu) => ("SELU", json!({})),
        Layer::Dropout(share) => ("Dropout", json!({"p": share})),
        Layer::MaxPool => ("MaxPool2d", json!({"kernel_size": 2})),
        Layer::Flatten => ("Flatten", json!({})),
        Layer::Residual(_) | Layer::MeanPool => return None,
    })
}

/// Converts a trained model's arrays to the names and layouts of a saved model.
pub(crate) fn to_pytorch(snapshot: &Snapshot, heads: &Heads) -> Snapshot {
    let mut saved = Snapshot::default();
    for (own, shape, values) in snapshot.f32s_with_prefix("") {
        let (shape, values) = match (own.strip_prefix(NET), shape) {
            (Some(_), [from, to]) => (vec![*to, *from], transposed(values, *from, *to)),
            _ => (shape.to_vec(), values.to_vec()),
        };
        let mut heads = heads.named.iter();
        let name = heads.find_map(|head| renamed(own, &in_net(head), &saved_as(head)));
        saved.f32s(name.unwrap_or_else(|| own.to_owned()), shape, values);
    }
    saved
}

/// Converts a saved model's arrays to the names and layouts of the network.
pub(crate) fn from_pytorch(saved: &Snapshot, heads: &Heads) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for (name, shape, values) in saved.f32s_with_prefix("") {
        let mut heads = heads.named.iter();
        let renamed = heads.find_map(|head| renamed(name, &saved_as(head), &in_net(head)));
        let name = renamed.unwrap_or_else(|| name.to_owned());
        let (shape, values) = match (name.strip_prefix(NET), shape) {
            (Some(_), [to, from]) => (vec![*from, *to], transposed(values, *to, *from)),
            _ => (shape.to_vec(), values.to_vec()),
        };
        snapshot.f32s(name, shape, values);
    }
    snapshot
}

const NET: &str = "net.";

/// The prefix of the names of a head's arrays in the network; [`saved_as`] is the prefix in a saved model.
fn in_net(head: &Head) -> String {
    format!("{NET}{}", head.name)
}

fn saved_as(head: &Head) -> String {
    format!("{}.", head.name)
}

fn renamed(name: &str, from: &str, to: &str) -> Option<String> {
    name.strip_prefix(from).map(|rest| format!("{to}{rest}"))
}

/// The transpose of a matrix with `rows` rows and `columns` columns.
fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let cells = (0..columns).flat_map(|column| (0..rows).map(move |row| row * columns + column));
    cells.map(|cell| values[cell]).collect()
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::job_context::JobContext;
    use crate::model::neural::net::NetShape;
    use crate::model::neural::net::backbone::{Architecture, BackboneSpec};
    use crate::model::neural::net::heads::HeadInput;
    use crate::model::neural::net::precision::Precision;

    fn network(spec: &BackboneSpec, features: &[usize], heads: &Heads) -> Network {
        let shape = NetShape { features: features.to_vec(), classes: 3 };
        Network::new(spec, Precision::F32, heads, &shape, &JobContext::new(1), &Device::Cpu)
            .unwrap()
    }

    /// A classifier, and a head of two layers on the features.
    fn with_head() -> Heads {
        let (name, from, widths) = ("auxiliary", HeadInput::Features, vec![5, 6]);
        Heads { named: vec![Head { name, from, widths }], ..Heads::CLASSIFIER }
    }

    fn shapes(snapshot: &Snapshot) -> Vec<(String, Vec<usize>)> {
        let arrays = snapshot.f32s_with_prefix("");
        arrays.map(|(name, shape, _)| (name.to_owned(), shape.to_vec())).collect()
    }

    /// All sizes differ: two columns, four units in the hidden layer, five and six in the layers of a head.
    #[test]
    fn a_saved_model_has_the_names_and_layouts_of_pytorch() {
        let spec = BackboneSpec { hidden: vec![4], ..BackboneSpec::default() };
        let net = network(&spec, &[2], &with_head());
        let mut snapshot = Snapshot::default();
        net.save(&mut snapshot).unwrap();
        snapshot.f32s("crowd.00.heads".to_owned(), vec![1, 2], vec![7.0, 8.0]);
        let saved = to_pytorch(&snapshot, &with_head());
        let wanted: [(&str, &[usize]); 15] = [
            ("auxiliary.0.bias", &[5]),
            ("auxiliary.0.weight", &[5, 2]),
            ("auxiliary.1.bias", &[6]),
            ("auxiliary.1.weight", &[6, 5]),
            ("crowd.00.heads", &[1, 2]),
            ("net.classifier.bias", &[3]),
            ("net.classifier.weight", &[3, 4]),
            ("net.hidden0.bias", &[4]),
            ("net.hidden0.weight", &[4, 2]),
            ("net.hidden0_norm.running_mean", &[4]),
            ("net.hidden0_norm.running_var", &[4]),
            ("net.input_norm.running_mean", &[2]),
            ("net.input_norm.running_var", &[2]),
            ("scaler.factor", &[2]),
            ("scaler.mean", &[2]),
        ];
        assert_eq!(shapes(&saved), wanted.map(|(name, shape)| (name.to_owned(), shape.to_vec())));
        let (here, there) =
            (snapshot.find_f32s("net.hidden0.weight").unwrap(), "net.hidden0.weight");
        let there = saved.find_f32s(there).unwrap();
        for (from, to) in (0..2).flat_map(|from| (0..4).map(move |to| (from, to))) {
            assert_eq!(there[to * 2 + from], here[from * 4 + to], "from {from} to {to}");
        }
        assert_eq!(from_pytorch(&saved, &with_head()), snapshot);
    }

    #[test]
    fn a_mean_of_a_channel_has_axes_for_its_pixels() {
        let spec = BackboneSpec { kind: Architecture::Lenet, ..BackboneSpec::default() };
        let mut snapshot = Snapshot::default();
        network(&spec, &[2, 12, 14], &Heads::CLASSIFIER).save(&mut snapshot).unwrap();
        let shapes = shapes(&to_pytorch(&snapshot, &Heads::CLASSIFIER));
        for wanted in [
            ("scaler.mean", vec![2, 1, 1]),
            ("scaler.factor", vec![2, 1, 1]),
            ("net.convolution0.weight", vec![6, 2, 5, 5]),
            ("net.hidden0.weight", vec![120, 16]),
        ] {
            assert!(shapes.contains(&(wanted.0.to_owned(), wanted.1.clone())), "{wanted:?}");
        }
    }

    fn with_features(net: &Network) -> Vec<String> {
        let text = |m: &TorchModule| format!("{} {} {}", m.name, m.module, m.arguments);
        net.modules().into_iter().flatten().map(|m| text(&m)).collect()
    }

    #[test]
    fn modules_are_those_of_an_mlp() {
        let spec = BackboneSpec {
            hidden: vec![4],
            activation: Activation::Gelu,
            dropout: 0.25,
            ..BackboneSpec::default()
        };
        let hidden = [
            r#"input_norm BatchNorm1d {"affine":false,"eps":0.00001,"num_features":2}"#,
            r#"hidden0 Linear {"in_features":2,"out_features":4}"#,
            r#"2 GELU {"approximate":"tanh"}"#,
            r#"3 Dropout {"p":0.25}"#,
            r#"hidden0_norm BatchNorm1d {"affine":false,"eps":0.00001,"num_features":4}"#,
        ];
        let classifier = r#"classifier Linear {"in_features":4,"out_features":3}"#;
        let heads = with_head();
        let wanted = [&hidden[..], &[classifier]].concat();
        assert_eq!(with_features(&network(&spec, &[2], &heads)), wanted);
        let heads = Heads::HIDDEN;
        assert_eq!(with_features(&network(&spec, &[2], &heads)), hidden);
    }

    #[test]
    fn modules_are_those_of_networks_of_images() {
        let of = |kind, features: &[usize]| {
            let spec = BackboneSpec { kind, ..BackboneSpec::default() };
            with_features(&network(&spec, features, &Heads::CLASSIFIER))
        };
        let wanted = [
            r#"convolution0 Conv2d {"in_channels":2,"kernel_size":5,"out_channels":6,"padding":2,"stride":1}"#,
            "1 ReLU {}",
            r#"2 MaxPool2d {"kernel_size":2}"#,
            r#"convolution1 Conv2d {"in_channels":6,"kernel_size":5,"out_channels":16,"padding":0,"stride":1}"#,
            "4 ReLU {}",
            r#"5 MaxPool2d {"kernel_size":2}"#,
            "6 Flatten {}",
            r#"hidden0 Linear {"in_features":16,"out_features":120}"#,
            "8 ReLU {}",
            r#"hidden1 Linear {"in_features":120,"out_features":84}"#,
            "10 ReLU {}",
            r#"classifier Linear {"in_features":84,"out_features":3}"#,
        ];
        assert_eq!(of(Architecture::Lenet, &[2, 12, 14]), wanted);
        let vgg16 = of(Architecture::Vgg16, &[1, 32, 32]);
        let norm = r#"norm00 BatchNorm2d {"affine":true,"eps":0.00001,"num_features":64}"#;
        assert_eq!((vgg16.len(), vgg16[1].as_str()), (46, norm));
        assert!(of(Architecture::Resnet20, &[3, 8, 8]).is_empty());
    }
}
