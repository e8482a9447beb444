//! The pipeline from a spec to an outcome, without the command line.

use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::ipc::writer::FileWriter;
use arrow::util::display::array_value_to_string;

use super::*;
use crate::frame::Frame;
use crate::job_context::Progress;
use crate::spec::Overrides;
use crate::tables::find_table;
use crate::tables::metrics::Metric;

fn pipeline(text: &str) -> PipelineSpec {
    load(text, "pipeline.toml", &Overrides::default()).unwrap()
}

async fn frames_of(spec: &PipelineSpec, job: &mut JobContext) -> Result<Vec<Frame>> {
    let ctx = spec.engine.session()?;
    let source = Source::register(&ctx, &spec.source, &spec.store, &RunTables, job).await?;
    read(spec, &ctx, &source, job).await
}

async fn fitted(spec: &PipelineSpec, job: &mut JobContext) -> Outcome {
    let frames = frames_of(spec, job).await.unwrap();
    tokio::task::block_in_place(|| fit(spec, frames, &mut Checkpoints::default(), job)).unwrap()
}

/// Gives a file another time once the annotations are read, as a program that writes into it would.
struct LateWriter(PathBuf);

impl Progress for LateWriter {
    fn end(&self) {
        let file = File::options().write(true).open(&self.0).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    }
}

