//! The time of each layer of a network, forward and backward, beside the same layer of candle-nn.

use std::time::Instant;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::{
    BatchNormConfig, Conv2dConfig, Dropout, Module as _, ModuleT as _, VarBuilder, VarMap,
};
use labelmill::model::neural::{SingleLayer, SingleLayerKind};

/// How often each layer is timed; the least time counts.
const TIMES: usize = 15;

/// Steps that are timed at once on a GPU, which computes one while the host launches the kernels of the next one.
const STEPS_ON_GPU: usize = 20;

/// Columns of a hidden layer.
const WIDTH: usize = 512;

/// Channels, rows and columns of images in the middle of a network.
const IMAGES: [usize; 3] = [64, 16, 16];

/// Prints a table of milliseconds for each layer on the device of this name.
///
/// # Panics
/// When the device cannot be used, or a layer fails.
pub fn print(device: &str) {
    use SingleLayerKind::{BatchNorm, Convolution, Dropout, Linear, MaxPool, MeanPool, Relu};
    println!("| layer | input | ours, ms | candle-nn, ms | ratio |");
    println!("|---|---|---|---|---|");
    let (vector, image) = (vec![WIDTH], IMAGES.to_vec());
    for (name, kind, shape) in [
        ("linear, 512 to 128", Linear(WIDTH, 128), &vector),
        ("ReLU", Relu, &vector),
        ("dropout", Dropout(0.5), &vector),
        ("batch norm", BatchNorm(WIDTH), &vector),
        ("convolution, 64 to 64 channels, 3 x 3", Convolution(64, 64), &image),
        ("ReLU", Relu, &image),
        ("batch norm", BatchNorm(64), &image),
        ("max pool, 2 x 2", MaxPool, &image),
        ("mean pool", MeanPool, &image),
    ] {
        for rows in [64, 1000] {
            if rows > 64 && shape.len() > 1 {
                continue;
            }
            let shape: Vec<usize> = std::iter::once(rows).chain(shape.iter().copied()).collect();
            let [ours, other] = seconds(kind, &shape, device).expect("the layer has an output");
            let (ours, other, ratio) = (1e3 * ours, 1e3 * other, other / ours);
            println!("| {name} | {shape:?} | {ours:.3} | {other:.3} | {ratio:.2} |");
        }
    }
}

/// The least seconds of a step of our layer and of candle-nn's, taken in turn.
fn seconds(kind: SingleLayerKind, shape: &[usize], device: &str) -> Result<[f64; 2]> {
    let mut layer =
        SingleLayer::new(kind, device).expect("LABELMILL_LAYERS names a device: cpu or cuda:0");
    let device = layer.device().clone();
    let x = Tensor::randn(0.0_f32, 1.0, shape, &device)?;
    let input = layer.input(&x).expect("there is memory for the input");
    let (ours, other) = (Var::from_tensor(&input)?, Var::from_tensor(&x)?);
    let module = candle_layer(kind, &device)?;
    let mut least = [f64::INFINITY; 2];
    for _ in 0..TIMES {
        let of_ours =
            timed(&device, || Ok(layer.forward(&ours).expect("the layer has an output")))?;
        let of_other = timed(&device, || module(&other))?;
        least = [least[0].min(of_ours), least[1].min(of_other)];
    }
    Ok(least)
}

/// The seconds of a forward pass and of the backward pass of the sum of its outputs.
fn timed(device: &Device, mut forward: impl FnMut() -> Result<Tensor>) -> Result<f64> {
    let steps = if device.is_cpu() { 1 } else { STEPS_ON_GPU };
    device.synchronize()?;
    let start = Instant::now();
    for _ in 0..steps {
        forward()?.sum_all()?.backward()?;
    }
    device.synchronize()?;
    Ok(start.elapsed().as_secs_f64() / steps as f64)
}

type CandleLayer = Box<dyn Fn(&Tensor) -> Result<Tensor>>;

fn candle_layer(kind: SingleLayerKind, device: &Device) -> Result<CandleLayer> {
    let map = VarMap::new();
    let parameters = VarBuilder::from_varmap(&map, DType::F32, device);
    Ok(match kind {
        SingleLayerKind::Linear(from, to) => {
            let linear = candle_nn::linear(from, to, parameters)?;
            Box::new(move |x| linear.forward(x))
        }
        SingleLayerKind::Convolution(from, to) => {
            let config = Conv2dConfig { padding: 1, ..Conv2dConfig::default() };
            let convolution = candle_nn::conv2d(from, to, 3, config, parameters)?;
            Box::new(move |x| convolution.forward(x))
        }
        SingleLayerKind::BatchNorm(n) => {
            let norm = candle_nn::batch_norm(n, BatchNormConfig::default(), parameters)?;
            Box::new(move |x| norm.forward_t(x, true))
        }
        SingleLayerKind::Relu => Box::new(Tensor::relu),
        SingleLayerKind::Dropout(share) => {
            let dropout = Dropout::new(share as f32);
            Box::new(move |x| dropout.forward(x, true))
        }
        SingleLayerKind::MaxPool => Box::new(|x| x.max_pool2d(2)),
        SingleLayerKind::MeanPool => Box::new(|x| x.mean((2, 3))),
    })
}
