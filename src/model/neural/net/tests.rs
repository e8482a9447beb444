//! Networks with all their heads, on both backends.

use candle_core::DType;
use candle_core::backprop::GradStore;

use super::*;
use crate::model::neural::net::heads::Outputs;
use crate::model::neural::net::layers::Activation;
use crate::model::neural::net::testing::device_of;

const STEP: f32 = 1e-2;

const BACKENDS: [Backend; 2] = [Backend::Host, Backend::Device(DType::F32)];

fn network(backend: Backend) -> Network {
    let spec = BackboneSpec {
        hidden: vec![5, 4],
        activation: Activation::Tanh,
        dropout: 0.3,
        ..BackboneSpec::default()
    };
    let head = |name, from, widths: &[usize]| Head { name, from, widths: widths.to_vec() };
    let named =
        vec![head("inner", HeadInput::Hidden, &[3, 2]), head("outer", HeadInput::Features, &[2])];
    let heads = Heads { classifier: true, hidden: true, named };
    let shape = NetShape { features: vec![3], classes: 2 };
    let (job, device) = (JobContext::new(3), device_of(backend));
    let net = Network::new(&spec, Precision::F32, &heads, &shape, &job, &device).unwrap();
    Network { backend, ..net }
}

fn outputs(net: &Network, mode: &mut Mode<'_>) -> ForwardPass {
    let features: Vec<f32> = (0..18).map(|n| (n * 7 % 11) as f32 * 0.2 - 1.0).collect();
    net.forward(features, mode).unwrap()
}

/// The gradient of a weighted sum of all heads with respect to every parameter of an mlp with batch norms and
/// dropout, compared with finite differences of the sum; on a GPU all outputs are copied at once.
#[test]
fn gradients_are_the_slopes_of_a_sum_of_all_heads() {
    BACKENDS.map(network).iter().for_each(gradients_are_slopes);
}

fn gradients_are_slopes(net: &Network) {
    let job = JobContext::new(1);
    let uneven = |n: usize| (0..n).map(|n| (n * 5 % 7) as f64 * 0.3 - 0.8).collect::<Vec<_>>();
    let gradient = Outputs {
        rows: 6,
        logits: uneven(12),
        hidden: uneven(24),
        named: vec![uneven(12), uneven(12)],
        ..Outputs::default()
    };
    let training =
        |net: &Network| outputs(net, &mut Mode::Training(&mut job.rng("one dropout for all")));
    let loss = |net: &Network| {
        let out = training(net).to_host().unwrap();
        let heads = [(&out.logits, &gradient.logits), (&out.hidden, &gradient.hidden)];
        let named = out.named.iter().zip(&gradient.named);
        let cells = heads.into_iter().chain(named).flat_map(|(out, g)| out.iter().zip(g));
        cells.map(|(out, g)| out * g).sum::<f64>()
    };
    let pass = training(net);
    assert_eq!(pass.joined.is_some(), net.backend != Backend::Host);
    let found = pass.backward(&gradient, &mut InputRows::default()).unwrap();
    let names = ["hidden0", "hidden1", "classifier", "inner0", "inner1", "outer0"];
    for (name, part) in names.iter().flat_map(|name| [(name, "weight"), (name, "bias")]) {
        let name = format!("{name}.{part}");
        let var = net.parameters.var(&name).unwrap();
        let got = found.get(&var).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let values = var.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for at in 0..got.len() {
            let moved = |by: f32| {
                let mut values = values.clone();
                values[at] += by;
                var.set(&Tensor::from_vec(values, var.dims(), var.device()).unwrap()).unwrap();
                loss(net)
            };
            let want = (moved(STEP) - moved(-STEP)) / f64::from(2.0 * STEP);
            moved(0.0);
            let error = (f64::from(got[at]) - want).abs();
            assert!(error < 2e-3 * want.abs().max(1.0), "{name}[{at}]: {}, {want}", got[at]);
        }
    }
}

