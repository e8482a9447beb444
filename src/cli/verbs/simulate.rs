//! `labelmill simulate` and its `--list`.

use serde_json::{Value, json};

use crate::cli::environment::job_with;
use crate::cli::publish::PublishingJob;
use crate::cli::shared_args::{amount, store};
use crate::cli::summary::Summary;
use crate::cli::terminal::{print_json, print_result};
use crate::commands::simulate::simulate;
use crate::engine::EngineSpec;
use crate::error::{Error, Result};
use crate::process::signals::Signals;
use crate::simulate::grammar::TYPES;
use crate::simulate::recipes::{RECIPES, Recipe};
use crate::simulate::{Simulated, Simulation, SimulationInput};
use crate::source::{Cleaning, ColumnsSpec, Normalisation};

/// A crowd to draw.
#[derive(Debug, clap::Args)]
pub struct SimulateArgs {
    /// List the recipes with their parameters, and the types of annotators
    #[arg(long)]
    pub list: bool,
    /// The true classes: instance_id, and class or label
    #[arg(long, value_name = "URL")]
    pub truth: Option<String>,
    /// One of the names that --list shows
    #[arg(long, value_name = "NAME", required_unless_present = "list")]
    pub recipe: Option<String>,
    /// A folder for the tables, which does not exist yet
    #[arg(long, value_name = "URL", required_unless_present = "list")]
    pub output: Option<String>,
    /// The seed of every random stream
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Set a parameter of the recipe
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// The truth's and the annotations' name for instance_id
    #[arg(long, value_name = "NAME")]
    pub instance_column: Option<String>,
    /// The annotations' name for annotator_id
    #[arg(long, value_name = "NAME")]
    pub annotator_column: Option<String>,
    /// The annotations' name for label
    #[arg(long, value_name = "NAME")]
    pub label_column: Option<String>,
    /// The truth's name for class
    #[arg(long, value_name = "NAME")]
    pub class_column: Option<String>,
    /// Features of the instances, for recipes whose noise depends on them
    #[arg(long, value_name = "URL")]
    pub features: Option<String>,
    /// Annotations of the instances, for recipes that start from a given crowd
    #[arg(long, value_name = "URL")]
    pub annotations: Option<String>,
    /// A word that stands for a missing value in the files, such as NA; may be given several times
    #[arg(long, value_name = "WORD")]
    pub null_value: Vec<String>,
    /// What is done with ids, classes and labels of the files: trim removes outer spaces, lower makes letters lower case;
    /// may be given twice
    #[arg(long, value_name = "STEP", value_parser = step)]
    pub normalise: Vec<Normalisation>,
    /// Memory limit, such as 512MiB or 4GB: features beyond half of it go to a scratch file
    #[arg(long, value_name = "AMOUNT", value_parser = amount)]
    pub memory_limit: Option<String>,
    /// Endpoint of an S3-compatible store
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// Print the summary, or the list, as JSON on stdout
    #[arg(long)]
    pub json: bool,
}

pub(super) async fn command(
    args: SimulateArgs,
    engine: EngineSpec,
    quiet: bool,
    signals: &Signals,
) -> Result<()> {
    if args.list {
        return list(args.json);
    }
    let missing = |option: &str| Error::spec(format!("`{option}` is missing"));
    let recipe = args.recipe.ok_or_else(|| missing("--recipe"))?;
    let output = args.output.ok_or_else(|| missing("--output"))?;
    let seed = args.seed;
    let job = job_with(&engine, seed)?;
    PublishingJob { job, signals, json: args.json, quiet }
        .execute(move |mut job| async move {
            let given = SimulationInput {
                truth: args.truth.as_deref(),
                features: args.features.as_deref(),
                annotations: args.annotations.as_deref(),
                cleaning: Cleaning { null_values: args.null_value, normalise: args.normalise },
                columns: ColumnsSpec {
                    instance: args.instance_column,
                    annotator: args.annotator_column,
                    label: args.label_column,
                    class: args.class_column,
                    ..ColumnsSpec::default()
                },
            };
            let (settings, output) = (args.set.as_slice(), output.as_str());
            let what = Simulation { recipe: &recipe, settings, seed, given, output, engine };
            let simulated = simulate(&what, &store(args.endpoint.as_deref()), &mut job).await?;
            Ok(DrawnCrowd { recipe, seed, simulated })
        })
        .await
}

