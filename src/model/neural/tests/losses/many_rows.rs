//! Losses over many rows, and heads that are not needed and so not computed.

use crate::model::neural::tests::posteriors::near;
use crate::model::neural::tests::*;

/// The loss by the formula, pair by pair, and every derivative; for the other divergences the derivatives.
#[test]
fn the_loss_of_seventy_rows_is_that_of_all_their_pairs() {
    const ROWS: usize = 70;
    let model = MaxMig::default();
    let mut case = Case::new(&model).with(0, &RHO);
    let value = |n: usize| ((n * 37 % 101) as f64 / 25.0 - 2.0).sin();
    let rows: Vec<u32> = (0..ROWS as u32).collect();
    let annotation = |b: &u32| BatchAnnotation { annotator: b % 2, label: b / 2 % 3, weight: 1.0 };
    case.batch = Batch {
        offsets: (0..=ROWS).collect(),
        annotations: rows.iter().map(annotation).collect(),
        instances: rows.clone(),
        rows,
        trusted: vec![None; ROWS],
        trusted_share: vec![1.0; ROWS],
        ..case.batch
    };
    let logits: Vec<f64> = (0..ROWS * 3).map(value).collect();
    let softmaxes = |logits: &[f64]| {
        let mut p = vec![0.0; logits.len()];
        for (logits, p) in logits.chunks(3).zip(p.chunks_mut(3)) {
            softmax(logits, p);
        }
        p
    };
    let p = softmaxes(&logits);
    // The prior is 1/3 for each class, and adds nothing to g.
    let cell = |b: usize, k: usize| f64::from(RHO[b % 2 * 9 + k * 3 + b / 2 % 3]);
    let sums: Vec<f64> =
        (0..ROWS).flat_map(|b| (0..3).map(move |k| (b, k))).map(|(b, k)| cell(b, k)).collect();
    let g = softmaxes(&sums);
    let (mut same, mut others) = (0.0, 0.0);
    for (i, j) in (0..ROWS).flat_map(|i| (0..ROWS).map(move |j| (i, j))) {
        let shared: f64 = (0..3).map(|k| 3.0 * p[i * 3 + k] * g[j * 3 + k]).sum();
        if i == j {
            same += 1.0 + (shared + model.u).ln();
        } else {
            others += shared;
        }
    }
    case.out = Outputs { rows: ROWS, logits, p, ..Outputs::default() };
    let n = ROWS as f64;
    near(&[case.value()], &[others / (n * (n - 1.0)) - same / n]);
    case.check_gradient();
    let others = [ReverseKl, Pearson, Hellinger, JensenShannon, TotalVariation]
        .map(|divergence| MaxMig { divergence, ..MaxMig::default() });
    for model in &others {
        case = Case { model, ..case };
        case.check_gradient();
    }
}

/// Row 0 shares no class with its annotations, and u is 0: its K is 0, and the derivative is that at 1e-12.
#[test]
fn rows_that_share_no_class_are_drawn_together() {
    let model = MaxMig { u: 0.0, ..MaxMig::default() };
    let mut table = vec![0.0; 18];
    table[0] = -1000.0;
    let mut case = Case::new(&model).with(0, &table);
    case.batch.annotations.truncate(1);
    (case.batch.annotations[0].annotator, case.batch.annotations[0].label) = (0, 0);
    case.batch.offsets = vec![0, 1, 1];
    case.out.p[..3].copy_from_slice(&[1.0, 0.0, 0.0]);
    let (loss, gradient) = case.loss(&case.out, &case.annotator_params.gather(&case.batch));
    assert!(loss.is_finite());
    // -1/2 (1 / 1e-12) g / prior, with g = 1/2 and the prior 1/3, which is an f32.
    let slope = gradient.out.p[1] / -0.75e12;
    assert!((slope - 1.0).abs() < 1e-6, "{slope}");
}

/// The batch contains only annotator 1, and the head of annotator 0 is set to NaN.
#[test]
fn losses_and_likelihoods_compute_the_heads_of_their_own_annotators() {
    let model = DoctorNet::default();
    let mut case = Case::new(&model);
    case.batch.annotators = vec![1];
    case.batch.annotations.iter_mut().for_each(|annotation| annotation.annotator = 0);
    let gathered = case.annotator_params.gather(&Batch { annotators: vec![1], ..Batch::default() });
    let predicted = |case: &Case<'_, DoctorNet>| {
        let context = case.context(&case.out, &gathered);
        (case.loss(&case.out, &gathered), model.likelihood(&context))
    };
    let wanted = predicted(&case);
    assert!(case.predicted().classes.iter().all(|p| p.is_finite()));
    let width = case.annotator_params.tables[0].width;
    case.annotator_params.tables[0].values[..width].fill(f32::NAN);
    assert_eq!(predicted(&case), wanted);
    assert!(case.predicted().classes.iter().all(|p| p.is_nan()));
    // The mean of all heads would read their weights.
    case.annotator_params.tables[1].values.clear();
    assert_eq!(predicted(&case), wanted);
}
