//! What is done to features before the network sees them: scaling, and for images cropping and mirroring.

use rand::Rng as _;

use super::backbone::BackboneSpec;
use super::snapshot::Snapshot;
use crate::error::Result;
use crate::frame::Matrix;
use crate::run::Rng;

/// A deviation below this is no deviation: the column is constant.
const LEAST_DEVIATION: f64 = 1e-8;

/// Scales features to mean 0 and deviation 1 of the rows it was fitted on, and augments images.
#[derive(Debug, Clone, PartialEq)]
pub struct Scaler {
    /// By column, or by channel of an image.
    mean: Vec<f32>,
    /// One over the deviation.
    factor: Vec<f32>,
    /// Neighbouring numbers that share a mean and a factor.
    run: usize,
    input: Vec<usize>,
    standardise: bool,
    pad_crop: usize,
    flip: bool,
}

impl Scaler {
    /// Changes nothing until it is fitted.
    #[must_use]
    pub fn identity(input: &[usize], spec: &BackboneSpec) -> Self {
        let width: usize = input.iter().product();
        let run = if input.len() == 3 { input[1] * input[2] } else { 1 };
        Self {
            mean: vec![0.0; width / run],
            factor: vec![1.0; width / run],
            run,
            input: input.to_vec(),
            standardise: spec.standardise,
            pad_crop: spec.pad_crop,
            flip: spec.flip,
        }
    }

    /// Learns means and deviations from these rows.
    pub fn fit(&mut self, matrix: &Matrix, rows: impl Iterator<Item = u32>) {
        if !self.standardise {
            return;
        }
        let groups = self.mean.len();
        let (mut count, mut mean, mut squares) =
            (0.0, vec![0.0_f64; groups], vec![0.0_f64; groups]);
        let mut row = vec![0.0; matrix.width()];
        // Welford's update by row: sums of squares of large numbers would lose the small ones.
        for n in rows {
            matrix.read(n as usize, &mut row);
            for at in 0..self.run {
                count += 1.0;
                for g in 0..groups {
                    let x = f64::from(row[g * self.run + at]);
                    let before = x - mean[g];
                    mean[g] += before / count;
                    squares[g] += before * (x - mean[g]);
                }
            }
        }
        for g in 0..groups {
            let deviation = (squares[g] / f64::max(count, 1.0)).sqrt();
            self.mean[g] = mean[g] as f32;
            self.factor[g] =
                if deviation > LEAST_DEVIATION { (1.0 / deviation) as f32 } else { 1.0 };
        }
    }

    /// Reads a row, scaled.
    pub fn read(&self, matrix: &Matrix, row: usize, out: &mut [f32]) {
        matrix.read(row, out);
        if !self.standardise {
            return;
        }
        let groups = out.chunks_exact_mut(self.run);
        for ((values, mean), factor) in groups.zip(&self.mean).zip(&self.factor) {
            values.iter_mut().for_each(|v| *v = (*v - mean) * factor);
        }
    }

    /// Moves and mirrors a scaled image at random.
    pub fn augment(&self, image: &mut [f32], rng: &mut Rng) {
        let [channels, height, width] = self.input[..] else { return };
        if self.pad_crop > 0 {
            let mut shift = || rng.random_range(0..=2 * self.pad_crop);
            let (down, right) = (shift(), shift());
            let old = image.to_vec();
            let source = |place: usize, shift: usize, size: usize| {
                (place + shift).checked_sub(self.pad_crop).filter(|s| *s < size)
            };
            for c in 0..channels {
                for y in 0..height {
                    for x in 0..width {
                        let from = source(y, down, height).zip(source(x, right, width));
                        image[(c * height + y) * width + x] =
                            from.map_or(0.0, |(y, x)| old[(c * height + y) * width + x]);
                    }
                }
            }
        }
        if self.flip && rng.random::<bool>() {
            image.chunks_exact_mut(width).for_each(<[f32]>::reverse);
        }
    }

    /// Whether [`Scaler::augment`] does anything.
    #[must_use]
    pub fn augments(&self) -> bool {
        self.pad_crop > 0 || self.flip
    }

    pub(super) fn save(&self, to: &mut Snapshot) {
        to.reals("scaler.mean".to_owned(), vec![self.mean.len()], self.mean.clone());
        to.reals("scaler.factor".to_owned(), vec![self.factor.len()], self.factor.clone());
    }

    pub(super) fn load(&mut self, from: &Snapshot) -> Result<()> {
        self.mean = from.take_reals("scaler.mean", self.mean.len())?;
        self.factor = from.take_reals("scaler.factor", self.factor.len())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Run;

    #[test]
    fn columns_come_out_standardised_and_constant_ones_stay_zero() {
        let matrix = Matrix::from_rows(2, &[1.0, 7.0, 3.0, 7.0]);
        let mut scaler = Scaler::identity(&[2], &BackboneSpec::default());
        scaler.fit(&matrix, 0..2);
        let mut row = [0.0; 2];
        scaler.read(&matrix, 1, &mut row);
        assert_eq!(row, [1.0, 0.0]);
    }

    #[test]
    fn an_image_moves_by_at_most_its_padding() {
        let spec = BackboneSpec { pad_crop: 1, ..BackboneSpec::default() };
        let scaler = Scaler::identity(&[1, 3, 3], &spec);
        let mut rng = Run::new(1).rng("test");
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..100 {
            let mut image = [0.0; 9];
            image[4] = 1.0;
            scaler.augment(&mut image, &mut rng);
            assert_eq!(image.iter().sum::<f32>(), 1.0);
            seen.insert(image.iter().position(|v| *v == 1.0));
        }
        assert_eq!(seen.len(), 9);
    }
}
