//! Multinomial logistic regression.
//!
//! ```text
//! s[j] = (x[j] - mean[j]) / deviation[j]              standardised features
//! p[k] prop. to exp(b[k] + sum_j W[k][j] s[j])
//! maximise  sum_i w_i sum_k T[i][k] ln p_i[k] - l2 / 2 * sum_kj W[k][j]^2
//! ```
//! Every class has a row of `W`, and the penalty makes the solution unique up to a constant that is added to all
//! intercepts `b`, which changes no probability; intercepts have no penalty. Means and standard deviations are those of
//! the examples, by their weights; a feature that is constant there is only centred. L-BFGS starts at the last solution,
//! or at zero, and stops where no derivative exceeds [`TOLERANCE`] times the sum of the weights.
//!
//! D. Böhning: Multinomial logistic regression algorithm. Annals of the Institute of Statistical Mathematics 44(1), 1992.
//! doi:10.1007/BF00048682
//!
//! `l2` is scikit-learn's 1 / C, on the standardised features.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Classifier, Examples, predict_rows};
use crate::error::{Error, Result};
use crate::frame::{MAX_RANGES, Matrix};
use crate::job_context::{Cancel, JobContext};
use crate::model::numerics::lbfgs::try_maximise;
use crate::model::numerics::{MIN_RELATIVE_DEVIATION, lbfgs, softmax};
use crate::model::saved::snapshot::Snapshot;

/// The derivative by a parameter that counts as zero, for each unit of weight. With a smaller one, the last steps of
/// L-BFGS would change the objective by less than the rounding of its sums.
const TOLERANCE: f64 = 1e-7;

/// The numbers for each coefficient that a fit holds at once: those of L-BFGS, and the gradient's sums over each range of
/// examples and over all.
const NUMBERS_OF_FIT: usize = lbfgs::NUMBERS_OF_SEARCH + MAX_RANGES + 1;

/// The settings of logistic regression.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogisticSpec {
    /// The weight of the penalty on squared coefficients of standardised features. Raising it pulls probabilities
    /// towards the class shares; many features and few instances need more.
    #[schemars(range(min = 0.0))]
    pub l2: f64,
    /// Iterations of L-BFGS in each fit at most.
    #[schemars(range(min = 1))]
    pub max_iter: u32,
}

impl Default for LogisticSpec {
    fn default() -> Self {
        Self { l2: 1.0, max_iter: 100 }
    }
}

/// A logistic regression with its coefficients.
pub struct LogisticRegression {
    spec: LogisticSpec,
    n_features: usize,
    n_classes: usize,
    scale: Standardisation,
    /// `[class, feature + 1]`: the coefficients of standardised features, then the intercept.
    coefficients: Vec<f64>,
}

/// The mean of each feature, and one over its standard deviation.
struct Standardisation {
    mean: Vec<f64>,
    factor: Vec<f64>,
}

impl LogisticRegression {
    /// A regression whose coefficients are zero.
    #[must_use]
    pub fn new(spec: LogisticSpec, n_features: usize, n_classes: usize) -> Self {
        let scale = Standardisation::none(n_features);
        let coefficients = vec![0.0; n_classes * (n_features + 1)];
        Self { spec, n_features, n_classes, scale, coefficients }
    }

    /// The penalised log-likelihood of the examples at some coefficients; adds its gradient to `gradient`.
    fn objective(&self, examples: Examples<'_>, coefficients: &[f64], gradient: &mut [f64]) -> f64 {
        let (n, width) = (coefficients.len(), self.n_features + 1);
        // The last sum is the log-likelihood.
        let sums = examples.sum(n + 1, width + 2 * self.n_classes, |i, row, buffer, sums| {
            let (s, of_classes) = buffer.split_at_mut(width);
            let (logits, p) = of_classes.split_at_mut(self.n_classes);
            self.scale.apply(row, s);
            logits_of(coefficients, s, logits);
            let log_sum = softmax(logits, p);
            let (weight, target) = (examples.weights[i], examples.target(i));
            let (gradient, likelihood) = sums.split_at_mut(n);
            for (k, gradient) in gradient.chunks_exact_mut(width).enumerate() {
                likelihood[0] += weight * target[k] * (logits[k] - log_sum);
                let residual = weight * (target[k] - p[k]);
                gradient.iter_mut().zip(&*s).for_each(|(g, s)| *g += residual * s);
            }
        });
        gradient.copy_from_slice(&sums[..n]);
        let rows = gradient.chunks_exact_mut(width).zip(coefficients.chunks_exact(width));
        for (gradient, coefficients) in rows {
            let penalised = gradient[..self.n_features].iter_mut().zip(coefficients);
            penalised.for_each(|(g, c)| *g -= self.spec.l2 * c);
        }
        sums[n] + self.penalty(coefficients)
    }

