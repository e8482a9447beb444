//! All integration tests in one binary: DataFusion is linked once.

mod support;

mod anaesthesia;
mod fixtures;
