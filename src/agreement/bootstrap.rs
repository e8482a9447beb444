//! The interval of a statistic: blocks of instances are drawn with replacement, as many as there are, and the statistic is
//! computed again.

use rand::Rng as _;
use rand_chacha::rand_core::SeedableRng;
use rayon::prelude::*;

use crate::job_context::Rng;

/// The most draws, and the fewest where a draw is expensive.
const MAX_DRAWS: usize = 400;
const MIN_DRAWS: usize = 100;

/// The numbers that all draws may add up.
const MAX_NUMBERS: usize = 1 << 26;

/// The draws beyond each end of the interval, of a thousand.
const TAIL: usize = 25;

/// The draws, each with its own seed.
pub(super) struct Bootstrap {
    blocks: usize,
    seeds: Vec<u64>,
}

impl Bootstrap {
    /// Draws of so many blocks, each of which adds up `size` numbers.
    pub(super) fn new(blocks: usize, size: usize, rng: &mut Rng) -> Self {
        let n = (MAX_NUMBERS / size.max(1)).clamp(MIN_DRAWS, MAX_DRAWS);
        Self { blocks, seeds: (0..n).map(|_| rng.random()).collect() }
    }

    /// The (low, high) of each of `n` statistics, which `compute` gives for the number of times that each block was drawn; it
    /// may leave out the last ones.
    pub(super) fn intervals(
        &self,
        n: usize,
        compute: impl Fn(&[f64]) -> Vec<f64> + Sync,
    ) -> Vec<Option<(f64, f64)>> {
        let of_draw = |seed: &u64| {
            let mut rng = Rng::seed_from_u64(*seed);
            let mut weights = vec![0.0; self.blocks];
            for _ in 0..self.blocks {
                weights[rng.random_range(0..self.blocks)] += 1.0;
            }
            compute(&weights)
        };
        let draws: Vec<Vec<f64>> = self.seeds.par_iter().with_min_len(8).map(of_draw).collect();
        let of_statistic = |k: usize| {
            let values = draws.iter().filter_map(|draw| draw.get(k)).copied();
            self.interval(values.filter(|value| value.is_finite()).collect())
        };
        (0..n).map(of_statistic).collect()
    }

    fn interval(&self, mut values: Vec<f64>) -> Option<(f64, f64)> {
        if values.is_empty() || 2 * values.len() < self.seeds.len() {
            return None;
        }
        values.sort_unstable_by(f64::total_cmp);
        let last = values.len() - 1;
        let tail = (TAIL * last + 500) / 1000;
        Some((values[tail], values[last - tail]))
    }
}
