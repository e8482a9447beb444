//! The cost of a row of a network's input: its multiply-adds, and the memory of a prediction.

use crate::model::neural::net::Network;
use crate::model::neural::net::layers::{Dense, Layer};

/// The largest number of rows that are predicted at once.
const MAX_ROWS: usize = 1024;

/// The share of the run's memory that a prediction may take for the input and the output of a layer: one in this many
/// bytes.
pub(crate) const PREDICTION_SHARE: usize = 8;

/// The largest number of bytes that a prediction may take, however much memory the run has.
pub(crate) const MAX_PREDICTION_BYTES: usize = 1 << 30;

impl Network {
    /// The number of rows that are predicted at once, where the input and the output of a layer may take `max_bytes`. Heads
    /// have layers too, and a network without layers holds its features.
    ///
    /// # Why
    /// A prediction holds the input and the output of one layer at a time: for 1 024 images of 224 x 224 pixels those
    /// of VGG-16's second convolution have 24.5 GiB.
    pub(crate) fn rows_at_once(&self, max_bytes: usize) -> usize {
        let max_numbers = max_bytes / size_of::<f32>();
        let sizes = |dense: &Dense| dense.weight.dims().iter().sum::<usize>();
        let of_heads = self.layers_of_heads().map(sizes);
        let most = of_heads.fold(held(&self.layers, &self.input), usize::max);
        (max_numbers / most.max(1)).clamp(1, MAX_ROWS)
    }

    /// The number of multiply-adds of a forward pass over one row: those of its matrix products and convolutions.
    pub(crate) fn multiply_adds(&self) -> usize {
        products(&self.layers, &self.input) + self.layers_of_heads().map(weights).sum::<usize>()
    }

    /// The layers of the named heads, and the classifier.
    fn layers_of_heads(&self) -> impl Iterator<Item = &Dense> {
        self.named.iter().flat_map(|head| &head.layers).chain(&self.classifier)
    }
}

fn weights(dense: &Dense) -> usize {
    dense.weight.elem_count()
}

/// The number of multiply-adds of these layers for one row of this shape.
fn products(layers: &[Layer], input: &[usize]) -> usize {
    let (mut shape, mut sum) = (input.to_vec(), 0);
    for layer in layers {
        let inside =
            if let Layer::Residual(block) = layer { products(&block.layers, &shape) } else { 0 };
        shape = layer.output_shape(&shape);
        sum += inside;
        sum += match (layer, &shape[..]) {
            (Layer::Dense(dense), _) => weights(dense),
            (Layer::Convolution(convolution), [_, height, width]) => {
                convolution.weight.elem_count() * height * width
            }
            _ => 0,
        };
    }
    sum
}

