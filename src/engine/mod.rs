//! Builds a DataFusion session from `[engine]`. No other module configures the session.

mod memory;
mod named_files;
mod scratch_folder;
mod spill;
mod statistics;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::execution::cache::cache_manager::DEFAULT_METADATA_CACHE_LIMIT;
use datafusion::execution::disk_manager::DiskManagerBuilder;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::prelude::{SessionConfig, SessionContext};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Problem, Result};
use crate::spec::Problems;
use named_files::NameFiles;
use spill::SpillFolder;
use statistics::DropParquetStatistics;

pub(crate) use memory::{bytes_in_words, too_little_memory};
pub(crate) use named_files::own_root;
pub use scratch_folder::ScratchFolder;

/// Resources of a run. None of them changes a byte of the result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EngineSpec {
    /// Threads; left out, one for each core.
    #[schemars(range(min = 1, max = 1024))]
    pub threads: Option<usize>,
    /// Rows in a record batch of DataFusion.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub batch_size: usize,
    /// Memory that the run may take for queries, ids and annotations, such as "512MiB" or "4GB"; at least 4KiB. Queries
    /// spill to disk before they take more, features that are larger than half of it go to a scratch file, as rows of
    /// annotations do that do not fit, and ids and models that do not fit are an error; with less than 8 GiB networks
    /// predict fewer rows at once. Left out, three quarters of the memory of the machine or container, of which at least
    /// 256 MiB stay for memory that is not counted.
    pub memory_limit: Option<String>,
    /// Folder for spilled data, which the system frees when the job ends, however it ends; left out, the system's
    /// temporary folder.
    pub scratch: Option<String>,
    /// Local folder where networks save a checkpoint after every epoch, or as `train.checkpoint_epochs` and
    /// `train.checkpoint_minutes` say, and `gem` after every round that fits its classifier: after an interruption the
    /// same job resumes from it. Left out, it starts again.
    pub checkpoints: Option<String>,
}

impl Default for EngineSpec {
    fn default() -> Self {
        Self {
            threads: None,
            batch_size: 16_384,
            memory_limit: None,
            scratch: None,
            checkpoints: None,
        }
    }
}

impl EngineSpec {
    /// Adds the spec's problems to `problems`.
    pub fn check(&self, location: &str, problems: &mut Problems) {
        if let Some(text) = &self.memory_limit
            && let Err((what, help)) = check_limit(text)
        {
            problems.push(
                Problem::new(what)
                    .at(format!("{location}: engine.memory_limit"))
                    .found(format!("`{text}`"))
                    .help(help),
            );
        }
        if let Some(folder) = self.checkpoints.as_ref()
            && (folder.is_empty() || folder.contains("://"))
        {
            problems.push(
                Problem::new("checkpoints are kept in a local folder")
                    .at(format!("{location}: engine.checkpoints"))
                    .found(format!("`{folder}`"))
                    .help("name a local folder, one that outlives the machine if the job is to resume on another"),
            );
        }
    }

    /// How many threads the run uses.
    #[must_use]
    pub fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        self.threads.unwrap_or_else(cores)
    }

    /// The most memory that queries, the frame and features may take.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        // The rest of the machine's memory is for what is not counted, such as batches in flight and the process
        // itself.
        let given = self.memory_limit.as_deref().and_then(parse_bytes);
        given.unwrap_or_else(|| usual_limit(machine_memory()))
    }

    /// The most bytes that all large allocations may take together. They include more than
    /// [`EngineSpec::memory_bytes`]: batches in flight, which repeat a value in each row that has it, and the memory
    /// that a model needs to compute.
    #[must_use]
    pub(crate) fn allocation_bound(&self) -> usize {
        let limit = self.memory_bytes();
        limit.saturating_add(limit.max(2 << 30))
    }

    /// The resources of queries that no pipeline belongs to: a person waits for them beside other work, so that they take
    /// at most 4 GiB where no limit is given.
    #[must_use]
    pub fn of_queries(memory_limit: Option<String>) -> Self {
        let limit = || usual_limit(machine_memory()).min(4 << 30).to_string();
        Self { memory_limit: Some(memory_limit.unwrap_or_else(limit)), ..Self::default() }
    }

    /// The folder of scratch files.
    #[must_use]
    pub fn scratch_folder(&self) -> ScratchFolder {
        ScratchFolder(self.scratch.as_ref().map(PathBuf::from))
    }

    /// A session with these resources.
    ///
    /// # Errors
    /// When the scratch folder cannot be used.
    pub fn session(&self) -> Result<SessionContext> {
        let mut config = SessionConfig::new()
            .with_target_partitions(self.threads())
            .with_batch_size(self.batch_size)
            .with_information_schema(true);
        // Ids are written with the type that they were read with; a source decides itself where text is read as views.
        config.options_mut().execution.parquet.schema_force_view_types = false;
        // A folder is read recursively.
        config.options_mut().execution.listing_table_ignore_subdirectory = false;
        config.options_mut().sql_parser.map_string_types_to_utf8view = false;
        let folder = self.scratch_folder();
        if let Some(path) = &folder.0 {
            folder.check().map_err(|e| {
                let unusable =
                    Error::of_folder(format!("the scratch folder cannot be used: {e}"), &e)
                        .at("engine.scratch")
                        .found(path.display().to_string())
                        .help("name a folder that can be written to");
                Error::of_io(&e, unusable)
            })?;
        }
        let spills =
            DiskManagerBuilder::default().with_temp_file_factory(Arc::new(SpillFolder(folder)));
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_limit(self.memory_bytes(), 1.0)
            .with_metadata_cache_limit(metadata_cache_bytes(self.memory_bytes()))
            .with_disk_manager_builder(spills)
            .build()?;
        let state = SessionStateBuilder::new()
            .with_config(config)
            .with_runtime_env(Arc::new(runtime))
            .with_default_features()
            .with_physical_optimizer_rules(optimizer_rules())
            .build();
        Ok(SessionContext::new_with_state(state))
    }
}

