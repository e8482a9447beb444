//! Seeded synthetic crowds with a known truth.

use rand::Rng as _;
use rand::seq::index::sample;

use crate::job_context::JobContext;

/// The shape of a synthetic crowd.
#[derive(Debug, Clone)]
pub struct CrowdShape {
    /// The number of instances.
    pub instances: u32,
    /// The number of annotators.
    pub annotators: u32,
    /// The number of classes.
    pub classes: u32,
    /// The number of annotations of each instance, by different annotators.
    pub redundancy: u32,
    /// The least and the greatest accuracy of an annotator; errors are uniform over the other classes.
    pub accuracy: (f64, f64),
}

impl Default for CrowdShape {
    fn default() -> Self {
        Self { instances: 200, annotators: 12, classes: 3, redundancy: 5, accuracy: (0.6, 0.9) }
    }
}

/// A synthetic crowd: its annotations, and the truth.
#[derive(Debug, Clone)]
pub struct Synthetic {
    /// (instance, annotator, label)
    pub rows: Vec<(u32, u32, u32)>,
    /// The class of each instance.
    pub truth: Vec<u32>,
    /// The accuracy of each annotator.
    pub accuracy: Vec<f64>,
}

impl CrowdShape {
    /// Draws a crowd of this shape.
    #[must_use]
    pub fn draw(&self, seed: u64) -> Synthetic {
        let job = JobContext::new(seed);
        let mut rng = job.rng("truth");
        let truth: Vec<u32> =
            (0..self.instances).map(|_| rng.random_range(0..self.classes)).collect();
        let mut rng = job.rng("annotators");
        let (low, high) = self.accuracy;
        let accuracy: Vec<f64> =
            (0..self.annotators).map(|_| low + (high - low) * rng.random::<f64>()).collect();
        let mut rng = job.rng("annotations");
        let mut rows = Vec::with_capacity((self.instances * self.redundancy) as usize);
        for (i, class) in (0..self.instances).zip(&truth) {
            let chosen = sample(&mut rng, self.annotators as usize, self.redundancy as usize);
            for r in chosen {
                let right = self.classes == 1 || rng.random::<f64>() < accuracy[r];
                let mut other = || (class + rng.random_range(1..self.classes)) % self.classes;
                rows.push((i, r as u32, if right { *class } else { other() }));
            }
        }
        Synthetic { rows, truth, accuracy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_is_its_seed() {
        let crowd = CrowdShape::default();
        assert_eq!(crowd.draw(1).rows, crowd.draw(1).rows);
        assert_ne!(crowd.draw(1).rows, crowd.draw(2).rows);
    }
}
