//! Divisors worked out by hand for batches whose numbers of rows, annotators, annotators in the batch and annotations
//! differ.

use super::posteriors::near;
use super::uneven::{heads_of_biases, weighted};
use super::*;

/// The case with a third row, without annotations and with equal probabilities, so that rows and annotators differ in
/// number.
fn of_three_rows<N: CrowdNet>(mut case: Case<'_, N>) -> Case<'_, N> {
    let Batch { rows, instances, offsets, trusted, trusted_share, .. } = &mut case.batch;
    (*rows, *instances) = (vec![0, 1, 2], vec![0, 1, 2]);
    offsets.push(4);
    trusted.push(None);
    trusted_share.push(1.0);
    case.out.rows = 3;
    if !case.out.p.is_empty() {
        case.out.logits.extend([0.0; 3]);
        case.out.p.extend([1.0 / 3.0; 3]);
    }
    let hidden = case.out.hidden.len() / 2;
    case.out.hidden.extend(vec![0.0; hidden]);
    for head in &mut case.out.named {
        head.extend(vec![0.0; head.len() / 2]);
    }
    case
}

/// The loss with `annotators` annotators in total.
fn loss_among<N: CrowdNet>(case: &Case<'_, N>, annotators: usize) -> f64 {
    let (batch, out, annotator_params) = (&case.batch, &case.out, &case.annotator_params);
    let gathered = &annotator_params.gather(batch);
    let dims = Dims { annotators, ..annotations().dims() };
    let phase = case.phase;
    let context = BatchContext {
        phase,
        batch,
        out,
        others: &[],
        gathered,
        annotator_params,
        estimates: &Estimates::default(),
        reduction: case.reduction,
        dims,
    };
    loss_and_gradient(case.model, &context).0
}

/// Four annotations with the weights 1, 0.5, 2 and 0.25 on three rows, by two of five annotators.
#[test]
fn every_divisor_counts_what_it_says() {
    let model = TraceRegularised::default();
    let case = weighted(of_three_rows(Case::new(&model)));
    let dims = Dims { annotators: 5, ..annotations().dims() };
    for (reduction, divisor, with_trusted) in [
        (Reduction::Sum, 1.0, 1.0),
        (Reduction::MeanAnnotation, 3.75, 5.25),
        (Reduction::MeanInstance, 3.0, 3.0),
        (Reduction::MeanDense, 15.0, 15.0),
    ] {
        assert_eq!(reduction.factor(&case.batch, 0.0, dims), 1.0 / divisor, "{reduction:?}");
        assert_eq!(reduction.factor(&case.batch, 1.5, dims), 1.0 / with_trusted, "{reduction:?}");
    }
}

/// The weighted losses of the annotations of rows 0 and 1 sum to 1.990889; row 2 has no annotations, the trusted class
/// 1 and its probability 1/3. Of a class with the share 0.25, the other three quarters are in other batches.
// keys: model.train.reduction
#[test]
fn a_trusted_class_counts_as_one_annotation() {
    for (share, reduction, divisor) in [
        (1.0, Reduction::Sum, 1.0),
        (1.0, Reduction::MeanAnnotation, 4.75),
        (1.0, Reduction::MeanInstance, 3.0),
        (1.0, Reduction::MeanDense, 15.0),
        (0.25, Reduction::Sum, 1.0),
        (0.25, Reduction::MeanAnnotation, 4.0),
    ] {
        let model = TraceRegularised { lambda: 0.0 };
        let case = weighted(of_three_rows(Case::new(&model).with(0, &RHO)));
        let mut case = case.reduced(reduction);
        case.batch.trusted[2] = Some(1);
        case.batch.trusted_share[2] = share;
        near(&[loss_among(&case, 5)], &[(1.990_889 + share * 3.0_f64.ln()) / divisor]);
        case.check_gradient();
    }
}

/// The sum of the four losses is 3.102051; the traces are 2.969630 and 1.571877, for two of five annotators.
#[test]
fn a_trace_is_divided_by_annotators_and_a_loss_by_rows() {
    let model = TraceRegularised { lambda: 0.02 };
    let mut case = of_three_rows(Case::new(&model).with(0, &RHO));
    let wanted = 3.102_051 / 3.0 + 0.02 / 5.0 * (2.969_630 + 1.571_877);
    near(&[loss_among(&case, 5)], &[wanted]);
    case.batch.trusted[2] = Some(1);
    near(&[loss_among(&case, 5)], &[wanted + 3.0_f64.ln() / 3.0]);
}

#[test]
fn targets_of_three_rows_are_divided_by_three() {
    let soft = [0.6, 0.3, 0.1, 0.2, 0.2, 0.6, 0.5, 0.25, 0.25];
    let logs = [0.843_795, 0.114_195, 0.042_010, 0.231_224, 0.628_532, 0.140_244_f64].map(f64::ln);
    let of_two: f64 = soft.iter().zip(logs).map(|(target, log)| -target * log).sum();
    let model = Dl { targets: Targets::Soft, ..Dl::default() };
    let case = of_three_rows(Case::new(&model)).with_targets(&soft);
    near(&[loss_among(&case, 5)], &[(of_two + 3.0_f64.ln()) / 3.0]);
    let votes = [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0];
    let model = SoftBootstrap { beta: Some(1.0), ..SoftBootstrap::default() };
    let case = of_three_rows(Case::new(&model)).with_targets(&votes);
    near(&[loss_among(&case, 5)], &[(3.0_f64.ln() - logs[0] - logs[5]) / 3.0]);
}

/// The third row of g is the prior, so that K is 1 for every h; its h is 1/3 each, and K = 0.855556, 1.188889 and 1.
#[test]
fn three_rows_have_three_pairs_of_the_same_and_six_of_others() {
    let model = MaxMig { u: 0.0, ..MaxMig::default() };
    let same = 3.0 + 1.278_448_f64.ln() + 1.350_409_f64.ln();
    let others = 0.590_858 + 0.812_857 + 1.0 + 1.0 + 0.855_556 + 1.188_889;
    let case = of_three_rows(max_mig_case(&model));
    near(&[loss_among(&case, 5)], &[others / 6.0 - same / 3.0]);
    case.check_gradient();
}

/// The batch contains only annotator 1, who gives row 0 the label 0: the loss uses the head of annotator 0.
#[test]
fn the_head_of_a_batch_s_own_annotator_is_left_out() {
    let model = WeightedDoctorNet::default();
    let mut case = Case::new(&model).with(0, &heads_of_biases()).with(1, &[0.4, -0.7]);
    case.phase = WEIGHTS_PHASE;
    case.batch.annotators = vec![1];
    case.batch.annotations.truncate(1);
    case.batch.offsets = vec![0, 1, 1];
    case.expect(0.5 * 2.0_f64.ln());
    case.batch.annotators = vec![0];
    case.expect(0.5 * 4.0_f64.ln());
}
