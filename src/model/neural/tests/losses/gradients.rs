//! Every gradient compared with finite differences of the loss.

use super::forms::OVER;
use crate::model::neural::tests::kinds::tcls::aggregated;
use crate::model::neural::tests::kinds::{cvl, lia, lia_multi};
use crate::model::neural::tests::*;

#[test]
fn gradients_are_the_loss_s_slopes() {
    let soft = [0.6, 0.3, 0.1, 0.2, 0.2, 0.6];
    for lambda in [0.0, 0.5] {
        let model = TraceRegularised { lambda, ..TraceRegularised::default() };
        Case::new(&model).with(0, &RHO).check_gradient();
    }
    for labels in [NoisyLabels::Annotations, NoisyLabels::Majority] {
        let model = SingleConfusion { labels, lambda: 0.3, ..SingleConfusion::default() };
        Case::new(&model).with(0, &RHO[9..]).with_targets(&soft).check_gradient();
    }
    for form in [LayerForm::Mw, LayerForm::Vw, LayerForm::Vb, LayerForm::VwB, LayerForm::Sw] {
        let model = CrowdLayer { form };
        let case = Case::new(&model);
        let n = case.annotator_params.tables[0].values.len();
        case.with(0, &LAYERS[18 - n..]).check_gradient();
    }
    let over = CrowdLayer { form: LayerForm::Over };
    Case::new(&over).with(0, &OVER).check_gradient();
    for mixture in [Mixture::LogitMix, Mixture::ProbMix, Mixture::RowStochastic] {
        for normalise_instances in [true, false] {
            let model = Conal { normalise_instances, ..conal(mixture, 0.1) };
            conal_case(&model).check_gradient();
        }
    }
    for divergence in [Kl, ReverseKl, Pearson, Hellinger, JensenShannon, TotalVariation] {
        let model = MaxMig { divergence, ..MaxMig::default() };
        Case::new(&model).check_gradient();
    }
    // Annotators' embeddings computed from two features and a one.
    let model = conal(Mixture::LogitMix, 0.1);
    let mut case = conal_case(&model);
    let hidden = vec![0.5, -1.0, 2.0, 0.3];
    case.others = vec![Outputs { rows: 2, hidden, ..Outputs::default() }];
    // A network without layers, which gives the features themselves.
    case.others_are_trained = false;
    let map = vec![0.3, -1.0, 0.2, 0.6, -0.4, 0.9];
    case.annotator_params.tables.truncate(2);
    case.annotator_params.tables.push(ParamTable::of_model("projection", map));
    case.check_gradient();
    for hard in [false, true] {
        let model = SoftBootstrap { hard, ..SoftBootstrap::default() };
        Case::new(&model).with_targets(&soft).check_gradient();
    }
    Case::new(&Dl { targets: Targets::Soft, ..Dl::default() }).with_targets(&soft).check_gradient();
    Case::new(&DoctorNet::default()).check_gradient();
    let model = WeightedDoctorNet::default();
    Case::new(&model).check_gradient();
    let mut weights = Case::new(&model).with(1, &[0.4, -0.7]);
    (weights.phase, weights.alone) = (WEIGHTS_PHASE, Some(1));
    weights.batch.offsets = vec![0, 1, 4];
    weights.check_gradient();
    let model = SingleConfusion { lambda: 0.3, ..SingleConfusion::default() };
    let mut trusted = Case::new(&model).with(0, &RHO[9..]).with_targets(&soft);
    trusted.batch.trusted = vec![Some(2), None];
    trusted.check_gradient();
    let layer = CrowdLayer::default();
    let mut trusted = Case::new(&layer);
    trusted.batch.trusted = vec![Some(2), None];
    trusted.check_gradient();
    Case::new(&Mbem::default()).with_targets(&soft).check_gradient();
    Case::new(&AggNet::default()).with_targets(&soft).check_gradient();
    Case::new(&Tcl::default()).with_targets(&soft).check_gradient();
    let tcls = Tcls::default();
    for phase in ["aggregator", "co-training"] {
        let mut case = Case::new(&tcls).with_targets(&soft);
        (case.phase, case.others) = (phase, vec![aggregated()]);
        case.check_gradient();
    }
    cvl::check_gradients(&soft);
    lia::check_gradients();
    lia_multi::check_gradients();
    for kind in crate::model::neural::KINDS {
        let is_checked = CHECKED.with_borrow(|checked| checked.contains(kind.kind));
        assert!(is_checked, "no case here checks the gradient of `{}`", kind.kind);
    }
}
