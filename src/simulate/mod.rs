//! Crowds with known truth: draws annotations for known true classes, by the crowds of published experiments or by your
//! own.
//!
//! ```text
//! ground_truth  the truth (and features), read or drawn                 Arrow
//! recipes       a name and settings become a plan                       pure
//! draw          the plan becomes annotators and their annotations       pure
//! resample      the same, on top of a given crowd or redrawn from it    pure
//! size          the crowds that this machine can hold                   pure
//! tables        annotations, truth, true confusion, ...                 Arrow
//! ```
//! # Why
//! A model is checked against known annotators and true classes. The tables are those that `aggregate` and `evaluate`
//! read, so that a check takes three commands.
//!
//! To add a type of annotators, add a variant in [`annotators`] and its name in [`grammar`]; to add a recipe, add a
//! line in [`recipes`].

pub mod annotators;
pub mod conal;
pub mod designs;
pub mod draw;
pub mod grammar;
mod ground_truth;
pub mod plan;
pub mod recipes;
pub mod resample;
mod size;
mod summary;
mod tables;

#[cfg(test)]
mod tests;

use serde_json::{Value, json};

use crate::engine::EngineSpec;
use crate::error::{Error, Result};
use crate::job_context::JobContext;
use crate::sink::{
    self, Advice, BeginOutcome, CommittedRun, Contents, JobIdentity, Published, Publisher,
    SinkSpec, digest,
};
use crate::source::sink_problem;
use crate::store::StoreSpec;
use crate::tables::{SCHEMA_VERSION, Table};
use designs::Design;
use draw::draw;
use ground_truth::{GroundTruth, Registered};
use recipes::{LoadedRecipe, Needs, Recipe, recipe};
use resample::resample;
use size::{check_classes, check_matrices};

pub use ground_truth::SimulationInput;
pub use summary::CrowdSummary;

pub(crate) const ADVICE: Advice = Advice {
    taken: "choose another folder",
    taken_meanwhile: "choose another folder",
    swept: "run the command again, on a machine that does not suspend it",
};

/// The arguments of `labelmill simulate`.
pub struct Simulation<'a> {
    /// The recipe's name.
    pub recipe: &'a str,
    /// The recipe's parameters, as `key=value`.
    pub settings: &'a [String],
    /// The seed of every random stream.
    pub seed: u64,
    /// The input: truth, features and annotations.
    pub given: SimulationInput<'a>,
    /// The folder for the tables.
    pub output: &'a str,
    /// Threads and memory.
    pub engine: EngineSpec,
}

/// A published crowd.
pub struct Simulated {
    /// The published run.
    pub published: Published<CrowdSummary>,
    /// Every parameter of the recipe.
    pub parameters: Value,
}

