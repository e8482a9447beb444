//! `tests/sql/*.slt` over the tables of a published run, at several batch sizes and partition counts.

use std::path::PathBuf;

use datafusion::prelude::SessionContext;
use labelmill::engine::EngineSpec;
use labelmill::sink::register_run;
use labelmill::store::StoreSpec;
use sqllogictest::{AsyncDB, DBOutput, DefaultColumnType, Runner};

use crate::job::Job;
use crate::support::{rows, run_ok};

/// A session over one run.
struct TestDatabase(SessionContext);

#[async_trait::async_trait]
impl AsyncDB for TestDatabase {
    type Error = datafusion::error::DataFusionError;
    type ColumnType = DefaultColumnType;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, Self::Error> {
        let batches = self.0.sql(sql).await?.collect().await?;
        let columns = batches.first().map_or(0, |b| b.num_columns());
        let mut cells = Vec::new();
        for batch in &batches {
            let names: Vec<String> =
                batch.schema().fields().iter().map(|f| f.name().clone()).collect();
            let row_cells = |row: &crate::support::Row| {
                names
                    .iter()
                    .map(|n| row[n].clone().unwrap_or("NULL".to_owned()))
                    .collect::<Vec<_>>()
            };
            cells.extend(rows(batch).iter().map(row_cells));
        }
        Ok(DBOutput::Rows { types: vec![DefaultColumnType::Any; columns], rows: cells })
    }

    async fn shutdown(&mut self) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn the_files_hold_at_every_batch_size_and_partition_count() {
    let job = Job::new();
    let sink = format!("sink.url={}", job.url("out"));
    run_ok(&["run", "pipelines/quickstart.toml", "--set", &sink]);
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/sql");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    for (batch_size, threads) in [(1, 1), (1, 4), (8192, 1), (8192, 4)] {
        let engine = EngineSpec { batch_size, threads: Some(threads), ..EngineSpec::default() };
        for file in &files {
            let ctx = engine.session().unwrap();
            register_run(&ctx, &job.url("out"), &StoreSpec::default()).await.unwrap();
            let mut runner = Runner::new(|| async { Ok(TestDatabase(ctx.clone())) });
            let done = runner.run_file_async(file).await;
            done.unwrap_or_else(|e| panic!("batch size {batch_size}, {threads} threads: {e}"));
        }
    }
}
