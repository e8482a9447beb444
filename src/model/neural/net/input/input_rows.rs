//! The input of a network for one batch.

use candle_core::{Device, Result, Tensor};

/// The scaled input of a network, one row after the other, on the host or already on its device.
#[derive(Debug, Clone, Default)]
pub struct InputRows {
    /// The rows; if the device moves images, the numbers of
    /// [`Scaler::move_numbers`](super::scaler::Scaler::move_numbers) follow.
    values: Vec<f32>,
    /// The number of values in all rows.
    len: usize,
    /// The values on the device, if they were copied with the gradient of the batch before.
    copied: Option<Tensor>,
}

impl From<Vec<f32>> for InputRows {
    fn from(rows: Vec<f32>) -> Self {
        Self { len: rows.len(), values: rows, copied: None }
    }
}

impl InputRows {
    /// Rows for a device: with the numbers by which it moves them as images, and with room for the gradient of so many
    /// outputs, which [`InputRows::copy_with`] appends.
    pub(crate) fn for_device(mut rows: Vec<f32>, moves: &[f32], n_outputs: usize) -> Self {
        let len = rows.len();
        rows.reserve_exact(moves.len() + n_outputs);
        rows.extend(moves);
        Self { values: rows, len, copied: None }
    }

    /// Whether the values are on the device.
    #[cfg(test)]
    pub(crate) fn is_copied(&self) -> bool {
        self.copied.is_some()
    }

    /// Copies these values and the gradient of the batch before to the device at once, and returns the gradient there.
    ///
    /// # Why
    /// A copy to a GPU takes the host about 10 us, however few values it has. The input comes first: matrix products want
    /// it at an address that is a multiple of 16 bytes, as that of an allocation is.
    pub(crate) fn copy_with(&mut self, gradient: Vec<f32>, device: &Device) -> Result<Tensor> {
        let (n_input, n_gradient) = (self.values.len(), gradient.len());
        if n_input == 0 {
            return Tensor::from_vec(gradient, n_gradient, device);
        }
        let mut values = std::mem::take(&mut self.values);
        values.extend(gradient);
        let all = Tensor::from_vec(values, n_input + n_gradient, device)?;
        self.copied = Some(all.narrow(0, 0, n_input)?);
        all.narrow(0, n_input, n_gradient)
    }

    /// The rows and the numbers by which they are moved, if they are, on the device.
    pub(crate) fn on_device(self, device: &Device) -> Result<(Tensor, Option<Tensor>)> {
        let all = if let Some(copied) = self.copied {
            copied
        } else {
            let values = self.values.len();
            Tensor::from_vec(self.values, values, device)?
        };
        let moves = all.elem_count() - self.len;
        let moves = (moves > 0).then(|| all.narrow(0, self.len, moves)).transpose()?;
        Ok((all.narrow(0, 0, self.len)?, moves))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(tensor: &Tensor) -> Vec<f32> {
        tensor.to_vec1().unwrap()
    }

    /// Rows without moves, with them, and no rows at all, copied alone and with the gradient 7, 8.
    #[test]
    fn rows_are_the_same_whether_or_not_a_gradient_is_copied_with_them() {
        for (rows, moves) in
            [(vec![1.0, 2.0], vec![]), (vec![1.0, 2.0], vec![3.0]), (vec![], vec![])]
        {
            let mut input = InputRows::for_device(rows.clone(), &moves, 2);
            let alone = input.clone().on_device(&Device::Cpu).unwrap();
            let gradient = input.copy_with(vec![7.0, 8.0], &Device::Cpu).unwrap();
            assert_eq!(numbers(&gradient), [7.0, 8.0]);
            assert_eq!(input.is_copied(), !rows.is_empty());
            for (got, moved_by) in [alone, input.on_device(&Device::Cpu).unwrap()] {
                assert_eq!(numbers(&got), rows);
                assert_eq!(moved_by.as_ref().map(numbers).unwrap_or_default(), moves);
            }
        }
    }
}
