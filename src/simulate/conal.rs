//! Common noise: for some annotations, all annotators share one confusion matrix (Chu, Ma and Wang 2021,
//! arXiv:2012.13052).
//!
//! ```text
//! e_r ~ N(0, I_20)                      hidden features of an annotator
//! u_r = W_u e_r,   v_i = W_v x_i        20 numbers each; W_u, W_v ~ N(0, 1/sqrt(number of inputs))
//! share_ir = sigmoid(u_r . v_i / scale + b)
//! label ~ common[z_i] with probability share_ir, else own_r[z_i]
//! ```
//! `scale` is the standard deviation of u.v over all pairs of instance and annotator.
//!
//! Differs from the paper: one number b, found by Newton's method, gives the mean share its wanted value. It replaces
//! the bias vectors of both networks, which have the same effect.

use rand::Rng as _;
use rand_distr::{Distribution, StandardNormal};
use rayon::prelude::*;

use super::plan::{CommonNoise, Instances};
use crate::error::{Error, Result};
use crate::frame::Matrix;
use crate::job_context::{JobContext, Rng};
use crate::model::numerics::sigmoid;

/// The dimension of hidden features and embeddings, as in the paper.
const HIDDEN: usize = 20;

/// The most steps of Newton's method; it needs about ten.
const MAX_STEPS: usize = 100;

/// A smaller step of b ends the search.
const SMALL_STEP: f64 = 1e-12;

/// The number of instances that one parallel task pairs with all annotators.
const INSTANCES_PER_TASK: usize = 256;

/// The embedding of an annotator or of an instance.
type Embedding = [f64; HIDDEN];

/// The probability of common noise for each pair of annotated instance and annotator.
///
/// # Why
/// Each probability is computed on demand: one value for each pair of 100 k instances and 10 k annotators would take 8
/// GB, of which the annotations need a few thousandths.
#[derive(Debug, Clone)]
pub struct Shares {
    instances: Vec<Embedding>,
    annotators: Vec<Embedding>,
    form: Form,
}

/// How a product u.v becomes a probability.
#[derive(Debug, Clone, Copy)]
enum Form {
    /// The same probability for every product.
    Constant(f64),
    /// sigmoid(product / scale + b)
    Sigmoid { scale: f64, b: f64 },
}

impl CommonNoise {
    /// Draws the embeddings of the annotators and of `instances`, and fits the mean probability.
    ///
    /// # Errors
    /// When there are no features, or the run is cancelled.
    pub(super) fn spread(
        &self,
        truth: Instances<'_>,
        instances: &[u32],
        annotators: usize,
        job: &JobContext,
    ) -> Result<Shares> {
        let (features, rows) = truth
            .features
            .ok_or_else(|| Error::bug("common noise was planned without features"))?;
        let annotators = embedded_annotators(annotators, &mut job.rng("annotator features"));
        let mut rng = job.rng("instance embedding");
        let w: Vec<f64> = normals(HIDDEN * features.width(), features.width(), &mut rng);
        let mut x = vec![0.0; features.width()];
        let embed = |instance: &u32| -> Result<Embedding> {
            job.cancel.check()?;
            features.read(rows[*instance as usize] as usize, &mut x);
            let mut v = [0.0; HIDDEN];
            v.iter_mut().zip(w.chunks(x.len())).for_each(|(v, row)| *v = dot(row, &x));
            Ok(v)
        };
        let instances = instances.iter().map(embed).collect::<Result<_>>()?;
        let form = Form::Constant(self.proportion.clamp(0.0, 1.0));
        let mut shares = Shares { instances, annotators, form };
        if self.proportion > 0.0 && self.proportion < 1.0 {
            shares.form = shares.fitted(self.proportion, job)?;
        }
        Ok(shares)
    }
}

impl Shares {
    /// The probability for the instance at this position among the annotated ones.
    #[must_use]
    pub fn share(&self, position: usize, annotator: usize) -> f64 {
        match self.form {
            Form::Constant(share) => share,
            Form::Sigmoid { scale, b } => {
                sigmoid(product(&self.annotators[annotator], &self.instances[position]) / scale + b)
            }
        }
    }

    /// An annotator's mean probability over the annotated instances of each class; `class` gives the class of each
    /// annotated instance. For a class without instances it is the mean over all of them.
    #[must_use]
    pub fn by_class(
        &self,
        annotator: usize,
        class: impl Iterator<Item = u32>,
        classes: usize,
    ) -> Vec<f64> {
        let (mut sums, mut counts) = (vec![0.0; classes], vec![0_u32; classes]);
        for (position, k) in class.enumerate() {
            sums[k as usize] += self.share(position, annotator);
            counts[k as usize] += 1;
        }
        let all = sums.iter().sum::<f64>() / f64::from(counts.iter().sum::<u32>().max(1));
        let mean = |(sum, n): (&f64, &u32)| if *n == 0 { all } else { sum / f64::from(*n) };
        sums.iter().zip(&counts).map(mean).collect()
    }

