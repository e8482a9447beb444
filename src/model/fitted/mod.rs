//! The result of a fit: the posterior, estimates for annotators and instances, and the trace.

pub mod fitted_posterior;
pub mod switching;

use rayon::prelude::*;

use super::confusion::{CommonConfusion, Confusion};
use super::posterior::Posterior;
use super::saved::snapshot::Snapshot;
use crate::error::Result;
use crate::frame::ITEMS_PER_BLOCK;
use fitted_posterior::FittedPosterior;

/// The estimates of a fit other than the posteriors.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// P(class); `None` for a model without one.
    pub prior: Option<Vec<f64>>,
    /// The skill of every annotator; each model defines its own measure of skill.
    pub skill: Vec<f64>,
    /// An interval for every skill, where the model defines one.
    pub skill_interval: Option<Vec<(f64, f64)>>,
    /// The confusion matrices, where the model has them.
    pub confusion: Option<Confusion>,
    /// The confusion matrix that all annotators share, where the model has one.
    pub common: Option<CommonConfusion>,
    /// The confusion matrices of clusters of annotators, where the model has them.
    pub clusters: Vec<CommonConfusion>,
    /// Further parameters of every annotator, by name.
    pub annotator_parameters: Vec<(String, Vec<f64>)>,
    /// Further parameters of every instance, by name; NaN where an instance has none.
    pub instance_parameters: Vec<(String, Vec<f64>)>,
    /// How likely annotators are right on instances, where the model tells.
    pub pair_competence: PairCompetence,
}

impl Report {
    /// The matrices that annotators share: the one of all, and those of clusters.
    pub fn shared(&self) -> impl Iterator<Item = &CommonConfusion> {
        self.common.iter().chain(&self.clusters)
    }
}

/// How likely annotators are right on instances.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PairCompetence {
    /// The annotations' pairs and those that the job asks about, ascending.
    pub pairs: Vec<InstanceAnnotator>,
    /// The probability that the annotator's label would be right, of each pair.
    pub competence: Vec<f64>,
}

/// An instance and an annotator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstanceAnnotator {
    /// The instance.
    pub instance: u32,
    /// The annotator.
    pub annotator: u32,
    /// Whether the annotator labelled the instance.
    pub is_annotated: bool,
}

/// The phase in which a trained classifier learns from trusted classes alone.
pub const FINE_TUNING: &str = "fine-tuning";

/// One step of a fit.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TraceRow {
    /// The part of the fit, such as `em`, or `restart 2`.
    pub phase: String,
    /// The iteration, from 1.
    pub step: u32,
    /// The objective after the step.
    pub objective: f64,
    /// The increase of the objective since the previous step; `None` without a previous value.
    pub change: Option<f64>,
    /// The step's wall time.
    pub seconds: f64,
    /// The score of a network's epoch, greater is better; `None` where epochs are not compared.
    pub score: Option<f64>,
    /// Whether a selection kept the network of this epoch.
    pub is_kept: bool,
}

impl TraceRow {
    /// Adds the rows of a trace to a snapshot.
    pub(crate) fn save(trace: &[Self], to: &mut Snapshot) {
        let phases: Vec<&str> = trace.iter().map(|row| row.phase.as_str()).collect();
        to.text("trace.phases".to_owned(), &phases.join("\n"));
        let rows = trace.iter().flat_map(|row| {
            let [change, score] = [row.change, row.score].map(|value| value.unwrap_or(f64::NAN));
            let is_kept = f64::from(u8::from(row.is_kept));
            [f64::from(row.step), row.objective, change, row.seconds, score, is_kept]
        });
        to.f64s("trace".to_owned(), rows.collect());
    }

    /// The trace in a snapshot.
    ///
    /// # Errors
    /// When it has none.
    pub(crate) fn saved(from: &Snapshot) -> Result<Vec<Self>> {
        // A step was an unsigned integer when it was saved.
        #[allow(clippy::cast_sign_loss)]
        let row = |(phase, x): (&str, &[f64; 6])| Self {
            phase: phase.to_owned(),
            step: x[0] as u32,
            objective: x[1],
            change: Some(x[2]).filter(|c| !c.is_nan()),
            seconds: x[3],
            score: Some(x[4]).filter(|score| !score.is_nan()),
            is_kept: x[5] != 0.0,
        };
        let (phases, rows) = (from.take_text("trace.phases")?, from.take_f64s("trace")?);
        Ok(phases.lines().zip(rows.as_chunks::<6>().0).map(row).collect())
    }
}

