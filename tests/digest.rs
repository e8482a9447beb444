//! Two specs are the same job when they give the same tables: every key of a pipeline file changes the digest, or is
//! listed here with the reason why it does not.

use std::collections::BTreeMap;

use labelmill::commands::explain::explain;
use labelmill::error::Result;
use labelmill::job_context::JobContext;
use labelmill::model::MODELS;
use labelmill::pipeline::load;
use labelmill::pipeline::{PipelineSpec, schema};
use labelmill::spec::Overrides;
use serde_json::Value;

use crate::job::Job;
use crate::schema_keys::leaves;
use crate::support::trains_network;

/// The keys and sections that change no byte of the tables, with the reason.
const UNCHANGED: [(&str, &str); 11] = [
    ("name", "names the pipeline"),
    ("engine", "resources: the result does not depend on them"),
    ("store", "how bytes travel, not which"),
    ("gate", "whether a result is published, not what it is"),
    ("test", "examples beside the job"),
    ("source.on_missing", "whether a job without input fails, not what it gives"),
    ("sink.url", "where the result goes"),
    ("sink.stale_after_seconds", "when another writer counts as dead"),
    ("sink.sync", "whether the disk has it before the commit"),
    ("sink.keep_runs", "which other runs stay"),
    ("sink.run_id", "names the job instead of the digest"),
];

/// Values to try for a key, after the words that its schema lists, until the key accepts one. A key that names a folder
/// takes the one below the job's own, and leaves nothing elsewhere.
const VALUES: [&str; 27] = [
    "['trim']",
    "true",
    "false",
    "1",
    "2",
    "7",
    "0.25",
    "0.5",
    "'{dir}folder'",
    "'cpu'",
    "'csv'",
    "'x'",
    "'http://host'",
    "'8MiB'",
    "'6MiB'",
    "'{dir}gold.csv'",
    "'{dir}other.csv'",
    "'majority_vote'",
    "'dawid_skene'",
    "'select * from annotations'",
    "['labels']",
    "['x']",
    "{ x = '{dir}gold.csv' }",
    "[8]",
    "[0.4, 0.6]",
    "[[4.0, 1.0], [1.0, 4.0]]",
    "[1, 1, 1]",
];

/// A folder with sources that have every column, and one column more.
fn sources() -> Job {
    let job = Job::new();
    let annotations =
        "instance_id,annotator_id,label,weight,annotated_at,question,x\ni,a,x,1,2026-01-01,p,y\n";
    job.write("in.csv", annotations);
    job.write("other.csv", &(annotations.to_owned() + "j,a,x,1,2026-01-01,p,y\n"));
    job.write("confusion.csv", "annotator_id,class,label,probability\na,x,x,1\n");
    job.write("gold.csv", "instance_id,class,role,question,features,x\ni,x,train,p,1,1\n");
    job
}

fn spec(job: &Job, kind: &str, set: Option<String>) -> Option<PipelineSpec> {
    loaded(job, kind, set).ok()
}

fn loaded(job: &Job, kind: &str, set: Option<String>) -> Result<PipelineSpec> {
    // Only a backbone for images can shift and mirror its input.
    let sets = |key: &str| set.as_ref().is_some_and(|s| s.contains(key));
    let is_of_images =
        set.as_ref().is_some_and(|s| s.contains("backbone.flip") || s.contains("pad_crop"));
    let of_classifier = set.as_ref().is_some_and(|s| s.contains("classifier.network."));
    let section = if of_classifier { "model.classifier.network" } else { "model" };
    let backbone =
        if is_of_images { format!("{section}.backbone.kind = 'lenet'\n") } else { String::new() };
    // Only weights that depend on the instance go through a bottleneck.
    let has_bottleneck = set.as_ref().is_some_and(|s| s.contains("model.bottleneck"));
    let weights = if has_bottleneck { "model.weights_by = 'instance'\n" } else { "" };
    // Only labels that are annotations can be in different batches.
    let labels = if kind == "single_confusion" { "model.labels = 'annotations'\n" } else { "" };
    // Only the chosen classifier may have settings.
    let named =
        |kind: &&str| set.as_ref().is_some_and(|s| s.contains(&format!("classifier.{kind}.")));
    let classifier = ["decision_tree", "random_forest", "network"].into_iter().find(named);
    let classifier =
        classifier.map_or_else(String::new, |kind| format!("model.classifier.kind = '{kind}'\n"));
    // Only a training whose epochs are scored can run out of patience.
    let is_neural = MODELS.iter().any(|model| model.kind == kind && trains_network(model));
    // An embedding of instances says nothing about those without annotations, so that their gold selects no epoch.
    let select = match (is_neural, kind) {
        (false, _) => "",
        (true, "dl") if sets("embed_instances") => "",
        (true, "lia" | "lia_multi") => "model.train.select = 'annotation_likelihood'\n",
        (true, _) => "model.train.select = 'valid'\n",
    };
    let confusion = if kind == "known_confusion" || sets("known_confusion") {
        format!("source.confusion = '{}confusion.csv'\n", job.url(""))
    } else {
        String::new()
    };
    // Some keys accept the URL of a host. The host does not exist: retries would only wait.
    let text = format!(
        "store.max_retries = 0\n{backbone}{weights}{labels}{classifier}{select}{confusion}source.annotations = '{dir}in.csv'\nsource.features = '{dir}gold.csv'\nsource.gold = '{dir}gold.csv'\nname = 'n'\nmodel.kind = '{kind}'\nsink.url = '{dir}out'",
        dir = job.url("")
    );
    let set = set.into_iter().map(|s| s.replace("{dir}", &job.url(""))).collect();
    load(&text, "test", &Overrides { set, ..Overrides::default() })
}

