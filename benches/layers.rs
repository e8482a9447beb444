//! The time of each layer of a network on the host, forward and backward, beside the same layer of candle-nn.

use std::time::Instant;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::{
    BatchNormConfig, Conv2dConfig, Dropout, Module as _, ModuleT as _, VarBuilder, VarMap,
};
use labelmill::model::neural::{HostLayer, HostLayerKind};

/// Steps of each layer that are timed; the least time counts.
const STEPS: usize = 15;

/// Columns of a hidden layer.
const WIDTH: usize = 512;

/// Channels, rows and columns of images in the middle of a network.
const IMAGES: [usize; 3] = [64, 16, 16];

/// Prints a table of milliseconds for each layer.
///
/// # Panics
/// When a layer fails.
pub fn print() {
    use HostLayerKind::{BatchNorm, Convolution, Dropout, Linear, MaxPool, MeanPool, Relu};
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
            let [ours, other] = seconds(kind, &shape).expect("the layer has an output");
            let (ours, other, ratio) = (1e3 * ours, 1e3 * other, other / ours);
            println!("| {name} | {shape:?} | {ours:.3} | {other:.3} | {ratio:.2} |");
        }
    }
}

/// The least seconds of a step of our layer and of candle-nn's, taken in turn.
fn seconds(kind: HostLayerKind, shape: &[usize]) -> Result<[f64; 2]> {
    let x = Tensor::randn(0.0_f32, 1.0, shape, &Device::Cpu)?;
    let mut host = HostLayer::new(kind).expect("there is memory for the layer");
    let input = HostLayer::input(&x).expect("there is memory for the input");
    let (ours, other) = (Var::from_tensor(&input)?, Var::from_tensor(&x)?);
    let module = candle_layer(kind)?;
    let mut least = [f64::INFINITY; 2];
    for _ in 0..STEPS {
        let start = Instant::now();
        step(&host.forward(&ours).expect("the layer has an output"))?;
        least[0] = least[0].min(start.elapsed().as_secs_f64());
        let start = Instant::now();
        step(&module(&other)?)?;
        least[1] = least[1].min(start.elapsed().as_secs_f64());
    }
    Ok(least)
}

/// The backward pass of the sum of a layer's outputs.
fn step(out: &Tensor) -> Result<()> {
    out.sum_all()?.backward()?;
    Ok(())
}

type CandleLayer = Box<dyn Fn(&Tensor) -> Result<Tensor>>;

fn candle_layer(kind: HostLayerKind) -> Result<CandleLayer> {
    let map = VarMap::new();
    let parameters = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
    Ok(match kind {
        HostLayerKind::Linear(from, to) => {
            let linear = candle_nn::linear(from, to, parameters)?;
            Box::new(move |x| linear.forward(x))
        }
        HostLayerKind::Convolution(from, to) => {
            let config = Conv2dConfig { padding: 1, ..Conv2dConfig::default() };
            let convolution = candle_nn::conv2d(from, to, 3, config, parameters)?;
            Box::new(move |x| convolution.forward(x))
        }
        HostLayerKind::BatchNorm(n) => {
            let norm = candle_nn::batch_norm(n, BatchNormConfig::default(), parameters)?;
            Box::new(move |x| norm.forward_t(x, true))
        }
        HostLayerKind::Relu => Box::new(Tensor::relu),
        HostLayerKind::Dropout(share) => {
            let dropout = Dropout::new(share as f32);
            Box::new(move |x| dropout.forward(x, true))
        }
        HostLayerKind::MaxPool => Box::new(|x| x.max_pool2d(2)),
        HostLayerKind::MeanPool => Box::new(|x| x.mean((2, 3))),
    })
}
