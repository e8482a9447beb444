//! How many rows a network predicts at once.

use crate::model::neural::net::Network;
use crate::model::neural::net::layers::Layer;

/// The largest number of rows.
const MAX_ROWS: usize = 1024;

/// The largest number of values in a layer's input and output for these rows: 1 GiB of f32.
const MAX_NUMBERS: usize = 1 << 28;

impl Network {
    /// The number of rows that are predicted at once.
    ///
    /// # Why
    /// A prediction holds the input and the output of one layer at a time: for 1 024 images of 224 x 224 pixels those
    /// of VGG-16's second convolution have 24.5 GiB.
    pub(crate) fn rows_at_once(&self) -> usize {
        (MAX_NUMBERS / held(&self.layers, &self.input).max(1)).clamp(1, MAX_ROWS)
    }
}

/// The largest number of values that are held at any time for one row: the input and the output of a layer. A residual
/// block keeps its input until the output of its layers is added to it.
fn held(layers: &[Layer], input: &[usize]) -> usize {
    let (mut shape, mut most) = (input.to_vec(), 0);
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

    use crate::model::neural::net::precision::Precision;
    use crate::model::neural::net::{Heads, NetShape, Network};
    use crate::model::neural::{Architecture, BackboneSpec};
    use crate::run::Run;

    fn rows(kind: Architecture, hidden: usize, features: &[usize]) -> usize {
        let spec = BackboneSpec { kind, hidden: vec![hidden], ..BackboneSpec::default() };
        let shape = NetShape { features: features.to_vec(), classes: 2 };
        let run = Run::new(1);
        Network::new(&spec, Precision::F32, &Heads::CLASSIFIER, &shape, &run, &Device::Cpu)
            .unwrap()
            .rows_at_once()
    }

    /// The second convolution of VGG-16 has 64 input and 64 output channels: 2 x 473 344 values for 86 x 86 pixels, 2 x
    /// 65 536 for 32 x 32, and 2 x 3 211 264 for 224 x 224. A block of ResNet-20 holds its input of 16 channels, the
    /// input and output of a layer, and its own output: 4 x 802 816 for 224 x 224 pixels. The mlp holds the features
    /// and their normalised copy. LeNet needs few values.
    #[test]
    fn rows_at_once_follow_from_the_largest_layer() {
        assert_eq!(rows(Architecture::Vgg16, 0, &[3, 86, 86]), (1 << 28) / 946_688);
        assert_eq!(rows(Architecture::Vgg16, 0, &[3, 32, 32]), 1024);
        assert_eq!(rows(Architecture::Vgg16, 0, &[3, 224, 224]), (1 << 28) / 6_422_528);
        assert_eq!(rows(Architecture::Resnet20, 0, &[3, 224, 224]), (1 << 28) / 3_211_264);
        assert_eq!(rows(Architecture::Mlp, 10, &[240_000]), (1 << 28) / 480_000);
        assert_eq!(rows(Architecture::Lenet, 0, &[1, 28, 28]), 1024);
    }
}
