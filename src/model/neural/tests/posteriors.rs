//! Predictions of trained models for a batch, worked out by hand.

use super::losses::uneven::heads_of_biases;
use super::*;
use crate::model::neural::data::TrainingData;
use crate::model::neural::models::doctor_net::head_weights::WeightsBy;
use crate::model::neural::models::doctor_net::{label_probabilities, predict_mean};
use crate::testing::assert_close;

#[track_caller]
pub(super) fn near(got: &[f64], want: &[f64]) {
    assert_close(got, want, 1e-5, "number");
}

/// p[k] times P(label given k) of both annotations, the second to the power of its weight, normalised.
fn bayes(p: &[f64], first: [f64; 3], second: [f64; 3], weight: f64) -> Vec<f64> {
    let joint: Vec<f64> = (0..3).map(|k| p[k] * first[k] * second[k].powf(weight)).collect();
    let sum: f64 = joint.iter().sum();
    joint.iter().map(|j| j / sum).collect()
}

/// The softmax of the columns 0 and 1 of I and of [.5 .5 0][0 1 -.5][.2 0 1], row by row.
#[test]
fn a_crowd_layer_s_posterior_follows_from_its_layers() {
    let model = CrowdLayer::default();
    let mut case = Case::new(&model).with(0, &LAYERS);
    case.batch.annotations[1].weight = 0.5;
    let (first, second) = ([0.576_117, 0.211_942, 0.211_942], [0.383_652, 0.628_532, 0.202_442]);
    let predicted = case.predicted();
    near(&predicted.posterior[..3], &bayes(case.out.p(0), first, second, 0.5));
    near(&predicted.posterior[..3], &[0.928_479, 0.059_168, 0.012_353]);
    near(&predicted.classes, &case.out.p);
}

/// No array has a row for this annotator.
#[test]
fn a_prediction_with_a_shared_matrix_has_no_array_of_annotators() {
    for labels in [NoisyLabels::Annotations, NoisyLabels::Majority] {
        let model = SingleConfusion { labels, ..SingleConfusion::default() };
        let mut case = Case::new(&model);
        let wanted = case.predicted();
        case.batch.annotations.iter_mut().for_each(|annotation| annotation.annotator = u32::MAX);
        assert_eq!(case.predicted(), wanted, "{labels:?}");
    }
}

