//! Outputs of NaN: no maximum and no clamp hides them, so that the training stops at once.

use super::posteriors::predict;
use super::*;

/// Row 0 of every output is NaN, and row 1 is unchanged.
fn expect_nan<N: CrowdNet>(mut case: Case<'_, N>) {
    expect_no_loss(&mut case);
    let predicted = predict(&case);
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
    for form in [LayerForm::Mw, LayerForm::Vw, LayerForm::Vb, LayerForm::VwB, LayerForm::Sw] {
        expect_nan(Case::new(&CrowdLayer { form }));
    }
    for mixture in [Mixture::LogitMix, Mixture::ProbMix, Mixture::RowStochastic] {
        expect_nan(conal_case(&conal(mixture, 0.1)));
    }
    for divergence in [Kl, ReverseKl, Pearson, Hellinger, JensenShannon, TotalVariation] {
        expect_nan(Case::new(&MaxMig { divergence, ..MaxMig::default() }));
    }
    expect_nan(Case::new(&SoftBootstrap::default()).with_targets(&votes));
    // Its posterior depends only on the vote if no class is the most probable, so only the loss is NaN.
    let hard = SoftBootstrap { hard: true, ..SoftBootstrap::default() };
    expect_no_loss(&mut Case::new(&hard).with_targets(&votes));
    // The posterior of `dl` is the aggregator's.
    expect_no_loss(&mut Case::new(&Dl::default()).with_targets(&votes));
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
