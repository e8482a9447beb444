//! Numbers that are not finite: no maximum and no clamp hides them, so that the training stops at once.

use std::sync::Arc;

use serde_json::json;

use crate::frame::{Matrix, QuestionFeatures};
use crate::model::neural::tests::fits::{agreeing, fit};
use crate::model::neural::tests::kinds::tcls::aggregated;
use crate::model::neural::tests::*;
use crate::testing::{weighted, with_features};

/// Row 0 of every output is NaN, and row 1 is unchanged.
fn expect_nan<N: CrowdNet>(mut case: Case<'_, N>) {
    expect_no_loss(&mut case);
    let predicted = case.predicted();
    let row = |values: &[f64]| values[..values.len() / 2].to_vec();
    for (what, values) in [
        ("classes", &predicted.classes),
        ("posterior", &predicted.posterior),
        ("likelihood", &predicted.likelihood),
    ] {
        let own = row(values);
        assert!(own.iter().all(|p| p.is_nan()), "{} {what}: {own:?}", N::KIND);
    }
}

fn expect_no_loss<N: CrowdNet>(case: &mut Case<'_, N>) {
    let out = &mut case.out;
    let heads = [&mut out.logits, &mut out.p, &mut out.hidden].into_iter();
    for head in heads.chain(&mut out.named) {
        let width = head.len() / 2;
        head[..width].fill(f64::NAN);
    }
    let loss = case.value();
    assert!(loss.is_nan(), "{}: a loss of {loss}", N::KIND);
}

#[test]
fn a_network_without_numbers_has_no_loss_and_no_prediction() {
    let votes = [1.0, 0.0, 0.0, 0.0, 0.0, 1.0];
    expect_nan(Case::new(&TraceRegularised::default()));
    for labels in [NoisyLabels::Annotations, NoisyLabels::Majority] {
        let model = SingleConfusion { labels, ..SingleConfusion::default() };
        expect_nan(Case::new(&model).with_targets(&votes));
    }
    let forms = [
        LayerForm::Mw,
        LayerForm::Vw,
        LayerForm::Vb,
        LayerForm::VwB,
        LayerForm::Sw,
        LayerForm::Over,
    ];
    for form in forms {
        expect_nan(Case::new(&CrowdLayer { form }));
    }
    for mixture in [Mixture::LogitMix, Mixture::ProbMix, Mixture::RowStochastic] {
        expect_nan(conal_case(&conal(mixture, 0.1)));
    }
    for divergence in [Kl, ReverseKl, Pearson, Hellinger, JensenShannon, TotalVariation] {
        expect_nan(Case::new(&MaxMig { divergence, ..MaxMig::default() }));
    }
    expect_nan(Case::new(&SoftBootstrap::default()).with_targets(&votes));
    expect_nan(Case::new(&AggNet::default()).with_targets(&votes));
    // Its posterior follows from the annotations alone.
    expect_no_loss(&mut Case::new(&Mbem::default()).with_targets(&votes));
    // Its posterior depends only on the vote if no class is the most probable, so only the loss is NaN.
    let hard = SoftBootstrap { hard: true, ..SoftBootstrap::default() };
    expect_no_loss(&mut Case::new(&hard).with_targets(&votes));
    // The posterior of `dl` is the aggregator's, and that of `tcl` the targets.
    expect_no_loss(&mut Case::new(&Dl::default()).with_targets(&votes));
    expect_no_loss(&mut Case::new(&Tcl::default()).with_targets(&votes));
    expect_no_loss(&mut Case::new(&Tcls::default()).with_targets(&votes));
    expect_nan(Case {
        others: vec![aggregated()],
        ..Case::new(&Cvl::default()).with_targets(&votes)
    });
    expect_nan(Case::new(&DoctorNet::default()));
    let weighted = WeightedDoctorNet::default();
    for phase in ["heads", WEIGHTS_PHASE] {
        let mut case = Case::new(&weighted);
        case.phase = phase;
        expect_nan(case);
    }
    let layer = CrowdLayer::default();
    let mut trusted = Case::new(&layer);
    trusted.batch.trusted = vec![Some(2), None];
    expect_nan(trusted);
}