/// The id of the run, or `None` if the spec cannot be planned.
async fn id(spec: &PipelineSpec) -> Option<String> {
    let text = explain(spec, &mut JobContext::new(0)).await.ok()?;
    let line = text.lines().find(|line| line.starts_with("output"))?;
    Some(line.rsplit_once('/')?.1.to_owned())
}

/// The ids of runs by the JSON of their specs.
type KnownIds = BTreeMap<String, Option<String>>;

/// Whether another value of the key than the default gives another run id; `None` if no value is known to work. Most
/// keys are compared with the same spec, whose id is planned once.
async fn changes(
    job: &Job,
    known: &mut KnownIds,
    kind: &str,
    key: &str,
    words: &[String],
) -> Option<bool> {
    let default = spec(job, kind, None)?.to_json().ok()?;
    let default = default.pointer(&format!("/{}", key.replace('.', "/")))?;
    let plain = match default {
        Value::Bool(_) | Value::Number(_) => spec(job, kind, Some(format!("{key}={default}")))?,
        _ => spec(job, kind, None)?,
    };
    let plain_json = plain.to_json().unwrap();
    let text = plain_json.to_string();
    let before = match known.get(&text) {
        Some(before) => before.clone(),
        None => {
            let before = id(&plain).await;
            known.insert(text, before.clone());
            before
        }
    }?;
    let values = words.iter().map(String::as_str).chain(VALUES);
    // A key most likely accepts values of the type of its default.
    let (alike, others): (Vec<&str>, Vec<&str>) = values.partition(|v| is_of_type_of(default, v));
    for value in alike.into_iter().chain(others) {
        let Some(set) = spec(job, kind, Some(format!("{key}={value}"))) else { continue };
        if set.to_json().unwrap() == plain_json {
            continue;
        }
        if let Some(after) = id(&set).await {
            return Some(after != before);
        }
    }
    None
}

/// Whether the model refuses all words of the key but its default, or a number where the key has no words, and names
/// the key in each error.
fn accepts_one_value(job: &Job, kind: &str, key: &str, words: &[String]) -> bool {
    let default = spec(job, kind, None).and_then(|spec| spec.to_json().ok());
    let is_refused = |value: &str| match loaded(job, kind, Some(format!("{key}={value}"))) {
        Ok(spec) => spec.to_json().ok() == default,
        Err(error) => error.to_string().contains(key),
    };
    if words.is_empty() { is_refused("1") } else { words.iter().all(|word| is_refused(word)) }
}

/// Whether a value as text of TOML has the type of a default; a default of null says nothing of it.
fn is_of_type_of(default: &Value, value: &str) -> bool {
    match default {
        Value::Null => true,
        Value::Bool(_) => ["true", "false"].contains(&value),
        Value::Number(_) => value.starts_with(|first: char| first.is_ascii_digit()),
        Value::String(_) => value.starts_with('\''),
        Value::Array(_) => value.starts_with('['),
        Value::Object(_) => value.starts_with('{'),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_key_changes_the_digest_or_has_a_reason_not_to() {
    let job = sources();
    let root = schema();
    let mut keys = Vec::new();
    leaves(root, root, "", &mut keys);
    let reason =
        |key: &str| UNCHANGED.iter().any(|(k, _)| key == *k || key.starts_with(&format!("{k}.")));
    let mut known = KnownIds::new();
    let mut wrong = Vec::new();
    let mut tried = 0;
    for (key, words) in
        keys.iter().filter(|(key, _)| !["model", "test", "sink.run_id"].contains(&key.as_str()))
    {
        match changes(&job, &mut known, "dawid_skene", key, words).await {
            Some(changed) if changed == reason(key) => {
                wrong.push(format!("{key}: changes the digest: {changed}"));
            }
            Some(_) => tried += 1,
            None => wrong.push(format!("{key}: no other value is known to this test")),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(tried > 40, "{tried}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_parameter_of_every_model_changes_the_digest() {
    let job = sources();
    let mut known = KnownIds::new();
    let mut wrong = Vec::new();
    for kind_of_model in MODELS.iter() {
        let root = (kind_of_model.schema)().to_value();
        let mut keys = Vec::new();
        leaves(&root, &root, "model", &mut keys);
        // A model without parameters is a leaf itself.
        keys.retain(|(key, _)| key != "model");
        let (kind, fixed) = (kind_of_model.kind, (kind_of_model.fixed_keys)());
        for (key, words) in &keys {
            let is_right = if fixed.iter().any(|fixed| *key == format!("model.{fixed}")) {
                accepts_one_value(&job, kind, key, words)
            } else {
                changes(&job, &mut known, kind, key, words).await == Some(true)
            };
            if !is_right {
                wrong.push(format!("{kind}: {key}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