fn write_annotations(file: &Path) {
    let column = |text: &str| Arc::new(StringArray::from(vec![text])) as ArrayRef;
    let names = ["instance_id", "annotator_id", "label"];
    let batch = RecordBatch::try_from_iter(names.map(|name| (name, column(name)))).unwrap();
    let mut writer = FileWriter::try_new(File::create(file).unwrap(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
}

/// Rows of both versions were published.
#[tokio::test(flavor = "multi_thread")]
async fn an_arrow_file_that_is_written_while_it_is_read_is_an_error_worth_another_try() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("in.arrow");
    write_annotations(&file);
    let spec = pipeline(&format!(
        "source.annotations = '{}'\nmodel.kind = 'majority_vote'",
        file.display()
    ));
    let mut job = JobContext::new(0);
    assert_eq!(frames_of(&spec, &mut job).await.unwrap()[0].rows_read, 1);
    job.progress = Arc::new(LateWriter(file));
    let error = frames_of(&spec, &mut job).await.err().unwrap();
    assert_eq!(error.exit_code(), 5, "{error}");
    let error = error.to_string();
    assert!(error.contains("an input changed") && error.contains("in.arrow"), "{error}");
    assert!(error.contains("where: source.annotations"), "{error}");
}

/// Every one of 1 001 instances has a class of its own, too many to check whether the fit switched some.
#[tokio::test(flavor = "multi_thread")]
async fn classes_that_are_not_checked_are_a_warning_until_there_is_gold_that_trains() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("in.csv");
    let mut rows = "instance_id,annotator_id,label\n".to_owned();
    (0..1_001).for_each(|n| writeln!(rows, "i{n},a,{n}").unwrap());
    std::fs::write(&file, rows).unwrap();
    let text = format!(
        "source.annotations = '{}'\nmodel = {{ kind = 'dawid_skene', stop.max_iter = 1 }}\n",
        file.display()
    );
    for (role, is_warned) in [("holdout", true), ("train", false)] {
        let mut job = JobContext::new(0);
        let gold = format!("source.gold = [['i7', 7, '{role}']]");
        fitted(&pipeline(&(text.clone() + &gold)), &mut job).await;
        let is_about = |warning: &String| warning.contains("1001 classes occur");
        assert_eq!(job.warnings().iter().any(is_about), is_warned, "{:?}", job.warnings());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn classes_under_other_names_are_a_contradiction_where_gold_trains() {
    let rows = "['i', 'a', 'x'], ['i', 'b', 'x'], ['j', 'a', 'y'], ['j', 'b', 'y']";
    let gold = "source.gold = [['i', 'y', 'train'], ['j', 'x', 'train']]";
    let text = format!("source.annotations = [{rows}]\nmodel.kind = 'dawid_skene'\n{gold}");
    let mut job = JobContext::new(0);
    fitted(&pipeline(&text), &mut job).await;
    let is_found = |warning: &String| {
        warning.contains("(`x as y`, `y as x`): they contradict the gold that trains")
            && !warning.contains("give some gold")
    };
    assert!(job.warnings().iter().any(is_found), "{:?}", job.warnings());
}

#[cfg(feature = "neural")]
#[tokio::test(flavor = "multi_thread")]
async fn a_fit_keeps_the_warnings_of_the_machine() {
    let spec = pipeline("source.annotations = [['i', 'a', 'x']]\nmodel.kind = 'majority_vote'");
    let mut job = JobContext::new(0);
    job.warn_of_machine("no GPU".to_owned());
    fitted(&spec, &mut job).await;
    assert_eq!(job.warnings(), ["no GPU"]);
}

/// Both questions have 64 ties, and gold says `x` of every instance.
// keys: decide.ties
#[tokio::test(flavor = "multi_thread")]
async fn accuracy_and_tally_are_those_of_the_labels_however_ties_fall_in_a_question() {
    let folder = tempfile::tempdir().unwrap();
    let mut rows = "instance_id,annotator_id,label,question\n".to_owned();
    let mut gold = "instance_id,class,role,question\n".to_owned();
    for question in ["p", "q"] {
        for i in 0..64 {
            writeln!(rows, "i{i},a,x,{question}\ni{i},b,y,{question}").unwrap();
            writeln!(gold, "i{i},x,holdout,{question}").unwrap();
        }
    }
    std::fs::write(folder.path().join("in.csv"), rows).unwrap();
    std::fs::write(folder.path().join("gold.csv"), gold).unwrap();
    let spec = pipeline(&format!(
        "source.annotations = '{0}/in.csv'\nsource.gold = '{0}/gold.csv'\n\
         source.columns.question = 'question'\nmodel.kind = 'majority_vote'\ndecide.ties = 'random'",
        folder.path().display()
    ));
    let outcome = fitted(&spec, &mut JobContext::new(spec.seed)).await;
    assert_eq!(outcome.results.len(), 2);
    let table = find_table("labels").unwrap();
    for (question, result) in outcome.results.iter().enumerate() {
        let columns = (table.rows)(&outcome, question, 0..64).unwrap();
        let labels: Vec<String> =
            (0..64).map(|i| array_value_to_string(&columns[1], i).unwrap()).collect();
        let given = |class: &str| labels.iter().filter(|label| *label == class).count();
        let (x, y) = (given("x"), given("y"));
        assert!(x > 0 && y > 0, "{labels:?}");
        assert_eq!(result.tally.of_class, [x as u64, y as u64]);
        assert_eq!(result.tally.tied, 64);
        let is_accuracy = |of: usize, metric: &Metric| of == question && metric.name == "accuracy";
        let accuracy = outcome.metrics.iter().find(|(of, metric)| is_accuracy(*of, metric));
        assert_eq!(accuracy.unwrap().1.value, Some(x as f64 / 64.0));
    }
}

/// Rayon's own pool is started by the first parallel step outside the run's pool, and then cannot be started again. In a
/// process of its own, as other tests start it.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_computes_on_no_threads_but_those_of_its_run() {
    const CHILD: &str = "LABELMILL_TEST_OF_THREADS";
    if std::env::var_os(CHILD).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["a_job_computes_on_no_threads_but_those_of_its_run", "--test-threads", "1"]);
        let output = child.env(CHILD, "1").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let rows = "['i', 'a', 'x'], ['i', 'b', 'x'], ['j', 'a', 'y'], ['j', 'b', 'y']";
    let gold = "source.gold = [['i', 'x', 'holdout'], ['j', 'y', 'calibrate']]";
    for model in ["kind = 'majority_vote'", "kind = 'dawid_skene', restarts = 1", "kind = 'glad'"] {
        let spec = pipeline(&format!(
            "source.annotations = [{rows}]\n{gold}\nmodel = {{ {model} }}\ncalibration.method = 'temperature'\n\
             sink.url = '{}'",
            folder.path().display()
        ));
        let mut job = JobContext::new(0).with_threads(1).unwrap();
        super::run(&spec, super::Rerun::default(), &mut job).await.unwrap();
    }
    rayon::ThreadPoolBuilder::new().num_threads(1).build_global().unwrap();
}
