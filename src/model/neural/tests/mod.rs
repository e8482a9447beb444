//! Tests of the neural models: their common cases, and losses compared with values that were computed independently.

mod embeddings;
mod fits;
mod gold_options;
mod inputs;
mod kinds;
mod linear;
mod losses;
mod posteriors;
mod presets;
mod settings;
mod trace;
pub(super) mod training_loop;
mod without_features;

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::models::doctor_net::weighted_doctor_net::WEIGHTS_PHASE;
use super::models::{dl::Targets, max_mig, trace_regularised};
use super::*;
use crate::error::Result;
use crate::frame::{Annotations, Dims, Evidence};
use crate::job_context::JobContext;
use crate::model::confusion::Cells;
use crate::model::fitted::Fitted;
use crate::model::neural::data::batch::{Batch, BatchAnnotation};
use crate::model::neural::data::batching::{Batching, InstanceSubset};
use crate::model::neural::data::inputs::{EmbeddingInput, LearnerInput};
use crate::model::neural::data::sizes::Sizes;
use crate::model::neural::data::{Epoch, TrainingData};
use crate::model::neural::models::conal::Mixture;
use crate::model::neural::models::crowd_layer::LayerForm;
use crate::model::neural::models::max_mig::FDivergence::{
    Hellinger, JensenShannon, Kl, Pearson, ReverseKl, TotalVariation,
};
use crate::model::neural::models::single_confusion::NoisyLabels;
use crate::model::neural::models::{
    AggNet, CrowdLayer, Cvl, Dl, DoctorNet, LiaMulti, MaxMig, Mbem, SingleConfusion, SoftBootstrap,
    Tcl, Tcls, TraceRegularised, WeightedDoctorNet,
};
use crate::model::neural::net::heads::{Head, HeadInput, Heads, Outputs};
use crate::model::neural::numerics::softmax;
use crate::model::neural::objective::batch_context::{BatchContext, Gradient};
use crate::model::neural::objective::crowd_net::Task;
use crate::model::neural::objective::schedule::{Act, LearnerSubset, Phase};
use crate::model::neural::objective::train_spec::{BatchBy, Reduction, Select};
use crate::model::neural::objective::train_state::{Estimates, MAIN_TARGETS, TrainState};
use crate::model::neural::params::annotator_params::{AnnotatorParams, Gathered};
use crate::model::neural::params::param_table::{Owner, ParamTable};
use crate::model::neural::train::learners::learner::LearnerSpec;
use crate::model::neural::train::step::loss_and_gradient;
use crate::model::posterior::Posterior;
use crate::model::{FeatureUse, Model, Spec};
use crate::testing::{tiny, weighted};
use linear::test_kind;

/// Instances 0 and 1, annotators 0 and 1, three classes.
const ANNOTATIONS: [(u32, u32, u32); 4] = [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 2)];
const LOGITS: [f64; 6] = [2.0, 0.0, -1.0, 0.5, 1.5, 0.0];

/// The sizes of these annotations.
const SIZES: Sizes = Sizes {
    features: Vec::new(),
    classes: 3,
    labels: 3,
    annotators: 2,
    annotator_features: None,
    questions: Vec::new(),
    question: 0,
};

fn annotations() -> Annotations {
    tiny(3, &ANNOTATIONS)
}

fn batch() -> Batch {
    Batch {
        rows: vec![0, 1],
        instances: vec![0, 1],
        table_rows: vec![0, 1],
        distinct_table_rows: vec![0, 1],
        questions: Vec::new(),
        offsets: vec![0, 2, 4],
        annotations: ANNOTATIONS
            .iter()
            .map(|(_, annotator, label)| BatchAnnotation {
                annotator: *annotator,
                label: *label,
                weight: 1.0,
            })
            .collect(),
        annotators: vec![0, 1],
        share: vec![1.0, 1.0],
        targets: Vec::new(),
        trusted: vec![None, None],
        trusted_share: vec![1.0, 1.0],
    }
}

fn outputs(hidden: &[f64], named: Vec<Vec<f64>>) -> Outputs {
    let mut p = vec![0.0; 6];
    for (logits, p) in LOGITS.chunks(3).zip(p.chunks_mut(3)) {
        softmax(logits, p);
    }
    let (logits, hidden) = (LOGITS.to_vec(), hidden.to_vec());
    Outputs { rows: 2, logits, p, hidden, named, ..Outputs::default() }
}

