//! The matrix of each pair of an instance and an annotator, and what the annotations say about the classes.

use std::ops::Range;

use crate::frame::Dims;
use crate::model::neural::numerics::{at_least, log_softmax, softmax};
use crate::model::neural::objective::batch_context::{BatchContext, Gradient};

/// The index of the head that gives an instance's difficulty, and of the one that gives an annotator's competence.
const DIFFICULTY: usize = 0;
const COMPETENCE: usize = 0;

/// The index of the table of the matrix that all pairs share.
pub(super) const COMMON: usize = 0;

/// A responsibility below this changes no derivative.
const MIN_RESPONSIBILITY: f64 = 1e-12;

/// The matrices of the pairs of a batch.
pub(super) struct PairMatrices<'a> {
    context: &'a BatchContext<'a>,
    dims: Dims,
    /// The length L of the latent axis.
    latent: usize,
    /// The common scores and the competence of each annotator, `[annotator, question, class, label, latent]`.
    scores: Vec<f64>,
    /// The competence of each annotator, in the same shape.
    competence: Vec<f64>,
}

impl<'a> PairMatrices<'a> {
    pub(super) fn new(context: &'a BatchContext<'a>, latent: usize) -> Self {
        let dims = context.dims;
        let (n, width) = (context.batch.annotators.len(), context.gathered[COMMON].len());
        let mut competence = vec![0.0; n * width];
        for of_learner in context.others.iter().filter(|learner| learner.rows > 0) {
            let own = of_learner.named[COMPETENCE].iter();
            competence.iter_mut().zip(own).for_each(|(sum, c)| *sum += c);
        }
        let mut scores = context.gathered[COMMON].repeat(n);
        scores.iter_mut().zip(&competence).for_each(|(score, c)| *score += c);
        Self { context, dims, latent, scores, competence }
    }

    fn cells(&self) -> usize {
        self.dims.classes * self.dims.labels
    }

    /// The number of scores of all questions.
    fn width(&self) -> usize {
        self.context.gathered[COMMON].len()
    }

    /// The scores of the question of row `b` among those of all questions.
    fn of_question(&self, b: usize) -> Range<usize> {
        let n = self.cells() * self.latent;
        let first = self.context.batch.question(b).map_or(0, |question| question.index * n);
        first..first + n
    }

    /// `G + D + K` of row `b` and an annotator of the batch, `[class, label, latent]`.
    fn sums(&self, b: usize, annotator: usize) -> Vec<f64> {
        let own = self.of_question(b);
        let of_annotator = &self.scores[annotator * self.width()..(annotator + 1) * self.width()];
        let difficulty = &self.context.out.named(DIFFICULTY, b)[own.clone()];
        of_annotator[own].iter().zip(difficulty).map(|(s, d)| s + d).collect()
    }

    /// `ln Q` of row `b` and an annotator of the batch, `[class, label]`.
    pub(super) fn log_matrix(&self, b: usize, annotator: usize) -> Vec<f64> {
        let sums = self.sums(b, annotator);
        let mut shares = vec![0.0; self.latent];
        let mut scores: Vec<f64> = match self.latent {
            1 => sums,
            latent => sums.chunks_exact(latent).map(|own| softmax(own, &mut shares)).collect(),
        };
        let (labels, mut log) = (self.dims.labels, vec![0.0; scores.len()]);
        if let Some(question) = self.context.batch.question(b) {
            for (cell, score) in scores.iter_mut().enumerate() {
                // A label that the question does not have has the probability 0.
                if question.own_label(cell % labels, self.dims.classes).is_none() {
                    *score = f64::NEG_INFINITY;
                }
            }
        }
        for (scores, log) in scores.chunks_exact(labels).zip(log.chunks_exact_mut(labels)) {
            log_softmax(scores, log);
        }
        log
    }

