//! Tensors for the tests of layers, and their comparison element by element.

use std::sync::LazyLock;

use candle_core::backprop::GradStore;
use candle_core::{Device, Tensor, Var};

use crate::model::neural::device::gpu;
use crate::model::neural::net::backend::Backend;

/// The device on which tests run the operations of a backend. Those that are meant for a GPU run on one where the build
/// is for CUDA and the machine has one, and otherwise on the CPU.
pub(super) fn device_of(backend: Backend) -> Device {
    static GPU: LazyLock<Device> = LazyLock::new(|| {
        if cfg!(feature = "cuda") { gpu(0).unwrap_or(Device::Cpu) } else { Device::Cpu }
    });
    if backend == Backend::Host { Device::Cpu } else { GPU.clone() }
}

/// `x` on the device of a backend; its gradient goes back to that of `x`.
pub(super) fn on_device_of(backend: Backend, x: &Tensor) -> Tensor {
    x.to_device(&device_of(backend)).unwrap()
}

/// `x` on the host; its gradient goes back to the device of `x`.
pub(super) fn on_host_again(x: &Tensor) -> Tensor {
    x.to_device(&Device::Cpu).unwrap()
}

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
