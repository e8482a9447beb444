//! All integration tests in one binary: DataFusion is linked once.

// Tests say what they mean; pedantry is for what ships.
#![allow(clippy::pedantic, clippy::expect_used, clippy::print_stderr, clippy::unwrap_used)]

mod job;
mod s3_server;
mod support;

mod adversarial;
mod anaesthesia;
mod architecture;
mod cli;
mod damaged;
mod datasets;
mod evaluate;
mod fixtures;
mod formats;
mod gates;
mod gold;
mod ids;
mod invariance;
mod kill;
mod networks;
mod oracle;
mod predict;
mod rejects;
mod s3;
mod s3_faults;
mod s3_writers;
mod schemas;
mod simulate;
mod sources;
mod sqllogic;
mod variables;