/// The error of `dl` after one epoch of a single batch, whose loss is that of the initial parameters.
fn error_after_one_step(optimiser: OptimiserSpec, with_features: &QuestionFeatures) -> String {
    error_of(Dl::default(), optimiser, &agreeing(), with_features)
}

/// The error of a model after one epoch of a single batch.
fn error_of<N: CrowdNet>(
    model: N,
    optimiser: OptimiserSpec,
    a: &Annotations,
    with_features: &QuestionFeatures,
) -> String {
    let optimiser = OptimiserSpec { rule: OptimiserKind::Sgd, ..optimiser };
    let train = TrainSpec { epochs: 1, batch_size: Some(1000), optimiser, ..TrainSpec::default() };
    let backbone = BackboneSpec {
        hidden: vec![64],
        dropout: 0.0,
        batch_norm: false,
        scaling: Scaling::None,
        ..BackboneSpec::default()
    };
    let device = "cpu".to_owned();
    let network = NetworkSpec { device, backbone, train, ..NetworkSpec::default() };
    let error = fit(&Neural { network, model }, a, with_features).unwrap_err();
    assert_eq!(error.exit_code(), 4, "{error}");
    error.to_string()
}

/// The loss of the only batch is finite, but not what follows it: the parameters at a rate beyond f32, the products of
/// parameters of about 1e30, and the square of a gradient with respect to weights that multiply features of 1e30.
#[test]
fn a_last_step_that_diverges_says_so_and_names_the_learning_rate() {
    let usual = with_features(&agreeing());
    let rate = |learning_rate| OptimiserSpec { learning_rate, ..OptimiserSpec::default() };
    let clipped = OptimiserSpec { clip_norm: Some(1.0), ..rate(1e-3) };
    let mut large = usual.clone();
    let values: Vec<f32> = (0..40 * 4).map(|n| 1e30 * (n % 5) as f32).collect();
    large.features.matrix = Arc::new(Matrix::from_rows(4, &values));
    for (optimiser, with_features, found) in [
        (rate(1e300), &usual, "found: a parameter that is not a finite number in epoch 1"),
        (rate(1e30), &usual, "the prediction of row 1 of the features is not a finite number"),
        (clipped, &large, "found: a squared norm of inf of the gradient in epoch 1"),
    ] {
        let error = error_after_one_step(optimiser, with_features);
        assert!(error.contains("learning_rate"), "{error}");
        assert!(error.contains(found), "{error}");
    }
    // Its E-step comes before the predictions of all rows.
    let error = error_of(AggNet::default(), rate(1e30), &agreeing(), &usual);
    assert!(error.contains("the prediction of row 1 of the features is not a finite"), "{error}");
}

#[test]
fn weights_that_32_bits_do_not_hold_are_named_as_the_cause() {
    let (even, rows) = (agreeing(), (0..80).map(|n| (n / 2, n % 2, n / 2 % 3)));
    let rows: Vec<(u32, u32, u32)> = rows.collect();
    let with_features = with_features(&even);
    let of = |weight: f64| weighted(even.dims(), &rows, vec![weight; rows.len()]);
    let large =
        fit(&Neural::<TraceRegularised>::default(), &of(1e100), &with_features).unwrap_err();
    let small = fit(&Neural::<DoctorNet>::default(), &of(5e-324), &with_features).unwrap_err();
    for (error, weight) in [(large, "1e100"), (small, "5e-324")] {
        assert_eq!(error.exit_code(), 4, "{error}");
        let error = error.to_string();
        let found = format!("found: weights from {weight} to {weight}\n");
        for part in ["where: source.columns.weight\n", &found, "32 bits"] {
            assert!(error.contains(part), "{error}");
        }
        assert!(!error.contains("learning_rate"), "{error}");
    }
}

