//! A pair of annotators: how far they agree, against chance and against their confusion matrices.

/// Two annotators with common instances.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AnnotatorPair {
    /// The annotator with the lower number.
    pub annotator: u32,
    /// The other one.
    pub other: u32,
    /// The number of common instances that were compared.
    pub n: u32,
    /// The share of them with equal labels.
    pub agreement: f64,
    /// The agreement by chance, from the shares of the labels of each.
    pub by_chance: f64,
    /// Cohen's kappa; `None` where one label alone was given.
    pub kappa: Option<f64>,
    /// The correlation of their labels, for two labels Pearson's; 0 where one of them gave one label alone.
    pub correlation: f64,
    /// Its variance if their labels were paired at random.
    pub variance: f64,
    /// The agreement beyond the expected one.
    pub excess: f64,
    /// The excess in standard errors.
    pub z_score: f64,
    /// Whether they give nearly the same labels, beyond what their skills explain.
    pub is_near_copy: bool,
}

/// A label of one annotator and a label of another, for one instance.
#[derive(Clone, Copy)]
pub(super) struct AnnotationPair {
    pub annotators: [u32; 2],
    pub labels: [u32; 2],
    pub expected: f32,
    /// The product of the shares of both labels.
    pub weight: f32,
}

impl AnnotatorPair {
    /// The annotations of one pair, in the order of instances.
    pub(super) fn compare(compared: &[AnnotationPair]) -> Self {
        let (mut n, mut agreed, mut expected, mut variance) = (0.0, 0.0, 0.0, 0.0);
        for two in compared {
            let (p, weight) = (f64::from(two.expected), f64::from(two.weight));
            n += weight;
            agreed += weight * f64::from(two.labels[0] == two.labels[1]);
            expected += weight * p;
            variance += weight * p * (1.0 - p);
        }
        let chance = PairByChance::compute(compared, n);
        let kappa = (chance.agreement < 1.0 - 1e-9)
            .then(|| (agreed / n - chance.agreement) / (1.0 - chance.agreement));
        let scale = (chance.spread[0] * chance.spread[1]).sqrt();
        let is_varied = scale > 0.0;
        Self {
            annotator: compared[0].annotators[0],
            other: compared[0].annotators[1],
            // The shares of an answer sum to 1 up to rounding.
            #[allow(clippy::cast_sign_loss)]
            n: n.round() as u32,
            agreement: agreed / n,
            by_chance: chance.agreement,
            kappa,
            correlation: if is_varied { (agreed / n - chance.agreement) / scale } else { 0.0 },
            variance: if is_varied && n > 1.5 {
                chance.variance / (scale * scale * (n - 1.0))
            } else {
                0.0
            },
            excess: (agreed - expected) / n,
            // A quarter more, as for one more label by chance: matrices that explain all leave no variance.
            z_score: (agreed - expected) / (variance + 0.25).sqrt(),
            is_near_copy: false,
        }
    }
}

/// The agreement of two annotators if their labels were paired at random.
struct PairByChance {
    agreement: f64,
    /// Of one of their instances.
    variance: f64,
    /// The probability that two labels of one annotator differ.
    spread: [f64; 2],
}

impl PairByChance {
    /// With the shares `p` and `q` of labels, the agreement is `sum p q`. That of `n` pairs has the variance
    /// `sum p q - sum p q (p + q) + (sum p q)^2` by `n - 1` over all their permutations (Fleiss, Cohen and Everitt 1969).
    fn compute(compared: &[AnnotationPair], n: f64) -> Self {
        let mut shares: Vec<(u32, [f64; 2])> = Vec::with_capacity(2 * compared.len());
        for two in compared {
            let share = f64::from(two.weight);
            shares.push((two.labels[0], [share, 0.0]));
            shares.push((two.labels[1], [0.0, share]));
        }
        // Stable, so that sums are in the order of instances.
        shares.sort_by_key(|(label, _)| *label);
        let (mut agreement, mut both, mut squares) = (0.0, 0.0, [0.0, 0.0]);
        for equal in shares.chunk_by(|x, y| x.0 == y.0) {
            let sum = |side: usize| equal.iter().map(|(_, share)| share[side]).sum::<f64>();
            let (p, q) = (sum(0) / n, sum(1) / n);
            agreement += p * q;
            both += p * q * (p + q);
            squares = [squares[0] + p * p, squares[1] + q * q];
        }
        // A rounding error is no spread.
        let spread = squares.map(|sum: f64| if sum < 1.0 - 1e-9 { 1.0 - sum } else { 0.0 });
        let variance = (agreement - both + agreement * agreement).max(0.0);
        Self { agreement, variance, spread }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_close;

    #[test]
    fn a_pair_has_the_agreement_kappa_and_excess_worked_out_by_hand() {
        let two = |x, y| AnnotationPair {
            annotators: [3, 5],
            labels: [x, y],
            expected: 0.5,
            weight: 1.0,
        };
        let found = AnnotatorPair::compare(&[two(0, 0), two(0, 0), two(1, 1), two(0, 1)]);
        assert_eq!((found.annotator, found.other, found.n), (3, 5, 4));
        // By chance 3/4 * 2/4 + 1/4 * 2/4 = 1/2; the variance is 4 * 1/4, and 1/4.
        let got = [found.agreement, found.kappa.unwrap(), found.excess, found.z_score];
        assert_close(&got, &[0.75, 0.5, 0.25, 1.0 / 1.25_f64.sqrt()], 1e-12, "pair");
        // Pearson's of (0, 0, 1, 0) and (0, 0, 1, 1) is 1 / sqrt(3); paired at random it has the variance 1 / 3.
        let got = [found.correlation, found.variance];
        assert_close(&got, &[1.0 / 3.0_f64.sqrt(), 1.0 / 3.0], 1e-12, "correlation");
        for n in 1..100 {
            let alone = AnnotatorPair::compare(&vec![two(1, 1); n]);
            assert_eq!((alone.kappa, alone.correlation, alone.variance), (None, 0.0, 0.0));
        }
    }
}
