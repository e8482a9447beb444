//! `labelmill predict`: predicts new features with a saved classifier.

use crate::cli::args::{PredictArgs, store};
use crate::cli::environment::job_with;
use crate::cli::publish::PublishingJob;
use crate::commands::predict::{Prediction, predict};
use crate::engine::EngineSpec;
use crate::error::Result;
use crate::process::signals::Signals;
use crate::source::ColumnsSpec;

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
