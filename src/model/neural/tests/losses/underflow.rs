//! Likelihoods and posteriors whose products of probabilities underflow, worked out by hand.

use crate::model::neural::tests::posteriors::near;
use crate::model::neural::tests::*;

/// One annotation of a batch, and `n` copies of it.
fn copies(annotator: u32, label: u32, n: usize) -> impl Iterator<Item = BatchAnnotation> {
    std::iter::repeat_n(BatchAnnotation { annotator, label, weight: 1.0 }, n)
}

/// The classifier is certain of class 0, under which the label is almost impossible: ln P(1 | 0) = -3000 - ln(2 ln 2).
/// So class 1 explains the label, although its probability is only e^-2000; it gives all labels the same probability:
/// ln P(1) = -2000 - ln 3. All these probabilities are 0 as f64.
#[test]
fn a_label_that_is_all_but_impossible_has_its_likelihood_and_slopes() {
    let rho = [0.0, -3000.0, 0.0, -5000.0, -5000.0, -5000.0, 0.0, 0.0, 0.0];
    let (logits, ln_3) = ([0.0, -2000.0, -9000.0], 3.0_f64.ln());
    let of_class_1 = [1.0 / 3.0, -2.0 / 3.0, 1.0 / 3.0];
    let check = |(loss, gradient): (f64, Gradient)| {
        assert!((loss - (2000.0 + ln_3)).abs() < 1e-9, "{loss}");
        near(&gradient.out.logits[..3], &[1.0, -1.0, 0.0]);
        near(&gradient.tables[0][..9], &[&[0.0; 3][..], &of_class_1, &[0.0; 3]].concat());
    };
    let model = TraceRegularised { lambda: 0.0, ..TraceRegularised::default() };
    let mut case =
        Case::new(&model).reduced(Reduction::Sum).with(0, &[&rho[..], &RHO[9..]].concat());
    case.out.logits[..3].copy_from_slice(&logits);
    case.out.p[..3].copy_from_slice(&[1.0, 0.0, 0.0]);
    case.batch.annotations = copies(0, 1, 1).collect();
    case.batch.offsets = vec![0, 1, 1];
    check(case.loss(&case.out, &case.annotator_params.gather(&case.batch)));
    let labels = NoisyLabels::Annotations;
    let model = SingleConfusion { lambda: 0.0, labels, ..SingleConfusion::default() };
    let single = Case { model: &model, ..Case::new(&model) }.with(0, &rho).reduced(Reduction::Sum);
    let single = Case { batch: case.batch.clone(), out: case.out.clone(), ..single };
    check(single.loss(&single.out, &single.annotator_params.gather(&single.batch)));
}

/// 1001 annotations have the label 0 and 1000 the label 1: all but one cancel, while their product is 10^-2300. P(0 |
/// 0) = 0.989877, and 0.005062 for the others.
#[test]
fn two_thousand_annotations_are_as_good_as_the_one_that_decides() {
    let model = TraceRegularised::default();
    let mut case = Case::new(&model).with(0, &RHO);
    case.batch.annotations = copies(0, 0, 1001).chain(copies(0, 1, 1000)).collect();
    case.batch.offsets = vec![0, 2001, 2001];
    let (first, second) = (0.843_795 * 0.989_877, 0.114_195 * 0.005_062);
    let sum = first + second;
    let predicted = case.predicted();
    near(&predicted.posterior[..3], &[first / sum, second / sum, 0.0]);
    near(&predicted.posterior[3..], case.out.p(1));
    // P(0) = .843795 .989877 + (1 - .843795) .005062
    near(&predicted.likelihood[..1], &[0.836_044]);
}

/// ln of g without its prior is -1000 for class 0 and 0 for the others; ln h is 0, -900 and -2000. Class 1 is e^100
/// times as probable as class 0, although g is 0 for the one and h for the other.
#[test]
fn classifier_and_aggregator_that_exclude_each_other_s_class_still_rank_the_classes() {
    let model = MaxMig::default();
    let mut table = vec![0.0; 18];
    table[0] = -1000.0;
    let mut case = Case::new(&model).with(0, &table);
    case.batch.annotations = copies(0, 0, 1).collect();
    case.batch.offsets = vec![0, 1, 1];
    case.out.logits[..3].copy_from_slice(&[0.0, -900.0, -2000.0]);
    case.out.p[..3].copy_from_slice(&[1.0, 0.0, 0.0]);
    near(&case.predicted().posterior[..3], &[0.0, 1.0, 0.0]);
    near(&case.predicted().posterior[3..], case.out.p(1));
}

/// The classifier is certain of class 0, of which the common and the individual matrix give the label 1 with the
/// probability e^-40 / (1 + 2 e^-40).
#[test]
fn a_label_that_both_parts_of_a_mixture_exclude_has_its_slopes() {
    for mixture in [Mixture::ProbMix, Mixture::RowStochastic] {
        let model = conal(mixture, 0.0);
        let matrix = [0.0, -40.0, -40.0, 0.0, 2.0, 0.0, 0.0, 0.0, 2.0];
        let mut case = conal_case(&model).with(0, &matrix).with(1, &[matrix, matrix].concat());
        case.out.logits = vec![60.0, 0.0, 0.0, 60.0, 0.0, 0.0];
        for (logits, p) in case.out.logits.chunks(3).zip(case.out.p.chunks_mut(3)) {
            softmax(logits, p);
        }
        case.batch.annotations = copies(0, 1, 1).collect();
        case.batch.offsets = vec![0, 1, 1];
        case.expect(40.0);
        case.check_gradient();
    }
}