/// The model with the training settings `train`, and with defaults otherwise.
fn with<N: CrowdNet>(train: TrainSpec, model: N) -> Neural<N> {
    Neural { network: NetworkSpec { train, ..NetworkSpec::default() }, model }
}

/// The same model on the CPU, even if there is a GPU.
fn on_cpu<N: CrowdNet>(train: TrainSpec, model: N) -> Neural<N> {
    let mut model = with(train, model);
    model.network.device = "cpu".to_owned();
    model
}

thread_local! {
    /// The kinds whose gradients this test has checked.
    static CHECKED: RefCell<BTreeSet<&'static str>> = const { RefCell::new(BTreeSet::new()) };
}

/// The batches of one epoch over these instances.
fn batches_of(
    data: &TrainingData<'_>,
    instances: InstanceSubset,
    batching: Batching,
) -> Vec<Batch> {
    let epoch = Epoch { name: "epoch", instances, targets: None, batching, readers: &[] };
    let mut batches = Vec::new();
    data.epoch(epoch, &JobContext::new(1), |read, _| {
        batches.push(read.batch);
        Ok(())
    })
    .unwrap();
    batches
}

/// The model's loss on the two rows with these tables' values in place of its own.
struct Case<'a, N> {
    model: &'a N,
    batch: Batch,
    out: Outputs,
    /// The outputs of the other learners.
    others: Vec<Outputs>,
    /// Whether the other learners have parameters; without, their outputs need no gradient.
    others_are_trained: bool,
    annotator_params: AnnotatorParams,
    phase: &'static str,
    estimates: Estimates,
    reduction: Reduction,
    /// The only table that is trained, while all other parameters are fixed; `None` to train all.
    alone: Option<usize>,
}

impl<'a, N: CrowdNet> Case<'a, N> {
    fn new(model: &'a N) -> Self {
        let (a, heads) = (annotations(), model.heads(&SIZES));
        let hidden = if heads.hidden { vec![0.3, -0.2, 0.8, 0.1] } else { Vec::new() };
        let numbers = |head: &Head| -> Vec<f64> {
            let width = 2 * head.widths.last().unwrap();
            (0..width).map(|n| 0.4 - 0.3 * n as f64).collect()
        };
        let named = heads.named.iter().map(numbers).collect();
        let job = JobContext::new(3);
        let task = Task { evidence: (&a).into(), dims: a.dims(), hidden: 2, job: &job };
        let annotator_params = AnnotatorParams { tables: model.tables(&task).unwrap() };
        let mut out = outputs(&hidden, named);
        if !heads.classifier {
            (out.logits, out.p) = (Vec::new(), Vec::new());
        }
        Case {
            model,
            batch: batch(),
            out,
            others: Vec::new(),
            others_are_trained: true,
            annotator_params,
            phase: "",
            estimates: Estimates::default(),
            reduction: N::REDUCTION.unwrap_or(Reduction::Sum),
            alone: None,
        }
    }

    fn with(mut self, table: usize, values: &[f32]) -> Self {
        self.annotator_params.tables[table].values = values.to_vec();
        self
    }

    fn reduced(self, reduction: Reduction) -> Self {
        Case { reduction, ..self }
    }

    fn with_targets(mut self, targets: &[f64]) -> Self {
        self.batch.targets = targets.to_vec();
        self
    }

    fn loss(&self, out: &Outputs, gathered: &Gathered) -> (f64, Gradient) {
        loss_and_gradient(self.model, &self.context(out, gathered)).unwrap()
    }

    /// The loss with these outputs of the classifier and of the other learners.
    fn loss_of(&self, all: &[Outputs], gathered: &Gathered) -> f64 {
        let context = BatchContext { others: &all[1..], ..self.context(&all[0], gathered) };
        loss_and_gradient(self.model, &context).unwrap().0
    }

