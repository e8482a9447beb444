//! Network architectures by name: from features to the last hidden layer.

pub(crate) mod image_backbones;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::layers::batch_norm::BatchNorm;
use super::layers::layer_builder::LayerBuilder;
use crate::error::{Error, Problem, Result};
use crate::model::neural::net::layers::{Activation, Dense, Layer};
use crate::model::neural::net::parameters::{Initialisation, MAX_NUMBERS};
use crate::spec::Problems;
use image_backbones::{after_lenet, after_vgg16, lenet, resnet20, vgg16};

/// The architecture.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Architecture {
    /// No hidden layer: logistic regression, of normalised features where `batch_norm` is set.
    Linear,
    /// Fully connected layers.
    #[default]
    Mlp,
    /// Two convolutions and two fully connected layers (LeCun et al. 1998), with ReLU and maximum pooling.
    Lenet,
    /// Thirteen convolutions with batch norm, for images of 32 x 32 (Simonyan and Zisserman 2015).
    Vgg16,
    /// Nineteen convolutions with batch norm, two in each residual block, and the mean of each of 64 channels (He, Zhang,
    /// Ren, Sun 2016), for images of 32 x 32 and others.
    Resnet20,
}

/// How features are scaled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scaling {
    /// To mean 0 and standard deviation 1.
    #[default]
    Standard,
    /// Each column, or channel of an image, divided by its own largest absolute value; zeros stay zero.
    MaxAbs,
    /// All divided by one number, the largest absolute value of all columns, so that their proportions stay; as in the
    /// experiments of LIA.
    GlobalMaxAbs,
    /// Not at all.
    None,
}

/// The classifier before its last layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BackboneSpec {
    /// The architecture.
    pub kind: Architecture,
    /// Sizes of the hidden layers of an `mlp`.
    pub hidden: Vec<usize>,
    /// The activation function of the hidden layers (`mlp`).
    pub activation: Activation,
    /// The share of each hidden layer's outputs that dropout sets to zero in training (`mlp`).
    #[schemars(range(min = 0.0, max = 0.99))]
    pub dropout: f64,
    /// Batch normalisation of the input and of each hidden layer's output, without scale and shift
    /// (`mlp`, `linear`).
    pub batch_norm: bool,
    /// Channels, height and width of an image, where the features have no shape.
    pub input: Option<[usize; 3]>,
    /// How weights and biases are drawn at the start.
    pub initialisation: Initialisation,
    /// How features are scaled. The statistics are those of the training rows; images have one per channel.
    pub scaling: Scaling,
    /// The width of the zero padding on each side of an image, before a random crop to the image's size in training.
    #[schemars(range(max = 1024))]
    pub pad_crop: usize,
    /// Whether images are mirrored left to right at random in training.
    pub flip: bool,
}

impl Default for BackboneSpec {
    fn default() -> Self {
        Self {
            kind: Architecture::Mlp,
            hidden: vec![512],
            activation: Activation::Relu,
            dropout: 0.7,
            batch_norm: true,
            input: None,
            initialisation: Initialisation::Uniform,
            scaling: Scaling::Standard,
            pad_crop: 0,
            flip: false,
        }
    }
}

/// The layers up to the last hidden one, and its width.
pub struct Trunk {
    /// The layers in order.
    pub layers: Vec<Layer>,
    /// The width of the last layer's output.
    pub width: usize,
}

impl BackboneSpec {
    /// Adds the broken rules of the section to `problems`.
    pub fn check(&self, position: &str, problems: &mut Problems) {
        if self.hidden.contains(&0) {
            problems.push(
                Problem::new("a hidden layer of no numbers")
                    .at(format!("{position}.backbone.hidden"))
                    .help("leave it out, or give it a size"),
            );
        }
        let between_hidden = || self.hidden.windows(2).map(|pair| pair[0].saturating_mul(pair[1]));
        // Biases and weights of the hidden layers, whatever the features.
        let numbers = self.hidden.iter().copied().chain(between_hidden());
        if self.kind == Architecture::Mlp && numbers.fold(0, usize::saturating_add) > MAX_NUMBERS {
            problems.push(
                Problem::new("the network is larger than it can be")
                    .at(format!("{position}.backbone.hidden"))
                    .found(format!("{:?}, with room for {MAX_NUMBERS} numbers", self.hidden))
                    .help("choose smaller layers"),
            );
        }
        let too_small = match (self.kind, self.input) {
            (Architecture::Lenet, Some([_, height, width])) => after_lenet(height, width).err(),
            (Architecture::Vgg16, Some([_, height, width])) => after_vgg16(height, width).err(),
            _ => None,
        };
        for problem in too_small.into_iter().flat_map(|error| error.problems) {
            problems.push(problem.at(format!("{position}.backbone.input")));
        }
        let augments = self.pad_crop > 0 || self.flip;
        if augments && matches!(self.kind, Architecture::Linear | Architecture::Mlp) {
            problems.push(
                Problem::new("only images can be cropped and mirrored")
                    .at(format!("{position}.backbone"))
                    .help("choose kind = \"lenet\", \"vgg16\" or \"resnet20\", or leave pad_crop and flip out"),
            );
        }
    }

