//! `labelmill explain`: prints what a run would do.

use crate::cli::environment::load_pipeline;
use crate::cli::shared_args::FileArgs;
use crate::cli::terminal::print_result;
use crate::commands::explain::explain;
use crate::error::Result;
use crate::job_context::JobContext;
use crate::redact::redacted;

pub(super) async fn command(args: &FileArgs, job: &mut JobContext) -> Result<()> {
    let text = explain(&load_pipeline(args)?, job).await?;
    print_result(redacted(&text).trim_end())
}