/// Draws a crowd for a truth and publishes it. The same request twice is a no-op.
///
/// # Errors
/// When the recipe or its settings are not known, the truth cannot be read or has too few classes, or the output cannot
/// be written.
pub async fn simulate(
    what: &Simulation<'_>,
    stores: &StoreSpec,
    job: &mut JobContext,
) -> Result<Simulated> {
    let recipe = recipe(what.recipe)?;
    check_given(recipe, &what.given)?;
    for (option, url) in what.given.urls() {
        if let Some(problem) = url.and_then(|url| sink_problem(option, url, what.output)) {
            return Err(Error::spec_problems(vec![problem.at("--output")]));
        }
    }
    let LoadedRecipe { design, mut parameters } = recipe.load(what.settings)?;
    // Checks the parameters before anything is read.
    design.plan(recipe.classes)?;
    let draws_instances = design.blobs().is_some();
    if draws_instances && what.given.truth.is_some() {
        leave_to_the_truth(&mut parameters, what.settings)?;
    }
    let files = Registered::find(&what.given, &what.engine, stores, job).await?;
    let identity = JobIdentity {
        digest: digest(identity_of(what, &parameters, &files).to_string()),
        run_id: Some(CROWD.to_owned()),
        pipeline: "command simulate".to_owned(),
        advice: ADVICE,
    };
    let sink = SinkSpec { url: what.output.to_owned(), ..SinkSpec::default() };
    let sink = sink::open(&sink, stores).map_err(|e| e.at("--output"))?;
    refuse_another(sink.as_ref(), what.output, &identity).await?;
    let run_id = match sink.begin(&identity, false).await? {
        BeginOutcome::Done(run) => {
            let published = sink.done_before(*run).await?;
            // The process that committed it may have ended before this step.
            link_tables(sink.as_ref(), &published.run, job);
            return Ok(Simulated { published, parameters });
        }
        BeginOutcome::New(run_id) => run_id,
    };
    let has_truth = what.given.truth.is_some();
    let ground_truth = read_or_draw(has_truth, design.as_ref(), &files, job).await?;
    let classes = ground_truth.classes.len();
    ground_truth.check_classes(recipe.name, recipe.classes)?;
    if draws_instances {
        let found = [ground_truth.class.len(), classes];
        OF_DRAWN.iter().zip(found).for_each(|(key, n)| parameters[*key] = json!(n));
    }
    check_classes(classes)?;
    let plan = design.plan(classes)?;
    let given = ground_truth.crowd.as_ref().map_or(0, |crowd| crowd.annotators.len());
    check_matrices(plan.annotators().saturating_add(given), classes)?;
    let crowd = tokio::task::block_in_place(|| {
        job.pool().install(|| match (plan.given, &ground_truth.crowd) {
            (Some(given), Some(crowd)) => {
                resample(&plan, given, crowd, ground_truth.numbers(), job)
            }
            _ => draw(&plan, ground_truth.numbers(), job),
        })
    })?;
    let facts = facts(recipe, what.seed, &parameters);
    let tables = tables::tables(&ground_truth, &crowd, &facts)?;
    sink.refuse_taken_names(&tables.iter().map(Table::name).collect::<Vec<_>>())?;
    let tables = tables.iter().map(|table| table as &dyn Table).collect();
    let contents = Contents { tables, ..Contents::default() };
    let run = sink.publish(&run_id, &identity, &contents, job).await?;
    link_tables(sink.as_ref(), &run, job);
    let summary = CrowdSummary::new(&ground_truth, &crowd);
    Ok(Simulated { published: sink.published(run, Some(summary)).await, parameters })
}

/// Everything that the tables depend on.
fn identity_of(what: &Simulation<'_>, parameters: &Value, files: &Registered) -> Value {
    json!([
        "simulate",
        env!("CARGO_PKG_VERSION"),
        SCHEMA_VERSION,
        what.recipe,
        parameters,
        what.seed,
        files.inputs,
        what.given.columns,
        what.given.cleaning,
    ])
}

/// The instances with their classes and features: those of the files where there is a truth, else drawn ones.
async fn read_or_draw(
    has_truth: bool,
    design: &(dyn Design + Send + Sync),
    files: &Registered,
    job: &mut JobContext,
) -> Result<GroundTruth> {
    Ok(match (has_truth, design.blobs()) {
        (false, Some(blobs)) => {
            check_classes(blobs.classes)?;
            check_matrices(design.plan(blobs.classes)?.annotators(), blobs.classes)?;
            GroundTruth::drawn(&blobs, job)
        }
        (true, Some(blobs)) => files.read(job).await?.with_blobs(&blobs, job),
        (_, None) => files.read(job).await?,
    })
}

/// The run id of every crowd: of two crowds that are drawn into one folder at the same time, only one is committed.
const CROWD: &str = "crowd";

