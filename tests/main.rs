//! All integration tests in one binary: DataFusion is linked once.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::print_stderr)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

mod job;
mod s3_server;
mod support;

mod adversarial;
mod anaesthesia;
mod architecture;
mod cli;
mod damaged;
mod datasets;
mod fixtures;
mod formats;
mod gates;
mod gold;
mod ids;
mod invariance;
mod kill;
mod oracle;
mod rejects;
mod s3;
mod schemas;
mod sources;
mod sqllogic;
mod variables;