/// The shares of row 0 are 0.325590 and 0.720850.
#[test]
fn conal_s_posterior_follows_from_every_mixture() {
    let (own, other) = (0.325_590, 0.720_850);
    let share = |logits: [f64; 3], label: usize| {
        let sum: f64 = logits.iter().map(|l| l.exp()).sum();
        logits[label].exp() / sum
    };
    // Rows of the common matrix, of annotator 0 and of annotator 1.
    let common = [[2.0, 0.3, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]];
    let zero = [[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]];
    let one = [[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [-0.4, 0.0, 2.0]];
    for mixture in [Mixture::LogitMix, Mixture::ProbMix, Mixture::RowStochastic] {
        let given = |om: f64, individual: [[f64; 3]; 3], label: usize| {
            [0, 1, 2].map(|k| match mixture {
                Mixture::LogitMix => {
                    let mix = |l: usize| om * common[k][l] + (1.0 - om) * individual[k][l];
                    share([mix(0), mix(1), mix(2)], label)
                }
                _ => om * share(common[k], label) + (1.0 - om) * share(individual[k], label),
            })
        };
        let model = conal(mixture, 0.0);
        let mut case = conal_case(&model);
        case.batch.annotations[1].weight = 0.5;
        let wanted = bayes(case.out.p(0), given(own, zero, 0), given(other, one, 1), 0.5);
        near(&case.predicted().posterior[..3], &wanted);
    }
}

/// The shares of row 0 are 0.325590 and 0.720850, with the weights 1 and 0.5.
#[test]
fn a_common_share_is_a_mean_over_weighted_annotations() {
    let model = conal(Mixture::LogitMix, 0.0);
    let mut case = conal_case(&model);
    case.batch.annotations[1].weight = 0.5;
    near(&case.predicted().parameters[..1], &[(0.325_590 + 0.5 * 0.720_850) / 1.5]);
    case.batch.annotations[..2].iter_mut().for_each(|annotation| annotation.weight = 0.0);
    assert!(case.predicted().parameters[0].is_nan());
}

/// The classes 0 and 1 have the same share of the votes: in the posterior each has half of 0.95, and the classifier
/// decides between them; the loss has the lowest class as its target.
#[test]
fn a_bootstrapped_tie_is_nearly_a_tie() {
    let model = SoftBootstrap::default();
    let case = Case::new(&model).with_targets(&[0.4, 0.4, 0.2, 0.0, 0.3, 0.7]);
    let wanted = [
        0.475 + 0.05 * 0.843_795,
        0.475 + 0.05 * 0.114_195,
        0.05 * 0.042_010,
        0.05 * 0.231_224,
        0.05 * 0.628_532,
        0.95 + 0.05 * 0.140_244,
    ];
    near(&case.predicted().posterior, &wanted);
    let mut target = wanted;
    (target[0], target[1]) = (wanted[0] + 0.475, wanted[1] - 0.475);
    let loss: f64 = case.out.p.iter().zip(target).map(|(p, mixture)| -0.5 * mixture * p.ln()).sum();
    case.expect(loss);
}

/// Row 0 has the trusted class 2, whose probability is 0.042010; row 1 has the vote 1, the classifier's own class.
#[test]
fn a_trusted_class_is_not_mixed_with_the_prediction() {
    for (hard, of_row_1) in [(false, 0.95 + 0.05 * 0.628_532), (true, 1.0)] {
        let model = SoftBootstrap { hard, ..SoftBootstrap::default() };
        let mut case = Case::new(&model).with_targets(&[0.0, 0.0, 1.0, 0.0, 1.0, 0.0]);
        case.batch.trusted[0] = Some(2);
        let own = if hard { 0.0 } else { 0.05 };
        let terms = [own * 0.231_224, of_row_1, own * 0.140_244];
        let logs = [0.231_224, 0.628_532, 0.140_244_f64].map(f64::ln);
        let of_row_1: f64 = terms.iter().zip(logs).map(|(term, log)| -term * log).sum();
        case.expect(0.5 * (-(0.042_010_f64.ln()) + of_row_1));
        case.check_gradient();
        near(&case.predicted().posterior[..3], &[0.0, 0.0, 1.0]);
    }
}

/// Annotations multiply the classifier by 2, 1, 1 and by the root of 1, 4, 1; the prior appears in g and is divided out.
#[test]
fn max_mig_s_posterior_divides_by_its_prior() {
    let model = MaxMig::default();
    let mut table = vec![0.0; 18];
    (table[0], table[9 + 3 + 1]) = (2.0_f32.ln(), 4.0_f32.ln());
    let mut case = Case::new(&model).with(0, &table).with(1, &[0.5, 0.3, 0.2]);
    case.batch.annotations[1].weight = 0.5;
    near(&case.predicted().posterior[..3], &[0.861_899, 0.116_645, 0.021_456]);
}

/// Heads that give 1/2, 1/4, 1/4 and 1/4, 1/4, 1/2, whose annotators have three annotations and one.
// keys: doctor_net.weight_by_annotations
#[test]
fn heads_weigh_as_much_as_their_annotations() {
    let a = tiny(3, &[(0, 0, 0), (1, 0, 1), (2, 0, 0), (0, 1, 2)]);
    let job = JobContext::new(1);
    let task = Task { evidence: (&a).into(), dims: a.dims(), hidden: 2, job: &job };
    for (weight_by_annotations, wanted) in
        [(true, [0.4375, 0.25, 0.3125]), (false, [0.375, 0.25, 0.375])]
    {
        let model = DoctorNet { weight_by_annotations };
        let mut case = Case::new(&model);
        case.annotator_params = AnnotatorParams { tables: model.tables(&task).unwrap() };
        near(&case.with(0, &heads_of_biases()).predicted().classes[..3], &wanted);
    }
}

/// The soft annotation of annotator 0 has three rows, whose weights sum to 1; annotator 1 has two annotations, one with
/// the weight 0.5.
#[test]
fn a_soft_annotation_weighs_a_head_as_one() {
    let rows = [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 2), (1, 1, 1)];
    let dims = Dims { instances: 2, annotators: 2, classes: 3, labels: 3 };
    let a = weighted(dims, &rows, vec![0.5, 0.25, 0.25, 1.0, 0.5]);
    let job = JobContext::new(1);
    let task = Task { evidence: (&a).into(), dims, hidden: 2, job: &job };
    let model = DoctorNet { weight_by_annotations: true };
    let mut case = Case::new(&model);
    case.annotator_params = AnnotatorParams { tables: model.tables(&task).unwrap() };
    // 0.4 (1/2, 1/4, 1/4) + 0.6 (1/4, 1/4, 1/2)
    near(&case.with(0, &heads_of_biases()).predicted().classes[..3], &[0.35, 0.25, 0.4]);
}