/// The largest number of values that are held at any time for one row: the input and the output of a layer, or the
/// features where there is no layer. A residual block keeps its input until the output of its layers is added to it.
fn held(layers: &[Layer], input: &[usize]) -> usize {
    let (mut shape, mut most) = (input.to_vec(), input.iter().product::<usize>());
    for layer in layers {
        let given: usize = shape.iter().product();
        let inside =
            if let Layer::Residual(block) = layer { held(&block.layers, &shape) } else { 0 };
        shape = layer.output_shape(&shape);
        most = most.max(given + inside + shape.iter().product::<usize>());
    }
    most
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::job_context::JobContext;
    use crate::model::neural::net::backbone::{Architecture, BackboneSpec};
    use crate::model::neural::net::forward_pass::mode::Mode;
    use crate::model::neural::net::precision::Precision;
    use crate::model::neural::net::{Head, HeadInput, Heads, NetShape};

    fn network(kind: Architecture, hidden: &[usize], features: &[usize], heads: &Heads) -> Network {
        let spec = BackboneSpec { kind, hidden: hidden.to_vec(), ..BackboneSpec::default() };
        network_of(&spec, features, heads)
    }

    fn network_of(spec: &BackboneSpec, features: &[usize], heads: &Heads) -> Network {
        let shape = NetShape { features: features.to_vec(), classes: 2 };
        let job = JobContext::new(1);
        Network::new(spec, Precision::F32, heads, &shape, &job, &Device::Cpu).unwrap()
    }

    fn head(name: &'static str, from: HeadInput, widths: &[usize]) -> Head {
        Head { name, from, widths: widths.to_vec() }
    }

    /// The second convolution of VGG-16 has 64 input and 64 output channels: 2 x 473 344 values for 86 x 86 pixels, 2 x
    /// 65 536 for 32 x 32, and 2 x 3 211 264 for 224 x 224. A block of ResNet-20 holds its input of 16 channels, the
    /// input and output of a layer, and its own output: 4 x 802 816 for 224 x 224 pixels. The mlp and the linear
    /// network hold the features and their normalised copy. LeNet needs few values.
    #[test]
    fn rows_at_once_follow_from_the_largest_layer() {
        let rows = |kind, hidden, features: &[usize], bytes| {
            network(kind, &[hidden], features, &Heads::CLASSIFIER).rows_at_once(bytes)
        };
        let gib = 1 << 30;
        assert_eq!(rows(Architecture::Vgg16, 0, &[3, 86, 86], gib), (1 << 28) / 946_688);
        assert_eq!(rows(Architecture::Vgg16, 0, &[3, 32, 32], gib), 1024);
        assert_eq!(rows(Architecture::Vgg16, 0, &[3, 224, 224], gib), (1 << 28) / 6_422_528);
        assert_eq!(rows(Architecture::Resnet20, 0, &[3, 224, 224], gib), (1 << 28) / 3_211_264);
        assert_eq!(rows(Architecture::Mlp, 10, &[240_000], gib), (1 << 28) / 480_000);
        assert_eq!(rows(Architecture::Linear, 0, &[240_000], gib), (1 << 28) / 480_000);
        assert_eq!(rows(Architecture::Lenet, 0, &[1, 28, 28], gib), 1024);
        // 64 MiB are 2^24 values.
        assert_eq!(rows(Architecture::Vgg16, 0, &[3, 32, 32], 64 << 20), (1 << 24) / 131_072);
        assert_eq!(rows(Architecture::Vgg16, 0, &[3, 32, 32], 1), 1);
    }

    /// Without batch norm a linear network has no layers: it holds the features and two logits, or the features alone.
    /// The second layer of the head has 5 inputs.
    #[test]
    fn rows_at_once_follow_from_features_and_heads_without_a_larger_layer() {
        let kind = Architecture::Linear;
        let spec = BackboneSpec { kind, batch_norm: false, ..BackboneSpec::default() };
        let rows =
            |features, heads: &Heads| network_of(&spec, &[features], heads).rows_at_once(1 << 30);
        assert_eq!(rows(300_000, &Heads::CLASSIFIER), (1 << 28) / 300_002);
        assert_eq!(rows(300_000, &Heads::HIDDEN), (1 << 28) / 300_000);
        assert_eq!(rows(300, &Heads::CLASSIFIER), 1024);
        let named = vec![head("wide", HeadInput::Features, &[5, 400_000])];
        assert_eq!(rows(3, &Heads { named, ..Heads::CLASSIFIER }), (1 << 28) / 400_005);
    }

    /// 3 x 5 + 5 x 4 for the hidden layers, 4 x 2 for the classifier, 3 x 7 and 4 x 6 + 6 x 1 for the heads. LeNet: 6 x
    /// 25 x 784 + 6 x 16 x 25 x 100 + 400 x 120 + 120 x 84 + 84 x 2. ResNet-20: 27 x 16 x 1024 + 6 x 9 x 16^2 x 1024 +
    /// 9 x 16 x 32 x 256 + 5 x 9 x 32^2 x 256 + 9 x 32 x 64 x 64 + 5 x 9 x 64^2 x 64 + 64 x 2.
    #[test]
    fn multiply_adds_are_those_of_products_and_convolutions() {
        let named = vec![
            head("outer", HeadInput::Features, &[7]),
            head("inner", HeadInput::Hidden, &[6, 1]),
        ];
        let heads = Heads { named, ..Heads::CLASSIFIER };
        assert_eq!(network(Architecture::Mlp, &[5, 4], &[3], &heads).multiply_adds(), 94);
        let images = |kind, features: &[usize]| {
            network(kind, &[], features, &Heads::CLASSIFIER).multiply_adds()
        };
        assert_eq!(images(Architecture::Lenet, &[1, 28, 28]), 415_848);
        assert_eq!(images(Architecture::Resnet20, &[3, 32, 32]), 40_550_528);
    }

    /// A hidden layer of 70 units on 300 features, for 130 rows together and in parts of 1, 7 and 33 rows.
    #[test]
    fn the_number_of_rows_at_once_changes_no_bit() {
        let (rows, width) = (130, 300);
        let net = network(Architecture::Mlp, &[70], &[width], &Heads::CLASSIFIER);
        let features: Vec<f32> = (0..rows * width).map(|n| (n as f32 * 0.37).sin()).collect();
        let logits = |features: &[f32]| {
            net.forward(features.to_vec(), &mut Mode::Fixed).unwrap().to_host().unwrap().logits
        };
        let together = logits(&features);
        for at_once in [1, 7, 33] {
            let parts: Vec<f64> = features.chunks(at_once * width).flat_map(logits).collect();
            assert_eq!(parts, together, "{at_once} rows at once");
        }
    }
}
