//! Random crops and mirroring of images on a device.

use candle_core::{DType, Result, Tensor};

/// Images `[image, channel, row, column]`, padded with this many zeros on each side, cropped to their size and mirrored.
/// The three numbers of an image in `moves` are those of `ImageMove::numbers`: its first row, its first column, and the
/// step from column to column. `places` are the numbers from 0 on, at least as many as an image has rows or columns: they
/// are copied to the device with the images.
pub(crate) fn augment(
    images: &Tensor,
    moves: &Tensor,
    positions: &Tensor,
    padding: usize,
) -> Result<Tensor> {
    let (count, channels, height, width) = images.dims4()?;
    let (moves, positions) = (moves.to_dtype(DType::I64)?, positions.to_dtype(DType::I64)?);
    let number = |n| moves.narrow(1, n, 1)?.reshape((count, 1, 1));
    let (first_row, first_column, step) = (number(0)?, number(1)?, number(2)?);
    let rows =
        positions.narrow(0, 0, height)?.reshape((1, height, 1))?.broadcast_add(&first_row)?;
    let columns = positions.narrow(0, 0, width)?.reshape((1, 1, width))?.broadcast_mul(&step)?;
    let columns = columns.broadcast_add(&first_column)?;
    let first_pixels = rows.affine((width + 2 * padding) as f64, 0.0)?;
    let pixels = first_pixels.broadcast_add(&columns)?;
    let pixels = pixels.reshape((count, 1, height * width))?;
    let pixels = pixels.broadcast_as((count, channels, height * width))?.contiguous()?;
    let padded = images.pad_with_zeros(2, padding, padding)?.pad_with_zeros(3, padding, padding)?;
    padded.flatten_from(2)?.gather(&pixels, 2)?.reshape(images.shape())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job_context::JobContext;
    use crate::model::neural::net::backbone::BackboneSpec;
    use crate::model::neural::net::backend::Backend;
    use crate::model::neural::net::input::scaler::Scaler;
    use crate::model::neural::net::testing::device_of;

    /// Every image is moved as on the host: with crops, mirrored, both, and with neither.
    #[test]
    fn images_are_moved_as_on_the_host() {
        let (count, shape) = (64, [2, 3, 5]);
        let device = device_of(Backend::Device(DType::F32));
        for (pad_crop, flip) in [(2, true), (4, false), (0, true), (0, false)] {
            let spec = BackboneSpec { pad_crop, flip, ..BackboneSpec::default() };
            let scaler = Scaler::identity(&shape, &spec);
            let rng = &mut JobContext::new(1).rng("moves");
            let mut images: Vec<f32> = (1..=count * 30).map(|n| n as f32).collect();
            let moves: Vec<_> = (0..count).map(|_| scaler.draw_move(rng)).collect();
            let numbers: Vec<f32> = moves.iter().flat_map(|by| by.numbers(5)).collect();
            let on_device = augment(
                &Tensor::from_slice(&images, (count, 2, 3, 5), &device).unwrap(),
                &Tensor::from_vec(numbers, (count, 3), &device).unwrap(),
                &Tensor::new(&[0.0_f32, 1.0, 2.0, 3.0, 4.0], &device).unwrap(),
                pad_crop,
            )
            .unwrap();
            let original = images.clone();
            images.chunks_exact_mut(30).zip(moves).for_each(|(i, by)| scaler.augment(i, by));
            assert_eq!(on_device.flatten_all().unwrap().to_vec1::<f32>().unwrap(), images);
            assert_eq!(images != original, pad_crop > 0 || flip);
        }
    }
}
