//! The scaling of features, and the random crops and mirroring of images, before the network reads them.

use rand::Rng as _;

use crate::error::Result;
use crate::frame::Matrix;
use crate::job_context::Rng;
use crate::model::neural::net::backbone::{BackboneSpec, Scaling};
use crate::model::numerics::MIN_RELATIVE_DEVIATION;
use crate::model::saved::snapshot::Snapshot;

/// Scales features by statistics of the rows it was fitted on, and augments images.
#[derive(Debug, Clone, PartialEq)]
pub struct Scaler {
    /// The mean of each column, or of each channel of an image.
    mean: Vec<f32>,
    /// One over the standard deviation, or over the largest absolute value.
    factor: Vec<f32>,
    /// The number of consecutive values that share a mean and a factor: 1, or the pixels of a channel.
    group_len: usize,
    input: Vec<usize>,
    scaling: Scaling,
    pad_crop: usize,
    flip: bool,
}

/// How one image is cropped and mirrored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ImageMove {
    /// The first row of the crop in the padded image.
    down: usize,
    /// The first column of the crop in the padded image.
    right: usize,
    /// Whether the crop is mirrored afterwards, left to right.
    is_mirrored: bool,
}

impl ImageMove {
    /// For images of this width: the first row of the padded image that is read, the column that the first value of a
    /// row is read from, and the step from each value's column to the next one's.
    pub(crate) fn numbers(self, width: usize) -> [f32; 3] {
        let (last, step) = if self.is_mirrored { (width - 1, -1.0) } else { (0, 1.0) };
        [self.down as f32, (self.right + last) as f32, step]
    }
}

impl Scaler {
    /// A scaler that changes nothing until it is fitted.
    #[must_use]
    pub fn identity(input: &[usize], spec: &BackboneSpec) -> Self {
        let width: usize = input.iter().product();
        let group_len = if input.len() == 3 { input[1] * input[2] } else { 1 };
        Self {
            mean: vec![0.0; width / group_len],
            factor: vec![1.0; width / group_len],
            group_len,
            input: input.to_vec(),
            scaling: spec.scaling,
            pad_crop: spec.pad_crop,
            flip: spec.flip,
        }
    }

    /// Computes means and factors from these rows.
    pub fn fit(&mut self, matrix: &Matrix, rows: impl Iterator<Item = u32>) {
        self.fit_weighted(matrix, rows.map(|row| (row, 1.0)));
    }

    /// Computes means and factors from (row, weight): a row of weight 2 counts as two rows.
    pub fn fit_weighted(&mut self, matrix: &Matrix, rows: impl Iterator<Item = (u32, f64)>) {
        let rows = rows.filter(|(_, weight)| *weight > 0.0);
        match self.scaling {
            Scaling::Standard => self.fit_deviations(matrix, rows),
            Scaling::MaxAbs => {
                let maxima = self.maxima(matrix, rows.map(|(row, _)| row));
                self.divide_by(maxima);
            }
            Scaling::GlobalMaxAbs => {
                let maxima = self.maxima(matrix, rows.map(|(row, _)| row));
                let max = maxima.iter().copied().fold(0.0, f32::max);
                self.divide_by(vec![max; maxima.len()]);
            }
            Scaling::None => {}
        }
    }

    /// The largest absolute value of each column or channel.
    fn maxima(&self, matrix: &Matrix, rows: impl Iterator<Item = u32>) -> Vec<f32> {
        let mut maxima = vec![0.0_f32; self.mean.len()];
        let mut row = vec![0.0; matrix.width()];
        for n in rows {
            matrix.read(n as usize, &mut row);
            for (max, values) in maxima.iter_mut().zip(row.chunks_exact(self.group_len)) {
                *max = values.iter().fold(*max, |max, x| max.max(x.abs()));
            }
        }
        maxima
    }

    /// Divides each column or channel by its number; one of zeros stays as it is.
    fn divide_by(&mut self, maxima: Vec<f32>) {
        for (factor, max) in self.factor.iter_mut().zip(maxima) {
            *factor = if max > 0.0 { (1.0 / max).min(f32::MAX) } else { 1.0 };
        }
    }