    fn context<'c>(&'c self, out: &'c Outputs, gathered: &'c Gathered) -> BatchContext<'c> {
        BatchContext {
            phase: self.phase,
            batch: &self.batch,
            out,
            others: &self.others,
            gathered,
            annotator_params: &self.annotator_params,
            estimates: &self.estimates,
            reduction: self.reduction,
            dims: annotations().dims(),
        }
    }

    fn predicted(&self) -> BatchPrediction {
        self.model.predict(&self.context(&self.out, &self.annotator_params.gather(&self.batch)))
    }

    /// The annotations of the batch.
    fn annotations(&self) -> Annotations {
        let of_row = |b| self.batch.annotations_of_instance(b).iter().map(move |a| (b as u32, a));
        let row = |(b, a): (u32, &BatchAnnotation)| ((b, a.annotator, a.label), a.weight);
        let rows = (0..2).flat_map(of_row).map(row);
        let (rows, weights): (Vec<_>, Vec<f64>) = rows.unzip();
        weighted(annotations().dims(), &rows, weights)
    }

    /// The posteriors of an E-step.
    fn e_step(&self) -> Vec<f64> {
        let (a, gathered) = (self.annotations(), self.annotator_params.gather(&self.batch));
        let confusion = self.model.annotator_matrices(&self.annotator_params, a.dims()).unwrap();
        let mut prior = Posterior::zeros(2, 3);
        prior.values_mut().copy_from_slice(&self.model.prior(&self.context(&self.out, &gathered)));
        confusion.posteriors(&a, prior).values().to_vec()
    }

    fn value(&self) -> f64 {
        self.loss(&self.out, &self.annotator_params.gather(&self.batch)).0
    }

    fn expect(&self, value: f64) {
        let got = self.value();
        assert!((got - value).abs() < 1e-5, "{}: {got}, expected {value}", N::KIND);
    }

    /// Compares every derivative with a finite difference of the loss, to a thousandth.
    fn check_gradient(&self) {
        const STEP: f64 = 1e-5;
        CHECKED.with_borrow_mut(|checked| checked.insert(N::KIND));
        let gathered = self.annotator_params.gather(&self.batch);
        let (_, gradient) = self.loss(&self.out, &gathered);
        let near = |what: &str, got: f64, up: f64, down: f64| {
            let want = (up - down) / (2.0 * STEP);
            let allowed = 1e-3 * want.abs().max(1e-4);
            assert!(
                (got - want).abs() < allowed,
                "{} {what}: {got}, by differences {want}",
                N::KIND
            );
        };
        let others = gradient.others.iter().filter(|_| self.others_are_trained);
        let outputs = std::iter::once(&gradient.out).chain(others).enumerate();
        for (learner, own) in outputs.filter(|_| self.alone.is_none()) {
            let heads = [&own.logits, &own.hidden].into_iter().chain(&own.named);
            for (head, got) in heads.enumerate() {
                for (at, got) in got.iter().enumerate() {
                    let moved = |by: f64| {
                        let mut all = [vec![self.out.clone()], self.others.clone()].concat();
                        move_output(&mut all[learner], head, at, by);
                        self.loss_of(&all, &gathered)
                    };
                    let what = format!("learner {learner}, output {head}[{at}]");
                    near(&what, *got, moved(STEP), moved(-STEP));
                }
            }
        }
        for (table, rows) in gradient.tables.iter().enumerate() {
            if self.annotator_params.tables[table].is_fixed
                || self.alone.is_some_and(|only| only != table)
            {
                continue;
            }
            for (at, got) in rows.iter().enumerate() {
                let moved = |by: f64| {
                    let mut gathered = gathered.clone();
                    gathered[table][at] += by;
                    self.loss(&self.out, &gathered).0
                };
                near(&format!("table {table}[{at}]"), *got, moved(STEP), moved(-STEP));
            }
        }
    }
}

/// Adds `by` to one value of the logits (head 0), the hidden layer (1) or a named head.
fn move_output(out: &mut Outputs, head: usize, at: usize, by: f64) {
    match head {
        0 => out.logits[at] += by,
        1 => out.hidden[at] += by,
        n => out.named[n - 2][at] += by,
    }
    for (logits, p) in out.logits.chunks(3).zip(out.p.chunks_mut(3)) {
        softmax(logits, p);
    }
}