    /// The form whose mean probability is `proportion`: b by Newton's method, inside a bracketing interval.
    fn fitted(&self, proportion: f64, job: &JobContext) -> Result<Form> {
        let n = (self.instances.len() * self.annotators.len()).max(1) as f64;
        let [sum] = self.sums(job, |product| [product])?;
        let mean = sum / n;
        let [squares] = self.sums(job, |product| [(product - mean) * (product - mean)])?;
        let deviation = (squares / n).sqrt();
        // With constant products all pairs have the same share.
        let scale = if deviation > 0.0 { deviation } else { 1.0 };
        let longest =
            |all: &[Embedding]| all.iter().map(|e| product(e, e).sqrt()).fold(0.0, f64::max);
        let reach = 40.0 + longest(&self.annotators) * longest(&self.instances) / scale;
        let (mut low, mut high, mut b) = (-reach, reach, 0.0);
        for _ in 0..MAX_STEPS {
            let [chances, slopes] = self.sums(job, |product| {
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

    /// Sums `terms(u.v)` over all pairs. Blocks of instances run in parallel; their sums are added in order.
    fn sums<const N: usize>(
        &self,
        job: &JobContext,
        terms: impl Fn(f64) -> [f64; N] + Sync,
    ) -> Result<[f64; N]> {
        let add = |mut sums: [f64; N], more: [f64; N]| {
            sums.iter_mut().zip(more).for_each(|(sum, term)| *sum += term);
            sums
        };
        let of_block = |block: &[Embedding]| -> Result<[f64; N]> {
            job.cancel.check()?;
            let pairs = block.iter().flat_map(|v| self.annotators.iter().map(|u| product(u, v)));
            Ok(pairs.map(&terms).fold([0.0; N], add))
        };
        let blocks: Vec<[f64; N]> =
            self.instances.par_chunks(INSTANCES_PER_TASK).map(of_block).collect::<Result<_>>()?;
        Ok(blocks.into_iter().fold([0.0; N], add))
    }
}

/// The embedding u of every annotator.
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

/// The weights of a layer with `takes` inputs.
fn normals(n: usize, takes: usize, rng: &mut Rng) -> Vec<f64> {
    let deviation = 1.0 / (takes as f64).sqrt();
    (0..n).map(|_| normal(rng) * deviation).collect()
}

/// One draw from N(0, 1).
///
/// # Why
/// `StandardNormal` is the ziggurat method, which was five times faster here than the Box-Muller transform.
fn normal(rng: &mut Rng) -> f64 {
    StandardNormal.sample(rng)
}

fn dot(weights: &[f64], x: &[f32]) -> f64 {
    weights.iter().zip(x).map(|(w, x)| w * f64::from(*x)).sum()
}

/// Instances that are drawn rather than read: one Gaussian cluster per class.
///
/// The paper states neither their number nor their spread. With 32 features, means from N(0, I) and noise of variance
/// 4, a classifier that knows the means is right on about nine instances in ten.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GaussianBlobs {
    /// Classes, equally likely.
    pub classes: usize,
    /// The number of instances.
    pub instances: usize,
    /// The number of features.
    pub width: usize,
    /// The standard deviation around a class's mean.
    pub deviation: f64,
}

impl GaussianBlobs {
    /// Draws the class of each instance.
    #[must_use]
    pub fn truth(&self, job: &JobContext) -> Vec<u32> {
        let mut rng = job.rng("truth");
        (0..self.instances).map(|_| rng.random_range(0..self.classes as u32)).collect()
    }

    /// Draws features around the mean of each instance's class.
    #[must_use]
    pub fn features(&self, truth: &[u32], classes: usize, job: &JobContext) -> Matrix {
        let mut rng = job.rng("features");
        let means: Vec<f64> = (0..classes * self.width).map(|_| normal(&mut rng)).collect();
        let mut values = Vec::with_capacity(truth.len() * self.width);
        for class in truth {
            let mean = &means[*class as usize * self.width..][..self.width];
            values.extend(mean.iter().map(|m| (m + self.deviation * normal(&mut rng)) as f32));
        }
        Matrix::from_rows(self.width, &values)
    }
}
