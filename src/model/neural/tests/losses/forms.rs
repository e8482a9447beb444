//! Losses, initial parameters and shares worked out by hand for other settings than the defaults.

use super::uneven::{heads_of_biases, weighted};
use crate::frame::{AnnotationRows, Duplicates};
use crate::model::ModelSpec;
use crate::model::neural::models::doctor_net::head_weights::WeightsBy;
use crate::model::neural::tests::posteriors::near;
use crate::model::neural::tests::*;

/// The two matrices of `over` for each annotator.
pub(super) const OVER: [f32; 36] = [
    1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 2.0, 0.5, 0.0, -0.3, 1.0, 0.0, 0.4, 0.0,
    1.0, //
    0.5, 0.5, 0.0, 0.0, 1.0, -0.5, 0.2, 0.0, 1.0, 1.0, 0.0, 0.7, 0.0, 3.0, 0.0, -1.0, 0.0, 1.5,
];

/// The weights (`vw`, `vw_b`) or biases (`vb`) are (1.5, -0.5, 1) and (0.2, 2, -1); the biases of `vw_b` are (0.1, 0.3,
/// -0.2) and (0, -0.4, 0.5), and the weights of `sw` 1.5 and -2. The annotations have the weights 1, 0.5, 2 and 0.25.
// keys: crowd_layer.form
#[test]
fn every_form_of_a_crowd_layer_has_its_loss() {
    let own = [1.5, -0.5, 1.0, 0.2, 2.0, -1.0];
    let both = [1.5, -0.5, 1.0, 0.1, 0.3, -0.2, 0.2, 2.0, -1.0, 0.0, -0.4, 0.5];
    let layers: [(LayerForm, &[f32], f64); 5] = [
        (LayerForm::Vw, &own, 4.414_358),
        (LayerForm::Vb, &own, 5.690_678),
        (LayerForm::VwB, &both, 3.994_284),
        (LayerForm::Sw, &[1.5, -2.0], 2.542_985),
        (LayerForm::Over, &OVER, 3.386_791),
    ];
    for (form, values, wanted) in layers {
        let model = CrowdLayer { form };
        weighted(Case::new(&model)).reduced(Reduction::Sum).with(0, values).expect(wanted);
    }
}

/// Row 0: vote and classifier agree on 0; row 1: 0.7 of the target is the vote 2, 0.3 the classifier's 1.
// keys: soft_bootstrap.hard
#[test]
fn a_hard_bootstrap_adds_the_most_probable_class() {
    let targets = [0.6, 0.3, 0.1, 0.2, 0.2, 0.6];
    let loss = |beta: f64| {
        let second = beta * 0.140_244_f64.ln() + (1.0 - beta) * 0.628_532_f64.ln();
        -0.5 * (0.843_795_f64.ln() + second)
    };
    for (beta, wanted) in [(Some(0.7), 0.7), (None, 0.8)] {
        let model = SoftBootstrap { hard: true, beta };
        Case::new(&model).with_targets(&targets).expect(loss(wanted));
    }
}

// keys: dl.targets
#[test]
fn targets_are_the_whole_posterior_or_its_most_probable_class() {
    let soft = [0.6, 0.3, 0.1, 0.2, 0.2, 0.6];
    let hard = [1.0, 0.0, 0.0, 0.0, 0.0, 1.0];
    let log_p = [0.843_795, 0.114_195, 0.042_010, 0.231_224, 0.628_532, 0.140_244_f64].map(f64::ln);
    let loss = |targets: [f64; 6]| -> f64 {
        targets.iter().zip(log_p).map(|(target, log)| -0.5 * target * log).sum()
    };
    for (kind, targets, wanted) in [
        ("majority_vote", Targets::Auto, hard),
        ("dawid_skene", Targets::Auto, soft),
        ("majority_vote", Targets::Soft, soft),
        ("dawid_skene", Targets::Hard, hard),
    ] {
        let aggregator = ModelSpec { kind: kind.to_owned(), ..ModelSpec::default() };
        let model = Dl { aggregator, targets, ..Dl::default() };
        Case::new(&model).with_targets(&soft).expect(loss(wanted));
    }
}