/// Seventy rows, which are more than two blocks, and seven heads of uneven weights; head by head and row by row.
#[test]
fn heads_in_blocks_are_heads_one_by_one() {
    let (rows, heads, hidden, labels) = (70, 7, 5, 3);
    let value = |n: usize| ((n * 37 % 101) as f32 / 50.0 - 1.0).sin();
    let table: Vec<f32> = (0..heads * (hidden + 1) * labels).map(value).collect();
    let out = Outputs {
        rows,
        hidden: (0..rows * hidden).map(|n| f64::from(value(n + 11))).collect(),
        ..Outputs::default()
    };
    let batch = TrainingData::unseen((0..rows as u32).collect());
    let params = AnnotatorParams {
        tables: vec![ParamTable::drawn("heads", (hidden + 1) * labels, table.clone())],
    };
    let context = BatchContext {
        phase: "",
        estimates: &Estimates::default(),
        reduction: Reduction::Sum,
        batch: &batch,
        out: &out,
        others: &[],
        gathered: &params.gather(&batch),
        annotator_params: &params,
        dims: Dims { instances: rows, annotators: heads, classes: labels, labels },
    };
    let weights: Vec<f64> = (0..heads).map(|r| 0.1 + r as f64).collect();
    let sum: f64 = weights.iter().sum();
    let predicted = predict_mean(&context, |_| weights.clone());
    for b in 0..rows {
        let mut mean = vec![0.0; labels];
        for (head, weight) in table.chunks((hidden + 1) * labels).zip(&weights) {
            let head: Vec<f64> = head.iter().map(|v| f64::from(*v)).collect();
            let mut p = vec![0.0; labels];
            label_probabilities(&head, out.hidden(b), &mut p);
            mean.iter_mut().zip(p).for_each(|(m, p)| *m += weight / sum * p);
        }
        near(&predicted.classes[b * labels..(b + 1) * labels], &mean);
    }
}

/// Hidden layers (0.3, -0.2) and (0.8, 0.1), V = [.5 -1][2 .4] and c = (.1, -.3): a = -.15, -.68 and .7, -1.06. The head of
/// annotator 1 weighs 1 / (1 + e^.53) and 1 / (1 + e^1.76).
#[test]
fn weights_of_instances_follow_their_features() {
    let model =
        WeightedDoctorNet { weights_by: WeightsBy::Instance, ..WeightedDoctorNet::default() };
    let weights = [0.5, -1.0, 2.0, 0.4, 0.1, -0.3];
    let case = Case::new(&model).with(0, &heads_of_biases()).with(1, &weights);
    let w = [1.0 / (1.0 + 0.53_f64.exp()), 1.0 / (1.0 + 1.76_f64.exp())];
    let mean = |w: f64| [0.5 - 0.25 * w, 0.25, 0.25 + 0.25 * w];
    near(&case.predicted().classes, &[mean(w[0]), mean(w[1])].concat());
}

/// A row that only one annotator labelled uses the head of the other; a row that both labelled uses both heads.
#[test]
fn gradients_of_weights_by_instance_are_the_loss_s_slopes() {
    for bottleneck in [None, Some(3)] {
        let model = WeightedDoctorNet {
            weights_by: WeightsBy::Instance,
            bottleneck,
            ..WeightedDoctorNet::default()
        };
        let tables = 1..Case::new(&model).annotator_params.tables.len();
        assert_eq!(tables.len(), 1 + usize::from(bottleneck.is_some()));
        for table in tables {
            let mut case = Case::new(&model);
            let start = &mut case.annotator_params.tables[1].values;
            start.iter_mut().enumerate().for_each(|(n, w)| *w = (n as f32 * 1.7).sin());
            (case.phase, case.alone) = (WEIGHTS_PHASE, Some(table));
            case.check_gradient();
        }
    }
}