/// Targets and votes have the weight 1, and in a mean over annotations the common factor cancels: only the rate is too
/// large. With the plain sum the weights reach the gradient.
#[test]
fn weights_that_do_not_reach_the_network_are_not_blamed() {
    let even = agreeing();
    let with_features = with_features(&even);
    let rows: Vec<(u32, u32, u32)> = (0..80).map(|n| (n / 2, n % 2, n / 2 % 3)).collect();
    let light = weighted(even.dims(), &rows, vec![1e-20; rows.len()]);
    let rate = || OptimiserSpec { learning_rate: 1e300, ..OptimiserSpec::default() };
    let errors = [
        error_of(Dl::default(), rate(), &light, &with_features),
        error_of(AggNet::default(), rate(), &light, &with_features),
        error_of(SingleConfusion::default(), rate(), &light, &with_features),
        error_of(CrowdLayer::default(), rate(), &light, &with_features),
    ];
    for error in errors {
        assert!(error.contains("where: model.train.optimiser.learning_rate\n"), "{error}");
    }
    let error = error_of(TraceRegularised::default(), rate(), &light, &with_features);
    assert!(error.contains("where: source.columns.weight\n"), "{error}");
}

/// Adam's squares of gradients overflow or vanish, so that no parameter would move. One weight of many may be tiny.
#[test]
fn weights_whose_squares_leave_32_bits_are_refused_before_training() {
    let even = agreeing();
    let with_features = with_features(&even);
    let rows: Vec<(u32, u32, u32)> = (0..80).map(|n| (n / 2, n % 2, n / 2 % 3)).collect();
    let of = |first: f64, weight: f64| {
        let weights = (0..80).map(|n| if n == 0 { first } else { weight }).collect();
        fit(
            &Neural::<TraceRegularised>::default(),
            &weighted(even.dims(), &rows, weights),
            &with_features,
        )
    };
    for (first, weight) in [(1e25, 1e25), (1e25, 1.0), (1e-25, 1e-25)] {
        let error = of(first, weight).unwrap_err().to_string();
        assert!(error.contains("cannot train a network"), "{error}");
    }
    for (first, weight) in [(1e-25, 1.0), (1e15, 1e15)] {
        assert!(of(first, weight).is_ok(), "{first} {weight}");
    }
}

/// The rate alone is usual, and so is a decay of the default times any rate.
#[test]
fn a_weight_decay_that_turns_the_sign_of_parameters_is_named_as_the_cause() {
    let a = agreeing();
    let parameters = json!({"device": "cpu", "train": {"optimiser": {"weight_decay": 1e6}}});
    let kind = KINDS.iter().find(|kind| kind.kind == "crowd_layer").unwrap();
    let (model, with_features) = (kind.load(parameters).unwrap().model, with_features(&a));
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    let error = model.fit(evidence, &mut JobContext::new(1)).unwrap_err().to_string();
    assert!(error.contains("where: model.train.optimiser.weight_decay\n"), "{error}");
}

/// The M-step counts the matrices of `agg_net`: the rate of annotators changes nothing there.
#[test]
fn a_divergence_names_the_annotators_rate_only_where_it_moves_something() {
    let a = agreeing();
    let rate = || OptimiserSpec { learning_rate: 1e300, ..OptimiserSpec::default() };
    let counted = error_of(AggNet::default(), rate(), &a, &with_features(&a));
    let learned = error_of(CrowdLayer::default(), rate(), &a, &with_features(&a));
    assert!(counted.contains("help: lower learning_rate, or set clip_norm"), "{counted}");
    let both = "help: lower learning_rate or annotator_learning_rate, or set clip_norm";
    assert!(learned.contains(both), "{learned}");
}