/// The trace of the matrix is 0.615590 + 0.622953 + 1/3; without it the loss is 2.811047.
// keys: single_confusion.labels, single_confusion.lambda
#[test]
fn a_single_matrix_pays_for_its_trace() {
    let labels = NoisyLabels::Annotations;
    let model = SingleConfusion { labels, lambda: 0.3, ..SingleConfusion::default() };
    weighted(Case::new(&model))
        .with(0, &RHO[9..])
        .reduced(Reduction::Sum)
        .expect(2.811_047 + 0.3 * 1.571_876);
}

/// K = 1.278448, 0.590858, 0.812857, 1.350409, and half is added to the diagonal.
// keys: max_mig.u
#[test]
fn what_is_added_to_the_diagonal_is_inside_the_logarithm() {
    max_mig_case(&MaxMig { u: 0.5, ..MaxMig::default() }).expect(-0.893_716);
}

/// T = (.75, .25, 0) and (0, .25, .75). Annotator 0 gives the first instance the label 0 with the weight 3, and the
/// second the label 1 with 0.5: the counts of these labels by class are 2.25 and 0, .75 and .125, 0 and .375. Annotator
/// 1 gives the labels 1 and 2, with the weights 1 and 1.5.
// keys: max_mig.prior, max_mig.start_floor
#[test]
fn max_mig_starts_at_the_shares_of_the_votes() {
    let rows = AnnotationRows {
        instance: vec![0, 0, 1, 1],
        annotator: vec![0, 1, 0, 1],
        label: vec![0, 1, 1, 2],
        weight: vec![3.0, 1.0, 0.5, 1.5],
    };
    let dims = Dims { instances: 2, annotators: 2, classes: 3, labels: 3 };
    let a = Annotations::build(dims, rows, Duplicates::Share).unwrap();
    let job = JobContext::new(1);
    let task = Task { evidence: (&a).into(), dims, hidden: 0, job: &job };
    for (prior, fixed, wanted) in [
        (max_mig::PriorChoice::Uniform, true, [1.0 / 3.0; 3]),
        (max_mig::PriorChoice::Votes, true, [0.375, 0.25, 0.375]),
        (max_mig::PriorChoice::Learned, false, [0.375_f64.ln(), 0.25_f64.ln(), 0.375_f64.ln()]),
    ] {
        let tables =
            MaxMig { prior, start_floor: 0.25, ..MaxMig::default() }.tables(&task).unwrap();
        let of = |table: usize, r: usize| tables[table].row(r);
        near(&of(1, 0), &wanted);
        assert_eq!(tables[1].is_fixed, fixed, "{prior:?}");
        let shares = [1.0, 0.0, 0.0, 0.75 / 0.875, 0.125 / 0.875, 0.0, 0.0, 1.0, 0.0_f64];
        near(&of(0, 0), &shares.map(|share| (share + 0.25).ln()));
    }
}

// keys: conal.initial_strength, conal.embedding, conal.auxiliary
#[test]
fn conal_starts_at_its_strength_and_its_widths() {
    let model = Conal { initial_strength: 0.7, embedding: 3, auxiliary: 7, ..Conal::default() };
    let a = annotations();
    let job = JobContext::new(1);
    let task = Task { evidence: (&a).into(), dims: a.dims(), hidden: 0, job: &job };
    let tables = model.tables(&task).unwrap();
    let start = [0.7, 0.0, 0.0, 0.0, 0.7, 0.0, 0.0, 0.0, 0.7];
    for (table, r) in [(0, 0), (1, 0), (1, 1)] {
        near(&tables[table].row(r), &start);
    }
    assert_eq!((tables[2].width, tables[2].values.len()), (3, 6));
    assert_eq!(model.heads(&SIZES).named[0].widths, [7, 3]);
}

