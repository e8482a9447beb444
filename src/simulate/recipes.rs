//! Every recipe by name: crowds of published experiments, and any other crowd as a list of groups.
//!
//! A recipe presets some parameters of a design; the user's settings override them. Adding one is a line in
//! [`RECIPES`].

use schemars::{JsonSchema, schema_for};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::designs::{
    ConfusionMixture, Design, FixedBudget, FourAnnotatorTypes, Groups, OnBlobs, OneType,
    Predictors, RealCrowd, SeniorityDesign,
};
use crate::error::{Error, Result, did_you_mean};
use crate::spec::assigned;

/// The inputs that a recipe needs from the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// True classes.
    Truth,
    /// True classes and features.
    Features,
    /// True classes, and annotations of their instances.
    Annotations,
    /// Nothing: without a truth it draws the instances, and it always draws the features.
    Nothing,
}

/// One recipe.
pub struct Recipe {
    /// Its name.
    pub name: &'static str,
    /// One sentence a user understands.
    pub summary: &'static str,
    /// The paper that it comes from, or `labelmill`.
    pub source: &'static str,
    /// The inputs that the user must give.
    pub needs: Needs,
    /// The least number of classes.
    pub classes: usize,
    preset: &'static [&'static str],
    schema: fn() -> Value,
    load: fn(&[&str]) -> Result<LoadedRecipe>,
}

/// A recipe with its parameters.
pub struct LoadedRecipe {
    /// The design, which makes the plan.
    pub design: Box<dyn Design + Send + Sync>,
    /// Every parameter, defaults included.
    pub parameters: Value,
}

impl Recipe {
    const fn new<D>(name: &'static str, source: &'static str, summary: &'static str) -> Self
    where
        D: Design + Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static,
    {
        Self {
            name,
            summary,
            source,
            needs: Needs::Truth,
            classes: 2,
            preset: &[],
            schema: || schema_for!(D).to_value(),
            load: |settings| {
                let design: D = assigned(settings, "--set")?;
                let parameters = serde_json::to_value(&design)
                    .map_err(|e| Error::bug(format!("parameters have no JSON form: {e}")))?;
                Ok(LoadedRecipe { design: Box::new(design), parameters })
            },
        }
    }

    const fn needs(self, needs: Needs) -> Self {
        Self { needs, ..self }
    }

    const fn classes(self, classes: usize) -> Self {
        Self { classes, ..self }
    }

    const fn with(self, preset: &'static [&'static str]) -> Self {
        Self { preset, ..self }
    }

    /// The recipe with the user's `key=value` settings.
    ///
    /// # Errors
    /// When a setting is not a parameter of the recipe, or its value is not allowed.
    pub fn load(&self, settings: &[String]) -> Result<LoadedRecipe> {
        let settings = settings.iter().map(String::as_str);
        let all: Vec<&str> = self.preset.iter().copied().chain(settings).collect();
        (self.load)(&all)
    }

    /// The JSON Schema of the parameters.
    #[must_use]
    pub fn schema(&self) -> Value {
        (self.schema)()
    }
}

const TANNO: &str = "Tanno et al. 2019, arXiv:1902.03680";
const TCL: &str = "Li et al. 2022, TCL";
const KHETAN: &str = "Khetan, Lipton and Anandkumar 2018, arXiv:1712.04577";
const MAX_MIG: &str = "Cao et al. 2019, arXiv:1905.13436";
const CONAL: &str = "Chu, Ma and Wang 2021, arXiv:2012.13052";
const LIA: &str = "Platanios et al. 2020, LIA";

const fn tcl(name: &'static str, summary: &'static str) -> Recipe {
    Recipe::new::<Groups>(name, TCL, summary)
}

