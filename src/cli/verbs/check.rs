//! `labelmill check`: says that a run could start.

use crate::cli::environment::load_pipeline;
use crate::cli::shared_args::FileArgs;
use crate::cli::terminal::print_message;
use crate::commands::check::check;
use crate::error::Result;
use crate::job_context::JobContext;

pub(super) async fn command(args: &FileArgs, job: &mut JobContext) -> Result<()> {
    check(&load_pipeline(args)?, job).await?;
    print_message(&format!("{}: the spec and the schemas fit", args.file.display()));
    Ok(())
}