    /// Writes P(class) of a row of features, `[feature]`, into `p`, `[class]`.
    fn predict_row(&self, row: &[f32], p: &mut [f64]) {
        let (mut s, mut logits) = (vec![0.0; self.n_features + 1], vec![0.0; self.n_classes]);
        self.scale.apply(row, &mut s);
        logits_of(&self.coefficients, &s, &mut logits);
        softmax(&logits, p);
    }

    /// Refuses a fit that needs more than half of the run's memory.
    ///
    /// # Errors
    /// When the fit needs more.
    fn check_memory(&self, job: &JobContext) -> Result<()> {
        let bytes = self.coefficients.len().saturating_mul(NUMBERS_OF_FIT * size_of::<f64>());
        if bytes <= job.share_of_memory(2, usize::MAX) {
            return Ok(());
        }
        let (features, classes) = (self.n_features, self.n_classes);
        Err(Error::spec("a logistic regression of so many coefficients does not fit in memory")
            .at("model.classifier.kind")
            .found(format!("{bytes} bytes for {features} features and {classes} classes"))
            .help("raise engine.memory_limit, give fewer features, or choose another kind"))
    }

    /// The term of the penalty in the objective.
    fn penalty(&self, coefficients: &[f64]) -> f64 {
        let rows = coefficients.chunks_exact(self.n_features + 1);
        let squares = rows.flat_map(|row| &row[..self.n_features]).map(|c| c * c);
        -0.5 * self.spec.l2 * squares.sum::<f64>()
    }
}

impl Classifier for LogisticRegression {
    fn fit(&mut self, examples: Examples<'_>, job: &JobContext) -> Result<()> {
        self.check_memory(job)?;
        self.scale = Standardisation::fit(examples);
        let mut coefficients = std::mem::take(&mut self.coefficients);
        let objective = |at: &[f64], gradient: &mut [f64]| {
            job.cancel.check()?;
            Ok(self.objective(examples, at, gradient))
        };
        let tolerance = TOLERANCE * examples.total_weight();
        let fitted = try_maximise(&mut coefficients, objective, tolerance, self.spec.max_iter);
        self.coefficients = coefficients;
        fitted.map(|_| ())
    }

    fn predict(&self, matrix: &Matrix, rows: &[u32], p: &mut [f64], cancel: &Cancel) -> Result<()> {
        predict_rows(matrix, rows, p, cancel, |row, p| self.predict_row(row, p))
    }

    fn log_prior(&self) -> f64 {
        self.penalty(&self.coefficients)
    }

    fn save(&self, to: &mut Snapshot) -> Result<()> {
        to.f64s("mean".to_owned(), self.scale.mean.clone());
        to.f64s("factor".to_owned(), self.scale.factor.clone());
        to.f64s("coefficients".to_owned(), self.coefficients.clone());
        Ok(())
    }

    fn load(&mut self, from: &Snapshot, _: usize, _: &JobContext) -> Result<()> {
        let take = |name: &str, own: &Vec<f64>| from.take_n_f64s(name, own.len());
        let scale = Standardisation {
            mean: take("mean", &self.scale.mean)?,
            factor: take("factor", &self.scale.factor)?,
        };
        self.coefficients = take("coefficients", &self.coefficients)?;
        self.scale = scale;
        Ok(())
    }
}

impl Standardisation {
    /// The standardisation that leaves features as they are.
    fn none(n_features: usize) -> Self {
        Self { mean: vec![0.0; n_features], factor: vec![1.0; n_features] }
    }