    fn fit_deviations(&mut self, matrix: &Matrix, rows: impl Iterator<Item = (u32, f64)>) {
        let groups = self.mean.len();
        let (mut sum, mut mean, mut squares) = (0.0, vec![0.0_f64; groups], vec![0.0_f64; groups]);
        let mut row = vec![0.0; matrix.width()];
        // Welford's algorithm: a plain sum of squares would cancel for large means.
        for (n, weight) in rows {
            matrix.read(n as usize, &mut row);
            for at in 0..self.group_len {
                sum += weight;
                for g in 0..groups {
                    let x = f64::from(row[g * self.group_len + at]);
                    let before = x - mean[g];
                    mean[g] += weight * before / sum;
                    squares[g] += weight * before * (x - mean[g]);
                }
            }
        }
        for g in 0..groups {
            let deviation = (squares[g] / if sum > 0.0 { sum } else { 1.0 }).sqrt();
            let varies = deviation > MIN_RELATIVE_DEVIATION * mean[g].abs();
            self.mean[g] = mean[g] as f32;
            self.factor[g] = if varies { ((1.0 / deviation) as f32).min(f32::MAX) } else { 1.0 };
        }
    }

    /// Reads a row and scales it.
    pub fn read(&self, matrix: &Matrix, row: usize, out: &mut [f32]) {
        matrix.read(row, out);
        if self.scaling == Scaling::None {
            return;
        }
        let groups = out.chunks_exact_mut(self.group_len);
        for ((values, mean), factor) in groups.zip(&self.mean).zip(&self.factor) {
            values.iter_mut().for_each(|v| *v = (*v - mean) * factor);
        }
    }

    /// The scaled features of these rows, one after the other.
    pub(in crate::model::neural) fn read_all(&self, matrix: &Matrix, rows: &[u32]) -> Vec<f32> {
        let mut features = vec![0.0; rows.len() * matrix.width()];
        for (row, out) in rows.iter().zip(features.chunks_exact_mut(matrix.width().max(1))) {
            self.read(matrix, *row as usize, out);
        }
        features
    }

    /// Draws how an image is cropped and mirrored.
    pub(crate) fn draw_move(&self, rng: &mut Rng) -> ImageMove {
        let mut shift = || rng.random_range(0..=2 * self.pad_crop);
        let (down, right) = if self.pad_crop > 0 { (shift(), shift()) } else { (0, 0) };
        ImageMove { down, right, is_mirrored: self.flip && rng.random::<bool>() }
    }

    /// What a device needs to move images: the numbers of each move, then as many numbers from 0 on as an image has rows or
    /// columns.
    pub(crate) fn move_numbers(&self, moves: &[ImageMove]) -> Vec<f32> {
        let [_, height, width] = self.input[..] else { return Vec::new() };
        let positions = (0..height.max(width)).map(|position| position as f32);
        moves.iter().flat_map(|by| by.numbers(width)).chain(positions).collect()
    }

    /// Crops and mirrors a scaled image.
    pub(crate) fn augment(&self, image: &mut [f32], by: ImageMove) {
        let [channels, height, width] = self.input[..] else { return };
        if self.pad_crop > 0 {
            let old = image.to_vec();
            let source = |position: usize, shift: usize, size: usize| {
                (position + shift).checked_sub(self.pad_crop).filter(|s| *s < size)
            };
            for c in 0..channels {
                for y in 0..height {
                    for x in 0..width {
                        let from = source(y, by.down, height).zip(source(x, by.right, width));
                        image[(c * height + y) * width + x] =
                            from.map_or(0.0, |(y, x)| old[(c * height + y) * width + x]);
                    }
                }
            }
        }
        if by.is_mirrored {
            image.chunks_exact_mut(width).for_each(<[f32]>::reverse);
        }
    }

    /// The width of the zero padding on each side of an image before it is cropped.
    pub(crate) fn padding(&self) -> usize {
        self.pad_crop
    }

