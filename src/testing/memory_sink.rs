//! The simplest sink: runs in memory.

use std::collections::BTreeMap;
use std::sync::Mutex;

use arrow::array::RecordBatch;
use async_trait::async_trait;

use crate::error::{Error, Result};
use crate::job_context::JobContext;
use crate::sink::{CommittedRun, Contents, FileEntry, JobIdentity, Publisher};

type KeptTables = BTreeMap<String, Vec<RecordBatch>>;

/// Runs in memory, the oldest first.
#[derive(Default)]
pub struct MemorySink(Mutex<Vec<(CommittedRun, KeptTables)>>);

impl MemorySink {
    /// The rows of a committed run's table.
    ///
    /// # Panics
    /// When a thread broke off while it used the sink.
    #[must_use]
    pub fn table(&self, run_id: &str, table: &str) -> Option<Vec<RecordBatch>> {
        let runs = self.0.lock().unwrap();
        let (_, tables) = runs.iter().find(|(run, _)| run.run_id == run_id)?;
        tables.get(table).cloned()
    }
}

#[async_trait]
impl Publisher for MemorySink {
    fn folder(&self, run_id: &str) -> String {
        format!("memory:{run_id}")
    }

    async fn committed(&self, run_id: &str) -> Result<Option<CommittedRun>> {
        let runs = self.0.lock().unwrap();
        Ok(runs.iter().map(|(run, _)| run).find(|run| run.run_id == run_id).cloned())
    }

    async fn next_free(&self, run_id: &str) -> Result<String> {
        let mut id = run_id.to_owned();
        for n in 2.. {
            if self.committed(&id).await?.is_none() {
                break;
            }
            id = format!("{run_id}-{n}");
        }
        Ok(id)
    }

    async fn latest(&self) -> Result<Option<String>> {
        Ok(self.0.lock().unwrap().last().map(|(run, _)| run.run_id.clone()))
    }

    async fn finish_commit(&self, _run: &CommittedRun) -> Result<()> {
        Ok(())
    }

    async fn expect_commits(&self, _run_id: &str) -> Result<()> {
        Ok(())
    }

    async fn publish(
        &self,
        run_id: &str,
        identity: &JobIdentity,
        contents: &Contents<'_>,
        job: &JobContext,
    ) -> Result<CommittedRun> {
        let mut tables = KeptTables::new();
        for table in &contents.tables {
            let batches = (0..table.n_parts()).flat_map(|part| table.batches(part));
            tables.insert(table.name().to_owned(), batches.collect::<Result<_>>()?);
        }
        let entry = |(name, batches): (&String, &Vec<RecordBatch>)| {
            let sum = |size: fn(&RecordBatch) -> usize| batches.iter().map(size).sum();
            let (rows, bytes) =
                (sum(RecordBatch::num_rows), sum(RecordBatch::get_array_memory_size));
            (name.clone(), vec![FileEntry { path: name.clone(), rows, bytes }])
        };
        let run = CommittedRun {
            tables: tables.iter().map(entry).collect(),
            ..CommittedRun::new(run_id, identity, contents)
        };
        let mut runs = self.0.lock().unwrap();
        job.cancel.check()?;
        match runs.iter().find(|(run, _)| run.run_id == run_id) {
            Some((other, _)) if other.digest == run.digest => return Ok(other.clone()),
            Some(_) => {
                return Err(Error::store("another job took this run id at the same time")
                    .help(identity.advice.taken_meanwhile));
            }
            None => runs.push((run.clone(), tables)),
        }
        Ok(run)
    }
}
