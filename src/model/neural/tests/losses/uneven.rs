//! Losses worked out by hand for weights, shares and priors that are not one, and for trusted classes.

use crate::model::neural::fit::split_annotations;
use crate::model::neural::tests::*;
use crate::testing::with_features;

/// The weights of the four annotations of [`batch`]; their sum is 3.75.
const WEIGHTS: [f64; 4] = [1.0, 0.5, 2.0, 0.25];

pub(in crate::model::neural) fn weighted<N: CrowdNet>(mut case: Case<'_, N>) -> Case<'_, N> {
    case.batch.annotations.iter_mut().zip(WEIGHTS).for_each(|(a, weight)| a.weight = weight);
    case
}

/// -ln P of the four annotations: 0.179074, 1.023598, 0.471526, 1.427854; their weighted sum is 1.990889.
// keys: model.train.reduction
#[test]
fn every_divisor_is_that_of_weighted_annotations() {
    for (reduction, wanted) in [
        (Reduction::Sum, 1.990_889),
        (Reduction::MeanAnnotation, 1.990_889 / 3.75),
        (Reduction::MeanInstance, 1.990_889 / 2.0),
        (Reduction::MeanDense, 1.990_889 / 4.0),
    ] {
        let model = TraceRegularised { lambda: 0.0, ..TraceRegularised::default() };
        weighted(Case::new(&model)).with(0, &RHO).reduced(reduction).expect(wanted);
    }
}

#[test]
fn losses_of_annotations_are_weighted() {
    let layer = CrowdLayer::default();
    weighted(Case::new(&layer)).with(0, &LAYERS).reduced(Reduction::Sum).expect(3.160_796);
    for (mixture, wanted) in [
        (Mixture::LogitMix, 2.789_844),
        (Mixture::ProbMix, 2.789_198),
        (Mixture::RowStochastic, 2.833_660),
    ] {
        weighted(conal_case(&conal(mixture, 0.0))).reduced(Reduction::Sum).expect(wanted);
    }
    let labels = NoisyLabels::Annotations;
    let single = SingleConfusion { labels, lambda: 0.0, ..SingleConfusion::default() };
    weighted(Case::new(&single)).with(0, &RHO[9..]).reduced(Reduction::Sum).expect(2.811_047);
    let heads = DoctorNet::default();
    // The heads give 1/2, 1/4, 1/4 and 1/4, 1/4, 1/2: ln 2, ln 4, ln 4 and ln 2.
    let case = weighted(Case::new(&heads)).with(0, &heads_of_biases()).reduced(Reduction::Sum);
    case.expect((1.0 + 1.0 + 4.0 + 0.25) * 2.0_f64.ln());
}

/// Two heads for two hidden numbers and three labels that depend on their biases alone.
pub(in crate::model::neural) fn heads_of_biases() -> Vec<f32> {
    let (zero, two) = ([0.0; 6], std::f32::consts::LN_2);
    [&zero[..], &[two, 0.0, 0.0], &zero[..], &[0.0, 0.0, two]].concat()
}

/// The traces are 2.969630 and 1.571877, the distances from the common matrix 0.3 and 0.5.
// keys: trace_regularised.lambda, conal.lambda
#[test]
fn penalties_are_weighted_by_the_shares_of_the_batch() {
    let shared = [0.3, 1.7];
    let model = TraceRegularised { lambda: 0.02, ..TraceRegularised::default() };
    let mut case = Case::new(&model).reduced(Reduction::Sum).with(0, &RHO);
    case.batch.share = shared.to_vec();
    case.expect(3.102_051 + 0.01 * (0.3 * 2.969_630 + 1.7 * 1.571_877));
    case.check_gradient();
    for (mixture, loss) in [(Mixture::LogitMix, 1.055_239), (Mixture::ProbMix, 1.054_666)] {
        let model = conal(mixture, 1.0);
        let mut case = conal_case(&model);
        case.batch.share = shared.to_vec();
        case.expect(loss - 0.3 * 0.3 - 1.7 * 0.5);
        case.check_gradient();
    }
}

#[test]
fn gradients_of_weighted_annotations_are_the_loss_s_slopes() {
    weighted(Case::new(&TraceRegularised::default())).with(0, &RHO).check_gradient();
    weighted(conal_case(&conal(Mixture::LogitMix, 0.1))).check_gradient();
    weighted(Case::new(&CrowdLayer::default())).check_gradient();
    weighted(Case::new(&DoctorNet::default())).check_gradient();
    weighted(max_mig_case(&MaxMig::default())).check_gradient();
    let model = MaxMig { prior: max_mig::PriorChoice::Learned, ..MaxMig::default() };
    weighted(max_mig_case(&model)).with(1, &[-0.7, -1.2, -1.6]).check_gradient();
    let mut unannotated = max_mig_case(&model);
    (unannotated.batch.annotations, unannotated.batch.offsets) = (Vec::new(), vec![0; 3]);
    (unannotated.batch.annotators, unannotated.batch.share) = (Vec::new(), Vec::new());
    unannotated.check_gradient();
}

/// Row 0 has the trusted class 2. Given this class, annotator 0 gives the label 0 with the probability 0.005062 and
/// annotator 1 the label 1 with 1/3; the classifier gives the class the probability 0.042010.
#[test]
fn annotations_of_a_trusted_row_are_those_of_its_class() {
    let model = TraceRegularised { lambda: 0.0, ..TraceRegularised::default() };
    let mut case = Case::new(&model).reduced(Reduction::Sum).with(0, &RHO);
    case.batch.trusted = vec![Some(2), None];
    let of_row_0 = 5.286_050 + 3.0_f64.ln() + 3.169_846;
    case.expect(of_row_0 + 0.471_526 + 1.427_854);
    case.check_gradient();
    // Its annotations do not train the classifier: the gradient is p - one-hot.
    let (_, gradient) = case.loss(&case.out, &case.annotator_params.gather(&case.batch));
    for (got, want) in gradient.out.logits.iter().zip([0.843_795, 0.114_195, -0.957_990]) {
        assert!((got - want).abs() < 1e-5, "{got}, expected {want}");
    }
    for mixture in [Mixture::LogitMix, Mixture::ProbMix, Mixture::RowStochastic] {
        let model = conal(mixture, 0.1);
        let mut case = conal_case(&model);
        case.batch.trusted = vec![Some(2), None];
        case.check_gradient();
    }
    let model = MaxMig::default();
    let mut case = Case::new(&model);
    case.batch.trusted = vec![None, Some(1)];
    case.check_gradient();
}

/// The classifier is certain of class 0, and the annotator, who gives the label 1, is almost never wrong: P =
/// softplus(-40) / softplus(1).
#[test]
fn an_impossible_label_still_has_its_likelihood() {
    let model = TraceRegularised { lambda: 0.0, ..TraceRegularised::default() };
    let off = -40.0;
    let sure = [1.0, off, off, off, 1.0, off, off, off, 1.0];
    let mut case = Case::new(&model).with(0, &[sure, sure].concat()).reduced(Reduction::Sum);
    case.out.logits = vec![60.0, 0.0, 0.0, 60.0, 0.0, 0.0];
    for (logits, p) in case.out.logits.chunks(3).zip(case.out.p.chunks_mut(3)) {
        softmax(logits, p);
    }
    case.batch.annotations.truncate(1);
    case.batch.annotations[0].label = 1;
    case.batch.offsets = vec![0, 1, 1];
    case.expect(40.272_514);
    case.check_gradient();
}

/// f of K = 1.278448, 0.590858, 0.812857, 1.350409, by its formulas.
// keys: max_mig.divergence
#[test]
fn every_divergence_has_the_loss_worked_out_by_hand() {
    for (divergence, wanted) in [
        (Kl, -0.571_170),
        (Pearson, -1.123_932),
        (ReverseKl, -0.605_332),
        (Hellinger, -0.292_395),
        (JensenShannon, -0.290_692),
        (TotalVariation, -0.295_241),
    ] {
        let model = MaxMig { u: 0.0, divergence, ..MaxMig::default() };
        max_mig_case(&model).expect(wanted);
    }
}

/// Two instances: annotator 0 gives the first the labels 0 and 1 (with the weights 0.25 and 0.75) and the second the
/// label 1; annotator 1 gives both the label 1.
fn soft() -> Annotations {
    let rows = [(0, 0, 0), (0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 1)];
    let dims = Dims { instances: 2, annotators: 2, classes: 2, labels: 2 };
    crate::testing::weighted(dims, &rows, vec![0.25, 0.75, 1.0, 1.0, 1.0])
}

#[test]
fn a_soft_annotation_is_one_annotation_of_its_annotator() {
    let a = soft();
    let with_features = with_features(&a);
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    let batches = |by_annotation| {
        let batching = Batching { batch_size: Some(1), by_annotation, drops_last: false };
        let data = TrainingData::new(evidence, None, false, batching).unwrap();
        batches_of(&data, InstanceSubset::All, batching)
    };
    // Two batches, in each of which annotator 0 has half of the weight.
    for batch in batches(false) {
        assert_eq!(batch.share, [1.0, 1.0]);
    }
    let of_annotations = batches(true);
    assert_eq!(of_annotations.len(), 4);
    for batch in of_annotations {
        let weight: f64 = batch.annotations.iter().map(|a| a.weight).sum();
        assert_eq!((weight, batch.share), (1.0, vec![2.0]));
    }
}

/// Instance 0 has two annotations, one of them soft, and is in two batches; instance 1 is not trusted.
#[test]
fn a_trusted_class_is_shared_by_the_annotations_of_its_instance() {
    let mut a = soft();
    a.trusted = Some(vec![Some(1), None]);
    let with_features = with_features(&a);
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    for (by_annotation, wanted) in [(false, vec![1.0]), (true, vec![0.5, 0.5])] {
        let batching = Batching { batch_size: Some(1), by_annotation, drops_last: false };
        let data = TrainingData::new(evidence, None, false, batching).unwrap();
        let batches = batches_of(&data, InstanceSubset::Trusted, batching);
        let shares: Vec<f64> = batches.iter().flat_map(|b| b.trusted_share.clone()).collect();
        assert_eq!(shares, wanted, "{by_annotation}");
    }
}

#[test]
fn a_soft_annotation_is_held_out_as_a_whole() {
    let (mut instance, mut annotator, mut label, mut weight) = (vec![], vec![], vec![], vec![]);
    for (i, r, l) in (0..60).flat_map(|i| (0..2).flat_map(move |r| (0..3).map(move |l| (i, r, l))))
    {
        instance.push(i);
        annotator.push(r);
        label.push(l);
        weight.push(if (i + l) % 3 == 0 { 0.5 } else { 0.25 });
    }
    let rows = crate::frame::AnnotationRows { instance, annotator, label, weight };
    let dims = Dims { instances: 60, annotators: 2, classes: 3, labels: 3 };
    let a = Annotations::build(dims, rows, crate::frame::Duplicates::Keep).unwrap();
    let train =
        TrainSpec { select: Select::AnnotationLikelihood, held_out: 0.5, ..TrainSpec::default() };
    let [training, held_out] = split_annotations(&train, &a, &JobContext::new(1)).unwrap().unwrap();
    assert!(held_out.len() > 90 && training.len() > 90, "{}", held_out.len());
    for part in [training, held_out] {
        for i in 0..60 {
            let rows = part.pairs_of_instance(i).len();
            assert!(rows % 3 == 0, "{rows} rows of instance {i}");
        }
    }
}