    fn fit(examples: Examples<'_>) -> Self {
        let (n, total) = (examples.width(), examples.total_weight());
        let mut mean = examples.sum(n, 0, |i, row, _, sums| {
            let weight = examples.weights[i];
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += weight * f64::from(*x));
        });
        mean.iter_mut().for_each(|sum| *sum /= total);
        let squares = examples.sum(n, 0, |i, row, _, sums| {
            let weight = examples.weights[i];
            for ((sum, x), mean) in sums.iter_mut().zip(row).zip(&mean) {
                *sum += weight * (f64::from(*x) - mean).powi(2);
            }
        });
        let factor = |(sum, mean): (f64, &f64)| {
            let deviation = (sum / total).sqrt();
            if deviation > MIN_RELATIVE_DEVIATION * mean.abs() { 1.0 / deviation } else { 1.0 }
        };
        let factor = squares.into_iter().zip(&mean).map(factor).collect();
        Self { mean, factor }
    }

    /// Writes the standardised features, then 1 for the intercept, into `s`.
    fn apply(&self, row: &[f32], s: &mut [f64]) {
        let scaled = row.iter().zip(&self.mean).zip(&self.factor);
        let scaled = scaled.map(|((x, mean), factor)| (f64::from(*x) - mean) * factor);
        s.iter_mut().zip(scaled.chain([1.0])).for_each(|(s, scaled)| *s = scaled);
    }
}

/// `logits[k] = coefficients[k] . s`
fn logits_of(coefficients: &[f64], s: &[f64], logits: &mut [f64]) {
    for (logit, row) in logits.iter_mut().zip(coefficients.chunks_exact(s.len())) {
        *logit = dot(row, s);
    }
}