/// The annotators' embeddings (0.3, -1) and (1, 1) are normalised; the instances' embeddings (1, 2) and (-1, 0.5) are
/// normalised or not. If they are not, the inner products are -1.628304, 2.121320 and -0.766261, -0.353553.
// keys: conal.normalise_instances
#[test]
fn the_share_of_an_instance_depends_on_its_length_where_that_is_kept() {
    for (normalise_instances, wanted) in [
        (true, [f64::midpoint(0.325_590, 0.720_850), f64::midpoint(0.335_065, 0.421_595)]),
        (false, [f64::midpoint(0.164_063, 0.892_958), f64::midpoint(0.317_288, 0.412_521)]),
    ] {
        let model = Conal { normalise_instances, ..conal(Mixture::LogitMix, 0.0) };
        near(&conal_case(&model).predicted().parameters, &wanted);
    }
}

/// The bottleneck maps the hidden layers (0.3, -0.2) and (0.8, 0.1) to 1.3 and 2.0; the logits of the heads' weights
/// are 0.62, -1.08 and 0.9, -1.5.
// keys: weighted_doctor_net.bottleneck, weighted_doctor_net.weights_by
#[test]
fn weights_of_instances_go_through_a_bottleneck() {
    let model = WeightedDoctorNet {
        weights_by: WeightsBy::Instance,
        bottleneck: Some(1),
        ..WeightedDoctorNet::default()
    };
    let case = Case::new(&model)
        .with(0, &heads_of_biases())
        .with(1, &[0.4, -0.6, 0.1, -0.3])
        .with(2, &[2.0, -1.0, 0.5]);
    let w = [1.0 / (1.0 + 1.7_f64.exp()), 1.0 / (1.0 + 2.4_f64.exp())];
    let mean = |w: f64| [0.5 - 0.25 * w, 0.25, 0.25 + 0.25 * w];
    near(&case.predicted().classes, &[mean(w[0]), mean(w[1])].concat());
}

/// The heads give 1/2, 1/4, 1/4 and 1/4, 1/4, 1/2, and their weights have the logits 0.4 and -0.7. Row 0 has the label
/// 0 by annotator 0 alone, so that its loss uses the head of annotator 1. Row 1 has annotations by both: the label 1
/// with the weights 0.5 and 2, and the label 2 with the weight 0.25.
#[test]
fn weights_are_learned_from_weighted_labels_by_the_heads_of_the_others() {
    let model = WeightedDoctorNet::default();
    let mut case = weighted(Case::new(&model)).with(0, &heads_of_biases()).with(1, &[0.4, -0.7]);
    case.phase = WEIGHTS_PHASE;
    case.batch.offsets = vec![0, 1, 4];
    let first = 1.0 / (1.0 + (-1.1_f64).exp());
    let of_two = 0.25 * first + 0.5 * (1.0 - first);
    let of_row_1 = -(2.5 * 0.25_f64.ln() + 0.25 * of_two.ln()) / 2.75;
    case.expect(0.5 * (-(0.25_f64.ln()) + of_row_1));
    case.alone = Some(1);
    case.check_gradient();
}

/// The features 6 and 2 of annotators 0 and 2 have the mean 4 and the deviation 2; annotator 1 has none.
#[test]
fn annotators_features_are_standardised_and_an_unknown_one_is_the_mean() {
    let a = tiny(3, &[(0, 0, 0), (0, 1, 1), (1, 2, 1)]);
    let mut with_features = crate::testing::with_features(&a);
    let matrix = std::sync::Arc::new(crate::frame::Matrix::from_rows(1, &[2.0, 6.0]));
    let features = crate::frame::Features { matrix, ..with_features.features.clone() };
    with_features.annotators = Some((features, vec![Some(1), None, Some(0)]));
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    let job = JobContext::new(1);
    let task = Task { evidence, dims: a.dims(), hidden: 0, job: &job };
    let model = Conal { embedding: 2, ..Conal::default() };
    let mut annotator_params = AnnotatorParams { tables: model.tables(&task).unwrap() };
    // The projections of (1, 1), (0, 1) and (-1, 1) are these vectors themselves.
    annotator_params.tables[2].values.copy_from_slice(&[1.0, 0.0, 0.0, 1.0]);
    let report = model.report(&task, &annotator_params);
    let half = std::f64::consts::FRAC_1_SQRT_2;
    near(&report.parameters[0].1, &[half, 0.0, -half]);
    near(&report.parameters[1].1, &[half, 1.0, half]);
}