    /// Whether [`Scaler::augment`] changes images.
    #[must_use]
    pub fn augments(&self) -> bool {
        self.pad_crop > 0 || self.flip
    }

    pub(crate) fn save(&self, to: &mut Snapshot) {
        // The shape has as many axes as the input, so that `(x - mean) * factor` broadcasts.
        let mut shape = vec![self.mean.len()];
        shape.resize(self.input.len(), 1);
        to.f32s("scaler.mean".to_owned(), shape.clone(), self.mean.clone());
        to.f32s("scaler.factor".to_owned(), shape, self.factor.clone());
    }

    pub(crate) fn load(&mut self, from: &Snapshot) -> Result<()> {
        self.mean = from.take_f32s("scaler.mean", self.mean.len())?;
        self.factor = from.take_f32s("scaler.factor", self.factor.len())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job_context::JobContext;

    #[test]
    fn columns_come_out_standardised_and_constant_ones_stay_zero() {
        let matrix = Matrix::from_rows(2, &[1.0, 7.0, 3.0, 7.0]);
        let mut scaler = Scaler::identity(&[2], &BackboneSpec::default());
        scaler.fit(&matrix, 0..2);
        let mut row = [0.0; 2];
        scaler.read(&matrix, 1, &mut row);
        assert_eq!(row, [1.0, 0.0]);
    }

    /// Two columns in small units, the second with a mean of 0, and two that are constant.
    #[test]
    fn a_column_varies_or_not_whatever_its_unit() {
        let rows = [1e-9, -1e-30, 5e-9, 1e9, 3e-9, 1e-30, 5e-9, 1e9];
        let matrix = Matrix::from_rows(4, &rows);
        let mut scaler = Scaler::identity(&[4], &BackboneSpec::default());
        scaler.fit(&matrix, 0..2);
        let mut row = [0.0; 4];
        scaler.read(&matrix, 1, &mut row);
        for (got, want) in row.iter().zip([1.0_f32, 1.0, 0.0, 0.0]) {
            assert!((got - want).abs() < 1e-6, "{row:?}");
        }
        assert_eq!(scaler.factor[2..], [1.0, 1.0]);
    }

    /// The mean of equal values with weights is a rounded quotient, and so not always their value.
    #[test]
    fn equal_values_with_any_weights_are_constant() {
        let matrix = Matrix::from_rows(1, &[1000.1; 3]);
        for n in 1..200 {
            let mut scaler = Scaler::identity(&[1], &BackboneSpec::default());
            let weights = [1.0 / f64::from(n), 0.7, 1e-3];
            scaler.fit_weighted(&matrix, (0..3).zip(weights));
            assert_eq!((scaler.mean[0], scaler.factor[0]), (1000.1, 1.0), "1 / {n}");
        }
    }

    /// One over the smallest f32 is infinite.
    #[test]
    fn the_smallest_values_have_a_finite_factor() {
        let matrix = Matrix::from_rows(1, &[0.0, f32::from_bits(1)]);
        for scaling in [Scaling::Standard, Scaling::MaxAbs, Scaling::GlobalMaxAbs] {
            let spec = BackboneSpec { scaling, ..BackboneSpec::default() };
            let mut scaler = Scaler::identity(&[1], &spec);
            scaler.fit(&matrix, 0..2);
            assert_eq!(scaler.factor, [f32::MAX], "{scaling:?}");
        }
    }

    /// Two images of two channels of three pixels: one channel holds 0, 2, ..., 10 with the standard deviation sqrt(70
    /// / 6), the other 10 and 20 with the standard deviation 5.
    // keys: model.backbone.scaling
    #[test]
    fn channels_of_an_image_are_scaled_each_by_its_own_pixels() {
        let rows = [0.0, 2.0, 4.0, 10.0, 10.0, 10.0, 6.0, 8.0, 10.0, 20.0, 20.0, 20.0];
        let read = |scaling| {
            let matrix = Matrix::from_rows(6, &rows);
            let spec = BackboneSpec { scaling, ..BackboneSpec::default() };
            let mut scaler = Scaler::identity(&[2, 1, 3], &spec);
            scaler.fit(&matrix, 0..2);
            let mut row = [0.0; 6];
            scaler.read(&matrix, 0, &mut row);
            row
        };
        let near = |got: [f32; 6], want: [f32; 6]| {
            for (got, want) in got.iter().zip(want) {
                assert!((got - want).abs() < 1e-6, "{got}, expected {want}");
            }
        };
        near(read(Scaling::Standard), [-1.463_85, -0.878_310, -0.292_770, -1.0, -1.0, -1.0]);
        near(read(Scaling::MaxAbs), [0.0, 0.2, 0.4, 0.5, 0.5, 0.5]);
        near(read(Scaling::GlobalMaxAbs), [0.0, 0.1, 0.2, 0.5, 0.5, 0.5]);
        near(read(Scaling::None), [0.0, 2.0, 4.0, 10.0, 10.0, 10.0]);
    }

    /// Negative values count by their absolute value, and a column of zeros is unchanged.
    #[test]
    fn the_largest_absolute_value_becomes_one() {
        let matrix = Matrix::from_rows(3, &[1.0, -8.0, 0.0, -4.0, 2.0, 0.0]);
        let spec = BackboneSpec { scaling: Scaling::MaxAbs, ..BackboneSpec::default() };
        let mut scaler = Scaler::identity(&[3], &spec);
        scaler.fit(&matrix, 0..2);
        let mut row = [0.0; 3];
        scaler.read(&matrix, 0, &mut row);
        assert_eq!(row, [0.25, -1.0, 0.0]);
    }

    /// The largest absolute value of both columns is 8; a matrix of zeros is unchanged.
    #[test]
    fn one_absolute_value_divides_all_columns() {
        let spec = BackboneSpec { scaling: Scaling::GlobalMaxAbs, ..BackboneSpec::default() };
        let read = |values: &[f32]| {
            let matrix = Matrix::from_rows(2, values);
            let mut scaler = Scaler::identity(&[2], &spec);
            scaler.fit(&matrix, 0..2);
            let mut row = [0.0; 2];
            scaler.read(&matrix, 0, &mut row);
            row
        };
        assert_eq!(read(&[1.0, -2.0, -4.0, -8.0]), [0.125, -0.25]);
        assert_eq!(read(&[0.0; 4]), [0.0; 2]);
    }

    // keys: model.backbone.flip
    #[test]
    fn a_flip_mirrors_every_row_of_every_channel() {
        let spec = BackboneSpec { flip: true, ..BackboneSpec::default() };
        let scaler = Scaler::identity(&[2, 2, 3], &spec);
        let mut rng = JobContext::new(1).rng("test");
        let upright: Vec<f32> = (1_u8..=12).map(f32::from).collect();
        let mirrored = [3.0, 2.0, 1.0, 6.0, 5.0, 4.0, 9.0, 8.0, 7.0, 12.0, 11.0, 10.0];
        let mut flips = 0;
        for _ in 0..100 {
            let mut image = upright.clone();
            scaler.augment(&mut image, scaler.draw_move(&mut rng));
            assert!(image == upright || image == mirrored, "{image:?}");
            flips += u32::from(image == mirrored);
        }
        assert!((30..70).contains(&flips), "{flips}");
    }

    // keys: model.backbone.pad_crop
    #[test]
    fn an_image_moves_by_at_most_its_padding() {
        let spec = BackboneSpec { pad_crop: 1, ..BackboneSpec::default() };
        let scaler = Scaler::identity(&[1, 3, 3], &spec);
        let mut rng = JobContext::new(1).rng("test");
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..100 {
            let mut image = [0.0; 9];
            image[4] = 1.0;
            scaler.augment(&mut image, scaler.draw_move(&mut rng));
            assert_eq!(image.iter().sum::<f32>(), 1.0);
            seen.insert(image.iter().position(|v| *v == 1.0));
        }
        assert_eq!(seen.len(), 9);
    }
}