    /// Adds the derivatives of `-weight sum_k g[k] ln Q[k][label]` to those of the difficulty of row `b`, of the
    /// annotator's competence and of the common scores, given `ln Q` of the pair.
    pub(super) fn backward(
        &self,
        (b, annotator, label): (usize, usize, usize),
        weight: f64,
        g: &[f64],
        log_matrix: &[f64],
        gradient: &mut Gradient,
    ) {
        let (labels, latent) = (self.dims.labels, self.latent);
        let (width, first) = (self.width(), self.of_question(b).start);
        let sums = if latent > 1 { self.sums(b, annotator) } else { Vec::new() };
        let mut shares = vec![1.0; latent];
        let Gradient { out, others, tables } = gradient;
        for (k, g) in g.iter().enumerate().filter(|(_, g)| **g > MIN_RESPONSIBILITY) {
            for l in 0..labels {
                let cell = k * labels + l;
                let d = weight * g * (log_matrix[cell].exp() - f64::from(u8::from(l == label)));
                if latent > 1 {
                    softmax(&sums[cell * latent..(cell + 1) * latent], &mut shares);
                }
                for (m, share) in shares.iter().enumerate() {
                    let (at, d) = (first + cell * latent + m, d * share);
                    out.named[DIFFICULTY][b * width + at] += d;
                    tables[COMMON][at] += d;
                    for of_learner in others.iter_mut().filter(|learner| learner.rows > 0) {
                        of_learner.named[COMPETENCE][annotator * width + at] += d;
                    }
                }
            }
        }
    }

    /// The penalty of difficulties, each counted once, and of competences, each weighted by the batch's share of the
    /// annotator; adds its derivatives.
    pub(super) fn penalty(
        &self,
        [of_difficulty, of_competence]: [f64; 2],
        gradient: &mut Gradient,
    ) -> f64 {
        let (batch, width) = (self.context.batch, self.width());
        let of_row = of_difficulty / batch.len().max(1) as f64;
        let mut loss = 0.0;
        let rows = gradient.out.named[DIFFICULTY].chunks_exact_mut(width.max(1));
        for (b, to) in rows.enumerate() {
            let own = self.of_question(b);
            let difficulties = self.context.out.named(DIFFICULTY, b)[own.clone()].iter();
            for (d, to) in difficulties.zip(&mut to[own]) {
                loss += 0.5 * of_row * d * d;
                *to += of_row * d;
            }
        }
        let of_annotator = of_competence / self.dims.instances.max(1) as f64;
        for (r, share) in batch.share.iter().enumerate() {
            let own = r * width..(r + 1) * width;
            let strength = of_annotator * share;
            loss +=
                0.5 * strength * self.competence[own.clone()].iter().map(|c| c * c).sum::<f64>();
            for of_learner in gradient.others.iter_mut().filter(|learner| learner.rows > 0) {
                let to = of_learner.named[COMPETENCE][own.clone()].iter_mut();
                to.zip(&self.competence[own.clone()]).for_each(|(to, c)| *to += strength * c);
            }
        }
        loss
    }

    /// P(class) of a row given its annotations, whose `ln Q` are these, and P(class) before them; and the logarithm of
    /// the probability of all annotations together.
    pub(super) fn joint(&self, b: usize, prior: &[f64], matrices: &[Vec<f64>]) -> (Vec<f64>, f64) {
        let labels = self.dims.labels;
        let mut logs: Vec<f64> =
            prior.iter().map(|p| at_least(*p, f64::MIN_POSITIVE).ln()).collect();
        for (annotation, matrix) in
            self.context.batch.annotations_of_instance(b).iter().zip(matrices)
        {
            let column = matrix.iter().skip(annotation.label as usize).step_by(labels);
            logs.iter_mut().zip(column).for_each(|(log, q)| *log += annotation.weight * q);
        }
        let mut posterior = vec![0.0; logs.len()];
        let sum = softmax(&logs, &mut posterior);
        (posterior, sum)
    }
}