/// How the fit ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stop {
    /// Whether the stop rule was met.
    pub converged: bool,
    /// The number of iterations of the start whose result was kept.
    pub iterations: u32,
    /// The objective after the last of them; `None` for a fit without iterations of an objective. The last row of the trace
    /// may be of another start.
    pub objective: Option<f64>,
    /// The number of steps that belongs to the model or to a network's schedule, which patience may cut short; `None` for a
    /// fit that ends by a rule.
    pub planned: Option<PlannedSteps>,
}

impl Stop {
    /// The end of a fit all of whose steps were planned.
    #[must_use]
    pub fn planned(n: u32, unit: &'static str, objective: Option<f64>) -> Self {
        let planned = Some(PlannedSteps { n, unit });
        Self { converged: true, iterations: n, objective, planned }
    }
}

/// A number of steps that is known before a fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedSteps {
    /// How many steps.
    pub n: u32,
    /// What one of them is called, such as `epoch`.
    pub unit: &'static str,
}

/// A fitted model.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitted {
    /// P(class given everything observed).
    pub posterior: FittedPosterior,
    /// P(class given features) of every row of features, by a model that learned a classifier.
    pub predictions: Option<Posterior>,
    /// The other estimates.
    pub report: Report,
    /// One row per step of the fit.
    pub trace: Vec<TraceRow>,
    /// How the fit ended.
    pub stop: Stop,
    /// The trained classifier, where there is one.
    pub model: Option<Trained>,
    /// The device of the computation, such as `cpu` or `cuda:0`.
    pub device: String,
}

/// The device of every model that is not a network: `cpu`.
#[must_use]
pub fn on_cpu() -> String {
    "cpu".to_owned()
}

/// A trained classifier, ready to be saved.
#[derive(Debug, Clone, PartialEq)]
pub struct Trained {
    /// Its kind, parameters and sizes, and the calibration map of its predictions, if there is one.
    pub description: serde_json::Value,
    /// Its weights, in the safetensors format.
    pub parameters: Vec<u8>,
}

impl Fitted {
    /// A fit by one pass over the annotations, on the CPU and without a classifier.
    #[must_use]
    pub fn new(posterior: impl Into<FittedPosterior>, report: Report) -> Self {
        Self {
            posterior: posterior.into(),
            predictions: None,
            report,
            trace: Vec::new(),
            stop: Stop { converged: true, iterations: 0, objective: None, planned: None },
            model: None,
            device: on_cpu(),
        }
    }

    /// The name and value of the first NaN or infinity, if there is any: such a fit must never be published. A NaN among
    /// the parameters of instances stands for an instance without one. Call it in the run's pool of threads.
    #[must_use]
    pub fn not_finite(&self) -> Option<String> {
        let report = &self.report;
        let predictions = self.predictions.as_ref();
        let intervals = report.skill_interval.iter().flatten();
        let intervals: Vec<f64> = intervals.flat_map(|(low, high)| [*low, *high]).collect();
        let objectives: Vec<f64> = self.trace.iter().map(|row| row.objective).collect();
        let changes: Vec<f64> = self.trace.iter().map(|row| row.change.unwrap_or(0.0)).collect();
        let estimates: [(&str, &[f64]); 7] = [
            ("competence of a pair", &report.pair_competence.competence),
            ("prediction", predictions.map_or(&[], Posterior::values)),
            ("prior", report.prior.as_deref().unwrap_or_default()),
            ("skill", &report.skill),
            ("skill interval", &intervals),
            ("objective", &objectives),
            ("change of the objective", &changes),
        ];
        let posterior = self.posterior.parts().into_iter();
        let posterior = posterior.map(|values| ("posterior", values));
        let mut parts: Vec<(&str, &[f64])> = posterior.chain(estimates).collect();
        for CommonConfusion { probability, expected_count } in report.shared() {
            parts.push(("common confusion", probability));
            parts.push(("expected count of the common confusion", expected_count));
        }
        let confusion = report.confusion.iter().flat_map(Confusion::parts);
        parts.extend(confusion.map(|values| ("confusion", values)));
        let named = report.annotator_parameters.iter();
        parts.extend(named.map(|(name, values)| (name.as_str(), values.as_slice())));
        let broken = |(name, values)| first_broken(name, values, f64::is_finite);
        parts.into_iter().find_map(broken).or_else(|| {
            let mut named = report.instance_parameters.iter();
            named.find_map(|(name, values)| first_broken(name, values, |v| !v.is_infinite()))
        })
    }
}