/// A step of `[source] normalise`.
fn step(text: &str) -> Result<Normalisation, String> {
    serde_json::from_value(text.into()).map_err(|_| "a step is trim or lower".to_owned())
}

/// A crowd, with the recipe and the seed that it was drawn by.
struct DrawnCrowd {
    recipe: String,
    seed: u64,
    simulated: Simulated,
}

impl Summary for DrawnCrowd {
    fn text(&self) -> String {
        let Self { recipe, seed, simulated: Simulated { published, .. } } = self;
        let Some(drawn) = &published.outcome else {
            return format!(
                "nothing to do: this very crowd was drawn {}\ntables      {}",
                published.run.committed_at, published.folder
            );
        };
        let other_gold = match (drawn.valid, drawn.holdout) {
            (0, 0) => String::new(),
            (valid, holdout) => format!(", {valid} to choose epochs by, {holdout} to score"),
        };
        format!(
            "recipe      {recipe}, seed {seed}\n\
             crowd       {} annotations of {} instances in {} classes by {} annotators, {} trusted{other_gold}\n\
             accuracy    {:.4}; expected of an annotator on average {:.4}\n\
             tables      {}",
            drawn.annotations,
            drawn.instances,
            drawn.classes,
            drawn.annotators,
            drawn.trusted,
            drawn.accuracy,
            drawn.expected_accuracy,
            published.folder
        )
    }

    fn json(&self) -> Value {
        let Simulated { published, parameters } = &self.simulated;
        let mut value = json!({
            "recipe": self.recipe,
            "seed": self.seed,
            "parameters": parameters,
            "url": published.folder,
            "digest": published.run.digest,
            "no_op": published.outcome.is_none(),
            "tables": published.run.tables,
        });
        if let Some(drawn) = &published.outcome {
            value["instances"] = json!(drawn.instances);
            value["classes"] = json!(drawn.classes);
            value["annotators"] = json!(drawn.annotators);
            value["annotations"] = json!(drawn.annotations);
            value["trusted"] = json!(drawn.trusted);
            value["valid"] = json!(drawn.valid);
            value["holdout"] = json!(drawn.holdout);
            value["accuracy"] = json!(drawn.accuracy);
            value["expected_accuracy"] = json!(drawn.expected_accuracy);
        }
        value
    }
}

fn list(json: bool) -> Result<()> {
    let recipes = RECIPES.iter().map(|recipe| Ok((recipe, recipe.load(&[])?.parameters)));
    let recipes: Vec<(&Recipe, Value)> = recipes.collect::<Result<_>>()?;
    if json {
        let recipe = |(recipe, defaults): &(&Recipe, Value)| {
            json!({
                "recipe": recipe.name, "summary": recipe.summary, "source": recipe.source,
                "classes": recipe.classes, "parameters": recipe.schema(), "defaults": defaults,
            })
        };
        let types: Vec<Value> =
            TYPES.iter().map(|(usage, does)| json!({"type": usage, "summary": does})).collect();
        let recipes: Vec<Value> = recipes.iter().map(recipe).collect();
        return print_json(&json!({"recipes": recipes, "types": types}));
    }
    let mut lines =
        vec!["recipes, and their parameters with defaults (--set KEY=VALUE)".to_owned()];
    for (recipe, defaults) in &recipes {
        lines.push(format!("  {:<16}{} ({})", recipe.name, recipe.summary, recipe.source));
        for (name, value) in defaults.as_object().into_iter().flatten() {
            let value = match value {
                Value::String(text) => text.clone(),
                Value::Null => "all".to_owned(),
                other => other.to_string(),
            };
            lines.push(format!("{:20}{name}={value}", ""));
        }
    }
    lines.push("\ntypes of annotators, as in --recipe groups --set \"groups=5*symmetric(0.4), imitative(a00)\"".to_owned());
    lines.extend(TYPES.iter().map(|(usage, does)| format!("  {usage:<32}{does}")));
    print_result(&lines.join("\n"))
}
