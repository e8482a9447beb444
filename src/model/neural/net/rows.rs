//! How many rows a network predicts at once.

use crate::model::neural::net::Network;
use crate::model::neural::net::layers::Layer;

/// The most rows.
const MAX_ROWS: usize = 1024;

/// The most numbers that the layers' outputs for these rows have: 1 GiB.
const MAX_NUMBERS: usize = 1 << 28;

impl Network {
    /// The rows that are predicted at once.
    ///
    /// # Why
    /// A forward pass holds the outputs of all its layers: those of VGG-16 for 1 024 images of 86 x 86 pixels have 23 GiB.
    pub(crate) fn rows_at_once(&self) -> usize {
        let of_row = self.input.iter().product::<usize>() + numbers(&self.layers, &self.input);
        (MAX_NUMBERS / of_row.max(1)).clamp(1, MAX_ROWS)
    }
}

/// The numbers in the outputs of all layers for one row.
fn numbers(layers: &[Layer], input: &[usize]) -> usize {
    let (mut shape, mut sum) = (input.to_vec(), 0);
    for layer in layers {
        if let Layer::Residual(block) = layer {
            sum += numbers(&block.layers, &shape);
        }
        shape = layer.output_shape(&shape);
        sum += shape.iter().product::<usize>();
    }
    sum
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use crate::model::neural::net::{Heads, NetShape, Network, Precision};
    use crate::model::neural::{Architecture, BackboneSpec};
    use crate::run::Run;

    fn rows(kind: Architecture, hidden: usize, features: &[usize]) -> usize {
        let spec = BackboneSpec { kind, hidden: vec![hidden], ..BackboneSpec::default() };
        let shape = NetShape { features: features.to_vec(), classes: 2 };
        let run = Run::new(1);
        Network::new(&spec, Precision::F32, Heads::CLASSIFIER, &shape, &run, &Device::Cpu)
            .unwrap()
            .rows_at_once()
    }

    /// VGG-16 for 86 x 86 pixels: three channels of them, 2 x 3 outputs of 64 channels of as many, 2 x 3 of 128 x 43 x 43,
    /// 3 x 3 of 256 x 21 x 21, of 512 x 10 x 10 and of 512 x 5 x 5, the poolings of 118 336, 56 448, 25 600, 12 800 and
    /// 2 048, and the last again as one axis: 6 091 628 numbers, of which 2^28 hold 44 rows. For 32 x 32 pixels: 864 256.
    ///
    /// ResNet-20 for 224 x 224 pixels: three channels of them, 24 outputs of 16 channels, 21 of 32 channels with a quarter
    /// of the pixels, 21 of 64 with a sixteenth, and 64 means: 32 062 528 numbers.
    ///
    /// The mlp: the features, their norm, and four outputs of 10 numbers. LeNet's are few.
    #[test]
    fn rows_at_once_follow_from_the_outputs_of_all_layers() {
        assert_eq!(rows(Architecture::Vgg16, 0, &[3, 86, 86]), 44);
        assert_eq!(rows(Architecture::Vgg16, 0, &[3, 32, 32]), 310);
        assert_eq!(rows(Architecture::Resnet20, 0, &[3, 224, 224]), 8);
        assert_eq!(rows(Architecture::Mlp, 10, &[240_000]), (1 << 28) / 480_040);
        assert_eq!(rows(Architecture::Lenet, 0, &[1, 28, 28]), 1024);
    }
}
