//! The weights of the heads of a weighted doctor net: the same for all instances, or computed from their features.
//!
//! ```text
//! annotator   w(x) = softmax(a)
//! instance    w(x) = softmax(V z + c)    z = phi(x), or z = U phi(x) + d of a few numbers (a bottleneck)
//! ```
//! a, V, c and d start at zero, so that all heads have the same weight; U is drawn at random.

use rand::Rng as _;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::neural::numerics::{row_times, row_times_backward};
use crate::model::neural::{Gathered, ParamTable, Task};

/// The variables on which the weights of the heads depend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WeightsBy {
    /// The annotator alone (WDN).
    #[default]
    Annotator,
    /// The annotator and the instance (IWDN).
    Instance,
}

/// The form of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeadWeights {
    pub(crate) by: WeightsBy,
    /// The width of z, where it is not phi(x) itself.
    pub(crate) bottleneck: Option<usize>,
}

/// The index of the table of a, or of V and c: `[z + 1, annotator]`, c last.
pub(crate) const WEIGHTS: usize = 1;
/// The index of the table of U and d: `[phi + 1, z]`, d last.
const BOTTLENECK: usize = 2;

/// The names of both tables.
pub(crate) const TABLES: &[&str] = &["weights", "bottleneck"];

/// The logits of one row's weights, and the values that they are computed from.
pub(crate) struct RowLogits {
    /// phi(x) followed by a one.
    input: Vec<f64>,
    /// z followed by a one.
    z: Vec<f64>,
    /// `[annotator]`
    pub(crate) logits: Vec<f64>,
}

/// The rows of a block, each with the gradient of its logits. With weights by annotator it is one row, with the sum of
/// the gradients of all. With weights by instance the blocks of a batch hold a number for each row and annotator: 512
/// MiB for 16 384 rows and 4 096 annotators.
pub(crate) type BlockRows = Vec<(RowLogits, Vec<f64>)>;

impl HeadWeights {
    /// The initial tables.
    pub(crate) fn tables(self, task: &Task<'_>) -> Vec<ParamTable> {
        let (annotators, hidden) = (task.dims.annotators, task.hidden);
        if self.by == WeightsBy::Annotator {
            return vec![ParamTable::shared(TABLES[0], vec![0.0; annotators])];
        }
        let width = self.bottleneck.unwrap_or(hidden);
        let mut tables = vec![ParamTable::shared(TABLES[0], vec![0.0; (width + 1) * annotators])];
        if self.bottleneck.is_some() {
            let mut rng = task.run.rng("bottleneck of the heads' weights");
            let bound = 1.0 / (hidden.max(1) as f32).sqrt();
            let mut values: Vec<f32> =
                (0..hidden * width).map(|_| (2.0 * rng.random::<f32>() - 1.0) * bound).collect();
            values.resize((hidden + 1) * width, 0.0);
            tables.push(ParamTable::shared(TABLES[1], values));
        }
        tables
    }

    /// The logits of a row whose last hidden layer is `hidden`.
    pub(crate) fn logits(self, tables: &Gathered, annotators: usize, hidden: &[f64]) -> RowLogits {
        if self.by == WeightsBy::Annotator {
            let logits = tables[WEIGHTS].clone();
            return RowLogits { input: Vec::new(), z: Vec::new(), logits };
        }
        let input = [hidden, &[1.0]].concat();
        let z = match self.bottleneck {
            None => input.clone(),
            Some(width) => {
                let mut z = vec![0.0; width];
                row_times(&input, &tables[BOTTLENECK], &mut z);
                z.push(1.0);
                z
            }
        };
        let mut logits = vec![0.0; annotators];
        row_times(&z, &tables[WEIGHTS], &mut logits);
        RowLogits { input, z, logits }
    }

    /// Adds a row with the gradient of its logits to its block.
    pub(crate) fn push(self, block: &mut BlockRows, row: RowLogits, d_logits: Vec<f64>) {
        match block.first_mut() {
            Some((_, sum)) if self.by == WeightsBy::Annotator => add(sum, &d_logits),
            _ => block.push((row, d_logits)),
        }
    }

    /// Adds the gradients of the tables to `gradient`, given all rows of a batch with the gradients of their logits.
    ///
    /// # Why
    /// With weights by instance the table has a row of all annotators for each hidden unit. Its gradient is computed once,
    /// row by row in parallel, and not once for each block of instances. Sums are taken over the instances of a block and
    /// then over the blocks in order, so that threads change no bit.
    pub(crate) fn backward(self, tables: &Gathered, blocks: &[BlockRows], gradient: &mut Gathered) {
        if self.by == WeightsBy::Annotator {
            blocks.iter().flatten().for_each(|(_, sum)| add(&mut gradient[WEIGHTS], sum));
            return;
        }
        let Some((_, first)) = blocks.iter().flatten().next() else { return };
        let annotators = first.len();
        let rows_of_table = tables[WEIGHTS].par_chunks(annotators);
        let of_table = gradient[WEIGHTS].par_chunks_mut(annotators).zip(rows_of_table).enumerate();
        // [unit of z, row of the batch]
        let d_z: Vec<Vec<f64>> = of_table
            .map(|(unit, (d_weights, weights))| {
                let mut d_z = Vec::new();
                for block in blocks {
                    let mut sum = vec![0.0; annotators];
                    for (row, d_logits) in block {
                        let (z, mut dot) = (row.z[unit], 0.0);
                        for ((w, d), sum) in weights.iter().zip(d_logits).zip(&mut sum) {
                            dot += w * d;
                            *sum += z * d;
                        }
                        d_z.push(dot);
                    }
                    add(d_weights, &sum);
                }
                d_z
            })
            .collect();
        let Some(width) = self.bottleneck else { return };
        let mut n = 0;
        for block in blocks {
            let mut sum = vec![0.0; tables[BOTTLENECK].len()];
            for (row, _) in block {
                let d_z: Vec<f64> = d_z[..width].iter().map(|of_unit| of_unit[n]).collect();
                let mut d_input = vec![0.0; row.input.len()];
                row_times_backward(&row.input, &tables[BOTTLENECK], &d_z, &mut d_input, &mut sum);
                n += 1;
            }
            add(&mut gradient[BOTTLENECK], &sum);
        }
    }
}

fn add(sum: &mut [f64], terms: &[f64]) {
    sum.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_of_weights_by_annotator_holds_one_sum() {
        let tables = vec![Vec::new(), vec![0.0; 3 * 2]];
        for (by, wanted) in [
            (WeightsBy::Annotator, vec![vec![9.0, 12.0]]),
            (WeightsBy::Instance, vec![vec![1.0, 2.0], vec![3.0, 4.0], vec![5.0, 6.0]]),
        ] {
            let (form, mut block) = (HeadWeights { by, bottleneck: None }, BlockRows::new());
            for d_logits in [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]] {
                let row = form.logits(&tables, 2, &[0.5, 0.25]);
                form.push(&mut block, row, d_logits.to_vec());
            }
            let held: Vec<Vec<f64>> = block.into_iter().map(|(_, d_logits)| d_logits).collect();
            assert_eq!(held, wanted, "{by:?}");
        }
    }
}