/// Class 1 is mostly labelled 0: the labels 0 and 1 are used for another class at least as often as for their own.
#[test]
fn matrices_that_are_not_dominant_are_warned_of() {
    let (a, job, model) = (annotations(), JobContext::new(1), TraceRegularised::default());
    let task = Task { evidence: (&a).into(), dims: a.dims(), hidden: 0, job: &job };
    let mut annotator_params = AnnotatorParams { tables: model.tables(&task).unwrap() };
    assert!(model.report(&task, &annotator_params).warnings.is_empty());
    let exchanged = [1.0, -5.0, -5.0, 1.0, -5.0, -5.0, -5.0, -5.0, 1.0];
    annotator_params.tables[0].values = exchanged.repeat(2);
    let warnings = model.report(&task, &annotator_params).warnings;
    assert!(warnings[0].contains("2 of 3 labels"), "{warnings:?}");
}

/// The loss and the posterior use one vote per row, whatever its share: P(class) Q[class][vote]. A trusted row has no
/// vote.
#[test]
fn a_single_matrix_is_that_of_the_vote() {
    let model = SingleConfusion { lambda: 0.0, ..SingleConfusion::default() };
    let mut case =
        Case::new(&model).with(0, &RHO[9..]).with_targets(&[0.1, 0.6, 0.3, 0.0, 0.2, 0.8]);
    let q = [0.615_590, 0.324_912, 0.059_497, 0.091_751, 0.622_953, 0.285_296, 1.0 / 3.0];
    let q = |k: usize, y: usize| q[(k * 3 + y).min(6)];
    let (predicted, out) = (case.predicted(), &case.out);
    for (b, vote) in [(0, 1), (1, 2)] {
        let joint: Vec<f64> = (0..3).map(|k| out.p(b)[k] * q(k, vote)).collect();
        let sum: f64 = joint.iter().sum();
        for (k, joint) in joint.iter().enumerate() {
            let (got, want) = (predicted.posterior[b * 3 + k], joint / sum);
            assert!((got - want).abs() < 1e-5, "row {b}, class {k}: {got}, expected {want}");
        }
    }
    // The trusted row's share of the loss is its cross-entropy alone.
    let of_vote = |b: usize, vote: usize| -> f64 {
        -(0..3).map(|k| case.out.p(b)[k] * q(k, vote)).sum::<f64>().ln()
    };
    let plain = case.value();
    assert!((plain - 0.5 * (of_vote(0, 1) + of_vote(1, 2))).abs() < 1e-5, "{plain}");
    let wanted = 0.5 * (of_vote(0, 1) - case.out.p(1)[0].ln());
    case.batch.trusted = vec![None, Some(0)];
    let trusted = case.value();
    assert!((trusted - wanted).abs() < 1e-5, "{trusted}, expected {wanted}");
}

// keys: soft_bootstrap.beta
#[test]
fn soft_bootstrap_has_the_losses_that_were_computed_independently() {
    // Rows 0 and 1 with the votes 0 and 2: 0.187567 and 1.911448.
    let model = SoftBootstrap::default();
    let votes = [1.0, 0.0, 0.0, 0.0, 0.0, 1.0];
    Case::new(&model).with_targets(&votes).expect(f64::midpoint(0.187_567, 1.911_448));
    // With beta = 1 it is the plain cross-entropy, as is `dl` on hard votes.
    let plain = -0.5 * (0.843_795_f64.ln() + 0.140_244_f64.ln());
    let model = SoftBootstrap { beta: Some(1.0), ..SoftBootstrap::default() };
    Case::new(&model).with_targets(&votes).expect(plain);
    Case::new(&Dl::default()).with_targets(&votes).expect(plain);
}
