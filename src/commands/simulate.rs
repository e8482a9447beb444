//! `labelmill simulate`: draws a crowd with known truth ([`crate::simulate`]).

use super::at_options;
use crate::error::Result;
use crate::job_context::JobContext;
use crate::simulate::{Simulated, Simulation};
use crate::store::StoreSpec;

/// The options in place of the keys of a pipeline file.
const OPTIONS: [(&str, &str); 6] = [
    ("source.tables.truth", "--truth"),
    ("source.features", "--features"),
    ("source.annotations", "--annotations"),
    ("engine.memory_limit", "--memory-limit"),
    ("sink.url", "--output"),
    ("sink.run_id", "--output"),
];

/// Draws a crowd for a truth and publishes it. The same request twice is a no-op.
///
/// # Errors
/// Those of [`crate::simulate::simulate`], at the options of the command.
pub async fn simulate(
    what: &Simulation<'_>,
    stores: &StoreSpec,
    job: &mut JobContext,
) -> Result<Simulated> {
    crate::simulate::simulate(what, stores, job).await.map_err(|e| at_options(e, &OPTIONS))
}
