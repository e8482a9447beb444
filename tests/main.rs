//! All integration tests in one binary: DataFusion is linked once.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::print_stderr)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

mod s3_server;
mod support;

mod anaesthesia;
mod architecture;
mod datasets;
mod fixtures;
mod invariance;
mod kill;
mod oracle;
mod s3;