    /// Whether the input of the architecture is an image.
    #[must_use]
    pub fn takes_images(&self) -> bool {
        matches!(self.kind, Architecture::Lenet | Architecture::Vgg16 | Architecture::Resnet20)
    }

    /// The input shape of one instance for features of this shape: `[width]`, or `[channels, height, width]`.
    ///
    /// # Errors
    /// When the architecture takes images and the features are not images.
    pub fn input_shape(&self, features: &[usize]) -> Result<Vec<usize>> {
        let product =
            |sizes: &[usize]| sizes.iter().fold(1_usize, |n, size| n.saturating_mul(*size));
        let width = product(features);
        if !self.takes_images() {
            return Ok(vec![width]);
        }
        let shape = match (self.input, features) {
            (Some(shape), _) => shape,
            (None, [channels, height, wide]) => [*channels, *height, *wide],
            (None, [height, wide]) => [1, *height, *wide],
            _ => {
                return Err(Error::data("the features are no images")
                    .at("model.backbone.input")
                    .found(format!("{width} numbers"))
                    .help("set input = [channels, height, width]"));
            }
        };
        if product(&shape) == width {
            return Ok(shape.to_vec());
        }
        Err(Error::data("the features do not have the size of the images")
            .at("model.backbone.input")
            .found(format!("{width} numbers, where {shape:?} are {}", product(&shape))))
    }

    /// Builds the layers for input of this shape.
    ///
    /// # Errors
    /// When an image is too small, or the device is out of memory.
    pub fn build(&self, input: &[usize], builder: &LayerBuilder) -> Result<Trunk> {
        let (layers, width) = match (self.kind, input) {
            (Architecture::Lenet, &[channels, height, width]) => {
                lenet(channels, height, width, builder)
            }
            (Architecture::Vgg16, &[channels, height, width]) => {
                vgg16(channels, height, width, builder)
            }
            (Architecture::Resnet20, &[channels, ..]) => resnet20(channels, builder),
            _ => return self.mlp(input.iter().product(), builder),
        }?;
        Ok(Trunk { layers, width })
    }

    fn mlp(&self, from: usize, builder: &LayerBuilder) -> Result<Trunk> {
        let hidden: &[usize] = if self.kind == Architecture::Linear { &[] } else { &self.hidden };
        let mut layers = Vec::new();
        let mut width = from;
        if self.batch_norm {
            layers.push(Layer::BatchNorm(BatchNorm::new(&builder.pp("input_norm"), width, false)?));
        }
        for (n, size) in hidden.iter().enumerate() {
            let layer = builder.pp(format!("hidden{n}"));
            layers.push(Layer::Dense(Dense::new(&layer, width, *size)?));
            layers.push(Layer::Activation(self.activation));
            layers.push(Layer::Dropout(self.dropout));
            if self.batch_norm {
                let norm = builder.pp(format!("hidden{n}_norm"));
                layers.push(Layer::BatchNorm(BatchNorm::new(&norm, *size, false)?));
            }
            width = *size;
        }
        Ok(Trunk { layers, width })
    }
}

