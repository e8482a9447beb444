//! `labelmill explain`: describes a run from file lists, metadata and the first rows of text files. Nothing is written.

use std::fmt::Write as _;

use super::check::check_annotations;
use crate::error::{Result, offenders};
use crate::frame::{BYTES_PER_ANNOTATION, rows_in};
use crate::job_context::JobContext;
use crate::pipeline::{PipelineSpec, inputs};
use crate::sink::{self, CommittedRun, RunTables};
use crate::source::{InferenceScope, Location, Source};
use crate::tables::TABLES;

/// Describes in words what a run would do.
///
/// # Errors
/// The errors of planning a run: a missing file or column, a column of the annotations that holds something else, listed
/// labels that cannot be, SQL that does not plan.
pub async fn explain(spec: &PipelineSpec, job: &mut JobContext) -> Result<String> {
    let ctx = spec.engine.session()?;
    let source = Source::list(&spec.source, &spec.store, &RunTables, job).await?;
    source.open(&ctx, InferenceScope::First).await?;
    let annotations = source.annotations(&ctx).await.map_err(|e| source.at_query(e))?;
    let frame = spec.frame.normalised(&spec.source.cleaning());
    check_annotations(&annotations, &frame, &source).map_err(|e| source.at_query(e))?;
    let plan = annotations.clone().into_optimized_plan()?;
    let physical = annotations.create_physical_plan().await?;
    let rows = rows_in(&physical);
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<12}{value}");
    };
    for (name, files) in &source.files {
        let format = format!("{:?}", files.format).to_lowercase();
        let n = files.objects.len();
        line("source", &format!("{name}: {n} {format} file(s), {} bytes", files.bytes()));
    }
    if let Some(Location::Rows(rows)) = &spec.source.annotations {
        line("source", &format!("annotations: {} rows in the file itself", rows.0.len()));
    }
    line("rows", &rows.map_or("known once they are read".to_owned(), |n| n.to_string()));
    if let Some(rows) = rows {
        let mib = rows.saturating_mul(BYTES_PER_ANNOTATION).div_ceil(1 << 20);
        line("memory", &format!("about {mib} MiB for annotations, beside ids and posteriors"));
    }
    for (n, step) in plan.display_indent().to_string().lines().enumerate() {
        line(if n == 0 { "query" } else { "" }, step);
    }
    let classes = spec.frame.classes.as_ref();
    let classes = classes.map_or("those that occur, sorted".to_owned(), |list| {
        list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    });
    line("classes", &classes);
    line("duplicates", &serde_json::json!(spec.frame.duplicates).to_string().replace('"', ""));
    let model = spec.to_json()?["model"].clone();
    line("model", &model.to_string());
    if spec.calibration.is_on() {
        line("calibration", &serde_json::json!(spec.calibration).to_string());
    }
    line("seed", &spec.seed.to_string());
    let digest = spec.digest(&inputs(&source))?;
    let run_id = spec.sink.run_id.clone().unwrap_or_else(|| digest[..16].to_owned());
    let sink = sink::open(&spec.sink, &spec.store)?;
    line("output", &sink.folder(&run_id));
    let tables = TABLES.iter().map(|t| t.name).filter(|name| spec.sink.writes(name));
    line("tables", &tables.collect::<Vec<_>>().join(", "));
    line("status", &status(sink.committed(&run_id).await?, &digest));
    Ok(text)
}

/// The state of the run id: new, already committed by this job, or taken by another one.
fn status(found: Option<CommittedRun>, digest: &str) -> String {
    let Some(run) = found else { return "new".to_owned() };
    if run.digest != digest {
        return format!("the run id belongs to another job, committed {}", run.committed_at);
    }
    if run.missing.is_empty() {
        return "done before: a run would be a no-op".to_owned();
    }
    let missing = offenders(run.missing.iter().map(|file| &file.path));
    format!(
        "done before, but files of it are missing or have another size: a run would make it again ({missing})"
    )
}