/// The inner product, in lanes that the processor adds in parallel.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (a, a_rest) = a.as_chunks::<8>();
    let (b, b_rest) = b.as_chunks::<8>();
    let mut lanes = [0.0; 8];
    for (a, b) in a.iter().zip(b) {
        (0..8).for_each(|lane| lanes[lane] += a[lane] * b[lane]);
    }
    let rest = a_rest.iter().zip(b_rest).map(|(a, b)| a * b);
    lanes.into_iter().chain(rest).sum()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Owned, assert_near, uneven};
    use super::*;

    fn regression(l2: f64) -> LogisticRegression {
        LogisticRegression::new(LogisticSpec { l2, ..LogisticSpec::default() }, 2, 3)
    }

    /// The probabilities of scikit-learn 1.7's `LogisticRegression(C=1 / 0.8)` on the features standardised by weight,
    /// with each example once for each class; Newton's method in NumPy gives the same to 1e-9.
    #[test]
    fn probabilities_are_those_of_scikit_learn() {
        let mut regression = regression(0.8);
        let p = uneven().fit(&mut regression);
        let want = [
            [0.256_177_393_2, 0.412_718_786_5, 0.331_103_820_3],
            [0.148_317_519_2, 0.731_848_464_2, 0.119_834_016_6],
            [0.056_925_469_8, 0.388_998_892_3, 0.554_075_637_9],
            [0.770_708_740_6, 0.134_060_276_1, 0.095_230_983_3],
            [0.233_267_816_2, 0.317_320_604_8, 0.449_411_579_1],
            [0.351_433_097_0, 0.604_130_442_0, 0.044_436_461_0],
        ];
        assert_near(&p, want.as_flattened(), 1e-6);
        let mut new = [0.0; 3];
        regression.predict_row(&[10.0, -50.0], &mut new);
        assert_near(&new, &[0.999_774_287, 0.000_221_681, 0.000_004_032], 1e-6);
    }

    /// The score equations: for each class k, sum_i w_i (T[i][k] - p_i[k]) = 0 for the intercept, and sum_i w_i (T[i][k]
    /// - p_i[k]) s_i[j] = l2 W[k][j] for the feature j, here in the users' units of the features.
    // keys: model.classifier.logistic_regression.l2
    #[test]
    fn the_score_equations_hold() {
        let data = uneven();
        for l2 in [0.0, 0.01, 0.8, 20.0] {
            let mut regression = regression(l2);
            let p = data.fit(&mut regression);
            let mut scores = vec![0.0; 9];
            let mut row = [0.0; 2];
            for i in 0..6 {
                data.matrix.read(i, &mut row);
                let mut s = [0.0; 3];
                regression.scale.apply(&row, &mut s);
                for k in 0..3 {
                    let residual = data.weights[i] * (data.targets[3 * i + k] - p[3 * i + k]);
                    (0..3).for_each(|j| scores[3 * k + j] += residual * s[j]);
                }
            }
            let want = |at: usize| if at % 3 < 2 { l2 * regression.coefficients[at] } else { 0.0 };
            let want: Vec<f64> = (0..9).map(want).collect();
            assert_near(&scores, &want, 1e-6);
        }
    }

    /// One feature of two values and no penalty: the probabilities are the weighted shares at each value, 0.25 and 0.8.
    // keys: model.classifier.logistic_regression.max_iter
    #[test]
    fn a_saturated_model_gives_the_weighted_shares() {
        let features = [-1.0, -1.0, 3.0, 3.0];
        let targets = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]];
        let data = Owned::new(1, &features, targets.as_flattened(), &[1.0, 3.0, 4.0, 1.0]);
        let fit = |max_iter| {
            let spec = LogisticSpec { l2: 0.0, max_iter };
            data.fit(&mut LogisticRegression::new(spec, 1, 2))
        };
        assert_near(&fit(100), &[0.25, 0.75, 0.25, 0.75, 0.8, 0.2, 0.8, 0.2], 1e-6);
        assert!((fit(1)[0] - 0.25).abs() > 1e-3, "one iteration does not suffice");
    }

    #[test]
    fn a_weight_of_two_is_two_examples_and_a_soft_target_is_one_example_for_each_class() {
        let data = uneven();
        let p = data.fit(&mut regression(0.8));
        assert_near(&data.doubled().fit(&mut regression(0.8)), &p, 1e-7);
        assert_near(&data.split().fit(&mut regression(0.8)), &p, 1e-7);
    }

    /// A constant feature of one thousand is centred; another unit of a feature changes nothing.
    #[test]
    fn probabilities_depend_on_no_unit_and_no_constant() {
        let data = uneven();
        let p = data.fit(&mut regression(0.8));
        let mut features = Vec::new();
        let mut row = [0.0; 2];
        for i in 0..6 {
            data.matrix.read(i, &mut row);
            features.extend([1e6 * row[0], 1000.1, 1e-6 * row[1] - 1.0]);
        }
        let other = Owned::new(3, &features, &data.targets, &data.weights);
        let spec = LogisticSpec { l2: 0.8, ..LogisticSpec::default() };
        let mut regression = LogisticRegression::new(spec, 3, 3);
        assert_near(&other.fit(&mut regression), &p, 1e-3);
        (0..3).for_each(|k| assert_eq!(regression.coefficients[4 * k + 1], 0.0));
    }

    /// Neighbouring f32s vary, unless almost all weight is on one of them: then it could be rounding.
    #[test]
    fn a_feature_is_constant_if_it_varies_by_no_more_than_rounding() {
        let factor = |values: [f32; 2], weights: [f64; 2]| {
            let data = Owned::new(1, &values, &[1.0, 0.0, 0.0, 1.0], &weights);
            Standardisation::fit(data.examples()).factor
        };
        let below_one = 1.0 - f32::EPSILON / 2.0;
        assert_eq!(factor([below_one, 1.0], [1.0, 1.0]), [4.0 / f64::from(f32::EPSILON)]);
        assert_eq!(factor([1.0, 1.0 + f32::EPSILON], [0.97, 0.03]), [1.0]);
    }

    /// Without an iteration to spare, a second fit goes on from the first one.
    #[test]
    fn a_further_fit_continues() {
        let data = uneven();
        let spec = LogisticSpec { l2: 0.8, max_iter: 1 };
        let mut regression = LogisticRegression::new(spec, 2, 3);
        let first = data.fit(&mut regression);
        for _ in 0..200 {
            regression.fit(data.examples(), &JobContext::new(1)).unwrap();
        }
        let mut last = vec![0.0; 18];
        regression.predict(&data.matrix, &data.rows, &mut last, &Cancel::default()).unwrap();
        assert!((first[0] - last[0]).abs() > 1e-3);
        assert_near(&last[..3], &[0.256_177, 0.412_719, 0.331_104], 1e-5);
    }

    /// Nine coefficients of 8 bytes: 23 numbers for each in L-BFGS, and 17 sums, are 2880 bytes, half of the memory.
    #[test]
    fn coefficients_beyond_half_of_the_memory_are_refused() {
        let fit = |bytes| {
            regression(1.0).fit(uneven().examples(), &JobContext::new(1).with_memory(bytes))
        };
        assert!(fit(5760).is_ok());
        let error = fit(5759).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        let error = error.to_string();
        assert!(error.contains("found: 2880 bytes for 2 features and 3 classes\n"), "{error}");
        assert!(error.contains("engine.memory_limit"), "{error}");
    }
}
