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
//! Differs from the paper: one number b, found by Newton's method, puts the mean share where it is wanted, in place of the
//! bias vectors of both networks, which have the same effect.

use rand::Rng as _;
use rand_distr::{Distribution, StandardNormal};
use rayon::prelude::*;

use super::plan::{CommonNoise, Instances};
use crate::error::{Error, Result};
use crate::frame::Matrix;
use crate::run::{Rng, Run};

/// The size of hidden features and embeddings, as in the paper.
const HIDDEN: usize = 20;

/// Steps of Newton's method at most; it needs about ten.
const MAX_STEPS: usize = 100;

/// A smaller step of b ends the search.
const SMALL_STEP: f64 = 1e-12;

/// Instances whose pairs with all annotators one task computes.
const BLOCK: usize = 256;

/// 20 numbers of an annotator or of an instance.
type Embedding = [f64; HIDDEN];

/// The chance of common noise for each annotated instance and annotator.
///
/// # Why
/// Each chance is computed where it is asked for: a value for each pair of 100 k instances and 10 k annotators would be
/// 8 GB, of which the answers need a few thousandths.
#[derive(Debug, Clone)]
pub struct Shares {
    instances: Vec<Embedding>,
    annotators: Vec<Embedding>,
    form: Form,
}

/// How a product u.v becomes a chance.
#[derive(Debug, Clone, Copy)]
enum Form {
    /// The same chance for every product.
    Constant(f64),
    /// sigmoid(product / scale + b)
    Sigmoid { scale: f64, b: f64 },
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
        let annotators = embedded_annotators(annotators, &mut run.rng("annotator features"));
        let mut rng = run.rng("instance embedding");
        let w: Vec<f64> = normals(HIDDEN * features.width(), features.width(), &mut rng);
        let mut x = vec![0.0; features.width()];
        let embed = |instance: &u32| -> Result<Embedding> {
            run.cancel.check()?;
            features.read(rows[*instance as usize] as usize, &mut x);
            let mut v = [0.0; HIDDEN];
            v.iter_mut().zip(w.chunks(x.len())).for_each(|(v, row)| *v = dot(row, &x));
            Ok(v)
        };
        let instances = instances.iter().map(embed).collect::<Result<_>>()?;
        let form = Form::Constant(self.proportion.clamp(0.0, 1.0));
        let mut shares = Shares { instances, annotators, form };
        if self.proportion > 0.0 && self.proportion < 1.0 {
            shares.form = shares.fitted(self.proportion, run)?;
        }
        Ok(shares)
    }
}

impl Shares {
    /// The chance for the instance at this place among the annotated ones.
    #[must_use]
    pub fn of(&self, place: usize, annotator: usize) -> f64 {
        match self.form {
            Form::Constant(share) => share,
            Form::Sigmoid { scale, b } => {
                sigmoid(product(&self.annotators[annotator], &self.instances[place]) / scale + b)
            }
        }
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

    /// The form with the mean chance `proportion`: b by Newton's method, within an interval that holds it.
    fn fitted(&self, proportion: f64, run: &Run) -> Result<Form> {
        let n = (self.instances.len() * self.annotators.len()).max(1) as f64;
        let [sum] = self.sums(run, |product| [product])?;
        let mean = sum / n;
        let [squares] = self.sums(run, |product| [(product - mean) * (product - mean)])?;
        let deviation = (squares / n).sqrt();
        // Features that are all alike tell no pair from another: the share is then the same for all.
        let scale = if deviation > 0.0 { deviation } else { 1.0 };
        let longest =
            |all: &[Embedding]| all.iter().map(|e| product(e, e).sqrt()).fold(0.0, f64::max);
        let reach = 40.0 + longest(&self.annotators) * longest(&self.instances) / scale;
        let (mut low, mut high, mut b) = (-reach, reach, 0.0);
        for _ in 0..MAX_STEPS {
            let [chances, slopes] = self.sums(run, |product| {
                let chance = sigmoid(product / scale + b);
                [chance, chance * (1.0 - chance)]
            })?;
            let missing = proportion - chances / n;
            if missing > 0.0 {
                low = b;
            } else {
                high = b;
            }
            let step = missing * n / slopes;
            if step.abs() <= SMALL_STEP {
                break;
            }
            let is_inside = b + step > low && b + step < high;
            b = if is_inside { b + step } else { f64::midpoint(low, high) };
        }
        Ok(Form::Sigmoid { scale, b })
    }

    /// The sums of `terms` of the product u.v over all pairs, block by block of instances in parallel; the blocks are added
    /// in their order.
    fn sums<const N: usize>(
        &self,
        run: &Run,
        terms: impl Fn(f64) -> [f64; N] + Sync,
    ) -> Result<[f64; N]> {
        let add = |mut sums: [f64; N], more: [f64; N]| {
            sums.iter_mut().zip(more).for_each(|(sum, term)| *sum += term);
            sums
        };
        let of_block = |block: &[Embedding]| -> Result<[f64; N]> {
            run.cancel.check()?;
            let pairs = block.iter().flat_map(|v| self.annotators.iter().map(|u| product(u, v)));
            Ok(pairs.map(&terms).fold([0.0; N], add))
        };
        let blocks: Vec<[f64; N]> =
            self.instances.par_chunks(BLOCK).map(of_block).collect::<Result<_>>()?;
        Ok(blocks.into_iter().fold([0.0; N], add))
    }
}

/// u of every annotator.
fn embedded_annotators(annotators: usize, rng: &mut Rng) -> Vec<Embedding> {
    let w = normals(HIDDEN * HIDDEN, HIDDEN, rng);
    let embed = |rng: &mut Rng| {
        let mut e = [0.0; HIDDEN];
        e.iter_mut().for_each(|e| *e = normal(rng));
        let mut u = [0.0; HIDDEN];
        u.iter_mut()
            .zip(w.chunks(HIDDEN))
            .for_each(|(u, row)| *u = row.iter().zip(&e).map(|(a, b)| a * b).sum());
        u
    };
    (0..annotators).map(|_| embed(rng)).collect()
}

fn product(u: &Embedding, v: &Embedding) -> f64 {
    u.iter().zip(v).map(|(a, b)| a * b).sum()
}

/// Weights of a layer that takes in so many numbers.
fn normals(n: usize, takes: usize, rng: &mut Rng) -> Vec<f64> {
    let deviation = 1.0 / (takes as f64).sqrt();
    (0..n).map(|_| normal(rng) * deviation).collect()
}

/// One draw from N(0, 1).
pub(super) fn normal(rng: &mut Rng) -> f64 {
    StandardNormal.sample(rng)
}

fn dot(weights: &[f64], x: &[f32]) -> f64 {
    weights.iter().zip(x).map(|(w, x)| w * f64::from(*x)).sum()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
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
