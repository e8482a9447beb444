//! labelmill turns many unreliable annotators' labels into labels you can train on.
//!
//! ```text
//!  files, rows        tables by name       numbers only          posteriors         Parquet files
//!  ┌────────┐  SQL   ┌─────────────┐      ┌─────────────┐      ┌──────────┐      ┌───────────────┐
//!  │ source ├───────▶│    frame    ├─────▶│    model    ├─────▶│  tables  ├─────▶│     sink      │
//!  └────────┘        └─────────────┘      └─────────────┘      └──────────┘      └───────────────┘
//!  DataFusion        ids interned and     vote/, em/:          declared          manifest last
//!  plans, lazy       sorted; sparse CSR   one model, one file  schemas           = the commit
//! ```
//!
//! - [`source`] registers every URL as a DataFusion table and provides the relations (annotations, features, gold) as
//!   queries. It reads nothing but file lists and schemas.
//! - [`frame`] turns record batches into numbers: ids are numbered in sorted order, annotations become two sparse
//!   views, rows that cannot be used are counted by reason. Async stops here.
//! - [`model`] holds the registry. A model sees numbers and returns a [`model::fitted::Fitted`]; all EM models share
//!   one loop and the same sweeps over the annotations.
//! - [`model::calibration`] calibrates posteriors and predictions, where the spec asks for it.
//! - [`decide`] chooses labels from posteriors, and [`gate`] decides whether they may be published.
//! - [`tables`] declares the output tables; a run writes all of them, unless the spec leaves some out.
//! - [`sink`] publishes a run atomically, on local disk and on object stores. Async starts again here.
//!
//! [`pipeline`] is the whole flow on one screen: the first file to open. [`spec`] loads its settings from a TOML file.
//! [`job_context`] provides everything impure (random streams, the clock, cancellation, progress), [`error`] defines the
//! errors; [`escape`] makes text safe for a terminal, and [`redact`] hides the credentials in it. [`metrics`] scores
//! labels against known classes, [`agreement`] annotators against each other, and [`diagnose`] measures what the data cannot support. [`commands`] holds the commands other than `run`: they read published runs, predict
//! with saved classifiers, or simulate annotations for a known truth. [`model`] explains how to add a model.
//!
//! All stages build on these: [`engine`] builds the DataFusion session with its bounds of memory, [`sql`] checks the
//! user's queries and holds labelmill's own, [`store`] opens object stores, [`panics`] describes a caught panic,
//! `regular_file` reads whole local files, and `prefetch` loads memory into the cache ahead of its use. [`cli`] is the command line and the only place that prints.
//! `testing` has the synthetic crowds, the oracle and the conformance suite of the tests; a release build has it only
//! with the feature `testing`.
//!
//! The same input gives the same bytes, whatever the order of its rows and files and the number of threads.

pub mod agreement;
pub mod cli;
pub mod commands;
pub mod decide;
pub mod diagnose;
pub mod engine;
pub mod error;
pub mod escape;
pub mod frame;
pub mod gate;
pub mod job_context;
pub mod metrics;
pub mod model;
pub mod panics;
pub mod pipeline;
pub(crate) mod prefetch;
mod process;
pub mod redact;
pub(crate) mod regular_file;
pub mod simulate;
pub mod sink;
pub mod source;
pub mod spec;
pub mod sql;
pub mod store;
pub mod tables;
#[cfg(any(test, debug_assertions, feature = "testing"))]
pub mod testing;