/// DataFusion's rules, with [`DropParquetStatistics`] before any rule reads statistics, and again after filters were pushed
/// down into scans, and [`NameFiles`] last.
fn optimizer_rules() -> Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> {
    let mut rules = PhysicalOptimizer::new().rules;
    rules.insert(0, Arc::new(DropParquetStatistics));
    rules.push(Arc::new(DropParquetStatistics));
    rules.push(Arc::new(NameFiles));
    rules
}

/// The most bytes of file metadata that a session with this memory limit keeps.
///
/// # Why
/// The metadata of a Parquet file is read when its table is opened, and needed again for its statistics and its rows.
/// Metadata that was not kept is fetched each time: for ten thousand files on a store, thousands of further requests.
/// No memory pool counts what is kept: it comes on top of the limit, so it has a limit of its own.
fn metadata_cache_bytes(memory: usize) -> usize {
    (memory / 16).clamp(DEFAULT_METADATA_CACHE_LIMIT, MAX_METADATA_CACHE)
}

/// The most bytes of file metadata that any session keeps: those of ten thousand files, of about 50 kB each.
const MAX_METADATA_CACHE: usize = 512 << 20;

/// About the memory of the program itself and of file pages in flight, which no row count covers.
const UNCOUNTED: usize = 256 << 20;

/// The default memory limit on a machine, or in a container, with so many bytes.
fn usual_limit(machine: usize) -> usize {
    machine - (machine / 4).max(UNCOUNTED).min(machine / 8 * 7)
}

/// The bytes of memory of the machine, or of the container if it may take less; `usize::MAX` if neither is known.
fn machine_memory() -> usize {
    container_memory().into_iter().chain(meminfo("MemTotal:")).min().unwrap_or(usize::MAX)
}

/// The bytes of memory that no other process holds now, at most the container's limit. `held` is what this process
/// holds.
pub(crate) fn available_memory(held: usize) -> usize {
    let free = meminfo("MemAvailable:")
        .map(|bytes| bytes.saturating_add(meminfo("SwapFree:").unwrap_or(0)).saturating_add(held));
    container_memory().into_iter().chain(free).min().unwrap_or(usize::MAX)
}

/// The lowest memory limit of the process's own control group and its parents.
fn container_memory() -> Option<usize> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    // Version 2 of control groups has the line `0::/a/b`, version 1 has `4:memory:/a/b`.
    let limits = groups.lines().filter_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        Some(match controllers {
            "" => ("/sys/fs/cgroup", group, "memory.max"),
            _ if controllers.split(',').any(|c| c == "memory") => {
                ("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes")
            }
            _ => return None,
        })
    });
    let read = |(root, group, name): (&str, &str, &str)| {
        // A container sees its own group as the root, whatever it is called outside.
        Path::new(group)
            .ancestors()
            .filter_map(|group| {
                let folder = Path::new(root).join(group.strip_prefix("/").unwrap_or(group));
                std::fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok()
            })
            .min()
    };
    limits.filter_map(read).min()
}

/// An amount in `/proc/meminfo`, in bytes.
fn meminfo(name: &str) -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let amount = |line: &str| {
        line.strip_prefix(name)?.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()
    };
    text.lines().find_map(amount).map(|kib| kib.saturating_mul(1024))
}

/// The least memory limit. A job of a few rows, and no query that sorts, runs with it; anything less is a number that
/// lacks its unit.
const MIN_MEMORY_LIMIT: usize = 4 << 10;

/// Checks a memory limit.
///
/// # Errors
/// What is wrong with it, and what to write instead.
pub(crate) fn check_limit(text: &str) -> Result<(), (&'static str, &'static str)> {
    match parse_bytes(text) {
        None => {
            Err(("not an amount of memory", "write a number and a unit, such as 512MiB or 4GB"))
        }
        Some(bytes) if bytes < MIN_MEMORY_LIMIT => Err((
            "no run can do with so little memory",
            "give at least 4KiB, and a few hundred MiB for most data; a number without a unit is bytes",
        )),
        Some(_) => Ok(()),
    }
}

