//! The second stage: Arrow batches with ids of any type become numbers and sparse [`Annotations`].
//!
//! Ids are interned on arrival and numbered once in sorted order ([`Ids`]); rows that cannot be used are counted in
//! [`Rejects`]; several questions become several frames. A model sees numbers only.

mod annotations;
mod classes;
mod collect;
mod evidence;
mod features;
mod frame_spec;
mod given;
mod gold;
mod ids;
mod memory;
mod question_frame;
mod question_set;
mod rejects;

pub use annotations::blocks::{ITEMS_PER_BLOCK, MAX_RANGES, ranges_of_instances};
pub use annotations::joint::{Joint, JointQuestion};
pub use annotations::offsets::split_by;
#[cfg(feature = "neural")]
pub(crate) use annotations::offsets::{Cursors, count, prefix_sum};
pub use annotations::{
    AnnotationRows, Annotations, Dims, Duplicates, InstanceRange, Repeated, WeightIter, WeightSlice,
};
pub(crate) use classes::MAX_LABELS;
pub use collect::questions::{check_columns, check_listed_labels};
pub use collect::relations::{Relations, collect, read_features, rows_in};
pub use evidence::{Evidence, QuestionFeatures};
pub use features::{Features, Matrix, MatrixWriter, NumberType, Scratch, number_columns};
pub use frame_spec::FrameSpec;
pub use given::{GivenConfusion, GivenPredictions, GivenTables};
pub use gold::role::Role;
pub use gold::truth::{TrueCrowd, Truth};
pub use gold::{Gold, UnknownGold};
pub(crate) use ids::IdIndex;
pub use ids::Ids;
pub(crate) use ids::exact_text::cast_exact_text;
pub use ids::id_columns::{check_type_of_features, check_types_of};
pub use memory::estimate::{
    EstimateMemory, EstimateOfJob, MemoryEstimate, QuestionSizes, dense_memory_estimate,
};
pub use memory::read_all::read_all;
pub use memory::reservation::BYTES_PER_ANNOTATION;
pub use question_frame::{Frame, QuestionLeftOut};
pub use question_set::QuestionSet;
pub use rejects::{KEPT_CHARACTERS, Reason, Rejects};