/// Refuses a folder that holds another run: other jobs read a crowd's tables by fixed paths, which must not lead to
/// another crowd.
async fn refuse_another(sink: &dyn Publisher, output: &str, identity: &JobIdentity) -> Result<()> {
    let other = match sink.committed(CROWD).await? {
        Some(found) if found.digest != identity.digest => CROWD.to_owned(),
        Some(_) => return Ok(()),
        None => match sink.latest().await? {
            Some(other) => other,
            None => return Ok(()),
        },
    };
    Err(Error::spec("there is something else already")
        .at(format!("--output {}", output.trim_end_matches('/')))
        .found(format!("the run `{other}`"))
        .help("choose another folder, or remove this one"))
}

/// Links the tables' names to the newest run, and warns where a name is taken.
fn link_tables(sink: &dyn Publisher, run: &CommittedRun, job: &mut JobContext) {
    if let Some(warning) = sink.link_tables(run) {
        job.warn(warning);
    }
}

/// Checks that the recipe's inputs are given, and no others.
fn check_given(recipe: &Recipe, given: &SimulationInput<'_>) -> Result<()> {
    let name = recipe.name;
    if recipe.needs != Needs::Nothing && given.truth.is_none() {
        return Err(Error::spec(format!("the recipe `{name}` needs true classes"))
            .at("--truth")
            .found("nothing")
            .help("name a table of instance_id and class; `conal-synthetic` draws its own"));
    }
    match (recipe.needs, given.annotations) {
        (Needs::Annotations, None) => {
            return Err(Error::spec(format!("the recipe `{name}` needs annotations"))
                .at("--annotations")
                .found("nothing")
                .help("name a table of instance_id, annotator_id and label"));
        }
        (Needs::Annotations, Some(_)) | (_, None) => {}
        (_, Some(url)) => {
            return Err(Error::spec(format!("the recipe `{name}` draws all annotations"))
                .at("--annotations")
                .found(format!("`{url}`"))
                .help("leave them out; `real` looks at them"));
        }
    }
    match (recipe.needs, given.features) {
        (Needs::Features, None) => Err(Error::spec(format!("the recipe `{name}` needs features"))
            .at("--features")
            .found("nothing")
            .help("name a table of features; `conal-synthetic` draws its own")),
        (Needs::Truth | Needs::Nothing | Needs::Annotations, Some(url)) => {
            Err(Error::spec(format!("the recipe `{name}` looks at no features"))
                .at("--features")
                .found(format!("`{url}`"))
                .help("leave them out; `conal` looks at them"))
        }
        _ => Ok(()),
    }
}

/// The parameters of a recipe that draws instances: the number of instances and of classes.
const OF_DRAWN: [&str; 2] = ["instances", "classes"];

/// Removes the parameters that a truth decides; setting one of them is an error.
fn leave_to_the_truth(parameters: &mut Value, settings: &[String]) -> Result<()> {
    let key = |setting: &str| setting.split_once('=').map(|(key, _)| key.trim().to_owned());
    let is_set = |s: &&String| key(s).is_some_and(|key| OF_DRAWN.contains(&key.as_str()));
    if let Some(setting) = settings.iter().find(is_set) {
        return Err(Error::spec("the truth has instances and classes of its own")
            .at("--set")
            .found(format!("`{setting}`"))
            .help("leave it out; or leave out --truth, so that instances are drawn"));
    }
    if let Some(parameters) = parameters.as_object_mut() {
        parameters.retain(|key, _| !OF_DRAWN.contains(&key.as_str()));
    }
    Ok(())
}

/// The rows of the table `recipe`.
fn facts(recipe: &Recipe, seed: u64, parameters: &Value) -> Vec<(String, String)> {
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let fixed = [("recipe", recipe.name.to_owned()), ("source", recipe.source.to_owned())];
    let fixed = fixed.into_iter().chain([("seed", seed.to_string())]);
    let own = parameters.as_object().into_iter().flatten().map(|(k, v)| (k.clone(), plain(v)));
    fixed.map(|(k, v)| (k.to_owned(), v)).chain(own).collect()
}