const RHO: [f32; 18] = [
    1.0, -5.0, -5.0, -5.0, 1.0, -5.0, -5.0, -5.0, 1.0, //
    1.0, 0.0, -2.0, -1.0, 2.0, 0.5, 0.0, 0.0, 0.0,
];

#[test]
fn trace_regularised_has_the_losses_that_were_computed_independently() {
    let model = TraceRegularised { lambda: 0.0, ..TraceRegularised::default() };
    Case::new(&model).with(0, &RHO).reduced(Reduction::Sum).expect(3.102_051);
    // Equation 4 sums over annotators, where the sample code takes their mean.
    let model = TraceRegularised { lambda: 0.02, ..TraceRegularised::default() };
    Case::new(&model).with(0, &RHO).reduced(Reduction::Sum).expect(3.147_466);
    let model = TraceRegularised::default();
    Case::new(&model).with(0, &RHO).expect(1.573_733);
    let rho: Vec<f64> = RHO.iter().map(|x| f64::from(*x)).collect();
    let pi = trace_regularised::matrices(&rho, annotations().dims());
    for (got, want) in pi.iter().zip([0.989_877, 0.005_062, 0.005_062]) {
        assert!((got - want).abs() < 1e-5, "{pi:?}");
    }
    let second = [0.615_590, 0.324_912, 0.059_497, 0.091_751, 0.622_953, 0.285_296];
    for (got, want) in pi[9..].iter().zip(second) {
        assert!((got - want).abs() < 1e-5, "{pi:?}");
    }
}

const LAYERS: [f32; 18] = [
    1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, //
    0.5, 0.5, 0.0, 0.0, 1.0, -0.5, 0.2, 0.0, 1.0,
];

#[test]
fn crowd_layer_has_the_losses_that_were_computed_independently() {
    let model = CrowdLayer::default();
    Case::new(&model).with(0, &LAYERS).expect(0.994_006);
    // The same four terms, and 0 for missing annotations, divided by two instances times two annotators.
    Case::new(&model).with(0, &LAYERS).reduced(Reduction::MeanDense).expect(0.994_006);
}

fn conal(mixture: Mixture, lambda: f64) -> Conal {
    Conal { mixture, lambda, embedding: 2, ..Conal::default() }
}

fn conal_case(model: &Conal) -> Case<'_, Conal> {
    let two = |cells: [(usize, f32); 1]| {
        let mut w = vec![2.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 2.0];
        cells.into_iter().for_each(|(at, value)| w[at] = value);
        w
    };
    let individual = [two([(0, 2.0)]), two([(6, -0.4)])].concat();
    let mut case = Case::new(model)
        .with(0, &two([(1, 0.3)]))
        .with(1, &individual)
        .with(2, &[0.3, -1.0, 1.0, 1.0]);
    case.out.named = vec![vec![1.0, 2.0, -1.0, 0.5]];
    case
}

// keys: conal.mixture
#[test]
fn conal_has_the_losses_that_were_computed_independently() {
    conal_case(&conal(Mixture::LogitMix, 0.0)).expect(1.055_239);
    conal_case(&conal(Mixture::LogitMix, 1e-5)).expect(1.055_231);
    conal_case(&conal(Mixture::LogitMix, 1.0)).expect(1.055_239 - 0.8);
    conal_case(&conal(Mixture::ProbMix, 0.0)).expect(1.054_666);
    conal_case(&conal(Mixture::RowStochastic, 0.0)).expect(1.049_829);
}

/// With u = 0 and the prior .5 .3 .2, g is .7 .2 .1 for row 0 and .2 .5 .3 for row 1: only the label 0 by annotator 0
/// and the label 2 by annotator 1 have entries in V that are not zero.
fn max_mig_case(model: &MaxMig) -> Case<'_, MaxMig> {
    let prior = [0.5, 0.3, 0.2];
    let g = [[0.7, 0.2, 0.1], [0.2, 0.5, 0.3_f64]];
    let mut table = vec![0.0_f32; 18];
    for k in 0..3 {
        table[k * 3] = (g[0][k] / prior[k]).ln() as f32;
        table[9 + k * 3 + 2] = (g[1][k] / prior[k]).ln() as f32;
    }
    Case::new(model).with(0, &table).with(1, &prior.map(|p| p as f32))
}