/// Parses an amount such as `512MiB`, `4GB` or `1000` into bytes.
pub(crate) fn parse_bytes(text: &str) -> Option<usize> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..digits].parse().ok()?;
    let unit: f64 = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "kib" | "k" => 1024.0,
        "mib" | "m" => 1024.0 * 1024.0,
        "gib" | "g" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    let bytes = number * unit;
    // A float of this size is exact enough, and the cast saturates.
    #[allow(clippy::cast_sign_loss)]
    (bytes >= 1.0).then_some(bytes as usize)
}

#[cfg(test)]
mod tests {
    use arrow::array::RecordBatch;

    use super::*;
    use crate::job_context::JobContext;

    #[test]
    fn checkpoints_on_a_remote_store_are_refused() {
        for (folder, is_local) in [("state/", true), ("", false), ("s3://bucket/state/", false)] {
            let mut problems = Problems::default();
            let checkpoints = Some(folder.to_owned());
            EngineSpec { checkpoints, ..EngineSpec::default() }.check("job.toml", &mut problems);
            let checked = problems.into_result().map_err(|e| e.to_string());
            assert_eq!(checked.is_ok(), is_local, "{folder}");
            assert!(checked.is_ok() || checked.unwrap_err().contains("engine.checkpoints"));
        }
    }

    #[test]
    fn amounts_of_memory_are_read_with_their_units() {
        assert_eq!(parse_bytes("1GiB"), Some(1 << 30));
        assert_eq!(parse_bytes("1.5 kb"), Some(1500));
        assert_eq!(parse_bytes("lots"), None);
    }

    // keys: engine.memory_limit
    #[test]
    fn a_memory_limit_below_the_least_is_refused() {
        for (limit, is_enough) in [("4KiB", true), ("1KiB", false), ("16", false), ("4095", false)]
        {
            let mut problems = Problems::default();
            let memory_limit = Some(limit.to_owned());
            EngineSpec { memory_limit, ..EngineSpec::default() }.check("job.toml", &mut problems);
            let checked = problems.into_result().map_err(|e| (e.exit_code(), e.to_string()));
            assert_eq!(checked.is_ok(), is_enough, "{limit}");
            let Err((code, error)) = checked else { continue };
            assert_eq!(code, 2);
            for part in ["engine.memory_limit", &format!("`{limit}`"), "at least 4KiB"] {
                assert!(error.contains(part), "{error}");
            }
        }
    }

    // keys: engine.threads, engine.batch_size
    #[tokio::test]
    async fn a_session_has_as_many_partitions_and_rows_in_a_batch_as_asked() {
        let spec = EngineSpec { threads: Some(3), batch_size: 7, ..EngineSpec::default() };
        let job = JobContext::new(0).with_threads(spec.threads()).unwrap();
        assert_eq!(job.pool().current_num_threads(), 3);
        let ctx = spec.session().unwrap();
        assert_eq!(ctx.state().config().target_partitions(), 3);
        let series = ctx.sql("select * from generate_series(1, 20)").await.unwrap();
        let batches = series.collect().await.unwrap();
        let rows: Vec<usize> = batches.iter().map(RecordBatch::num_rows).collect();
        assert_eq!(rows, [7, 7, 6]);
    }

    // keys: engine.memory_limit
    #[test]
    fn a_session_with_more_memory_keeps_the_metadata_of_more_files_up_to_512_mib() {
        let of = |limit: &str| {
            let memory_limit = Some(limit.to_owned());
            let engine = EngineSpec { memory_limit, ..EngineSpec::default() };
            engine.session().unwrap().runtime_env().cache_manager.get_metadata_cache_limit() >> 20
        };
        assert_eq!([of("64MiB"), of("4GiB"), of("256GiB")], [50, 256, 512]);
    }

    /// The machine has a bound of its own, which changes while a job runs.
    // keys: engine.memory_limit
    #[test]
    fn large_allocations_may_take_twice_the_limit_or_2_gib_above_it_whatever_the_machine_has() {
        let of = |limit: &str| {
            let memory_limit = Some(limit.to_owned());
            EngineSpec { memory_limit, ..EngineSpec::default() }.allocation_bound() >> 20
        };
        assert_eq!([of("64MiB"), of("4GiB"), of("4000GiB")], [2112, 8192, 8_192_000]);
    }

    #[test]
    fn a_small_container_keeps_room_for_what_is_not_counted() {
        let of = |mib: usize| usual_limit(mib << 20) >> 20;
        assert_eq!([of(64), of(200), of(512), of(1024), of(4096)], [8, 25, 256, 768, 3072]);
        assert_eq!(usual_limit(usize::MAX), usize::MAX - usize::MAX / 4);
    }
}