#[cfg(test)]
impl BackboneSpec {
    /// No hidden layer, and features as they are: steps that can be worked out by hand.
    pub(crate) fn one_layer() -> Self {
        let (kind, scaling) = (Architecture::Linear, Scaling::None);
        Self { kind, scaling, batch_norm: false, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};

    use super::*;
    use crate::job_context::JobContext;
    use crate::model::neural::net::backend::Backend;
    use crate::model::neural::net::forward_pass::mode::Mode;
    use crate::model::neural::net::parameters::Parameters;
    use crate::model::saved::snapshot::Snapshot;

    fn built(spec: &BackboneSpec) -> (Trunk, Snapshot) {
        let parameters = Parameters::new(&JobContext::new(1), &Device::Cpu, spec.initialisation);
        let (trunk, parameters) = parameters.build(|layers| spec.build(&[2], layers)).unwrap();
        let mut snapshot = Snapshot::default();
        parameters.save(&mut snapshot).unwrap();
        (trunk, snapshot)
    }

    fn names(trunk: &Trunk) -> Vec<String> {
        let name = |layer: &Layer| match layer {
            Layer::Dense(dense) => format!("dense {:?}", dense.weight.dims()),
            Layer::BatchNorm(_) => "norm".to_owned(),
            Layer::Activation(activation) => format!("{activation:?}"),
            Layer::Dropout(share) => format!("dropout {share}"),
            _ => "other".to_owned(),
        };
        trunk.layers.iter().map(name).collect()
    }

    // keys: model.backbone.kind, model.backbone.hidden, model.backbone.activation, model.backbone.dropout
    // keys: model.backbone.batch_norm
    #[test]
    fn an_mlp_has_the_layers_that_its_spec_names() {
        let spec = BackboneSpec {
            hidden: vec![4, 3],
            activation: Activation::Silu,
            dropout: 0.25,
            batch_norm: false,
            ..BackboneSpec::default()
        };
        let (trunk, _) = built(&spec);
        let layers =
            ["dense [2, 4]", "Silu", "dropout 0.25", "dense [4, 3]", "Silu", "dropout 0.25"];
        assert_eq!((names(&trunk), trunk.width), (layers.map(str::to_owned).to_vec(), 3));
        let (trunk, _) = built(&BackboneSpec { hidden: vec![4], batch_norm: true, ..spec.clone() });
        let layers = ["norm", "dense [2, 4]", "Silu", "dropout 0.25", "norm"];
        assert_eq!((names(&trunk), trunk.width), (layers.map(str::to_owned).to_vec(), 4));
        let (trunk, _) = built(&BackboneSpec { kind: Architecture::Linear, ..spec });
        assert_eq!((names(&trunk), trunk.width), (Vec::new(), 2));
    }

    // keys: model.backbone.input, model.backbone.hidden
    #[test]
    fn sizes_that_no_features_could_have_are_refused_with_the_spec() {
        use Architecture::{Lenet, Linear, Mlp, Resnet20, Vgg16};
        let problems = |spec: BackboneSpec| {
            let mut problems = Problems::default();
            spec.check("model", &mut problems);
            problems.into_result().map_err(|e| e.to_string())
        };
        for (kind, height, width, is_enough) in [
            (Lenet, 9, 12, false),
            (Lenet, 12, 12, true),
            (Vgg16, 32, 31, false),
            (Vgg16, 32, 32, true),
            (Resnet20, 3, 4, true),
            (Mlp, 3, 4, true),
        ] {
            let input = Some([1, height, width]);
            let checked = problems(BackboneSpec { kind, input, ..BackboneSpec::default() });
            assert_eq!(checked.is_ok(), is_enough, "{kind:?}");
            let parts = ["too small", "model.backbone.input", &format!("{height} x {width}")];
            let Err(error) = checked else { continue };
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
        for (kind, hidden, fits) in [
            (Mlp, vec![1_000_000_000_000], false),
            (Mlp, vec![200_000, 200_000], false),
            (Mlp, vec![usize::MAX, usize::MAX], false),
            (Mlp, vec![60_000, 60_000], true),
            (Linear, vec![1_000_000_000_000], true),
        ] {
            let checked = problems(BackboneSpec { kind, hidden, ..BackboneSpec::default() });
            let is_named = checked.as_ref().is_err_and(|e| e.contains("model.backbone.hidden"));
            assert_eq!((checked.is_ok(), is_named), (fits, !fits), "{checked:?}");
        }
    }

    /// f(x W + b) with the initial weights, at x = (0.5, -2), to 1e-5.
    #[test]
    fn every_activation_is_its_formula() {
        let gelu = |x: f64| 0.5 * x * (1.0 + (0.797_884_56 * (x + 0.044_715 * x.powi(3))).tanh());
        let selu = |x: f64| 1.050_701 * if x > 0.0 { x } else { 1.673_263 * (x.exp() - 1.0) };
        let formulas: [(Activation, &dyn Fn(f64) -> f64); 5] = [
            (Activation::Relu, &|x| x.max(0.0)),
            (Activation::Gelu, &gelu),
            (Activation::Silu, &|x| x / (1.0 + (-x).exp())),
            (Activation::Tanh, &f64::tanh),
            (Activation::Selu, &selu),
        ];
        for (activation, formula) in formulas {
            let spec = BackboneSpec {
                hidden: vec![6],
                activation,
                batch_norm: false,
                ..BackboneSpec::default()
            };
            let (trunk, start) = built(&spec);
            let mut x = Tensor::new(&[[0.5_f32, -2.0]], &Device::Cpu).unwrap();
            for layer in &trunk.layers {
                x = layer.forward(&x, &mut Mode::Fixed, Backend::Host).unwrap();
            }
            let (w, b) = (
                start.find_f32s("net.hidden0.weight").unwrap(),
                start.find_f32s("net.hidden0.bias").unwrap(),
            );
            let got: Vec<f32> = x.flatten_all().unwrap().to_vec1().unwrap();
            for (n, got) in got.iter().enumerate() {
                let sum = 0.5 * f64::from(w[n]) - 2.0 * f64::from(w[6 + n]) + f64::from(b[n]);
                let want = formula(sum);
                assert!((f64::from(*got) - want).abs() < 1e-5, "{activation:?}: {got} not {want}");
            }
        }
    }
}
