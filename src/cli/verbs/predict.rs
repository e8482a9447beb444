//! `labelmill predict`: predicts new features with a saved classifier.

use crate::cli::environment::job_with;
use crate::cli::publish::PublishingJob;
use crate::cli::shared_args::{JobArgs, amount, store};
use crate::commands::predict::{Prediction, predict};
use crate::engine::EngineSpec;
use crate::error::Result;
use crate::process::signals::Signals;
use crate::source::ColumnsSpec;

/// Predictions of a trained model.
#[derive(Debug, clap::Args)]
pub struct PredictArgs {
    /// A run of a model that learned from features, the folder it was published to, or a model folder
    #[arg(long, value_name = "URL")]
    pub model: String,
    /// Features of new instances: instance_id, and a column of lists or columns of numbers
    #[arg(long, value_name = "URL")]
    pub features: String,
    /// A folder for the predictions, on local disk or an object store
    #[arg(long, value_name = "URL")]
    pub output: String,
    /// The features' name for instance_id
    #[arg(long, value_name = "NAME")]
    pub instance_column: Option<String>,
    /// The column of lists
    #[arg(long, value_name = "NAME")]
    pub features_column: Option<String>,
    /// The device: auto, cpu or cuda:0
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Memory limit, such as 512MiB or 4GB: features beyond half of it go to a scratch file
    #[arg(long, value_name = "AMOUNT", value_parser = amount)]
    pub memory_limit: Option<String>,
    /// Folder for the scratch file, if not the system's temporary one
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<String>,
    /// Endpoint of an S3-compatible store
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// How the job runs.
    #[command(flatten)]
    pub job: JobArgs,
}

pub(super) async fn command(
    args: PredictArgs,
    engine: EngineSpec,
    quiet: bool,
    signals: &Signals,
) -> Result<()> {
    let job = job_with(&engine, 0)?;
    PublishingJob { job, signals, json: args.job.json, quiet }
        .execute(move |mut job| async move {
            let columns = ColumnsSpec {
                instance: args.instance_column,
                features: args.features_column,
                ..ColumnsSpec::default()
            };
            let what = Prediction {
                model: &args.model,
                features: &args.features,
                output: &args.output,
                columns,
                engine,
                device: args.device.as_deref(),
                force: args.job.force,
            };
            predict(&what, &store(args.endpoint.as_deref()), &mut job).await
        })
        .await
}