/// The name and value of the first number that is not fine. Generic, so that the check of each number is inlined.
fn first_broken(
    name: &str,
    values: &[f64],
    is_fine: impl Fn(f64) -> bool + Sync,
) -> Option<String> {
    let are_fine = |chunk: &[f64]| chunk.iter().fold(true, |fine, v| fine & is_fine(*v));
    let chunks = values.par_chunks(ITEMS_PER_BLOCK);
    let start = chunks.position_first(|chunk| !are_fine(chunk))? * ITEMS_PER_BLOCK;
    let at = start + values[start..].iter().position(|v| !is_fine(*v))?;
    Some(format!("{name}[{at}] is {}", values[at]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::confusion::Cells;

    #[test]
    fn no_nan_or_infinity_is_overlooked() {
        let common = CommonConfusion { probability: vec![0.5; 4], expected_count: vec![1.0; 4] };
        let fine = Fitted {
            posterior: Posterior::zeros(1, 2).into(),
            predictions: Some(Posterior::zeros(1, 2)),
            report: Report {
                prior: Some(vec![0.5; 2]),
                skill_interval: Some(vec![(0.2, 0.4); 2]),
                confusion: Some(Confusion {
                    cells: Cells::Dense(vec![0.5; 4]),
                    expected_count: vec![1.0; 2],
                }),
                common: Some(common.clone()),
                clusters: vec![common.clone(), common],
                annotator_parameters: vec![("ability".to_owned(), vec![1.0; 2])],
                instance_parameters: vec![("difficulty".to_owned(), vec![1.0, f64::NAN])],
                ..Report::default()
            },
            trace: [None, Some(0.1)]
                .map(|change| TraceRow {
                    phase: "em".to_owned(),
                    step: 1,
                    objective: -2.0,
                    change,
                    ..TraceRow::default()
                })
                .to_vec(),
            stop: Stop { converged: true, iterations: 2, objective: Some(-2.0), planned: None },
            model: None,
            device: on_cpu(),
        };
        assert_eq!(fine.not_finite(), None);
        let broken = |change: fn(&mut Fitted)| {
            let mut fitted = fine.clone();
            change(&mut fitted);
            fitted.not_finite().unwrap()
        };
        let found = [
            broken(|fitted| fitted.posterior.change(|rows| rows.row_mut(0)[1] = f64::NAN)),
            broken(|fitted| fitted.predictions.as_mut().unwrap().row_mut(0)[0] = f64::NAN),
            broken(|fitted| fitted.report.prior.as_mut().unwrap()[1] = f64::NAN),
            broken(|fitted| fitted.report.skill = vec![0.5, f64::NAN]),
            broken(|fitted| fitted.report.pair_competence.competence = vec![f64::NAN]),
            broken(|fitted| fitted.report.skill_interval.as_mut().unwrap()[1].0 = f64::NAN),
            broken(|fitted| fitted.report.common.as_mut().unwrap().probability[3] = f64::NAN),
            broken(|fitted| fitted.report.common.as_mut().unwrap().expected_count[2] = f64::NAN),
            broken(|fitted| fitted.report.clusters[1].probability[2] = f64::NAN),
            broken(|fitted| {
                let confusion = fitted.report.confusion.as_mut().unwrap();
                confusion.expected_count[1] = f64::INFINITY;
            }),
            broken(|fitted| {
                let confusion = fitted.report.confusion.as_mut().unwrap();
                confusion.cells = Cells::Dense(vec![f64::NAN; 4]);
            }),
            broken(|fitted| {
                let confusion = fitted.report.confusion.as_mut().unwrap();
                confusion.cells = Cells::Accuracy(vec![0.5, f64::NAN]);
            }),
            broken(|fitted| fitted.report.annotator_parameters[0].1[1] = f64::NAN),
            broken(|fitted| fitted.trace[1].objective = f64::NEG_INFINITY),
            broken(|fitted| fitted.trace[1].change = Some(f64::NAN)),
            broken(|fitted| fitted.report.instance_parameters[0].1[0] = f64::INFINITY),
        ];
        let want = [
            "posterior[1] is NaN",
            "prediction[0] is NaN",
            "prior[1] is NaN",
            "skill[1] is NaN",
            "competence of a pair[0] is NaN",
            "skill interval[2] is NaN",
            "common confusion[3] is NaN",
            "expected count of the common confusion[2] is NaN",
            "common confusion[2] is NaN",
            "confusion[1] is inf",
            "confusion[0] is NaN",
            "confusion[1] is NaN",
            "ability[1] is NaN",
            "objective[1] is -inf",
            "change of the objective[1] is NaN",
            "difficulty[0] is inf",
        ];
        assert_eq!(found, want);
    }

    #[test]
    fn the_first_of_several_broken_numbers_is_named() {
        let mut values = vec![0.5; 3 * ITEMS_PER_BLOCK];
        for at in [ITEMS_PER_BLOCK + 7, ITEMS_PER_BLOCK + 9, 2 * ITEMS_PER_BLOCK] {
            values[at] = f64::NAN;
        }
        let found = first_broken("posterior", &values, f64::is_finite);
        assert_eq!(found, Some(format!("posterior[{}] is NaN", ITEMS_PER_BLOCK + 7)));
    }
}
