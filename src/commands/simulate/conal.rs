//! Common noise: on some instances all annotators make the same mistakes (Chu, Ma and Wang 2021, arXiv:2012.13052).
//!
//! ```text
//! e_r ~ N(0, I_20)                      hidden features of an annotator
//! u_r = W_u e_r,   v_i = W_v x_i        20 numbers each; W_u, W_v ~ N(0, 1/sqrt(numbers that come in))
//! share_ir = sigmoid(u_r . v_i / scale + b)
//! answer ~ common[z_i] with chance share_ir, else own_r[z_i]
//! ```
//! `scale` is the standard deviation of u.v over all pairs.
//!
//! Differs from the paper: one number b, found by bisection, puts the mean share where it is wanted, in place of the
//! bias vectors of both networks, which have the same effect.

use rand::Rng as _;

use super::plan::{CommonNoise, Instances};
use crate::error::{Error, Result};
use crate::frame::Matrix;
use crate::run::{Rng, Run};

/// The size of hidden features and embeddings, as in the paper.
const HIDDEN: usize = 20;

/// Halvings of the interval that holds b: enough to leave nothing of it.
const HALVINGS: usize = 80;

/// The chance of common noise for each annotated instance and annotator.
#[derive(Debug, Clone)]
pub struct Shares {
    annotators: usize,
    /// `[place among the annotated instances, annotator]`.
    values: Vec<f64>,
}

impl CommonNoise {
    /// Draws what annotators are like and how they see each of `instances`.
    ///
    /// # Errors
    /// When there are no features, or the run is cancelled.
    pub(super) fn spread(
        &self,
        truth: Instances<'_>,
        instances: &[u32],
        annotators: usize,
        run: &Run,
    ) -> Result<Shares> {
        let (features, rows) = truth
            .features
            .ok_or_else(|| Error::bug("common noise was planned without features"))?;
        let u = embedded_annotators(annotators, &mut run.rng("annotator features"));
        let mut rng = run.rng("instance embedding");
        let w: Vec<f64> = normals(HIDDEN * features.width(), features.width(), &mut rng);
        let mut values = Vec::with_capacity(instances.len() * annotators);
        let mut x = vec![0.0; features.width()];
        for instance in instances {
            run.cancel.check()?;
            features.read(rows[*instance as usize] as usize, &mut x);
            let v: Vec<f64> = w.chunks(x.len()).map(|row| dot(row, &x)).collect();
            values.extend(u.iter().map(|u| u.iter().zip(&v).map(|(a, b)| a * b).sum::<f64>()));
        }
        let scale = deviation(&values);
        // Features that are all alike tell no pair from another: the share is then the same for all.
        let scale = if scale > 0.0 { scale } else { 1.0 };
        values.iter_mut().for_each(|v| *v /= scale);
        self.shift(&mut values);
        Ok(Shares { annotators, values })
    }

    /// Turns scaled products into chances of the wanted mean.
    fn shift(&self, values: &mut [f64]) {
        if self.proportion <= 0.0 || self.proportion >= 1.0 {
            values.fill(self.proportion.clamp(0.0, 1.0));
            return;
        }
        let mean =
            |b: f64| values.iter().map(|v| sigmoid(v + b)).sum::<f64>() / values.len() as f64;
        let reach = 40.0 + values.iter().fold(0.0_f64, |most, v| most.max(v.abs()));
        let (mut low, mut high) = (-reach, reach);
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(low, high);
            if mean(middle) < self.proportion {
                low = middle;
            } else {
                high = middle;
            }
        }
        values.iter_mut().for_each(|v| *v = sigmoid(*v + low));
    }
}

impl Shares {
    /// The chance for the instance at this place among the annotated ones.
    #[must_use]
    pub fn of(&self, place: usize, annotator: usize) -> f64 {
        self.values[place * self.annotators + annotator]
    }

    /// An annotator's mean chance over the instances of each class, given each annotated instance's class; that over
    /// all instances for a class that has none.
    #[must_use]
    pub fn by_class(
        &self,
        annotator: usize,
        class: impl Iterator<Item = u32>,
        classes: usize,
    ) -> Vec<f64> {
        let (mut sums, mut counts) = (vec![0.0; classes], vec![0_u32; classes]);
        for (place, k) in class.enumerate() {
            sums[k as usize] += self.of(place, annotator);
            counts[k as usize] += 1;
        }
        let all = sums.iter().sum::<f64>() / f64::from(counts.iter().sum::<u32>().max(1));
        let mean = |(sum, n): (&f64, &u32)| if *n == 0 { all } else { sum / f64::from(*n) };
        sums.iter().zip(&counts).map(mean).collect()
    }

    /// The mean over all pairs.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.values.iter().sum::<f64>() / self.values.len().max(1) as f64
    }
}

/// u of every annotator.
fn embedded_annotators(annotators: usize, rng: &mut Rng) -> Vec<Vec<f64>> {
    let w = normals(HIDDEN * HIDDEN, HIDDEN, rng);
    let embed = |rng: &mut Rng| {
        let e: Vec<f64> = (0..HIDDEN).map(|_| normal(rng)).collect();
        w.chunks(HIDDEN).map(|row| row.iter().zip(&e).map(|(a, b)| a * b).sum()).collect()
    };
    (0..annotators).map(|_| embed(rng)).collect()
}

/// Weights of a layer that takes in so many numbers.
fn normals(n: usize, takes: usize, rng: &mut Rng) -> Vec<f64> {
    let deviation = 1.0 / (takes as f64).sqrt();
    (0..n).map(|_| normal(rng) * deviation).collect()
}

/// One draw from N(0, 1), by Box and Muller; the second that they give is not used, so that a draw is two numbers of
/// the stream always.
pub(super) fn normal(rng: &mut Rng) -> f64 {
    // 1 - [0, 1) is never 0.
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.random::<f64>()).cos()
}

fn dot(weights: &[f64], x: &[f32]) -> f64 {
    weights.iter().zip(x).map(|(w, x)| w * f64::from(*x)).sum()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn deviation(values: &[f64]) -> f64 {
    let n = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / n;
    (values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n).sqrt()
}

/// Instances that are drawn rather than read: a Gaussian cloud for each class.
///
/// The paper gives neither size nor spread. With 32 numbers, means from N(0, I) and noise of variance 4 a classifier that
/// knows the means is right on about nine instances in ten.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GaussianBlobs {
    /// Classes, equally likely.
    pub classes: usize,
    /// Instances.
    pub instances: usize,
    /// Numbers in a row of features.
    pub width: usize,
    /// The standard deviation around a class's mean.
    pub deviation: f64,
}

impl GaussianBlobs {
    /// A class for each instance.
    #[must_use]
    pub fn truth(&self, run: &Run) -> Vec<u32> {
        let mut rng = run.rng("truth");
        (0..self.instances).map(|_| rng.random_range(0..self.classes as u32)).collect()
    }

    /// Features around the mean of each instance's class.
    #[must_use]
    pub fn features(&self, truth: &[u32], classes: usize, run: &Run) -> Matrix {
        let mut rng = run.rng("features");
        let means: Vec<f64> = (0..classes * self.width).map(|_| normal(&mut rng)).collect();
        let mut values = Vec::with_capacity(truth.len() * self.width);
        for class in truth {
            let mean = &means[*class as usize * self.width..][..self.width];
            values.extend(mean.iter().map(|m| (m + self.deviation * normal(&mut rng)) as f32));
        }
        Matrix::from_rows(self.width, &values)
    }
}
