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
use crate::model::neural::objective::crowd_net::Task;
use crate::model::neural::params::annotator_params::Gathered;
use crate::model::neural::params::param_table::ParamTable;

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

/// The gradients of the logits of a block's rows.
pub(crate) enum BlockGradient {
    /// With weights by annotator, their sum, `[annotator]`.
    Sum(Vec<f64>),
    /// With weights by instance, each row with its own. The blocks of a batch hold a number for each row and annotator:
    /// 512 MiB for 16 384 rows and 4 096 annotators.
    Rows(Vec<(RowLogits, Vec<f64>)>),
}

impl BlockGradient {
    /// Adds a row with the gradient of its logits.
    pub(crate) fn push(&mut self, row: RowLogits, d_logits: Vec<f64>) {
        match self {
            Self::Sum(sum) => add(sum, &d_logits),
            Self::Rows(rows) => rows.push((row, d_logits)),
        }
    }
}

impl HeadWeights {
    /// The initial tables.
    pub(crate) fn tables(self, task: &Task<'_>) -> Vec<ParamTable> {
        let (annotators, hidden) = (task.dims.annotators, task.hidden);
        if self.by == WeightsBy::Annotator {
            return vec![ParamTable::of_model(TABLES[0], vec![0.0; annotators])];
        }
        let width = self.bottleneck.unwrap_or(hidden);
        let mut tables = vec![ParamTable::of_model(TABLES[0], vec![0.0; (width + 1) * annotators])];
        if self.bottleneck.is_some() {
            let mut rng = task.job.rng("bottleneck of the heads' weights");
            let bound = 1.0 / (hidden.max(1) as f32).sqrt();
            let mut values: Vec<f32> =
                (0..hidden * width).map(|_| (2.0 * rng.random::<f32>() - 1.0) * bound).collect();
            values.resize((hidden + 1) * width, 0.0);
            tables.push(ParamTable::of_model(TABLES[1], values));
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

    /// The gradients of a block without rows.
    pub(crate) fn block(self, annotators: usize) -> BlockGradient {
        match self.by {
            WeightsBy::Annotator => BlockGradient::Sum(vec![0.0; annotators]),
            WeightsBy::Instance => BlockGradient::Rows(Vec::new()),
        }
    }

    /// Adds the gradients of the tables to `gradient`, given those of the logits of a batch's blocks.
    ///
    /// # Why
    /// With weights by instance the table has a row of all annotators for each hidden unit. Its gradient is computed once,
    /// row by row in parallel, and not once for each block of instances. Sums are taken over the instances of a block and
    /// then over the blocks in order, so that threads change no bit.
    pub(crate) fn backward(
        self,
        tables: &Gathered,
        blocks: &[BlockGradient],
        gradient: &mut Gathered,
    ) {
        let mut rows_of_blocks = Vec::new();
        for block in blocks {
            match block {
                BlockGradient::Sum(sum) => add(&mut gradient[WEIGHTS], sum),
                BlockGradient::Rows(rows) => rows_of_blocks.push(rows.as_slice()),
            }
        }
        let Some((_, first)) = rows_of_blocks.iter().copied().flatten().next() else { return };
        let annotators = first.len();
        let rows_of_table = tables[WEIGHTS].par_chunks(annotators);
        let of_table = gradient[WEIGHTS].par_chunks_mut(annotators).zip(rows_of_table).enumerate();
        // [unit of z, row of the batch]
        let d_z: Vec<Vec<f64>> = of_table
            .map(|(unit, (d_weights, weights))| {
                let mut d_z = Vec::new();
                for rows in &rows_of_blocks {
                    let mut sum = vec![0.0; annotators];
                    for (row, d_logits) in *rows {
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
        for rows in rows_of_blocks {
            let mut sum = vec![0.0; tables[BOTTLENECK].len()];
            for (row, _) in rows {
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
            let form = HeadWeights { by, bottleneck: None };
            let mut block = form.block(2);
            for d_logits in [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]] {
                let row = form.logits(&tables, 2, &[0.5, 0.25]);
                block.push(row, d_logits.to_vec());
            }
            let held: Vec<Vec<f64>> = match block {
                BlockGradient::Sum(sum) => vec![sum],
                BlockGradient::Rows(rows) => rows.into_iter().map(|(_, own)| own).collect(),
            };
            assert_eq!(held, wanted, "{by:?}");
        }
    }
}
