//! Divisors worked out by hand for batches whose numbers of rows, annotators, annotators in the batch and annotations
//! differ.

use super::uneven::{heads_of_biases, weighted};
use crate::model::neural::tests::fits::agreeing_with_features;
use crate::model::neural::tests::posteriors::near;
use crate::model::neural::tests::training_loop::trainer::trainer_of;
use crate::model::neural::tests::*;
use crate::model::saved::snapshot::Snapshot;

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
    let gathered = case.annotator_params.gather(&case.batch);
    let dims = Dims { annotators, ..annotations().dims() };
    let context = BatchContext { dims, ..case.context(&case.out, &gathered) };
    loss_and_gradient(case.model, &context).unwrap().0
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

/// The kind, its default divisor, and whether an epoch leaves out an incomplete last batch.
fn defaults_of<N: CrowdNet>() -> (&'static str, Option<Reduction>, bool) {
    (N::KIND, N::REDUCTION, N::DROPS_LAST_BATCH)
}

#[test]
fn every_kind_has_the_divisor_of_its_paper() {
    use Reduction::{MeanAnnotation, MeanInstance};
    let found = [
        // Mean cross-entropies of one target for each instance.
        defaults_of::<Dl>(),
        defaults_of::<SoftBootstrap>(),
        defaults_of::<AggNet>(),
        defaults_of::<Mbem>(),
        defaults_of::<Tcl>(),
        defaults_of::<Tcls>(),
        defaults_of::<Cvl>(),
        // The baseline of Tanno et al. 2019.
        defaults_of::<SingleConfusion>(),
        // The code of Max-MIG divides the losses of these two and of the crowd layer by the number of annotations.
        defaults_of::<DoctorNet>(),
        defaults_of::<WeightedDoctorNet>(),
        defaults_of::<CrowdLayer>(),
        // Tanno et al. 2019, equation 4, in the sample code's mean over a batch.
        defaults_of::<TraceRegularised>(),
        // Means over pairs of instances. The authors' code leaves out a batch that has not the whole size.
        defaults_of::<MaxMig>(),
        // Chu, Ma and Wang 2021: the mean over annotations.
        defaults_of::<Conal>(),
        // Means over instances of the likelihoods of all their annotations.
        defaults_of::<Lia>(),
        defaults_of::<LiaMulti>(),
    ];
    let wanted = [
        ("dl", None, false),
        ("soft_bootstrap", None, false),
        ("agg_net", None, false),
        ("mbem", None, false),
        ("tcl", None, false),
        ("tcls", None, false),
        ("cvl", None, false),
        ("single_confusion", Some(MeanInstance), false),
        ("doctor_net", Some(MeanAnnotation), false),
        ("weighted_doctor_net", Some(MeanAnnotation), false),
        ("crowd_layer", Some(MeanAnnotation), false),
        ("trace_regularised", Some(MeanInstance), false),
        ("max_mig", None, true),
        ("conal", Some(MeanAnnotation), false),
        ("lia", None, false),
        ("lia_multi", None, false),
    ];
    assert_eq!(found, wanted);
    let kinds: Vec<&str> = KINDS.iter().map(|kind| kind.kind).collect();
    assert_eq!(found.map(|(kind, ..)| kind)[..], kinds, "every kind has a row");
}

/// The weighted case with a fifth annotation: annotator 1 gives row 2 the label 2, with weight 1.5. The weights sum to
/// 5.25, for three rows and two of five annotators.
fn of_five_annotations<N: CrowdNet>(case: Case<'_, N>) -> Case<'_, N> {
    let mut case = weighted(of_three_rows(case));
    case.batch.annotations.push(BatchAnnotation { annotator: 1, label: 2, weight: 1.5 });
    case.batch.offsets[3] = 5;
    case
}

/// The first four weighted losses of the layers sum to 3.160796; the layer of annotator 1 maps equal probabilities to
/// (0.7, 1.5, 0.5) / 3, of which the label 2 has the loss 1.242583. The heads give ln 2, ln 4, ln 4, ln 2 and ln 2.
#[test]
fn layers_and_heads_divide_by_the_weights_of_annotations() {
    let layer = CrowdLayer::default();
    let case = of_five_annotations(Case::new(&layer)).with(0, &LAYERS);
    near(&[loss_among(&case, 5)], &[(3.160_796 + 1.5 * 1.242_583) / 5.25]);
    let heads = DoctorNet::default();
    let case = of_five_annotations(Case::new(&heads)).with(0, &heads_of_biases());
    near(&[loss_among(&case, 5)], &[(1.0 + 1.0 + 4.0 + 0.25 + 1.5) * 2.0_f64.ln() / 5.25]);
    let heads = WeightedDoctorNet::default();
    let case = of_five_annotations(Case::new(&heads)).with(0, &heads_of_biases());
    near(&[loss_among(&case, 5)], &[(1.0 + 1.0 + 4.0 + 0.25 + 1.5) * 2.0_f64.ln() / 5.25]);
}

/// Forty instances are five batches of seven, and five instances more.
#[test]
fn an_epoch_of_max_mig_leaves_out_its_incomplete_last_batch() {
    fn steps<N: CrowdNet>(model: N) -> u32 {
        let (a, with_features) = agreeing_with_features();
        let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
        let train = TrainSpec { epochs: 1, batch_size: Some(7), ..TrainSpec::default() };
        let (spec, mut job) = (on_cpu(train, model), JobContext::new(1));
        let batching = spec.network.train.batching(N::DROPS_LAST_BATCH);
        let data = TrainingData::new(evidence, None, false, batching).unwrap();
        let mut trainer = trainer_of(&spec, &data, evidence, &job);
        trainer.train(&mut job).unwrap();
        let mut snapshot = Snapshot::default();
        trainer.learners.save_moments(&mut snapshot).unwrap();
        snapshot.take_u32s("optimiser.net.steps", 1).unwrap()[0]
    }
    assert_eq!(steps(MaxMig::default()), 5);
    assert_eq!(steps(Conal::default()), 6);
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
        let model = TraceRegularised { lambda: 0.0, ..TraceRegularised::default() };
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
    let model = TraceRegularised { lambda: 0.02, ..TraceRegularised::default() };
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
