//! All integration tests in one binary, so that DataFusion is linked once.

// The pedantic lints are for the library and the program, not for tests.
#![allow(
    clippy::pedantic,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

#[cfg(not(any(debug_assertions, feature = "testing")))]
compile_error!("without debug assertions, add `--features testing`");

mod job;
mod network_job;
mod repository;
mod s3_connection;
mod s3_job;
mod s3_server;
mod schema_keys;
mod support;
mod web_server;
mod writers_place;

mod abstain;
mod agreement;
mod anaesthesia;
mod architecture;
mod arrow_files;
mod calibration;
mod calibration_data;
mod check;
mod cli;
mod column_types;
mod damaged;
mod datasets;
mod degenerate;
mod digest;
mod disks;
mod evaluate;
mod evaluate_refusals;
mod examples;
mod files_of_other_programs;
mod fixtures;
mod foreign;
mod foreign_columns;
mod formats;
mod fuzz;
mod gates;
mod given_tables;
mod gold;
mod gold_classes;
mod gold_options;
mod hostile;
mod ids;
mod images;
mod imports;
mod invariance;
mod keys;
mod kill;
mod limits;
mod listing;
mod locations;
mod named_queries;
mod networks;
mod odd_columns;
mod oracle;
mod pages;
mod pairs;
mod parquet_statistics;
mod predict;
mod predict_columns;
mod random_effects;
mod rejects;
mod s3;
mod s3_faults;
mod s3_leftovers;
mod s3_requests;
mod s3_writers;
mod schemas;
mod secrets;
mod settings;
mod simulate;
mod simulate_inputs;
mod slow_links;
mod sources;
mod spectral;
mod spellings;
mod sql_limits;
mod sql_rights;
mod sql_stores;
mod sqllogic;
#[cfg(target_os = "linux")]
mod starved;
mod store_kinds;
mod suspended;
mod table_parts;
mod tables_that_never_meet;
mod terminal;
mod truth_types;
mod usage;
mod variables;
mod warnings;
mod weighted_votes;
mod whole_files;
mod without_features;
