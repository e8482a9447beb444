//! The devices that networks compute on, and their errors.

use candle_core::{Device, DeviceLocation};

use crate::error::{Error, Result};
use crate::model::fitted::on_cpu;

/// The device of this name: `auto`, `cpu`, `cuda` or `cuda:1`. `auto` is a GPU if one can be used, else the CPU.
///
/// # Errors
/// When this machine has no such device.
pub fn device(name: &str) -> Result<Device> {
    let ordinal = match name {
        "cpu" => return Ok(Device::Cpu),
        "auto" => return Ok(gpu_or_cpu()),
        "cuda" => Some(0),
        other => other.strip_prefix("cuda:").and_then(|n| n.parse().ok()),
    };
    let Some(ordinal) = ordinal else {
        return Err(Error::spec("there is no such device")
            .found(format!("`{name}`"))
            .help("choose \"auto\", \"cpu\" or \"cuda:0\""));
    };
    if !candle_core::utils::cuda_is_available() {
        return Err(Error::spec("this labelmill was built without CUDA")
            .found(format!("`{name}`"))
            .help("build it with `--features cuda`, or choose \"auto\" or \"cpu\""));
    }
    Device::new_cuda(ordinal).map_err(|e| {
        let first = e.to_string().lines().next().unwrap_or_default().to_owned();
        Error::fit(format!("the device cannot be used: {first}")).found(format!("`{name}`"))
    })
}

/// The name of a device, as [`device`] takes it.
pub(crate) fn name_of(device: &Device) -> String {
    match device.location() {
        DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
        _ => on_cpu(),
    }
}

fn gpu_or_cpu() -> Device {
    if !candle_core::utils::cuda_is_available() {
        return Device::Cpu;
    }
    Device::new_cuda(0).unwrap_or_else(|e| {
        tracing::warn!("no GPU can be used, so the CPU computes: {e}");
        Device::Cpu
    })
}

/// Turns an error of candle into one of labelmill. Only the first line is kept, since a backtrace may follow.
pub(crate) fn from_candle<T>(result: candle_core::Result<T>) -> Result<T> {
    result.map_err(|e| {
        let first = e.to_string().lines().next().unwrap_or_default().to_owned();
        Error::fit(format!("the network cannot be computed: {first}"))
    })
}

/// The default device: a GPU if there is one.
pub(crate) fn auto() -> String {
    "auto".to_owned()
}
