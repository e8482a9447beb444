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
//! - [`source`] registers every URL as a DataFusion table and gives the relations of the contract as queries. It reads
//!   nothing but file lists and schemas.
//! - [`frame`] is the border where Arrow and strings end: ids are numbered in sorted order, annotations become two
//!   sparse views, rows that cannot be used are accounted for. Async stops here.
//! - [`model`] holds the registry. A model sees numbers and returns a [`model::fitted::Fitted`]; the EM loop exists
//!   once, and so does each sweep over the annotations.
//! - [`calibration`] makes posteriors and predictions as often right as they say, where that is asked for.
//! - [`decide`] chooses labels from posteriors, and [`gate`] decides whether they may be published.
//! - [`tables`] declares what leaves; every run writes every table.
//! - [`sink`] publishes a run as one, on local disk and on object stores. Async starts again here.
//!
//! [`pipeline`] is the whole flow on one screen: the first file to open. [`spec`] turns a TOML file into it, [`run`]
//! carries what is impure (random streams, the clock, cancellation, progress), [`error`] what went wrong; [`escape`]
//! makes text fit for a terminal, [`redact`] for anybody's eyes. [`metrics`] measures labels against known classes. [`commands`] holds the verbs beside
//! `run`: they read published runs, predict with saved classifiers, or simulate annotations for a known truth. How to
//! add a model is told in [`model`].
//!
//! The same input gives the same bytes, whatever the order of its rows and files and the number of threads.

pub mod calibration;
pub mod cli;
pub mod commands;
pub mod decide;
pub mod engine;
pub mod error;
pub mod escape;
pub mod frame;
pub mod gate;
pub mod metrics;
pub mod model;
pub mod panics;
pub mod pipeline;
pub mod redact;
pub mod run;
pub mod sink;
pub mod source;
pub mod spec;
pub mod sql;
pub mod store;
pub mod tables;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
