//! Copies of many tensors to one and back.
//!
//! # Why
//! candle launches a copy for each tensor. ResNet-20 has 76 parameters, and a step copies the gradient and the new value of
//! each: 152 launches (`benches/networks.md`).

use candle_core::{Result, Tensor, Var};

#[cfg(feature = "cuda")]
use crate::model::neural::net::gpu::cuda_copies;

/// The values of all tensors, one after the other.
pub(crate) fn joined(tensors: impl Iterator<Item = Tensor>) -> Result<Tensor> {
    let flat = tensors.map(|tensor| tensor.flatten_all()).collect::<Result<Vec<_>>>()?;
    #[cfg(feature = "cuda")]
    if let Some(device) = flat.first().map(Tensor::device).filter(|device| device.is_cuda()) {
        return cuda_copies::gather(&flat, device);
    }
    Tensor::cat(&flat, 0)
}

/// Sets variables to values that follow each other.
pub(crate) fn set_all(vars: &[Var], values: &Tensor) -> Result<()> {
    #[cfg(feature = "cuda")]
    if values.device().is_cuda() {
        return cuda_copies::scatter(values, vars);
    }
    let mut first = 0;
    for var in vars {
        var.set(&values.narrow(0, first, var.elem_count())?.reshape(var.dims())?)?;
        first += var.elem_count();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;
    use crate::model::neural::net::backend::Backend;
    use crate::model::neural::net::testing::{device_of, numbers};

    /// More tensors than a launch on a GPU copies, of which the last is a view.
    #[test]
    fn values_of_many_tensors_follow_each_other_and_return() {
        let device = device_of(Backend::Device(DType::F32));
        let mut want: Vec<f32> = Vec::new();
        let of_size = |n: usize| {
            let values: Vec<f32> = (0..n).map(|i| (want.len() + i) as f32).collect();
            want.extend(&values);
            Tensor::from_vec(values, n, &device).unwrap()
        };
        let mut tensors: Vec<Tensor> = (0..300).map(|n| n * 7 % 11 * 40 + 1).map(of_size).collect();
        let matrix = Tensor::from_vec(vec![1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], (2, 3), &device);
        tensors.push(matrix.unwrap().t().unwrap());
        want.extend([1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        let all = joined(tensors.iter().cloned()).unwrap();
        assert_eq!(numbers(&all), want);
        let vars: Vec<Var> = tensors
            .iter()
            .map(|tensor| Var::zeros(tensor.dims(), DType::F32, &device))
            .collect::<Result<_>>()
            .unwrap();
        // The values begin at the second one of a larger tensor.
        let larger = Tensor::cat(&[&all, &all], 0).unwrap();
        set_all(&vars, &larger.narrow(0, 1, want.len()).unwrap()).unwrap();
        want.rotate_left(1);
        let got: Vec<f32> = vars.iter().flat_map(|var| numbers(var)).collect();
        assert_eq!(got, want);
        assert_eq!(vars[300].dims(), [3, 2]);
    }

    #[test]
    fn fewer_values_than_the_variables_have_are_an_error() {
        let device = device_of(Backend::Device(DType::F32));
        let vars = [Var::zeros(4, DType::F32, &device).unwrap()];
        let values = Tensor::zeros(3, DType::F32, &device).unwrap();
        assert!(set_all(&vars, &values).is_err());
    }
}
