//! What every sink promises, checked step by step.

use std::sync::Arc;

use arrow::array::{Int32Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use serde_json::json;

use crate::error::Error;
use crate::job_context::JobContext;
use crate::sink::{Advice, BeginOutcome, Contents, JobIdentity, Publisher};
use crate::tables::ComputedTable;

/// A job with the id that follows from its digest.
#[must_use]
pub fn test_job(letter: &str) -> JobIdentity {
    let advice = Advice { taken: "taken", taken_meanwhile: "meanwhile", swept: "swept" };
    JobIdentity { digest: letter.repeat(64), run_id: None, pipeline: "p".to_owned(), advice }
}

/// The table `labels` of two rows; or one whose rows cannot be computed.
#[must_use]
pub fn test_table(fails: bool) -> ComputedTable<'static> {
    let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int32, false)]));
    let column = Arc::new(Int32Array::from(vec![1, 2]));
    let rows = RecordBatch::try_new(Arc::clone(&schema), vec![column]);
    ComputedTable::new("labels", schema, (1, 2), move |_| match &rows {
        Ok(rows) if !fails => Ok(rows.clone()),
        _ => Err(Error::data("no rows")),
    })
}

async fn begin(sink: &dyn Publisher, identity: &JobIdentity, force: bool) -> Option<String> {
    match sink.begin(identity, force).await.unwrap() {
        BeginOutcome::New(run_id) => Some(run_id),
        BeginOutcome::Done(_) => None,
    }
}

/// Checks a sink that holds nothing yet.
///
/// # Panics
/// When it breaks a promise.
pub async fn check_sink(sink: &dyn Publisher) {
    let named = |letter: &str| JobIdentity { run_id: Some("r".to_owned()), ..test_job(letter) };
    let (own, other, job) = (named("a"), named("b"), JobContext::new(0));
    let (table, failing) = (test_table(false), test_table(true));
    let contents =
        Contents { tables: vec![&table], measures: json!({"x": 1}), ..Contents::default() };
    let broken = Contents { tables: vec![&failing], ..Contents::default() };

    // A job that only begins, or that fails, leaves nothing.
    assert_eq!(begin(sink, &test_job("a"), false).await.unwrap(), "a".repeat(16));
    for _ in 0..2 {
        assert_eq!(begin(sink, &own, false).await.unwrap(), "r");
        assert_eq!(begin(sink, &own, true).await.unwrap(), "r");
        assert!(sink.publish("r", &own, &broken, &job).await.is_err());
        let cancelled = JobContext::new(0);
        assert!(cancelled.cancel.request(15));
        assert!(sink.publish("r", &own, &contents, &cancelled).await.is_err());
        assert!(sink.committed("r").await.unwrap().is_none());
        assert_eq!(sink.latest().await.unwrap(), None);
    }

    // It is committed once, and says what it holds.
    let run = sink.publish("r", &own, &contents, &job).await.unwrap();
    let found = sink.committed("r").await.unwrap().unwrap();
    assert_eq!(found, run);
    let told = (found.run_id.as_str(), found.pipeline.as_str(), &found.digest, &found.measures);
    assert_eq!(told, ("r", "p", &own.digest, &contents.measures));
    assert_eq!(found.tables["labels"].iter().map(|file| file.rows).sum::<usize>(), 2);
    assert!(found.missing.is_empty());

    // The same job is done; forced, it gets a number. Another job is refused.
    assert!(begin(sink, &own, false).await.is_none());
    assert_eq!(begin(sink, &own, true).await.unwrap(), "r-2");
    assert_eq!(sink.publish("r", &own, &contents, &job).await.unwrap(), run);
    let refused = sink.begin(&other, false).await.err().unwrap().to_string();
    assert!(refused.contains("another job") && refused.contains("help: taken"), "{refused}");
    let refused = sink.publish("r", &other, &contents, &job).await.unwrap_err().to_string();
    assert!(refused.contains("another job") && refused.contains("help: meanwhile"), "{refused}");
    let done = sink.done_before::<()>(run).await.unwrap();
    assert_eq!(done.latest.as_deref(), Some("r"));
    assert!(done.folder.ends_with('r') && done.outcome.is_none());

    // `latest` names the newest run, and a failure does not move it.
    sink.publish("r-2", &own, &contents, &job).await.unwrap();
    assert_eq!(begin(sink, &own, true).await.unwrap(), "r-3");
    assert!(sink.publish("r-3", &own, &broken, &job).await.is_err());
    assert_eq!(sink.latest().await.unwrap().as_deref(), Some("r-2"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::{SinkSpec, open};
    use crate::store::StoreSpec;
    use crate::testing::memory_sink::MemorySink;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_sink_in_memory_keeps_the_promises() {
        let sink = MemorySink::default();
        check_sink(&sink).await;
        let rows = sink.table("r", "labels").unwrap();
        assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), 2);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_folder_of_parquet_files_keeps_the_promises() {
        let folder = tempfile::tempdir().unwrap();
        let url = folder.path().display().to_string();
        let spec = SinkSpec { url, sync: false, ..SinkSpec::default() };
        check_sink(open(&spec, &StoreSpec::default()).unwrap().as_ref()).await;
    }
}
