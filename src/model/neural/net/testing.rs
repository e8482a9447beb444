//! Tensors for the tests of layers, and their comparison element by element.

use candle_core::backprop::GradStore;
use candle_core::{Device, Tensor, Var};

/// The elements in row-major order.
pub(super) fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// The multiples of `step` modulo 23, as values from -1 to 1.2 in steps of 0.1.
pub(super) fn counted(dims: &[usize], step: usize) -> Tensor {
    let n: usize = dims.iter().product();
    let values = (0..n).map(|n| (n * step % 23) as f32 * 0.1 - 1.0).collect();
    Tensor::from_vec::<_, f32>(values, dims, &Device::Cpu).unwrap()
}

/// The same as a variable, which has a gradient.
pub(super) fn counted_var(dims: &[usize], step: usize) -> Var {
    Var::from_tensor(&counted(dims, step)).unwrap()
}

/// The gradients of the sum of `out` times `slopes`.
pub(super) fn gradients(out: &Tensor, slopes: &Tensor) -> GradStore {
    (out * slopes).unwrap().sum_all().unwrap().backward().unwrap()
}

/// The largest absolute value, or `least` if that is larger.
pub(super) fn largest(tensor: &Tensor, least: f32) -> f32 {
    numbers(tensor).iter().fold(least, |largest, x| largest.max(x.abs()))
}

/// Asserts that both tensors have the same shape, and that no element differs by `allowed` of the wanted one or more.
pub(super) fn assert_near(what: &str, got: &Tensor, want: &Tensor, allowed: impl Fn(f32) -> f32) {
    assert_eq!(got.dims(), want.dims(), "{what}");
    for (at, (got, want)) in numbers(got).iter().zip(numbers(want)).enumerate() {
        assert!((got - want).abs() < allowed(want), "{what}[{at}]: {got}, {want}");
    }
}