/// Each output is the same on both backends, though their values follow each other on a GPU.
#[test]
fn outputs_that_are_copied_at_once_are_those_of_each_head() {
    let [host, gpu] =
        BACKENDS.map(|backend| outputs(&network(backend), &mut Mode::Fixed).to_host().unwrap());
    let all = |out: &Outputs| [&out.logits[..], &out.hidden, &out.named.concat()].concat();
    assert_eq!((gpu.rows, gpu.logits.len(), gpu.hidden.len()), (6, 12, 24));
    assert_eq!((gpu.named[0].len(), gpu.named[1].len()), (12, 12));
    for (got, want) in all(&gpu).iter().zip(all(&host)) {
        assert!((got - want).abs() < 1e-6, "{got}, expected {want}");
    }
}

/// Images that are copied together with their moves become what the host makes of them.
#[test]
fn images_and_their_moves_are_copied_at_once() {
    let spec = BackboneSpec { pad_crop: 2, flip: true, ..BackboneSpec::default() };
    let scaler = Scaler::identity(&[2, 3, 5], &spec);
    let net = Network { input: vec![2, 3, 5], scaler, ..network(BACKENDS[1]) };
    let mut values: Vec<f32> = (1..=8 * 30).map(|n| n as f32).collect();
    let rng = &mut JobContext::new(1).rng("moves");
    let moves: Vec<_> = (0..8).map(|_| net.scaler.draw_move(rng)).collect();
    let rows = InputRows::for_device(values.clone(), &net.scaler.move_numbers(&moves), 0);
    let got = net.tensor(rows).unwrap();
    assert_eq!(got.dims(), [8, 2, 3, 5]);
    values.chunks_exact_mut(30).zip(moves).for_each(|(i, by)| net.scaler.augment(i, by));
    assert_eq!(got.flatten_all().unwrap().to_vec1::<f32>().unwrap(), values);
}

/// The gradients are the same to the bit, and so are the outputs for the next batch. Only a GPU copies its input ahead.
#[test]
fn the_next_input_is_copied_with_the_gradients() {
    for backend in BACKENDS {
        let net = network(backend);
        let gradient = Outputs {
            rows: 6,
            logits: (0..12).map(f64::from).collect(),
            hidden: vec![0.5; 24],
            named: vec![vec![0.25; 12], vec![-1.0; 12]],
            ..Outputs::default()
        };
        let backward = |rows: &mut InputRows| {
            let mut rng = JobContext::new(1).rng("dropout");
            let pass = outputs(&net, &mut Mode::Training(&mut rng));
            pass.backward(&gradient, rows).unwrap()
        };
        let wanted = backward(&mut InputRows::default());
        let mut ahead = InputRows::from(vec![0.3, -0.7, 0.2, 1.5, 0.0, -2.0]);
        let alone = ahead.clone();
        let with_rows = backward(&mut ahead);
        let weight = net.parameters.var("hidden0.weight").unwrap();
        let of_weight = |all: &GradStore| testing::numbers(all.get(&weight).unwrap());
        assert_eq!(of_weight(&with_rows), of_weight(&wanted));
        assert_eq!(ahead.is_copied(), backend != Backend::Host);
        let out = |rows| net.forward(rows, &mut Mode::Fixed).unwrap().to_host().unwrap();
        let (got, want) = (out(ahead), out(alone));
        assert_eq!((got.rows, got.logits, got.named), (2, want.logits, want.named));
    }
}

/// The outputs of a prediction are no nodes of a graph, so that a layer's input is freed as soon as its output is
/// computed.
#[test]
fn a_pass_that_predicts_keeps_no_graph() {
    let net = network(Backend::Host);
    let pass = outputs(&net, &mut Mode::Fixed);
    let all = pass.classifier.iter().chain(&pass.named).chain(&pass.hidden);
    assert_eq!(all.map(Tensor::track_op).collect::<Vec<_>>(), [false; 4]);
    let pass = outputs(&net, &mut Mode::Training(&mut JobContext::new(1).rng("dropout")));
    assert!(pass.classifier.iter().chain(&pass.named).chain(&pass.hidden).all(Tensor::track_op));
}
