//! Features: one row of numbers per id, with ids numbered in sorted order.

mod matrix;
mod reader;
mod row_bytes;
mod tensor;

use std::sync::Arc;

use arrow::datatypes::Schema;

pub use matrix::{Matrix, MatrixWriter, NumberType, Scratch};
pub(super) use reader::FeatureReader;
pub(super) use tensor::refuse_permuted;

use super::ids::Ids;
use crate::engine::EngineSpec;
use crate::error::Result;

/// The features of one relation.
#[derive(Clone)]
pub struct Features {
    /// The ids, sorted: row `n` of the matrix belongs to id `n`.
    pub ids: Ids,
    /// The names of the columns, one for each number of a row; empty where the numbers are a list.
    pub columns: Vec<String>,
    /// The numbers.
    pub matrix: Arc<Matrix>,
}

impl Scratch {
    /// The scratch space of an engine: half of its memory for features, the other half for queries and the model.
    #[must_use]
    pub fn from_engine(engine: &EngineSpec) -> Self {
        let folder = engine.scratch_folder();
        let budget = Some(engine.memory_bytes() / 2);
        Self { budget, folder, ..Self::default() }
    }
}

impl Features {
    /// The feature row of each of `ids`, `None` where there is none.
    ///
    /// # Errors
    /// When `ids` have another type than those of the features.
    pub fn rows_of(&self, ids: &Ids) -> Result<Vec<Option<u32>>> {
        self.ids.index("instance_id")?.lookup_ids(ids)
    }
}

/// The columns after the id that hold one number each; none where a list holds all.
#[must_use]
pub fn number_columns(schema: &Schema) -> Vec<String> {
    let numbers = schema.fields().iter().skip(1).filter(|field| field.data_type().is_numeric());
    numbers.map(|field| field.name().clone()).collect()
}