/// Every recipe, in the order of `labelmill simulate --list`.
pub static RECIPES: &[Recipe] = &[
    Recipe::new::<Groups>("groups", "labelmill", "any groups of annotators, in words"),
    Recipe::new::<OneType>("tanno-mnist", TANNO, "five annotators of one type and skill")
        .with(&["valid=0.1"]),
    Recipe::new::<FourAnnotatorTypes>("tanno-cifar", TANNO, "four annotators with habits, right on 0.45")
        .classes(10),
    tcl("tcl-ind-1", "sparse: symmetric 0.8 and 0.7, pair 0.45; right on 0.35").with(&[
        "groups=10*symmetric(0.8), 10*symmetric(0.7), 10*pair(0.45)",
        "redundancy=3",
        "trusted=0.02",
    ]),
    tcl("tcl-ind-2", "sparse: symmetric 0.85, pair 0.45, class-wise 1; right on 0.297").with(&[
        "groups=10*symmetric(0.85), 10*pair(0.45), 10*class-wise(1)",
        "redundancy=3",
        "trusted=0.02",
    ]),
    tcl("tcl-ind-3", "sparse: symmetric 0.8 and 0.7, class-wise 7 8 9; right on 0.29")
        .classes(10)
        .with(&[
            "groups=10*symmetric(0.8), 10*symmetric(0.7), 10*class-wise(7 8 9)",
            "redundancy=3",
            "trusted=0.02",
        ]),
    tcl("tcl-ind-4", "sparse: symmetric 0.6 and 0.7, class-wise 3 5 7; right on 0.357")
        .classes(8)
        .with(&[
            "groups=10*symmetric(0.6), 10*symmetric(0.7), 10*class-wise(3 5 7)",
            "redundancy=3",
            "trusted=0.02",
        ]),
    tcl("tcl-cor-1", "complete: two who think, two who copy the first, one who supports").with(&[
        "groups=symmetric(0.5), symmetric(0.85), 2*imitative(a00), supportive(a00)",
        "trusted=0.02",
        "annotate_trusted=true",
    ]),
    tcl("tcl-cor-2", "complete: two who think, a copy of one, one against and one for the other")
        .with(&[
            "groups=symmetric(0.8), symmetric(0.45), imitative(a00), opposite(a01), supportive(a01)",
            "trusted=0.02",
            "annotate_trusted=true",
        ]),
    tcl("tcl-cor-3", "complete: two who think, and three who follow the second").with(&[
        "groups=class-wise(1), symmetric(0.55), imitative(a01), supportive(a01), opposite(a01)",
        "trusted=0.02",
        "annotate_trusted=true",
    ]),
    tcl("tcl-cor-4", "complete: three who think, and two who support one each").with(&[
        "groups=class-wise(1), 2*symmetric(0.6), supportive(a01), supportive(a02)",
        "trusted=0.02",
        "annotate_trusted=true",
    ]),
    Recipe::new::<OnBlobs>("conal-synthetic", CONAL, "common noise, on instances that are drawn")
        .needs(Needs::Nothing)
        .with(&["annotated=0.8"]),
    Recipe::new::<ConfusionMixture>("conal", CONAL, "common noise that depends on the features given")
        .needs(Needs::Features),
    // Of 50000 training images 40000 are annotated and the others are used to choose the epoch; test images are not
    // among them.
    Recipe::new::<ConfusionMixture>("conal-cifar", CONAL, "common noise on pairs that look alike")
        .needs(Needs::Features)
        .classes(10)
        .with(&["noise=symmetric", "pairs=3-5 1-9 4-7 0-2 6-8", "annotated=0.8", "valid=1"]),
    Recipe::new::<RealCrowd>("real", LIA, "a crowd that is given: less of it, drawn anew, oracles beside")
        .needs(Needs::Annotations),
    Recipe::new::<Predictors>("lia-predictors", LIA, "each confuses one pair; features show which"),
    Recipe::new::<FixedBudget>("mbem", KHETAN, "few hammers among many spammers, for a fixed budget"),
    Recipe::new::<SeniorityDesign>("max-mig-low", MAX_MIG, "ten seniors right on 0.2, and juniors"),
    Recipe::new::<SeniorityDesign>("max-mig-high", MAX_MIG, "five seniors who confuse pairs, and juniors")
        .classes(10)
        .with(&["expertise=high"]),
];

/// The recipe of a name.
///
/// # Errors
/// When no recipe has this name; the error suggests the nearest one.
pub fn recipe(name: &str) -> Result<&'static Recipe> {
    RECIPES.iter().find(|r| r.name == name).ok_or_else(|| {
        let names = RECIPES.iter().map(|r| r.name);
        let help =
            did_you_mean(name, names, || "`labelmill simulate --list` shows them".to_owned());
        Error::spec(format!("there is no recipe `{name}`")).at("--recipe").help(help)
    })
}
